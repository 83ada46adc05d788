"""Answers by the bytes of their questions: only for whole lookups, only when they were answered, only for a while."""

import pytest

from ktuned.serve import responses
from ktuned.serve.responses import Responses
from ktuned_client import wire

PARAMS = {"kernel": "p:k", "problem": {"M": 1}}
ANSWER = {"status": "fresh", "config": {"BM": 1}}


def question(request_id: int = 1, method: str = "lookup") -> bytes:
    """Return a request's bytes."""
    return wire.encode_request(request_id, method, PARAMS)


def response(request_id: int = 1, error: dict[str, str] | None = None) -> bytes:
    """Return a response's bytes."""
    return wire.encode_response(request_id, error, ANSWER)


@pytest.mark.parametrize("asked", [0, 127, 128, 255, 256, 65535, 65536, wire.MAX_ID])
@pytest.mark.parametrize("asked_before", [0, 200, 2**31])
def test_the_answer_bears_the_id_of_its_question(asked: int, asked_before: int) -> None:
    """In whatever form a client writes its ids, the response is the one that would have been made."""
    known = Responses(lambda: 0)
    assert known.find_response(question(asked_before)) is None
    known.keep_response(question(asked_before), response(asked_before))
    found = known.find_response(question(asked))
    assert found is not None
    assert wire.Decoder().feed(found) == [wire.Response(asked, None, ANSWER)]
    assert known.taken == 1


@pytest.mark.parametrize("count", [1, 15, 16, 250])
@pytest.mark.parametrize("encode", ["client's", "any library's"])
def test_many_lookups_at_once_are_kept_as_one(count: int, encode: str) -> None:
    """Whatever form the list's length has, the whole answer is found, and each of its lookups counts."""
    question = wire.encode_request_head(7) + wire.encode_lookups(
        [
            wire.encode_lookup_opening("p:k", None, None) + b"\x81\xa1M" + bytes((number % 128,))
            for number in range(count)
        ]
    )
    if encode != "client's":
        lookups = [{"kernel": "p:k", "problem": {"M": number % 128}} for number in range(count)]
        question = wire.encode_request(7, "lookup_many", {"lookups": lookups})
    told = {"answers": [{**ANSWER, "kernel": "p:k" * 80}] * count}
    known = Responses(lambda: 0)
    known.keep_response(question, wire.encode_response(7, None, told))
    for _ in range(2):
        found = known.find_response(question)
        assert found is not None
        assert wire.Decoder().feed(found) == [wire.Response(7, None, told)]
    assert (known.taken, known.lookups) == (2, 2 * count)


def test_only_answers_to_lookups_are_kept() -> None:
    """Neither errors nor other methods, nor notifications, nor many lookups whose number the bytes do not show."""
    known = Responses(lambda: 0)
    known.keep_response(wire.encode_request(1, "lookup_many", {"more": 1, "lookups": [PARAMS]}), response())
    known.keep_response(wire.encode_request(1, "lookup_many", {"lookups": []}), response())
    known.keep_response(question(), response(error={"code": "usage", "message": "no", "hint": ""}))
    known.keep_response(question(method="status"), response())
    known.keep_response(wire.encode_notification("lookup", PARAMS), response())
    assert len(known) == 0


@pytest.mark.parametrize(
    "data",
    [b"", b"\x94", b"\x94\x00", b"\x94\x00\x01", question()[:-1], question() + b"\x94", b"\x93" + question()[1:]],
)
def test_other_bytes_are_not_taken_for_the_question(data: bytes) -> None:
    """A part of a request, more than one, or another kind of message finds nothing."""
    known = Responses(lambda: 0)
    known.keep_response(question(), response())
    assert known.find_response(data) is None


def test_what_changed_and_what_is_old_is_worked_out_again() -> None:
    """A new version ends every answer at once, and time each one by itself."""
    now, version = 0.0, 0
    known = Responses(lambda: version, clock=lambda: now)
    known.keep_response(question(), response())
    now += responses.HOLDS_S
    assert known.find_response(question()) is None
    known.keep_response(question(), response())
    assert known.find_response(question()) is not None
    version = 1
    assert known.find_response(question()) is None
    assert len(known) == 0


def test_what_is_kept_is_bounded() -> None:
    """Neither many questions nor large ones fill the memory."""
    known = Responses(lambda: 0, max_questions=3)
    for number in range(10):
        asked = wire.encode_request(1, "lookup", {"kernel": "p:k", "problem": {"M": number}})
        known.keep_response(asked, response())
        assert known.find_response(asked) is not None
        assert len(known) <= 3
    large = wire.encode_request(1, "lookup", {"kernel": "k" * responses.MAX_QUESTION_BYTES, "problem": {}})
    known.keep_response(large, response())
    assert known.find_response(large) is None


def test_all_that_is_kept_is_bounded_in_bytes() -> None:
    """What is too much together goes; the same question again takes the room of its last answer."""
    known = Responses(lambda: 0, max_bytes=3 * (len(question()) + len(response())))
    for _ in range(10):
        known.keep_response(question(), response())
    assert known.find_response(question()) is not None
    for number in range(10):
        known.keep_response(wire.encode_request(1, "lookup", {**PARAMS, "problem": {"M": number}}), response())
        assert len(known) <= 3


def test_old_answer_tells_how_often_it_was_given() -> None:
    """A repeated answer comes with how many asked meanwhile, once; another question has its own count."""
    now = 0.0
    known = Responses(lambda: 0, clock=lambda: now)
    known.keep_response(question(), response())
    for _ in range(3):
        assert known.find_response(question()) is not None
    assert known.repeats == 0
    now += responses.HOLDS_S
    assert known.find_response(question()) is None
    assert known.repeats == 3
    assert known.find_response(question()) is None
    assert known.repeats == 0
