"""Sealing: a compiled directory is whole, described, read-only, or it is refused."""

import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from ktuned.ipc import manifest
from ktuned.model.errors import BackendError
from ktuned.worker.seal import seal_artifact


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """Return what a compile left: a binary, and a source in a directory of its own."""
    path = tmp_path / "abcd"
    (path / "sources").mkdir(parents=True)
    (path / "kernel.so").write_bytes(b"binary")
    (path / "sources" / "gemm.cc").write_text("int main() {}")
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return where the artifact is to stand."""
    (tmp_path / "artifacts").mkdir()
    return tmp_path / "artifacts" / "ab" / "abcd"


def test_a_sealed_artifact_verifies_and_is_read_only(compiled: Path, place: Path) -> None:
    """Manifest, hashes and sizes are those of the files, none of which can be written any more."""
    _, size = seal_artifact(
        compiled, place, key="abcd", backend="tvm_ffi", facts={"flags": "-O3"}, required=["kernel.so"]
    )
    found = manifest.verify(place, required=["kernel.so"])
    assert not compiled.exists()
    assert (found.key, found.backend, found.facts) == ("abcd", "tvm_ffi", {"flags": "-O3"})
    assert set(found.files) == {"kernel.so", "sources/gemm.cc"}
    files = [file for file in place.rglob("*") if file.is_file()]
    assert size == sum(file.stat().st_size for file in files)
    assert not any(stat.S_IMODE(file.stat().st_mode) & 0o222 for file in files)


def test_a_directory_that_lacks_a_file_is_not_sealed(compiled: Path, place: Path) -> None:
    """A backend that leaves out a required file is reported which."""
    with pytest.raises(BackendError, match=r"(?m)abcd of the backend 'nvrtc' does not hold kernel.cubin$"):
        seal_artifact(compiled, place, key="abcd", backend="nvrtc", facts={}, required=["kernel.cubin", "kernel.so"])


def test_a_directory_with_a_link_is_not_sealed(compiled: Path, place: Path, tmp_path: Path) -> None:
    """What lies outside could change later, and must not become read-only."""
    outside = tmp_path / "gemm.cc"
    outside.write_text("mine")
    (compiled / "link.cc").symlink_to(outside)
    with pytest.raises(BackendError, match=r"not link to, link.cc"):
        seal_artifact(compiled, place, key="abcd", backend="tvm_ffi", facts={}, required=["kernel.so"])
    assert os.access(outside, os.W_OK)
    assert stat.S_IMODE(outside.stat().st_mode) & 0o200


def test_a_full_disk_raises_the_systems_error(compiled: Path, place: Path) -> None:
    """The error is the system's own, which the daemon reports from a config's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError) as caught:
            seal_artifact(compiled, place, key="abcd", backend="b", facts={"log": "y" * 9000}, required=["kernel.so"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert not place.exists()


def test_a_damaged_artifact_is_replaced(compiled: Path, place: Path) -> None:
    """What stands in the way and cannot be read makes room; nothing of it is left."""
    place.mkdir(parents=True)
    (place / "manifest.json").write_text("{")
    seal_artifact(compiled, place, key="abcd", backend="b", facts={}, required=["kernel.so"])
    manifest.verify(place, required=["kernel.so"])
    assert [path.name for path in compiled.parent.iterdir()] == ["artifacts"]
