"""Requests and answers: whatever their values, they arrive equal; anything else is refused with the field's name."""

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktuned.ipc import (
    InvalidMessage,
    Places,
    from_plain,
    make_absolute,
    make_relative,
    replies,
    requests,
    to_message,
    to_plain,
)
from ktuned.ipc.frames import Decoder
from ktuned.model import TrialDetail, TrialResult
from ktuned.model.values import Outcome

OPERATIONS = (
    *(
        "prepare",
        "probe",
        "gpu_users",
        "inspect",
        "explore",
        "ask",
        "admits",
        "fit_portfolio",
        "open_front_end",
        "lower",
        "compile",
    ),
    *("open", "close", "canary", "measure_peaks", "trial", "time", "check", "time_reference"),
)
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
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {field.name: values_of(hints[field.name]) for field in dataclasses.fields(hint)}
        kind: Any = hint
        return st.builds(kind, **fields)
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


def received(frame: bytes) -> dict[str, Any]:
    """Return a frame's message as the other side decodes it."""
    (message,) = Decoder().feed(frame)
    return message


def test_every_operation_has_a_request() -> None:
    """The worker's operations are those that can be requested; each has a reply that can travel."""
    assert tuple(requests.REQUESTS) == OPERATIONS
    for request in requests.REQUESTS.values():
        for answer in filter(None, requests.find_answer_types(request)):
            assert dataclasses.is_dataclass(answer)


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_request_arrives_unchanged(operation: str, data: st.DataObject) -> None:
    """Every field of every request survives the pipe."""
    request = data.draw(values_of(requests.REQUESTS[operation]))
    assert requests.decode(received(requests.encode(request))) == request


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_an_answer_arrives_unchanged(operation: str, data: st.DataObject) -> None:
    """Replies, items and failures survive the pipe, each recognised as what it is."""
    reply, item = requests.find_answer_types(requests.REQUESTS[operation])
    kinds: list[st.SearchStrategy[replies.Answer]] = [values_of(reply).map(replies.Done)]
    kinds += [values_of(replies.Failure).map(replies.Failed)]
    kinds += [] if item is None else [values_of(item).map(replies.Item)]
    answer: replies.Answer = data.draw(st.one_of(kinds))
    assert replies.decode(received(replies.encode(answer)), reply, item) == answer


@given(message=st.dictionaries(TEXT | st.sampled_from(["op", "phase", "item", "done", "failed"]), PLAIN, max_size=4))
def test_nonsense_raises_invalid_message_alone(message: dict[str, Any]) -> None:
    """Any map at all is a request, an answer or an InvalidMessage; never another exception."""
    for decode in (requests.decode, lambda it: replies.decode(it, replies.Measurement, replies.CompiledUnit)):
        with contextlib.suppress(InvalidMessage):
            decode(message)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({}, "there is no operation None"),
        ({"op": ["ask"]}, "there is no operation ['ask']"),
        ({"op": "sing"}, "there is no operation 'sing'"),
        ({"op": "ask"}, "Ask.n is missing"),
        ({"op": "ask", "n": "4"}, "Ask.n is a string, not an integer"),
        ({"op": "ask", "n": True}, "Ask.n is a bool, not an integer"),
        ({"op": "ask", "n": 4, "tried": {}}, "Ask.tried is a map, not a list"),
        ({"op": "ask", "n": 4, "tried": [{"config": {}}]}, "Ask.tried.item.outcome is missing"),
        ({"op": "ask", "n": 4, "tried": [{"config": {1: 2}, "outcome": "hung"}]}, "Ask.tried.item.config.entry is an"),
        (
            {"op": "ask", "n": 4, "tried": [{"config": {}, "outcome": "sung"}]},
            "Ask.tried.item.outcome is 'sung', which is no Outcome",
        ),
        ({"op": "canary", "device": None}, "Canary.device is nothing, not a map"),
        ({"op": "prepare", "backends": [b"x"]}, "Prepare.backends.item is bytes, not a string"),
    ],
)
def test_a_refusal_names_the_field(message: dict[str, Any], reason: str) -> None:
    """One line says which field is missing or of the wrong type."""
    with pytest.raises(InvalidMessage) as caught:
        requests.decode(message)
    assert caught.value.message.startswith(reason)
    assert caught.value.code == "invalid_message"


@pytest.mark.parametrize(
    "bad", [{}, {"what": 1}, {"phase": [1]}, {"phase": "sing"}, {"item": {}}, {"done": 5}, {"failed": {"code": 1}}]
)
def test_a_message_that_is_no_answer_is_refused(bad: dict[str, Any]) -> None:
    """A worker's pipe may be written by the code that it runs; an operation without items sends none."""
    with pytest.raises(InvalidMessage):
        replies.decode(bad, replies.Empty, None)


def test_neighbouring_versions_understand_each_other() -> None:
    """Unknown fields are ignored, absent ones have their default."""
    plain = to_plain(TrialResult(Outcome.MEASURED, 1.5)) | {"of_the_future": 1}
    del plain["spread_us"]
    assert from_plain(TrialResult, plain) == TrialResult(Outcome.MEASURED, 1.5)
    assert from_plain(TrialResult, {"outcome": None, "latency_us": 3}).latency_us == 3.0


def test_a_message_leaves_out_what_holds_its_default_at_any_depth() -> None:
    """Most of a measurement's fields do, and its worker sends many."""
    plain = to_message(replies.Measurement(TrialResult(Outcome.MEASURED, detail=TrialDetail(cores=2))))
    assert plain == {"result": {"outcome": "measured", "detail": {"cores": 2}, "metrics": {}}}
    assert from_plain(replies.Measurement, plain).result.detail == TrialDetail(cores=2)


def test_a_request_names_no_place_of_this_machine() -> None:
    """Files are relative to their project; another machine's worker resolves the same request in its own places.

    What has no directory in common with the project is the system's, and lies there where it does here.
    """
    here = "/home/me/project"
    paths = [f"{here}/tune_it.py", f"{here}/sub/k.cu", "/home/me/headers/k.h", f"{here}x/k.h", "/usr/local/bin/as"]
    named = [make_relative(path, here) for path in paths]
    assert named == ["tune_it.py", "sub/k.cu", "../headers/k.h", "../projectx/k.h", "/usr/local/bin/as"]
    assert [make_absolute(name, here) for name in named] == paths
    there = Places({"p": "/srv/p"}, "/srv/artifacts", "/srv/captures", "/srv/expected")
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
