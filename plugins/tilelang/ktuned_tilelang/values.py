"""Turns the compile-time arguments of TileLang's functions into plain data, and back."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

DTYPE: Final = "dtype"
TORCH_DTYPE: Final = "torch_dtype"
MEMBER: Final = "member"
"""Keys of the maps that stand for values that are not scalars: ``{"dtype": "float16"}``."""

_MARKS = ({DTYPE}, {TORCH_DTYPE}, {MEMBER})
_DTYPE_ROOTS = frozenset({"tilelang", "tvm", "tvm_ffi"})


def to_plain(name: str, value: Any) -> Any:
    """Return a value in the form in which it travels; a value in that form is returned unchanged.

    Raises:
        TypeError: values of its type do not travel.
    """
    if isinstance(value, tuple | list):
        return tuple(to_plain(name, item) for item in value)
    if isinstance(value, Mapping):
        return dict(value) if set(value) in _MARKS else {str(key): to_plain(name, item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        kind = type(value)
        return {MEMBER: f"{kind.__module__}:{kind.__qualname__}.{value.name}"}
    if value is None or type(value) in (bool, int, float, str):
        return value
    # Recognised by the names of their types, so that TileLang and torch need not be imported.
    root = type(value).__module__.partition(".")[0]
    if isinstance(value, str) and root in _DTYPE_ROOTS:
        return {DTYPE: str(value)}
    if root == "torch" and type(value).__name__ == "dtype":
        return {TORCH_DTYPE: str(value).removeprefix("torch.")}
    raise TypeError(
        f"the argument {name} is a {type(value).__name__}; numbers, strings, None, tuples, dicts, enums and dtypes "
        "can be sent to the compiler"
    )


def from_plain(value: Any) -> Any:
    """Return the object that a value stands for.

    Raises:
        LookupError: there is no such dtype or member of an enum.
    """
    if isinstance(value, tuple | list):
        return tuple(from_plain(item) for item in value)
    if not isinstance(value, Mapping):
        return value
    if set(value) not in _MARKS:
        return {key: from_plain(item) for key, item in value.items()}
    ((mark, text),) = value.items()
    try:
        if mark == DTYPE:
            return importlib.import_module("tilelang.language").dtype(text)
        if mark == TORCH_DTYPE:
            return getattr(importlib.import_module("torch"), text)
        module, _, member = text.partition(":")
        return attrgetter(member)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise LookupError(f"there is no {mark} {text!r} here: {error}") from error
