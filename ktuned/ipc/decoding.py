"""Messages are decoded here, so that whatever is wrong with one raises the same error, which names the field."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ktuned.model import KtunedError

_T = TypeVar("_T")


class InvalidMessage(KtunedError):
    """The other side of a pipe sent something that is no valid request or answer."""

    code = "invalid_message"


def decode(data: bytes | msgspec.Raw, kind: type[_T]) -> _T:
    """Return the value of a type that MessagePack holds; unknown fields are ignored.

    Raises:
        InvalidMessage: it holds another value; the message names the field.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"{_name_type(kind)}: {error}") from None


def convert(data: object, kind: type[_T]) -> _T:
    """Return the value of a type that plain data describes; unknown fields are ignored.

    Raises:
        InvalidMessage: it describes another value; the message names the field.
    """
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidMessage(f"{_name_type(kind)}: {error}") from None


def _name_type(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else "message"
