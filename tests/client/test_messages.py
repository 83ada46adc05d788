"""The client's types of messages have the fields of the daemon's: nothing else would notice that they part."""

import types
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import (
    Any,
    Literal,
    NewType,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
import pytest

from ktuned import protocol
from ktuned.model import Plan, Scalar, TrialDetail
from ktuned.protocol import Trial
from ktuned_client import messages

SENT = {
    "Answer": protocol.Answer,
    "FileError": protocol.FileError,
    "Job": protocol.JobInfo,
    "Plan": Plan,
    "RefusedLookup": protocol.RefusedLookup,
    "StreamPosition": protocol.StreamPosition,
    "Trial": Trial,
    "TuneAnswer": protocol.TuneAnswer,
}
"""The daemon's types of the messages that are not events, by the client's names."""

EVENTS = {name: hint for hint in get_args(messages.Event) for name in get_args(get_type_hints(hint)["type"])}
TYPES = {name: kind for name, kind in vars(messages).items() if is_typeddict(kind) and not name.startswith("_")}


def _list_fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the client's type of each field that the daemon sends of a struct, and whether it always is."""
    hints = get_type_hints(kind)
    leaves_out = kind.__struct_config__.omit_defaults
    return {
        field.encode_name: (
            _to_client_type(hints[field.name]),
            (field.required or not leaves_out) and msgspec.UnsetType not in get_args(hints[field.name]),
        )
        for field in msgspec.structs.fields(kind)
        if field.name != "key_problem"
    }


def _to_client_type(hint: Any) -> Any:
    """Return the type that the client has for a type of the daemon."""
    if hint == Scalar:
        return Any
    if hint is TrialDetail:
        return Mapping[str, Any]
    if isinstance(hint, NewType):
        return _to_client_type(hint.__supertype__)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return reduce(or_, (_to_client_type(arg) for arg in args if arg is not msgspec.UnsetType))
    if origin is Mapping:
        return Mapping[tuple(map(_to_client_type, args))]  # type: ignore[misc]
    if origin in (tuple, Sequence, list):
        return list[_to_client_type(args[0])]  # type: ignore[misc]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Literal[tuple(map(str, hint))]
    return next((TYPES[name] for name, kind in SENT.items() if kind is hint), hint)


def _list_client_fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """Return a TypedDict's types, and whether a field is required."""
    fields = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        is_sent = get_origin(hint) is not NotRequired
        fields[name] = (hint if is_sent else get_args(hint)[0], is_sent)
    return fields


@pytest.mark.parametrize("name", SENT)
def test_a_message_has_the_daemons_fields_and_types(name: str) -> None:
    """A field that only one side has, or that has another type there, fails."""
    assert _list_client_fields(TYPES[name]) == _list_fields(SENT[name])


@pytest.mark.parametrize("name", sorted(protocol.EVENT_TYPES.keys() | EVENTS.keys()))
def test_an_event_has_the_daemons_fields_and_types(name: str) -> None:
    """Every type of event is known to the client, with its fields."""
    fields = _list_client_fields(EVENTS[name])
    assert name in get_args(fields.pop("type")[0])
    assert fields == _list_fields(protocol.EVENT_TYPES[name])


def test_every_message_is_compared() -> None:
    """A new type in the client is an event, or has its counterpart in the daemon."""
    events = {kind.__name__ for kind in EVENTS.values()}
    # The daemon has no type for the mixture of answers and refusals.
    assert TYPES.keys() == SENT.keys() | events | {"LookupManyAnswer"}
