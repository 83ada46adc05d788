"""The manifest of an artifact's directory: ``manifest.json`` with the SHA-256 of each of its files.

A worker writes it before the artifact is sealed. Whoever loads the artifact checks it: workers, the daemon, and code
that loads a winner without a daemon.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ktuned.ipc.regular_files import open_regular_file
from ktuned.model import FrozenStruct

MANIFEST_NAME = "manifest.json"
TENSORS_NAME = "tensors.json"
"""A file beside the manifest, which grows with each problem that the artifact is measured for: the tensors of each."""

Tensors = Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]]
"""The dtype, the shape, and the strides in elements of each tensor of a problem, by name."""

MANIFEST_VERSION = 1


class DamagedArtifact(Exception):
    """An artifact's files are not those of its manifest."""


class Recipe(FrozenStruct):
    """What is needed to load an artifact besides its files.

    ``build`` is the Build as plain data, ``target`` its architecture, ``kernel`` the kernel's short name, and
    ``plugin`` the distribution that has the backend.
    """

    build: Mapping[str, Any] = {}
    target: str = ""
    kernel: str = ""
    plugin: str = ""


class Manifest(FrozenStruct):
    """An artifact's identity: its key, its backend and that backend's facts, its files' digests, its recipe.

    ``decisive`` are the files that decide, together with the Build, which code runs; empty if other code runs, too.
    """

    key: str
    backend: str
    facts: Mapping[str, Any]
    files: Mapping[str, str]
    decisive: tuple[str, ...]
    recipe: Recipe

    @property
    def content(self) -> str:
        """SHA-256 over the decisive files: equal for artifacts that run the same code; empty if there are none."""
        return digest_content({name: self.files[name] for name in self.decisive}) if self.decisive else ""


def digest_content(files: Mapping[str, str]) -> str:
    """Return the SHA-256 over files, of which the digests are given by name."""
    text = "".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()


_READ_BYTES = 1 << 18


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex.

    Raises:
        OSError: it cannot be read, or is a pipe or a device, which would make the reader wait.
    """
    digest = hashlib.sha256()
    # Use no stream's buffer, nor the large one of hashlib.file_digest: most files are small, and a lane is waiting.
    with open_regular_file(path) as stream:
        while some := stream.read(_READ_BYTES):
            digest.update(some)
    return digest.hexdigest()


def write(
    directory: Path,
    *,
    key: str,
    backend: str,
    facts: Mapping[str, Any],
    decisive: Iterable[str] = (),
    recipe: Recipe | None = None,
) -> Manifest:
    """Digest every file below ``directory``, and write the manifest there. ``decisive`` names some of these files.

    Raises:
        OSError: a file cannot be read, or the manifest cannot be written.
    """
    files = {
        path.relative_to(directory).as_posix(): digest_file(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in (MANIFEST_NAME, TENSORS_NAME)
    }
    manifest = Manifest(key, backend, dict(facts), files, tuple(decisive), recipe or Recipe())
    text = json.dumps({"version": MANIFEST_VERSION, **msgspec.to_builtins(manifest)}, indent=1, sort_keys=True)
    (directory / MANIFEST_NAME).write_text(text)
    return manifest


def read(directory: Path) -> Manifest:
    """Read an artifact's manifest without checking its files.

    Raises:
        DamagedArtifact: there is no manifest, or it cannot be understood.
    """
    try:
        with open_regular_file(directory / MANIFEST_NAME) as stream:
            data = json.loads(stream.read())
        if data["version"] != MANIFEST_VERSION:
            raise DamagedArtifact(f"{directory.name}: manifest version {data['version']} is not {MANIFEST_VERSION}")
        found = msgspec.convert(data, Manifest)
        if not found.files.keys() >= {*found.decisive}:
            raise ValueError("it names decisive files that it does not list")
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedArtifact(f"{directory.name}: no readable manifest ({error})") from error


def verify(directory: Path, *, required: Iterable[str]) -> Manifest:
    """Read the manifest and check that all its files are unchanged, and that it names the ``required`` ones.

    Raises:
        DamagedArtifact: a file is missing or its bytes are not those that were sealed.
    """
    manifest = read(directory)
    for name in required:
        if name not in manifest.files:
            raise DamagedArtifact(f"{directory.name}: the required file {name} is not in the manifest")
    for name, expected in manifest.files.items():
        try:
            actual = digest_file(directory / name)
        except OSError as error:
            raise DamagedArtifact(f"{directory.name}: {name} cannot be read ({error})") from error
        if actual != expected:
            raise DamagedArtifact(f"{directory.name}: {name} differs from its digest in the manifest")
    return manifest


def add_tensors(directory: Path, problem: str, tensors: Tensors) -> None:
    """Record with which tensors an artifact was measured for a problem, given as canonical text.

    Raises:
        OSError: the record cannot be written.
    """
    known = read_tensors(directory)
    if problem in known:
        return
    staged = directory / f".{TENSORS_NAME}.{os.getpid()}"
    staged.write_bytes(msgspec.json.encode({**known, problem: tensors}))
    staged.replace(directory / TENSORS_NAME)


def read_tensors(directory: Path) -> dict[str, Tensors]:
    """Return the tensors with which an artifact was measured, by problem; empty if nothing is recorded."""
    try:
        with open_regular_file(directory / TENSORS_NAME) as stream:
            return msgspec.json.decode(stream.read(), type=dict[str, Tensors])
    except (OSError, msgspec.DecodeError):
        return {}
