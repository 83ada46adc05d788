"""Manifests: a sealed artifact is recognised; any other is refused with the file at fault."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ktuned.ipc import manifest
from ktuned.ipc.manifest import MANIFEST_NAME, DamagedArtifact

REQUIRED = ("kernel.so",)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A sealed artifact of three files, one of them in a subdirectory."""
    directory = tmp_path / "abcd"
    (directory / "src").mkdir(parents=True)
    (directory / "kernel.so").write_bytes(b"\x7fELF\0" * 1000)
    (directory / "empty").write_bytes(b"")
    (directory / "src" / "kernel.cc").write_text("int main() {}\n")
    manifest.write(directory, key="abcd", backend="fake", facts={"registers": 32, "names": ["a"]})
    return directory


def rewrite_manifest(artifact: Path, **changes: object) -> None:
    """Change fields of the manifest; ``None`` removes a field."""
    path = artifact / MANIFEST_NAME
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def test_a_written_manifest_is_read_back(artifact: Path) -> None:
    """The manifest itself is not among the files."""
    loaded = manifest.verify(artifact, required=REQUIRED)
    assert (loaded.key, loaded.backend, loaded.facts) == ("abcd", "fake", {"registers": 32, "names": ["a"]})
    assert sorted(loaded.files) == ["empty", "kernel.so", "src/kernel.cc"]
    assert loaded == manifest.read(artifact)


def test_sealing_again_changes_nothing(artifact: Path) -> None:
    """A second manifest of the same bytes is equal byte for byte."""
    before = (artifact / MANIFEST_NAME).read_bytes()
    manifest.write(artifact, key="abcd", backend="fake", facts={"names": ["a"], "registers": 32})
    assert (artifact / MANIFEST_NAME).read_bytes() == before


def test_content_is_of_the_decisive_files_alone(artifact: Path) -> None:
    """Equal decisive files have equal content, whatever other files there are; without decisive files there is none."""
    assert manifest.read(artifact).content == ""
    first = manifest.write(artifact, key="abcd", backend="fake", facts={}, decisive=["kernel.so"])
    assert manifest.read(artifact) == first
    other = manifest.write(artifact, key="ffff", backend="other", facts={"x": 1}, decisive=["kernel.so"])
    assert other.content == first.content
    (artifact / "empty").rename(artifact / "void")
    assert manifest.write(artifact, key="a", backend="f", facts={}, decisive=["kernel.so"]).content == first.content
    (artifact / "kernel.so").write_bytes(b"other")
    assert manifest.write(artifact, key="a", backend="f", facts={}, decisive=["kernel.so"]).content != first.content


def flip_bit(artifact: Path) -> None:
    """Change one bit, as a failing disk does."""
    data = bytearray((artifact / "kernel.so").read_bytes())
    data[2500] ^= 1
    (artifact / "kernel.so").write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "one bit": (flip_bit, "kernel.so differs from its digest in the manifest"),
    "truncated": (
        lambda artifact: (artifact / "kernel.so").write_bytes(b""),
        "kernel.so differs from its digest in the manifest",
    ),
    "file gone": (lambda artifact: (artifact / "src" / "kernel.cc").unlink(), "src/kernel.cc cannot be read"),
    "no manifest": (lambda artifact: (artifact / MANIFEST_NAME).unlink(), "no readable manifest"),
    "empty manifest": (lambda artifact: (artifact / MANIFEST_NAME).write_text(""), "no readable manifest"),
    "not text": (lambda artifact: (artifact / MANIFEST_NAME).write_bytes(b"\xff\xfe\0{"), "no readable manifest"),
    "not a map": (lambda artifact: (artifact / MANIFEST_NAME).write_text("[]"), "no readable manifest"),
    "no files": (lambda artifact: rewrite_manifest(artifact, files=None), "no readable manifest"),
    "files no map": (lambda artifact: rewrite_manifest(artifact, files=["kernel.so"]), "no readable manifest"),
    "hash no text": (lambda artifact: rewrite_manifest(artifact, files={"kernel.so": 1}), "no readable manifest"),
    "newer": (lambda artifact: rewrite_manifest(artifact, version=2), "manifest version 2 is not 1"),
    "not listed": (
        lambda artifact: rewrite_manifest(artifact, files={}),
        "the required file kernel.so is not in the manifest",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_each_damage_is_found_and_named(artifact: Path, damage: Callable[[Path], object], message: str) -> None:
    """A damaged artifact is refused with its name and the file at fault, never with another exception."""
    damage(artifact)
    with pytest.raises(DamagedArtifact, match=f"^abcd: {message}"):
        manifest.verify(artifact, required=REQUIRED)


def test_a_file_that_was_not_sealed_is_no_damage(artifact: Path) -> None:
    """A loader may leave a cache beside the files."""
    (artifact / "kernel.cache").write_text("left by a loader")
    assert "kernel.cache" not in manifest.verify(artifact, required=REQUIRED).files


def test_an_extra_file_does_not_become_required(artifact: Path) -> None:
    """A required file that exists but was not sealed is not trusted."""
    (artifact / "late.bin").write_text("not sealed")
    with pytest.raises(DamagedArtifact, match=r"late\.bin is not in the manifest"):
        manifest.verify(artifact, required=("kernel.so", "late.bin"))
