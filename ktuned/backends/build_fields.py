"""Checks the types of a Build's fields when a kernel function returns one.

Python does not check annotations, and two usual slips silently change the meaning: ``flags="-O2"`` is a sequence of
three flags, and ``args=("x")`` is not a tuple. Lists may stand for tuples and ints for floats. An annotation that
cannot be evaluated, or that this module does not know, accepts everything.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import abc
from collections.abc import Mapping
from functools import cache
from typing import Any

_PLAIN = (str, int, float, bool, bytes)

_MOST_SHOWN = 60
"""Most characters of a wrong value that a message quotes."""


def check_fields(build: Any) -> None:
    """Check the values of a dataclass's fields against their annotations.

    Raises:
        TypeError: a value has another type; the message names the field and says how to write it.
    """
    kind: Any = type(build)
    for name, hint in _read_hints(kind):
        if fault := _find_fault(getattr(build, name), hint):
            raise TypeError(f"{name}{fault}")


@cache
def _read_hints(kind: Any) -> tuple[tuple[str, Any], ...]:
    try:
        hints = typing.get_type_hints(kind)
    except Exception:
        # A name that only a type checker imports.
        return ()
    return tuple((entry.name, hints[entry.name]) for entry in dataclasses.fields(kind))


def _find_fault(value: Any, hint: Any) -> str:
    """Return the fault of a value, as the end of a sentence that begins with its name; empty if there is none."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is types.NoneType:
        return "" if value is None else f" is {_quote_value(value)}, not None"
    if origin in (types.UnionType, typing.Union):
        faults = [_find_fault(value, one) for one in arguments]
        return "" if not all(faults) else _choose_fault(faults, value, hint)
    if hint is tuple or origin is tuple:
        return _find_tuple_fault(value, arguments)
    if hint is Mapping or origin in (abc.Mapping, dict):
        return _find_mapping_fault(value, arguments)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        # In a Build that was sent to another process, a dataclass is a map of its fields.
        return "" if isinstance(value, (hint, Mapping)) else f" is {_quote_value(value)}, not {hint}"
    if hint in _PLAIN:
        accepted = (int, float) if hint is float else (hint,)
        return "" if isinstance(value, accepted) else f" is {_quote_value(value)}, not {_add_article(hint.__name__)}"
    return ""


def _find_tuple_fault(value: Any, arguments: tuple[Any, ...]) -> str:
    if isinstance(value, str | bytes):
        return f" is the string {_quote_value(value)}, not a tuple: a tuple of one has a comma, ({value!r},)"[:200]
    if not isinstance(value, tuple | list):
        return f" is {_quote_value(value)}, not a tuple"
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    elif arguments and len(arguments) != len(value):
        return f" has {len(value)} items, not {len(arguments)}"
    for place, (item, hint) in enumerate(zip(value, arguments, strict=False)):
        if fault := _find_fault(item, hint):
            return f"[{place}]{fault}"
    return ""


def _find_mapping_fault(value: Any, arguments: tuple[Any, ...]) -> str:
    if not isinstance(value, Mapping):
        return f" is {_quote_value(value)}, not a dict"
    if not arguments:
        return ""
    for key, item in value.items():
        if fault := _find_fault(key, arguments[0]):
            return f": the key{fault}"
        if fault := _find_fault(item, arguments[1]):
            return f"[{key!r}]{fault}"
    return ""


def _choose_fault(faults: list[str], value: Any, hint: Any) -> str:
    """Return the most helpful of the alternatives' faults: if there is a single container among them, its fault."""
    kinds = typing.get_args(hint)
    containers = [
        kind
        for kind in kinds
        if typing.get_origin(kind) in (tuple, abc.Mapping, dict) or dataclasses.is_dataclass(kind)
    ]
    if len(containers) == 1:
        return _find_fault(value, containers[0])
    if value is not None and not isinstance(value, (*_PLAIN, tuple, list, Mapping)):
        return f" is {_quote_value(value)}; a tensor is given by its name, all else as numbers and strings"
    names = [getattr(one, "__name__", str(one)) for one in kinds]
    return f" is {_quote_value(value)}, not {' or '.join(names)}"


def _add_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _quote_value(value: Any) -> str:
    if not isinstance(value, (*_PLAIN, tuple, list, Mapping)) and value is not None:
        # Not its repr, which may contain an address.
        return f"a value of the type {type(value).__name__}"
    shown = repr(value)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
