"""Answers from the table of winners: without the daemon's word, and never better than that would be."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ktuned_client import Client
from ktuned_client.table import TABLE_NAME, USES_NAME, WATCHED_WORD, Table, find_slot
from tests.client import daemon
from tests.client.test_memo import PATIENT_S, age_answers, asked, write_word

Publish = Callable[..., None]


@pytest.fixture
def publish(path: str, served: object) -> Publish:
    """Return a function that has the daemon publish a winner of ``p:gemm``."""

    def published(problem: dict[str, Any], **options: Any) -> None:
        with Client(path, deadline_s=PATIENT_S) as client:
            client.call("publish_winner", kernel="p:gemm", problem=problem, **options)

    return published


def test_a_problem_that_was_never_asked_needs_no_daemon(path: str, publish: Publish) -> None:
    """Its answer is whole, stays the same object, and no connection was made for it; the use is noted."""
    publish({"M": 1, "N": 2}, config={"BM": 64})
    with Client(path, deadline_s=PATIENT_S) as client:
        hit = client.lookup("p:gemm", {"N": 2, "M": 1})
        assert client.bind("p:gemm")({"N": 2, "M": 1}) is hit
        assert client.lookup_many([("p:gemm", {"M": 1, "N": 2})])[0]._replace(problem=hit.problem) == hit
        assert client._transport._shared is None
        assert hit._replace(generation=None) == (
            "p:gemm",
            {"N": 2, "M": 1},
            "cpu",
            "fresh",
            {"BM": 64},
            1.5,
            None,
            1.0,
            None,
            "",
            True,
            {},
            "/tune.py",
            None,
            "latency",
            None,
        )
        assert client.lookup("p:gemm", {"M": 1, "N": 2}, device="cpu:0", objective="latency").config == {"BM": 64}
        assert asked(client) == 0
    uses = (Path(path).parent / USES_NAME).read_bytes()
    assert any(uses[8 * find_slot("p:gemm") :][:8])


def test_the_last_resort_is_given_when_no_daemon_answers(path: str, publish: Publish) -> None:
    """A winner that may have changed is the daemon's to confirm. If that is silent, it is better than a default."""
    publish({"M": 1}, config={"BM": 64}, status="stale", asks_first=True)
    with Client(path, deadline_s=PATIENT_S) as client:
        assert client.lookup("p:gemm", {"M": 1}).config == {"BM": 1}
        assert asked(client) == 1
    with Client(str(Path(path).parent / "none"), deadline_s=PATIENT_S) as client:
        hit = client.lookup("p:gemm", {"M": 1}, {"BM": 2})
        assert (hit.status, hit.config) == ("stale", {"BM": 64})


def test_a_question_that_the_table_lacks_goes_to_the_daemon(path: str, publish: Publish) -> None:
    """Other problems and types, devices, objectives and kernels are the daemon's."""
    publish({"M": 1})
    questions: list[dict[str, Any]] = [
        {"problem": {"M": 2}},
        {"problem": {"M": 1.0}},
        {"problem": {"M": True}},
        {"problem": {"M": 1}, "device": "cpu:1"},
        {"problem": {"M": 1}, "objective": "min:energy"},
        {"problem": {"M": 1}, "kernel": "p:other"},
        {"problem": {"M": 1}, "kernel": "gemm"},
    ]
    with Client(path, deadline_s=PATIENT_S) as client:
        for count, question in enumerate(questions, start=1):
            client.lookup(**{"kernel": "p:gemm", **question})
            assert asked(client) == count


