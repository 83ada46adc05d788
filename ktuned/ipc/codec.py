"""Frozen dataclasses as plain data and back, checked against their annotations.

When a type is first sent or received, a writer or a reader is made for it from its type hints. Unknown fields are
ignored, and fields with a default may be absent, so that a daemon and a worker of neighbouring versions understand each
other.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from ktuned.model import KtunedError

_T = TypeVar("_T")
_Converter = Callable[[Any], Any]

_TYPE_WORDS = {
    dict: "a map",
    list: "a list",
    str: "a string",
    bool: "a bool",
    int: "an integer",
    float: "a number",
    bytes: "bytes",
}


class InvalidMessage(KtunedError):
    """The other side of a pipe sent something that is no valid request or answer."""

    code = "invalid_message"


class _Mismatch(Exception):
    """A value has the wrong type; ``path`` leads to it, and is completed from the inside outwards."""

    def __init__(self, reason: str, *path: str) -> None:
        self.reason = reason
        self.path = list(path)


def to_plain(value: Any) -> dict[str, Any]:
    """Return a dataclass as plain data that MessagePack can carry."""
    kind: Any = type(value)
    plain: dict[str, Any] = _make_dataclass_writer(kind)(value)
    return plain


def to_message(value: Any) -> dict[str, Any]:
    """Return a dataclass as plain data without fields that hold their default, at any depth: most of a trial's do."""
    kind: Any = type(value)
    plain: dict[str, Any] = _make_message_writer(kind)(value)
    return plain


def from_plain(kind: type[_T], data: object) -> _T:
    """Rebuild a dataclass from :func:`to_plain`'s data.

    Raises:
        InvalidMessage: a field is missing or not of its type; the message names it.
    """
    try:
        value: _T = _make_reader(kind)(data)
    except _Mismatch as mismatch:
        place = ".".join([kind.__name__, *mismatch.path])
        raise InvalidMessage(f"{place} {mismatch.reason}") from None
    return value


@cache
def _make_dataclass_writer(kind: Any) -> _Converter:
    hints = typing.get_type_hints(kind)
    writers = [(field.name, _make_writer(hints[field.name])) for field in dataclasses.fields(kind)]
    plain = [name for name, write in writers if write is None]
    nested = [(name, write) for name, write in writers if write is not None]

    def encode_fields(value: Any) -> dict[str, Any]:
        data = {name: getattr(value, name) for name in plain}
        for name, write in nested:
            data[name] = write(getattr(value, name))
        return data

    return encode_fields


@cache
def _make_message_writer(kind: Any) -> _Converter:
    hints = typing.get_type_hints(kind)
    writers = {
        field.name: (field.default, _make_writer(hints[field.name], _make_message_writer))
        for field in dataclasses.fields(kind)
    }

    def encode_fields(value: Any) -> dict[str, Any]:
        data = {}
        # A record may leave out fields with default values. A dataclass with slots has no vars.
        for name in getattr(value, "__dict__", writers):
            default, write = writers[name]
            held = getattr(value, name)
            if held is not default:
                data[name] = held if write is None else write(held)
        return data

    return encode_fields


def _make_writer(hint: Any, write_dataclass: _Converter = _make_dataclass_writer) -> _Converter | None:
    """Return a function that turns a value into plain data, or None if MessagePack takes the value unchanged.

    ``write_dataclass`` makes the writer of a dataclass's type.
    """
    hint = _unwrap_newtype(hint)
    if dataclasses.is_dataclass(hint):
        writer: _Converter = write_dataclass(hint)
        return writer
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = next(filter(None, (_make_writer(one, write_dataclass) for one in arguments)), None)
        return None if inner is None else lambda value: None if value is None else inner(value)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _make_fixed_writer([_make_writer(one, write_dataclass) for one in arguments])
    if origin is tuple:
        item = _make_writer(arguments[0], write_dataclass)
        return None if item is None else lambda values: [item(value) for value in values]
    if origin in (dict, Mapping):
        entry = _make_writer(arguments[1], write_dataclass)
        return dict if entry is None else lambda values: {key: entry(value) for key, value in values.items()}
    return str if isinstance(hint, type) and issubclass(hint, StrEnum) else None


def _make_fixed_writer(writers: list[_Converter | None]) -> _Converter | None:
    """Return the writer of a tuple whose items have types of their own."""
    if not any(writers):
        return None
    return lambda values: [
        value if write is None else write(value) for write, value in zip(writers, values, strict=True)
    ]


