"""Requests and answers: whatever their values, they arrive equal; anything else is refused with the field's name."""

import contextlib
import functools
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktuned.ipc import (
    InvalidMessage,
    Places,
    make_absolute,
    make_relative,
    replies,
    requests,
)
from ktuned.ipc.frames import Decoder
from ktuned.model import TrialDetail, TrialResult
from ktuned.model.values import Outcome

OPERATIONS = requests.REQUESTS
TEXT = st.text(max_size=8)
NUMBERS = st.floats(allow_nan=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
"""Stands for ``Any``: what a backend or a kernel file may put into a message."""


def make_strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a field's type."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    if hint is Any:
        return PLAIN
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{name: values_of(hints[name]) for name in hint.__struct_fields__})
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(values_of, arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is Mapping or getattr(origin, "__name__", "") == "Mapping":
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXT,
        bool: st.booleans(),
        bytes: st.binary(max_size=8),
        int: st.integers(-(2**63), 2**63),
        float: NUMBERS,
        type(None): st.none(),
    }
    return simple[hint]


values_of: Callable[[Any], st.SearchStrategy[Any]] = functools.cache(make_strategy)
"""Returns the strategy for a field's type, the same each time: to make one takes longer than to draw from it."""


def received(frame: bytes) -> bytes:
    """Return a frame's message as the other side gets it."""
    (message,) = Decoder().feed(frame)
    return message


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_request_arrives_unchanged(operation: type[requests.Request[Any, Any]], data: st.DataObject) -> None:
    """Every field of every request survives the pipe."""
    request = data.draw(values_of(operation))
    assert requests.decode(received(requests.encode(request))) == request


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_an_answer_arrives_unchanged(operation: type[requests.Request[Any, Any]], data: st.DataObject) -> None:
    """Replies, items and failures survive the pipe, each recognised as what it is."""
    reply, item = requests.find_answer_types(operation)
    kinds: list[st.SearchStrategy[replies.Answer]] = [values_of(reply).map(replies.Done)]
    kinds += [values_of(replies.Failure).map(replies.Failed)]
    kinds += [] if item is None else [values_of(item).map(replies.Item)]
    answer: replies.Answer = data.draw(st.one_of(kinds))
    assert replies.decode(received(replies.encode(answer)), reply, item) == answer


@given(message=st.dictionaries(TEXT | st.sampled_from(["op", "phase", "item", "done", "failed"]), PLAIN, max_size=4))
def test_nonsense_raises_invalid_message_alone(message: dict[str, Any]) -> None:
    """Any map at all is a request, an answer or an InvalidMessage; never another exception."""
    data = msgspec.msgpack.encode(message)
    for decode in (requests.decode, lambda it: replies.decode(it, replies.Measurement, replies.CompiledUnit)):
        with contextlib.suppress(InvalidMessage):
            decode(data)


