"""The contents of the spool: calls as data, and counts of launches. Values and their bytes; no IO.

A record holds everything about a call that a tuning needs. So no daemon must be running when it is written, and its
writer may be gone when it is read. Two processes that make the same call write the same bytes.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Self, get_type_hints

import msgpack
import msgspec
from msgspec import Meta

from ktuned.model import EXACT, LATENCY, CallKey, Config, Objective, Problem

VERSION = 1

_DIGEST_CHARS = 16
_MAX_LEVELS = 20

# Types of a record's fields. A pattern is searched for, so each is bound to both ends of the text.
_Word = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]
_Identity = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
_Function = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.]{0,199}\Z")]
_Package = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")]
_Release = Annotated[str, Meta(pattern=r"\A([A-Za-z0-9_][A-Za-z0-9_.+!-]{0,59})?\Z")]
# No name may lead to another directory.
_File = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}\Z")]
_Path = Annotated[str, Meta(pattern=r"\A/[^\0]*\Z")]
_Value = Annotated[str, Meta(pattern=r"\A[^\0]*\Z")]
_Objective = Annotated[Objective, Meta(pattern=rf"\A({EXACT}:)?{LATENCY}\Z")]
_Counts = list[tuple[_Identity, Problem, str, _Objective, Annotated[int, Meta(ge=0, lt=1 << 62)]]]

CALL_KEY = "@call"
"""The problem key that names a call; it is no part of the winner's key. No parameter can have this name."""

TYPES_KEY = "@types"
"""The problem key that holds the dtypes of a call's tensors, abbreviated: ``f32,f32,i64``."""

CALLS = "calls"
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
        objective: the latency, with the application's numerics.
    """

    tool: _Word
    package: _Package
    release: _Release
    function: _Function
    identity: _Identity
    declaration: Mapping[str, Any]
    problem: Problem
    call: str
    python: _Path
    configs: Annotated[tuple[Config, ...], Meta(min_length=1)]
    files: Mapping[_File, bytes] = field(default_factory=dict)
    variables: Mapping[_Word, _Value] = field(default_factory=dict)
    device: str = ""
    objective: _Objective = LATENCY

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
        found, known = _unpack_map(content), {}
        for name, kind in get_type_hints(cls, include_extras=True).items():
            if name not in found:
                raise InvalidRecord(f"it lacks {name}")
            try:
                # Binary content arrives as bytes; otherwise texts would be taken for base64.
                known[name] = msgspec.convert(found[name], kind, builtin_types=(bytes,))
                if name == "declaration":
                    _require_plain(known[name])
            except msgspec.ValidationError:
                raise InvalidRecord(f"its {name} is {reprlib.repr(found[name])[:80]}") from None
        return cls(**known)


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
        keys = [(one.key, one.number) for one in self.launches]
        rows = [(key.identity, key.problem, key.device or "", key.objective, number) for key, number in keys]
        content: bytes = msgpack.packb({"version": VERSION, "launches": rows})
        return content

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read :meth:`to_bytes`'s bytes.

        Raises:
            InvalidRecord: They are something else.
        """
        try:
            rows = msgspec.convert(_unpack_map(content).get("launches"), _Counts)
        except msgspec.ValidationError:
            raise InvalidRecord("its launches are not a list of counts") from None
        return cls(
            tuple(
                KeyLaunches(CallKey(identity, problem, device or None, objective), number)
                for identity, problem, device, objective, number in rows
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


def _require_plain(value: Any, levels: int = _MAX_LEVELS) -> None:
    """Check that a value can be written as JSON: it is plain, and not nested too deeply.

    Raises:
        ValidationError: it is not.
    """
    if levels > 0 and isinstance(value, list | dict):
        # A map's keys are strings: unpacking refuses others.
        for inner in value.values() if isinstance(value, dict) else value:
            _require_plain(inner, levels - 1)
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise msgspec.ValidationError