@cache
def _make_dataclass_reader(kind: Any) -> _Converter:
    hints = typing.get_type_hints(kind)
    readers = [
        (field.name, _make_reader(hints[field.name]), _lacks_default(field)) for field in dataclasses.fields(kind)
    ]

    def read_fields(data: object) -> Any:
        if type(data) is not dict:
            raise _make_mismatch(data, "a map")
        values = {}
        for name, read, is_required in readers:
            if name in data:
                try:
                    values[name] = read(data[name])
                except _Mismatch as mismatch:
                    mismatch.path.insert(0, name)
                    raise
            elif is_required:
                raise _Mismatch("is missing", name)
        return kind(**values)

    return read_fields


def _lacks_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _make_reader(hint: Any) -> _Converter:
    """Return a function that checks a field's plain data and rebuilds its value."""
    hint = _unwrap_newtype(hint)
    if hint is Any:
        return lambda value: value
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return _make_dataclass_reader(kind)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _make_union_reader(arguments)
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return _make_fixed_reader([_make_reader(one) for one in arguments])
        return _make_tuple_reader(_make_reader(arguments[0]), arguments[0])
    if origin in (dict, Mapping):
        return _make_map_reader(_make_reader(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _make_enum_reader(hint)
    if hint is float:
        return _make_scalar_reader((float, int), "a number", float)
    if hint in (str, int, bool, bytes):
        return _make_scalar_reader((hint,), _TYPE_WORDS[hint])
    raise TypeError(f"a message cannot have a field of the type {hint}")


def _make_scalar_reader(kinds: tuple[type, ...], name: str, convert: _Converter | None = None) -> _Converter:
    def read_scalar(value: object) -> Any:
        # The exact type, because a bool must not pass as an integer.
        if type(value) not in kinds:
            raise _make_mismatch(value, name)
        return value if convert is None else convert(value)

    return read_scalar


def _make_enum_reader(kind: type[StrEnum]) -> _Converter:
    members = {member.value: member for member in kind}

    def read_member(value: object) -> StrEnum:
        if type(value) is not str:
            raise _make_mismatch(value, "a string")
        if value not in members:
            raise _Mismatch(f"is {value[:100]!r}, which is no {kind.__name__}")
        return members[value]

    return read_member


def _make_union_reader(arguments: tuple[Any, ...]) -> _Converter:
    """Return the reader of ``X | None``, or of a union of scalars."""
    inner = [one for one in arguments if one is not type(None)]
    if len(inner) == 1:
        read_value = _make_reader(inner[0])
        return lambda value: None if value is None else read_value(value)
    return _make_scalar_reader(arguments, " or ".join(_TYPE_WORDS.get(one, "nothing") for one in arguments))


def _make_tuple_reader(read_item: _Converter, kind: Any) -> _Converter:
    def read_items(value: object) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _make_mismatch(value, "a list")
        # A trial's samples are hundreds of floats: checked together, at C's speed.
        if kind is float and set(map(type, value)) == {float}:
            return tuple(value)
        try:
            return tuple([read_item(item) for item in value])
        except _Mismatch as mismatch:
            mismatch.path.insert(0, "item")
            raise

    return read_items


def _make_fixed_reader(readers: list[_Converter]) -> _Converter:
    """Return the reader of a tuple whose items have types of their own."""

    def read_fixed(value: object) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(readers):
            raise _make_mismatch(value, f"a list of {len(readers)}")
        return tuple([read_item(item) for read_item, item in zip(readers, value, strict=True)])

    return read_fixed


def _make_map_reader(read_entry: _Converter) -> _Converter:
    def read_map(value: object) -> dict[str, Any]:
        if type(value) is not dict:
            raise _make_mismatch(value, "a map")
        try:
            for key in value:
                if type(key) is not str:
                    raise _make_mismatch(key, "a string")
            return {key: read_entry(entry) for key, entry in value.items()}
        except _Mismatch as mismatch:
            mismatch.path.insert(0, "entry")
            raise

    return read_map


def _unwrap_newtype(hint: Any) -> Any:
    """Return the type behind a ``NewType``."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    return hint


def _make_mismatch(value: object, wanted: str) -> _Mismatch:
    return _Mismatch(f"is {_TYPE_WORDS.get(type(value), 'nothing')}, not {wanted}")
