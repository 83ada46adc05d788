"""Objects of a team's store: their content, their names, and how their bytes are checked. No IO.

::

    v1 / winners / KERNEL / ADDRESS / CONFIG - DIGEST

=========  =============================================================================================
KERNEL     the kernel's name as a path
ADDRESS    digest of the context, without the names that only compiling and measuring show: another machine may not
           have learned those yet
CONFIG     digest of the config
DIGEST     SHA-256 of the object's bytes
=========  =============================================================================================

Two writers of one name therefore write equal bytes, and an object never changes. Nobody is trusted: a reader checks the
bytes against the digest, and the content against the name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgpack
import msgspec

from ktuned.model import KtunedError, Scalar, UsageError, canonical
from ktuned.sharing import SharedWinner

FORMAT: Final = 1
"""The version of the objects' format; a reader skips newer ones."""

MAX_OBJECT_BYTES: Final = 512 * 1024
"""Limit for an object. A winner takes some 600 bytes, and 60 for each learned name, of which it has at most 4,000."""

WINNERS: Final = f"v{FORMAT}/winners/"
"""Prefix of all names."""

_NAME: Final = re.compile(
    WINNERS + r"(?P<kernel>[\w.-]+)/(?P<address>[0-9a-f]{32})/(?P<config>[0-9a-f]{16})-(?P<digest>[0-9a-f]{64})",
    re.ASCII,
)

_STAGED: Final = re.compile(rf"v{FORMAT}/[\w./-]*/\.staged-[0-9a-f]{{16}}", re.ASCII)


class DamagedObject(KtunedError):
    """An object's content does not match its name, or cannot be understood."""

    code = "damaged_object"


class NewerObject(DamagedObject):
    """An object was written by a newer ktuned."""

    code = "newer_object"


class ObjectName(NamedTuple):
    """The parts of a winner's name."""

    kernel: str
    address: str
    config: str
    digest: str

    @classmethod
    def parse(cls, name: str) -> ObjectName | None:
        """Return the parts of a name; ``None`` if ktuned does not make such names in this format."""
        match = _NAME.fullmatch(name)
        return None if match is None else cls(**match.groupdict())

    @property
    def path(self) -> str:
        """The name itself."""
        return f"{WINNERS}{self.kernel}/{self.address}/{self.config}-{self.digest}"


def make_kernel_path(kernel: str) -> str:
    """Return a kernel's name as one part of a path, readable and unique."""
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", kernel).strip("-.")[:60] or "kernel"
    return f"{readable}-{_digest_text(kernel)[:16]}"


def make_kernel_prefix(kernel: str) -> str:
    """Return the prefix of the names of a kernel's winners."""
    return f"{WINNERS}{make_kernel_path(kernel)}/"


def digest_config(config: Mapping[str, Scalar]) -> str:
    """Return the digest of a config that is part of a name."""
    return _digest_text(canonical(config))[:16]


def write_object(winner: SharedWinner, address: str) -> tuple[str, bytes]:
    """Return the name and the bytes of a winner's object; equal winners give equal objects.

    Raises:
        UsageError: it is too large.
    """
    plain = msgspec.to_builtins(winner)
    for name in ("problem", "config", "metrics"):
        plain[name] = dict(sorted(plain[name].items()))
    plain["names"] = sorted(plain["names"], key=lambda entry: str(entry["name"]))
    data: bytes = msgpack.packb({"ktuned_team": FORMAT, **plain}, use_bin_type=True)
    if len(data) > MAX_OBJECT_BYTES:
        raise UsageError(f"the winner of {winner.kernel} takes {len(data)} bytes, and {MAX_OBJECT_BYTES} are allowed")
    digest = hashlib.sha256(data).hexdigest()
    return ObjectName(make_kernel_path(winner.kernel), address, digest_config(winner.config), digest).path, data


def read_object(name: str, data: bytes) -> SharedWinner:
    """Return the winner in an object, after all checks.

    Raises:
        NewerObject: a newer ktuned wrote it, in a format that this version does not know.
        DamagedObject: the bytes do not match the name, or contain no valid winner.
    """
    parts = ObjectName.parse(name)
    if parts is None:
        raise DamagedObject(f"{name[:200]!r} is no object's name")
    if len(data) > MAX_OBJECT_BYTES:
        raise DamagedObject(f"{name} has {len(data)} bytes, and {MAX_OBJECT_BYTES} are allowed")
    if hashlib.sha256(data).hexdigest() != parts.digest:
        raise DamagedObject(f"{name} does not hold what its name says: it was cut off or changed ({len(data)} bytes)")
    try:
        plain = msgpack.unpackb(data, raw=False, strict_map_key=True)
        if not isinstance(plain, dict) or type(plain.get("ktuned_team")) is not int:
            raise DamagedObject(f"{name} holds no winner")
        if plain["ktuned_team"] > FORMAT:
            raise NewerObject(f"{name} was written by a newer ktuned", hint="upgrade ktuned")
        winner = msgspec.convert(plain, SharedWinner)
    except (ValueError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise DamagedObject(f"{name} holds no winner: {error}") from error
    if fault := winner.find_fault():
        raise DamagedObject(f"{name} {fault}")
    if (make_kernel_path(winner.kernel), digest_config(winner.config)) != (parts.kernel, parts.config):
        raise DamagedObject(f"{name} holds the winner of {winner.kernel!r} with another config than its name says")
    return winner


def _digest_text(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def is_ktuned_name(name: str) -> bool:
    """Return whether ktuned makes such names, so that a sweep may remove the object."""
    return ObjectName.parse(name) is not None or _STAGED.fullmatch(name) is not None
