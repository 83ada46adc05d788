"""Artifacts as objects of a team's store: the files of a sealed directory in one, by its key and digest.

::

    v1 / artifacts / KEY / DIGEST

What is unpacked is code that another machine has made; only who trusts all writers of the store asks for it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import Final

import msgpack

from ktuned.ipc import MANIFEST_NAME, DamagedArtifact, manifest
from ktuned.team.objects import ARTIFACTS, DamagedObject

MAX_ARTIFACT_BYTES: Final = 12 * 2**20
"""It travels in one frame, of which 16 MiB is the limit; larger ones are compiled."""

MAX_FILES: Final = 1_000

_NAME: Final = re.compile(ARTIFACTS + r"(?P<key>[0-9a-f]{64})/(?P<digest>[0-9a-f]{64})", re.ASCII)


def pack(key: str, directory: Path) -> tuple[str, bytes] | None:
    """Return the name and the bytes of an intact artifact; ``None`` for one that is damaged or too large."""
    try:
        sealed = manifest.verify(directory, required=())
        paths = [directory / name for name in (*sealed.files, MANIFEST_NAME)]
        if len(paths) > MAX_FILES or sum(path.stat().st_size for path in paths) > MAX_ARTIFACT_BYTES:
            return None
        files = {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}
    except (DamagedArtifact, OSError):
        return None
    data: bytes = msgpack.packb({"files": dict(sorted(files.items()))}, use_bin_type=True)
    name = f"{ARTIFACTS}{key}/{hashlib.sha256(data).hexdigest()}"
    return (name, data) if len(data) <= MAX_ARTIFACT_BYTES and _NAME.fullmatch(name) else None


def key_of(name: str) -> str:
    """Return the key in an artifact's name; nothing if it is none."""
    found = _NAME.fullmatch(name)
    return "" if found is None else found["key"]


def unpack(name: str, data: bytes, directory: Path) -> None:
    """Write an artifact's files into an empty directory and check them by its manifest.

    Raises:
        DamagedObject: the bytes are not those of the name, or no artifact of its key.
        OSError: they cannot be written.
    """
    parts = _NAME.fullmatch(name)
    if parts is None or len(data) > MAX_ARTIFACT_BYTES or hashlib.sha256(data).hexdigest() != parts["digest"]:
        raise DamagedObject(f"{name[:200]} does not hold what its name says ({len(data)} bytes)")
    try:
        files = msgpack.unpackb(data, raw=False, strict_map_key=True)["files"]
        entries = [(_below(path), bytes(content)) for path, content in files.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedObject(f"{name} holds no artifact: {error}") from error
    if len(entries) > MAX_FILES:
        raise DamagedObject(f"{name} has {len(entries)} files, and {MAX_FILES} are allowed")
    for path, content in entries:
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as stream:
            stream.write(content)
    try:
        sealed = manifest.verify(directory, required=())
    except DamagedArtifact as error:
        raise DamagedObject(f"{name} holds a damaged artifact: {error}") from error
    if sealed.key != parts["key"] or {*sealed.files, MANIFEST_NAME} != {str(path) for path, _ in entries}:
        raise DamagedObject(f"{name} holds another artifact than its name says")


def _below(path: str) -> PurePosixPath:
    """Return a relative path that leads nowhere else.

    Raises:
        ValueError: it could.
    """
    found = PurePosixPath(path)
    if found.is_absolute() or ".." in found.parts or not found.parts or "\0" in path or str(found) != path:
        raise ValueError(f"the path {path[:100]!r}")
    return found
