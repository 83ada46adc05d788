"""Problems and configs as user code sees them, checks of their content, and the place of a declaration."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ktuned.model import FrozenStruct, KernelFileError, KtunedError, Scalar, escape_surrogates, listed

MAX_MESSAGE_CHARS = 500
"""Length at which messages of user code are cut, so that an error fits on a terminal."""

_INTEGERS = range(-(2**63), 2**64)
"""Values that MessagePack can carry."""


class UnknownKey(AttributeError, KeyError):
    """User code asked a problem or a config for a key that it does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


class Values(Mapping[str, Scalar]):
    """A read-only problem or config: ``c.BM`` and ``c["BM"]`` are the same.

    The values are the object's attributes, so that a constraint reads them at the speed of any other attribute: a
    search evaluates it for some hundred thousand configs a second. ``kind`` is the word for a key in errors: ``knob``
    or ``problem key``.
    """

    __slots__ = ("__dict__", "_kind")

    def __init__(self, values: Mapping[str, Scalar], kind: str) -> None:
        # No name begins with an underscore (find_key_fault), so none can replace this attribute.
        vars(self).update(values)
        object.__setattr__(self, "_kind", kind)

    def __getitem__(self, key: str) -> Scalar:
        try:
            found: Scalar = vars(self)[key]
        except KeyError:
            raise UnknownKey(f"there is no {self._kind} {key!r} {listed(self, near=key)}") from None
        return found

    def __getattr__(self, name: str) -> Any:
        # Python's own protocols (copy, inspect) probe for dunder names and rely on a plain AttributeError.
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {self._kind} cannot be set: problems and configs are read-only")

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __contains__(self, key: object) -> bool:
        return key in vars(self)

    def __repr__(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in vars(self).items())


class Site(FrozenStruct):
    """Place where a kernel is declared, for errors about it."""

    path: str = ""
    line: int = 0
    kernel: str = ""

    def make_error(self, message: str, *, line: int = 0, hint: str = "") -> KernelFileError:
        """Return the error ``path:line: kernel: message`` for the caller to raise."""
        line = line or self.line
        named = f"{fold_to_line(self.kernel)}: {message}" if self.kernel else message
        text = f"{self.path}:{line}: {named}" if self.path else named
        return KernelFileError(text, path=self.path, line=line, hint=hint)

    @contextmanager
    def wrap_failures(self, what: str) -> Iterator[None]:
        """Turn an error of user code into one that names the kernel, its line, and ``what`` failed (``inputs(p)``)."""
        try:
            yield
        except Exception as error:
            raise self.make_failure(what, error) from error

    def make_failure(self, what: str, error: BaseException) -> KernelFileError:
        """Return an error of user code with its line in the kernel file and ``what`` failed, such as ``inputs(p)``."""
        lines = [
            line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == self.path
        ]
        is_told_well = isinstance(error, UnknownKey | KtunedError)
        words = fold_to_line(error) if is_told_well else f"{type(error).__name__}: {fold_to_line(error)}"
        # If the call never began, because the function has other parameters, say which arguments it gets.
        is_of_call = isinstance(error, TypeError) and not lines and "positional argument" in words
        if is_of_call:
            words += f"; it is called with ({what.partition('(')[2].partition(')')[0]})"
        return self.make_error(f"{what}: {words}", line=lines[-1] if lines else 0)


def fold_to_line(error: BaseException | str) -> str:
    """Return an error's text in one line of Unicode, cut at :data:`MAX_MESSAGE_CHARS`."""
    text = " ".join(str(error).encode(errors="backslashreplace").decode().split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def find_key_fault(key: object) -> str:
    """Return the error in a knob's or problem key's name as user code gave it, or ``""``."""
    if not isinstance(key, str) or not key.isidentifier() or key.startswith("_"):
        return f"{key!r} is not a name (a Python identifier without a leading underscore)"
    if hasattr(Mapping, key):
        return f"{key!r} cannot be a name: it is a method of every mapping"
    return ""


def find_scalar_fault(value: object) -> str:
    """Return the error in a knob's or problem key's value as user code gave it, or ``""``.

    Only exact ``bool``, ``int``, ``float`` and ``str`` travel unchanged through JSON and MessagePack.
    """
    if type(value) not in (bool, int, float, str):
        return f"{fold_to_line(repr(value))} is of type {type(value).__name__}, not a bool, int, float or str"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value!r} is not a finite number"
    if type(value) is int and value not in _INTEGERS:
        return f"{value!r} does not fit into 64 bits"
    if type(value) is str and escape_surrogates(value) != value:
        return f"{value!r} is not Unicode: it holds a lone surrogate"
    return ""


def find_mapping_fault(values: object, what: str) -> str:
    """Return the error in a problem or config as user code gave it, or ``""``."""
    if not isinstance(values, Mapping):
        return f"{what} is of type {type(values).__name__}, not a dict"
    if not values:
        return f"{what} is empty"
    for key, value in values.items():
        if fault := find_key_fault(key):
            return f"{what}: {fault}"
        if fault := find_scalar_fault(value):
            return f"{what}: {key}={fault}"
    return ""