@given(st.binary(max_size=60))
def test_garbage_raises_invalid_message_alone(data: bytes) -> None:
    """So does what is no MessagePack."""
    with pytest.raises(InvalidMessage):
        requests.decode(data)
    with contextlib.suppress(InvalidMessage):
        replies.decode(data, replies.Empty, None)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({}, "missing required field `op`"),
        ({"op": ["Ask"]}, "got `array` - at `$.op`"),
        ({"op": "Sing"}, "Invalid value 'Sing' - at `$.op`"),
        ({"op": "Ask"}, "missing required field `n`"),
        ({"op": "Ask", "n": "4"}, "Expected `int`, got `str` - at `$.n`"),
        ({"op": "Ask", "n": True}, "Expected `int`, got `bool` - at `$.n`"),
        ({"op": "Ask", "n": 4, "tried": {}}, "Expected `array`, got `object` - at `$.tried`"),
        ({"op": "Ask", "n": 4, "tried": [{"config": {}}]}, "missing required field `outcome` - at `$.tried[0]`"),
        (
            {"op": "Ask", "n": 4, "tried": [{"config": {1: 2}, "outcome": "hung"}]},
            "Expected `str`, got `int` - at `key` in `$.tried[0].config`",
        ),
        (
            {"op": "Ask", "n": 4, "tried": [{"config": {}, "outcome": "sung"}]},
            "Invalid enum value 'sung' - at `$.tried[0].outcome`",
        ),
        ({"op": "Canary", "device": None}, "Expected `object`, got `None` - at `$.device`"),
        ({"op": "Prepare", "backends": [b"x"]}, "Expected `str`, got `bytes` - at `$.backends[0]`"),
        ("Ask", "Expected `object`, got `str`"),
    ],
)
def test_a_refusal_names_the_field(message: object, reason: str) -> None:
    """One line says which field is missing or of the wrong type."""
    with pytest.raises(InvalidMessage) as caught:
        requests.decode(msgspec.msgpack.encode(message))
    assert caught.value.message.endswith(reason)
    assert caught.value.code == "invalid_message"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"\xc1", "malformed"),
        (b"\x81\xa1a", "truncated"),
        (b"\x80\x80", "trailing"),
        (b"\x91" * 5000, "Expected `object`"),
    ],
    ids=["empty", "never-used", "cut-short", "two", "deep"],
)
def test_what_is_no_messagepack_is_named(data: bytes, reason: str) -> None:
    """It is an invalid message like any other."""
    with pytest.raises(InvalidMessage, match=reason):
        replies.decode(data, replies.Empty, None)


@pytest.mark.parametrize(
    "bad", [{}, {"what": 1}, {"phase": [1]}, {"phase": "sing"}, {"item": {}}, {"done": 5}, {"failed": {"code": 1}}]
)
def test_a_message_that_is_no_answer_is_refused(bad: dict[str, Any]) -> None:
    """A worker's pipe may be written by the code that it runs; an operation without items sends none."""
    with pytest.raises(InvalidMessage):
        replies.decode(msgspec.msgpack.encode(bad), replies.Empty, None)


def test_a_measurement_leaves_out_what_holds_its_default() -> None:
    """Most of its fields do, and its worker sends many."""
    sent = replies.Measurement(TrialResult(Outcome.MEASURED, detail=TrialDetail(cores=2)))
    plain = msgspec.to_builtins(sent)
    assert (plain.keys(), plain["result"]["detail"]) == ({"result"}, {"cores": 2})
    assert msgspec.convert(plain, replies.Measurement) == sent


def test_a_request_names_no_place_of_this_machine() -> None:
    """Files are relative to their project; another machine's worker resolves the same request in its own places.

    What has no directory in common with the project is the system's, and lies there where it does here.
    """
    here = "/home/me/project"
    paths = [f"{here}/tune_it.py", f"{here}/sub/k.cu", "/home/me/headers/k.h", f"{here}x/k.h", "/usr/local/bin/as"]
    named = [make_relative(path, here) for path in paths]
    assert named == ["tune_it.py", "sub/k.cu", "../headers/k.h", "../projectx/k.h", "/usr/local/bin/as"]
    assert [make_absolute(name, here) for name in named] == paths
    there = Places({"p": "/srv/p"}, "/srv/artifacts", "/srv/expected")
    assert Places.from_argument(there.to_argument()) == there
    assert [str(there.locate_file("p", name)) for name in named[1:3]] == ["/srv/p/sub/k.cu", "/srv/headers/k.h"]
    assert str(there.locate_artifact("ab12")) == "/srv/artifacts/ab/ab12"
    with pytest.raises(InvalidMessage, match="does not have the project 'q'"):
        there.locate_file("q", "tune_it.py")
    assert str(there.locate_file("p", named[-1])) == "/usr/local/bin/as"


def test_frames_stay_plain_messagepack() -> None:
    """Enums and tuples travel as strings and lists, so that any MessagePack reader can follow a conversation."""
    frame = replies.encode(replies.Done(replies.Admitted((True, False))))
    assert msgpack.unpackb(frame[4:]) == {"done": {"admitted": [True, False]}}
