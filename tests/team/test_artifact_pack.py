"""Artifacts as objects: what was sealed is unpacked as it was, and nothing else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from ktuned.ipc.manifest import MANIFEST_NAME, write
from ktuned.team.artifact_pack import MAX_ARTIFACT_BYTES, key_of, pack, unpack
from ktuned.team.objects import ARTIFACTS, DamagedObject, is_ours

KEY = "ab" * 32


def sealed(directory: Path, size: int = 10) -> Path:
    """Return an artifact of two files."""
    place = directory / "artifact"
    (place / "sub").mkdir(parents=True)
    (place / "kernel.so").write_bytes(bytes(size))
    (place / "sub" / "facts.json").write_text("{}")
    write(place, key=KEY, backend="fake", facts={})
    return place


def named(files: Any) -> tuple[str, bytes]:
    """Return any object under an artifact's right name."""
    data: bytes = msgpack.packb({"files": files})
    return f"{ARTIFACTS}{KEY}/{hashlib.sha256(data).hexdigest()}", data


def test_an_artifact_survives_the_trip(tmp_path: Path) -> None:
    """All of its files, and no more."""
    place = sealed(tmp_path)
    (place / "left.tmp").write_text("not sealed")
    packed = pack(KEY, place)
    assert packed is not None
    assert (key_of(packed[0]), is_ours(packed[0])) == (KEY, True)
    unpack(*packed, tmp_path)
    assert (tmp_path / "kernel.so").read_bytes() == bytes(10)
    assert (tmp_path / "sub/facts.json").read_text() == "{}"
    assert not (tmp_path / "left.tmp").exists()


def test_damaged_and_large_ones_are_not_packed(tmp_path: Path) -> None:
    """They are compiled where they are needed."""
    assert pack(KEY, sealed(tmp_path / "large", MAX_ARTIFACT_BYTES)) is None
    place = sealed(tmp_path)
    (place / "kernel.so").write_text("other")
    assert pack(KEY, place) is None
    assert pack(KEY, tmp_path / "none") is None


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out", "", ".", "a//b", "a\0b"])
def test_no_path_leads_out(tmp_path: Path, path: str) -> None:
    """Nothing is written before all names are known to be below the directory."""
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(DamagedObject):
        unpack(*named({"first": b"x", path: b"x"}), inner)
    assert list(tmp_path.rglob("*")) == [inner]


def test_what_is_no_sealed_artifact_is_refused(tmp_path: Path) -> None:
    """Cut off, of another key, with a file more than its manifest has, or no artifact at all."""
    packed = pack(KEY, sealed(tmp_path))
    assert packed is not None
    name, data = packed
    files = msgpack.unpackb(data)["files"]
    other = json.loads(files[MANIFEST_NAME]) | {"key": "cd" * 32}
    wrong = [
        (name, data[:-1]),
        ("v1/artifacts/x/y", data),
        named({**files, "more": b"x"}),
        named({**files, "kernel.so": b"other"}),
        named({**files, MANIFEST_NAME: json.dumps(other).encode()}),
        named({key: value for key, value in files.items() if key != MANIFEST_NAME}),
        named([]),
        named({"a": 1}),
    ]
    for number, one in enumerate(wrong):
        place = tmp_path / str(number)
        place.mkdir()
        with pytest.raises(DamagedObject):
            unpack(*one, place)
