"""The contents of the spool: calls as data, and counts of launches. Values and their bytes; no IO.

A record holds everything about a call that a tuning needs. So no daemon must be running when it is written, and its
writer may be gone when it is read. Two processes that make the same call write the same bytes.
"""

from __future__ import annotations

import hashlib
import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

import msgpack

from ktuned.model import CallKey, Config, Problem

VERSION: Final = 1

_DIGEST_CHARS = 16
_MAX_LEVELS = 20
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IDENTITY = re.compile(r"[0-9a-f]{16}")
_FUNCTION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,199}")
_PACKAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_RELEASE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.+!-]{0,59})?")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}")

CALL_KEY: Final = "@call"
"""The problem key that names a call; it is no part of the winner's key. No parameter can have this name."""

TYPES_KEY: Final = "@types"
"""The problem key that holds the dtypes of a call's tensors, abbreviated: ``f32,f32,i64``."""

CALLS: Final = "calls"
"""The directory next to an adopted function's kernel file, with everything that the kernel file reads."""


class InvalidRecord(ValueError):
    """A file of the spool that no application of this version wrote; the message says what is wrong with it."""


def digest_content(content: str | bytes) -> str:
    """Return the 16 hexadecimal digits that stand for a content."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS]


@dataclass(frozen=True, kw_only=True)
class CallRecord:
    """A tuning key of an application's function, with one call that has it.

    Attributes:
        tool: the drop-in's plugin, which declares the kernel: ``triton`` is ``ktuned_triton``.
        package: the library of the function: ``fla``. The project's name.
        release: the library's version; empty where none is known.
        function: the function's name in the library: ``ops.gla.chunk.chunk_gla_fwd_kernel_o``. The kernel's name.
        identity: digest of everything that decides a measurement of the function except the call: its code, its
            configs, the interpreter and its path. It distinguishes functions with the same name.
        declaration: what the plugin declares the kernel from, as plain data.
        problem: the tuning key, by which the function's winners are told apart.
        call: the plugin's text of the call.
        files: files that the call names, by their names: tensors, programs.
        python: the application's interpreter.
        variables: environment variables that decide a compiler's output.
        device: model of the GPU that the call was for; if empty, the daemon chooses.
        configs: the configs to be tried, in order.
    """

    tool: str
    package: str
    release: str
    function: str
    identity: str
    declaration: Mapping[str, Any]
    problem: Problem
    call: str
    python: str
    configs: tuple[Config, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    device: str = ""

    def to_bytes(self) -> bytes:
        """Return what a file of the spool holds."""
        content: bytes = msgpack.packb({"version": VERSION, **asdict(self)})
        return content

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read :meth:`to_bytes`'s bytes.

        Raises:
            InvalidRecord: They are something else.
        """
        found = _unpack_map(content)
        try:
            known = {name: found[name] for name in (one.name for one in fields(cls))}
        except KeyError as error:
            raise InvalidRecord(f"it lacks {error.args[0]}") from None
        for name, check in _CHECKS.items():
            if not check(known[name]):
                raise InvalidRecord(f"its {name} is {reprlib.repr(known[name])[:80]}")
        return cls(**{**known, "configs": tuple(known["configs"])})


@dataclass(frozen=True)
class KeyLaunches:
    """How often a process has launched a key."""

    key: CallKey
    number: int


@dataclass(frozen=True)
class LaunchCounts:
    """A process's launches since its last report."""

    launches: tuple[KeyLaunches, ...]

    def to_bytes(self) -> bytes:
        """Return what a file of the spool holds."""
        rows = [(one.key.identity, one.key.problem, one.key.device or "", one.number) for one in self.launches]
        content: bytes = msgpack.packb({"version": VERSION, "launches": rows})
        return content

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read :meth:`to_bytes`'s bytes.

        Raises:
            InvalidRecord: They are something else.
        """
        rows = _unpack_map(content).get("launches")
        if not isinstance(rows, list) or not all(_is_count(row) for row in rows):
            raise InvalidRecord("its launches are not a list of counts")
        return cls(
            tuple(
                KeyLaunches(CallKey(identity, problem, device or None), number)
                for identity, problem, device, number in rows
            )
        )


def _unpack_map(content: bytes) -> dict[str, Any]:
    try:
        found = msgpack.unpackb(content, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise InvalidRecord(f"it is damaged: {str(error)[:80] or type(error).__name__}") from None
    if not isinstance(found, dict):
        raise InvalidRecord("it is not a map")
    if found.get("version") != VERSION:
        raise InvalidRecord(f"it is of version {str(found.get('version'))[:20]}, and this daemon reads {VERSION}")
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _matches(pattern: re.Pattern[str]) -> Any:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_scalars(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(one, bool | int | float | str) for name, one in value.items()
    )


def _is_plain(value: Any, levels: int = _MAX_LEVELS) -> bool:
    """Return whether a value can be written as JSON: it is plain, and not nested too deeply."""
    if isinstance(value, list | dict):
        # A map's keys are strings: unpacking refuses others.
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_plain(one, levels - 1) for one in inner)
    return value is None or isinstance(value, bool | int | float | str)


def _is_count(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and _matches(_IDENTITY)(row[0])
        and _is_scalars(row[1])
        and _is_text(row[2])
        and type(row[3]) is int
        and 0 <= row[3] < 1 << 62
    )


_CHECKS: Final[Mapping[str, Any]] = {
    "tool": _matches(_WORD),
    "package": _matches(_PACKAGE),
    "release": _matches(_RELEASE),
    "function": _matches(_FUNCTION),
    "identity": _matches(_IDENTITY),
    "declaration": lambda value: isinstance(value, dict) and _is_plain(value),
    "problem": _is_scalars,
    "call": _is_text,
    "python": lambda value: _is_text(value) and value.startswith("/") and "\0" not in value,
    "configs": lambda value: isinstance(value, list) and bool(value) and all(map(_is_scalars, value)),
    # No name may lead to another directory.
    "files": lambda value: (
        isinstance(value, dict) and all(_matches(_FILE)(name) and isinstance(one, bytes) for name, one in value.items())
    ),
    "variables": lambda value: (
        isinstance(value, dict)
        and all(_matches(_WORD)(name) and _is_text(one) and "\0" not in one for name, one in value.items())
    ),
    "device": _is_text,
}
