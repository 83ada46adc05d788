"""Requests and answers arrive equal, whatever their values; anything else is refused with the field's name."""

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
from ktuned.model import TrialResult
from ktuned.model.values import Outcome
from tests.trials import make_detail

OPERATIONS = requests.REQUESTS
TEXT = st.text(max_size=8)
NUMBERS = st.floats(allow_nan=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
"""Values for ``Any``, which a backend or a kernel file may put into a message."""


def make_strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a field's type."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    if hint is Any:
        return PLAIN
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{name: get_strategy(hints[name]) for name in hint.__struct_fields__})
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(get_strategy, arguments))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(get_strategy, arguments))
    if origin is tuple:
        return st.lists(get_strategy(arguments[0]), max_size=3).map(tuple)
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        return st.dictionaries(TEXT, get_strategy(arguments[1]), max_size=3)
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


get_strategy: Callable[[Any], st.SearchStrategy[Any]] = functools.cache(make_strategy)
"""Returns the strategy for a field's type; it is cached, because making one takes longer than drawing from it."""


def receive_message(frame: bytes) -> bytes:
    """Return a frame's message as the other side gets it."""
    (message,) = Decoder().feed(frame)
    return message


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_request_arrives_unchanged(operation: type[requests.Request[Any, Any]], data: st.DataObject) -> None:
    request = data.draw(get_strategy(operation))
    assert requests.decode(receive_message(requests.encode(request))) == request


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_an_answer_arrives_unchanged(operation: type[requests.Request[Any, Any]], data: st.DataObject) -> None:
    """Replies, items and failures are each recognised."""
    reply, item = requests.find_answer_types(operation)
    kinds: list[st.SearchStrategy[replies.Answer]] = [get_strategy(reply).map(replies.Done)]
    kinds += [get_strategy(replies.Failure).map(replies.Failed)]
    kinds += [] if item is None else [get_strategy(item).map(replies.Item)]
    answer: replies.Answer = data.draw(st.one_of(kinds))
    assert replies.decode(receive_message(replies.encode(answer)), reply, item) == answer


@given(message=st.dictionaries(TEXT | st.sampled_from(["op", "phase", "item", "done", "failed"]), PLAIN, max_size=4))
def test_nonsense_raises_invalid_message_alone(message: dict[str, Any]) -> None:
    """Any map is a request, an answer or an InvalidMessage, never another exception."""
    data = msgspec.msgpack.encode(message)
    for decode in (requests.decode, lambda it: replies.decode(it, replies.Measurement, replies.CompiledUnit)):
        with contextlib.suppress(InvalidMessage):
            decode(data)


@given(st.binary(max_size=60))
def test_garbage_raises_invalid_message_alone(data: bytes) -> None:
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
    with pytest.raises(InvalidMessage, match=reason):
        replies.decode(data, replies.Empty, None)


@pytest.mark.parametrize(
    "message", [{}, {"what": 1}, {"phase": [1]}, {"phase": "sing"}, {"item": {}}, {"done": 5}, {"failed": {"code": 1}}]
)
def test_a_message_that_is_no_answer_is_refused(message: dict[str, Any]) -> None:
    """Code in a worker may write to its pipe; an operation without items sends none."""
    with pytest.raises(InvalidMessage):
        replies.decode(msgspec.msgpack.encode(message), replies.Empty, None)


def test_a_measurement_leaves_out_what_holds_its_default() -> None:
    """Most fields hold their default, and a worker sends many measurements."""
    measurement = replies.Measurement(TrialResult(Outcome.MEASURED, detail=make_detail(cores=2)))
    plain = msgspec.to_builtins(measurement)
    assert (plain.keys(), plain["result"]["detail"]) == ({"result"}, {"profile": {"cores": 2}})
    assert msgspec.convert(plain, replies.Measurement) == measurement


def test_a_request_names_no_place_of_this_machine() -> None:
    """Files are relative to their project, so another machine's worker resolves them in its own directories. A path
    that shares no directory with the project is the system's and stays absolute.
    """
    root = "/home/me/project"
    paths = [f"{root}/tune_it.py", f"{root}/sub/k.cu", "/home/me/headers/k.h", f"{root}x/k.h", "/usr/local/bin/as"]
    names = [make_relative(path, root) for path in paths]
    assert names == ["tune_it.py", "sub/k.cu", "../headers/k.h", "../projectx/k.h", "/usr/local/bin/as"]
    assert [make_absolute(name, root) for name in names] == paths
    places = Places({"p": "/srv/p"}, "/srv/artifacts", "/srv/expected")
    assert Places.from_argument(places.to_argument()) == places
    assert [str(places.locate_file("p", name)) for name in names[1:3]] == ["/srv/p/sub/k.cu", "/srv/headers/k.h"]
    assert str(places.locate_artifact("ab12")) == "/srv/artifacts/ab/ab12"
    with pytest.raises(InvalidMessage, match="does not have the project 'q'"):
        places.locate_file("q", "tune_it.py")
    assert str(places.locate_file("p", names[-1])) == "/usr/local/bin/as"


def test_frames_stay_plain_messagepack() -> None:
    """Enums and tuples travel as strings and lists, so any MessagePack reader can follow a conversation."""
    frame = replies.encode(replies.Done(replies.Admitted((True, False))))
    assert msgpack.unpackb(frame[4:]) == {"done": {"admitted": [True, False]}}