def test_a_problem_is_answered_by_its_bucket(path: str, publish: Publish) -> None:
    """Rules that are data are the client's to apply; what was measured is named where it is another problem."""
    whole = {"N": 1024, "name": "x", "scale": 1.0}
    publish(
        {"N": 1024},
        config={"BN": 8},
        specialize=["N"],
        bucket={"N": "pow2"},
        keys=[["N", "name", "scale"]],
        measured=whole,
    )
    with Client(path, deadline_s=PATIENT_S) as client:
        for problem, measured in (
            ({"name": "y", "N": 1000, "scale": 1.0}, whole),
            ({"name": "x", "N": 1024, "scale": 1.0}, None),
            ({"name": "x", "N": 1024, "scale": 1}, whole),
        ):
            hit = client.lookup("p:gemm", problem)
            assert (hit.status, hit.config, hit.problem, hit.measured) == ("fresh", {"BN": 8}, problem, measured)
        assert asked(client) == 0
        refused: list[dict[str, Any]] = [
            {"N": 1000},
            {"N": 1000, "name": "x", "scale": float("nan")},
            {"N": 1000, "nmae": "x", "scale": 1.0},
            {"N": 3000, "name": "x", "scale": 1.0},
        ]
        for count, problem in enumerate(refused, start=1):
            client.lookup("p:gemm", problem)
            assert asked(client) == count


def test_an_answer_that_is_not_fresh_is_asked_for_again_in_time(path: str, publish: Publish) -> None:
    """The daemon counts who waits for a tuning; a fresh answer holds for as long as the table says so."""
    publish({"M": 1}, status="stale")
    publish({"M": 2})
    with Client(path, deadline_s=PATIENT_S) as client:
        assert [client.lookup("p:gemm", {"M": size}).status for size in (1, 2)] == ["stale", "fresh"]
        age_answers(client)
        assert client.lookup("p:gemm", {"M": 2}).status == "fresh"
        assert asked(client) == 0
        client.lookup("p:gemm", {"M": 1})
        assert asked(client) == 1


def test_a_change_is_seen_at_once(path: str, publish: Publish) -> None:
    """After a bump the entry ends, also where it was kept decoded; published again, it answers again."""
    publish({"M": 1}, config={"BM": 1})
    with Client(path, deadline_s=PATIENT_S) as client:
        assert client.lookup("p:gemm", {"M": 1}).config == {"BM": 1}
        client.call("bump", kernel="p:gemm")
        client.lookup("p:gemm", {"M": 1})
        assert asked(client) == 1
        client.call("bump", kernel="p:gemm")
        publish({"M": 1}, config={"BM": 2})
        assert client.lookup("p:gemm", {"M": 1}).config == {"BM": 2}
        assert asked(client) == 1


def test_the_table_answers_while_no_daemon_does(path: str) -> None:
    """A process that starts then has the winners too: fresh until the watch has ended, then stale with the reason."""
    with daemon.running(path) as process:
        with Client(path, deadline_s=PATIENT_S) as client:
            client.call("publish_winner", kernel="p:gemm", problem={"M": 1})
        process.kill()
        process.join()
        with Client(path, deadline_s=PATIENT_S) as client:
            assert client.lookup("p:gemm", {"M": 1}).status == "fresh"
            write_word(path, WATCHED_WORD, 1)
            age_answers(client)
            assert client.lookup("p:gemm", {"M": 1}).status == "stale"
        with Client(path, deadline_s=PATIENT_S) as client:
            hit = client.lookup("p:gemm", {"M": 1})
            assert (hit.status, hit.config) == ("stale", {"M": 1})
            assert hit.message.startswith("no daemon watches its files now: ")
            assert client.lookup("p:gemm", {"M": 2}).status == "unavailable"


def test_the_next_daemons_table_is_found(path: str) -> None:
    """A client that has mapped the last one's reads the new one, and takes nothing of before for true."""
    with Client(path, deadline_s=PATIENT_S) as client:
        for turn in range(3):
            with daemon.running(path) as process:
                if turn:
                    client.lookup("p:gemm", {"M": 1})
                    assert asked(client) == 1
                client.call("publish_winner", kernel="p:gemm", problem={"M": 1}, config={"turn": turn})
                client._memo.answers.clear()
                assert client.lookup("p:gemm", {"M": 1}).config == {"turn": turn}
                process.kill()
                process.join()


def test_words_have_the_byte_order_of_the_machine(path: str, publish: Publish) -> None:
    """The number of words in the file is in word 1, as this machine writes numbers."""
    publish({"M": 1})
    content = (Path(path).parent / TABLE_NAME).read_bytes()
    assert int.from_bytes(content[8:16], sys.byteorder) == len(content)
    table = Table(str(Path(path).parent / TABLE_NAME))
    assert len(table.words) == len(content) // 8
    table.close()
