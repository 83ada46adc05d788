"""Parcels: files and directories as they travel to a node, each by a name that its content decides.

``file-SHA256`` is a file of a project, ``artifact-KEY`` a sealed artifact, ``capture-SHA256`` an application's captured
inputs. A directory travels as one MessagePack map of its files. Names and content from the other side are checked
before they are used: no parcel may name a place outside its directory.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Final

import msgpack

from ktuned.ipc import locate_artifact

MAX_PARCEL_BYTES: Final = 512 << 20
"""The largest parcel: an artifact with its debug information; Ray holds it in memory."""

MAX_IN_FRAME_BYTES: Final = 256 << 10
"""The largest parcel that travels with a call: most compiled kernels are far smaller."""

MAX_ALL_IN_FRAME_BYTES: Final = 2 << 20
"""Most bytes of parcels in one call, because other lanes' calls wait behind it."""

_NAME = re.compile(r"(file|artifact)-([0-9A-Za-z_.]{1,200})")


class BadParcel(Exception):
    """A parcel's name, size or content is not allowed."""


def parcel_path(name: str, home: Path) -> Path:
    """Return where a parcel lies below a keeper's directory.

    Raises:
        BadParcel: there can be none of that name.
    """
    match = _NAME.fullmatch(name)
    if match is None or ".." in name:
        raise BadParcel(f"no parcel can be named {name[:100]!r}")
    kind, key = match.groups()
    if kind == "artifact":
        return locate_artifact(home / "artifacts", key)
    return home / "files" / key


def pack_parcel(path: Path) -> bytes:
    """Return a file's bytes, or a directory's files as one.

    Raises:
        OSError: it cannot be read.
        BadParcel: it is too large.
    """
    packed = _pack_path(path, MAX_PARCEL_BYTES)
    if packed is None:
        raise BadParcel(f"{path} is larger than {MAX_PARCEL_BYTES >> 20} MiB")
    return packed


def pack_small_parcel(path: Path) -> bytes | None:
    """Return what :func:`pack_parcel` does, or None if it is too large to travel with a call.

    Raises:
        OSError: it cannot be read.
    """
    return _pack_path(path, MAX_IN_FRAME_BYTES)


def _pack_path(path: Path, most: int) -> bytes | None:
    if path.is_file():
        return path.read_bytes() if path.stat().st_size <= most else None
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist")
    files = list_files_below(path)
    if sum(map(os.path.getsize, files.values())) > most:
        return None
    packed: bytes = msgpack.packb({name: Path(place).read_bytes() for name, place in files.items()})
    return packed


def list_files_below(directory: Path) -> dict[str, str]:
    """Return the places of a directory's files by their names relative to it, in order."""
    top = os.fspath(directory)
    # As strings: each trial's artifact is listed, and Path objects would cost half a millisecond.
    places = [f"{at}/{name}" for at, _, names in os.walk(top) for name in names]
    return {place[len(top) + 1 :]: place for place in sorted(places) if os.path.isfile(place)}


def unpack_parcel(name: str, data: bytes, home: Path) -> None:
    """Write a parcel to its place below a keeper's directory.

    Raises:
        BadParcel: it has no place there, or is no parcel.
    """
    place = parcel_path(name, home)
    if name.startswith("artifact-"):
        unpack_directory(data, place)
    else:
        unpack_file(data, place)


def unpack_file(data: bytes, place: Path) -> None:
    """Write a file as a whole, or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=".part-")
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    os.replace(temporary, place)


def unpack_directory(data: bytes, place: Path) -> None:
    """Make a directory of the files that :func:`pack_parcel` packed; ``place`` must not exist, or be empty.

    Raises:
        BadParcel: the data is no packed directory, or names files outside.
    """
    try:
        files = msgpack.unpackb(data, raw=False)
    except (ValueError, TypeError) as error:
        raise BadParcel(f"no parcel: {error}") from error
    if not isinstance(files, dict):
        raise BadParcel("no parcel: not a map of files")
    for name, content in files.items():
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise BadParcel("no parcel: not a map of files")
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts:
            raise BadParcel(f"a parcel names the file {name[:200]!r}")
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = place / name
        try:
            with open(path, "xb") as stream:
                stream.write(content)
        except (FileExistsError, FileNotFoundError):
            # The file exists and may be in use, or its directory does not exist yet.
            unpack_file(content, path)
