"""Objects of a team's store: what one holds, what it is named, and how its bytes are checked. No IO.

::

    v1 / winners / KERNEL / ADDRESS / CONFIG - DIGEST

``KERNEL`` is the kernel's name as a path, ``ADDRESS`` the digest of the context without what only compiling and
measuring show (another machine may not have learned those names yet), ``CONFIG`` that of the config, and ``DIGEST`` the
SHA-256 of the object's bytes. Two writers of one name therefore write equal bytes, and nothing is ever changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgpack

from ktuned.ipc import InvalidMessage, from_plain, to_plain
from ktuned.model import KtunedError, Scalar, UsageError, canonical
from ktuned.sharing import SharedWinner

FORMAT: Final = 1
"""The version of objects; a reader leaves out what is newer."""

MAX_OBJECT_BYTES: Final = 512 * 1024
"""A winner takes some 600 bytes, and 60 for each learned name, of which a kernel has 4,000 at most."""

WINNERS: Final = f"v{FORMAT}/winners/"
"""Prefix of all names."""

_NAME: Final = re.compile(
    WINNERS + r"(?P<kernel>[\w.-]+)/(?P<address>[0-9a-f]{32})/(?P<config>[0-9a-f]{16})-(?P<digest>[0-9a-f]{64})",
    re.ASCII,
)

_STAGED: Final = re.compile(rf"v{FORMAT}/[\w./-]*/\.staged-[0-9a-f]{{16}}", re.ASCII)


class DamagedObject(KtunedError):
    """An object is not what its name says, or says nothing that can be understood."""

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
        """Return the parts of a name; ``None`` for one that no ktuned of this format has given."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(**found.groupdict())

    @property
    def path(self) -> str:
        """The name itself."""
        return f"{WINNERS}{self.kernel}/{self.address}/{self.config}-{self.digest}"


def kernel_path(kernel: str) -> str:
    """Return a kernel's name as one part of a path: readable, and another one for each name."""
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", kernel).strip("-.")[:60] or "kernel"
    return f"{readable}-{_digest(kernel)[:16]}"


def kernel_prefix(kernel: str) -> str:
    """Return the prefix of the names of a kernel's winners."""
    return f"{WINNERS}{kernel_path(kernel)}/"


def config_digest(config: Mapping[str, Scalar]) -> str:
    """Return the part of a name that stands for a config."""
    return _digest(canonical(config))[:16]


def write_object(winner: SharedWinner, address: str) -> tuple[str, bytes]:
    """Return the name and the bytes of an object; equal winners give equal ones.

    Raises:
        UsageError: it is too large.
    """
    plain = to_plain(winner)
    for name in ("problem", "config", "metrics"):
        plain[name] = dict(sorted(plain[name].items()))
    plain["names"] = sorted(plain["names"], key=lambda entry: str(entry["name"]))
    data: bytes = msgpack.packb({"ktuned_team": FORMAT, **plain}, use_bin_type=True)
    if len(data) > MAX_OBJECT_BYTES:
        raise UsageError(f"the winner of {winner.kernel} takes {len(data)} bytes, and {MAX_OBJECT_BYTES} are allowed")
    digest = hashlib.sha256(data).hexdigest()
    return ObjectName(kernel_path(winner.kernel), address, config_digest(winner.config), digest).path, data


def read_object(name: str, data: bytes) -> SharedWinner:
    """Return what an object holds, if it can be believed.

    Raises:
        NewerObject: this version does not know its format.
        DamagedObject: its bytes are not those of its name, or hold no winner.
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
        winner = from_plain(SharedWinner, plain)
    except (ValueError, TypeError, RecursionError, InvalidMessage) as error:
        raise DamagedObject(f"{name} holds no winner: {error}") from error
    if fault := winner.find_fault():
        raise DamagedObject(f"{name} {fault}")
    if (kernel_path(winner.kernel), config_digest(winner.config)) != (parts.kernel, parts.config):
        raise DamagedObject(f"{name} holds the winner of {winner.kernel!r} with another config than its name says")
    return winner


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def is_ours(name: str) -> bool:
    """Return whether a name is one that ktuned gives, so that a sweep may remove the object."""
    return ObjectName.parse(name) is not None or _STAGED.fullmatch(name) is not None
