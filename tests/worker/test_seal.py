"""Sealing: a compiled directory becomes complete, described and read-only, or it is refused."""

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
def compiled_directory(tmp_path: Path) -> Path:
    """What a compilation left: a binary, and a source in a subdirectory."""
    path = tmp_path / "abcd"
    (path / "sources").mkdir(parents=True)
    (path / "kernel.so").write_bytes(b"binary")
    (path / "sources" / "gemm.cc").write_text("int main() {}")
    return path


@pytest.fixture
def artifact_path(tmp_path: Path) -> Path:
    """Where the artifact will stand."""
    (tmp_path / "artifacts").mkdir()
    return tmp_path / "artifacts" / "ab" / "abcd"


def test_a_sealed_artifact_verifies_and_is_read_only(compiled_directory: Path, artifact_path: Path) -> None:
    _, size = seal_artifact(
        compiled_directory, artifact_path, key="abcd", backend="tvm_ffi", facts={"flags": "-O3"}, required=["kernel.so"]
    )
    sealed = manifest.verify(artifact_path, required=["kernel.so"])
    assert not compiled_directory.exists()
    assert (sealed.key, sealed.backend, sealed.facts) == ("abcd", "tvm_ffi", {"flags": "-O3"})
    assert set(sealed.files) == {"kernel.so", "sources/gemm.cc"}
    files = [file for file in artifact_path.rglob("*") if file.is_file()]
    assert size == sum(file.stat().st_size for file in files)
    assert not any(stat.S_IMODE(file.stat().st_mode) & 0o222 for file in files)


def test_a_directory_that_lacks_a_file_is_not_sealed(compiled_directory: Path, artifact_path: Path) -> None:
    """The message names the missing file."""
    with pytest.raises(BackendError, match=r"(?m)abcd of the backend 'nvrtc' does not hold kernel.cubin$"):
        seal_artifact(
            compiled_directory,
            artifact_path,
            key="abcd",
            backend="nvrtc",
            facts={},
            required=["kernel.cubin", "kernel.so"],
        )


def test_a_directory_with_a_link_is_not_sealed(compiled_directory: Path, artifact_path: Path, tmp_path: Path) -> None:
    """A file outside may change later, and sealing must not make it read-only."""
    outside = tmp_path / "gemm.cc"
    outside.write_text("mine")
    (compiled_directory / "link.cc").symlink_to(outside)
    with pytest.raises(BackendError, match=r"not link to, link.cc"):
        seal_artifact(
            compiled_directory, artifact_path, key="abcd", backend="tvm_ffi", facts={}, required=["kernel.so"]
        )
    assert os.access(outside, os.W_OK)
    assert stat.S_IMODE(outside.stat().st_mode) & 0o200


def test_a_full_disk_raises_the_systems_error(compiled_directory: Path, artifact_path: Path) -> None:
    """The daemon tells the system's error from a config's."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard_limit))
    try:
        with pytest.raises(OSError) as caught:
            seal_artifact(
                compiled_directory,
                artifact_path,
                key="abcd",
                backend="b",
                facts={"log": "y" * 9000},
                required=["kernel.so"],
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft_limit, hard_limit))
    assert caught.value.errno == errno.EFBIG
    assert not artifact_path.exists()


def test_a_damaged_artifact_is_replaced(compiled_directory: Path, artifact_path: Path) -> None:
    """The unreadable artifact is removed completely."""
    artifact_path.mkdir(parents=True)
    (artifact_path / "manifest.json").write_text("{")
    seal_artifact(compiled_directory, artifact_path, key="abcd", backend="b", facts={}, required=["kernel.so"])
    manifest.verify(artifact_path, required=["kernel.so"])
    assert [path.name for path in compiled_directory.parent.iterdir()] == ["artifacts"]
