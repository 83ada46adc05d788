"""Artifacts are sealed as a whole or not at all, stay unchanged, and leave least recently served first."""

import itertools
import stat
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ktuned.ipc import manifest
from ktuned.ipc.manifest import MANIFEST_NAME, DamagedArtifact, Manifest
from ktuned.model.errors import StoreError
from ktuned.store.artifacts import Artifacts
from ktuned.worker.seal import seal_artifact
from tests.clocks import SettableClock
from tests.store.test_database_file import run_on_mount

pytestmark = pytest.mark.anyio

CAP_BYTES = 10_000


@pytest.fixture
def clock() -> SettableClock:
    """Return the clock of :func:`artifacts`."""
    return SettableClock(1_000_000.0)


@pytest.fixture
def artifacts(tmp_path: Path, clock: SettableClock) -> Artifacts:
    """Return the artifacts of a directory that does not exist yet."""
    made = Artifacts(tmp_path / "cache" / "artifacts", CAP_BYTES, clock=clock)
    made.clean_staging()
    return made


def write_staged_files(artifacts: Artifacts, worker: str, key: str, content: bytes = b"binary") -> Path:
    """Write the files of a compile: a binary, and a source in a directory of its own."""
    path = artifacts.make_staging_directory(worker) / key
    (path / "sources").mkdir(parents=True)
    (path / "kernel.so").write_bytes(content)
    (path / "sources" / "gemm.cc").write_text("int main() {}")
    return path


async def seal_files(artifacts: Artifacts, key: str, content: bytes = b"binary", worker: str = "compile-1") -> Manifest:
    """Seal an artifact in a thread, as a compile worker does beside the daemon."""
    path = write_staged_files(artifacts, worker, key, content)

    def seal() -> tuple[Manifest, int]:
        target = artifacts.locate_artifact(key)
        return seal_artifact(path, target, key=key, backend="tvm_ffi", facts={"flags": "-O3"}, required=["kernel.so"])

    made, size = await anyio.to_thread.run_sync(seal)
    artifacts.count_added_bytes(size)
    return made


def list_staged_files(artifacts: Artifacts) -> list[str]:
    """Return the unfinished files."""
    return [path.name for path in (artifacts.directory / ".staging").rglob("*") if path.is_file()]


async def test_a_sealed_artifact_is_complete(artifacts: Artifacts) -> None:
    """It is below the first two characters of its key, verifies and is read-only; staging is empty."""
    assert artifacts.find_artifact("abcd") is None
    sealed = await seal_files(artifacts, "abcd")
    path = artifacts.find_artifact("abcd")
    assert path == artifacts.directory / "ab" / "abcd"
    assert manifest.verify(path, required=["kernel.so"]) == sealed
    assert set(sealed.files) == {"kernel.so", "sources/gemm.cc"}
    assert sealed.facts == {"flags": "-O3"}
    files = [file for file in path.rglob("*") if file.is_file()]
    assert not any(stat.S_IMODE(file.stat().st_mode) & 0o222 for file in files)
    assert artifacts.size == sum(file.stat().st_size for file in files)
    assert list_staged_files(artifacts) == []


async def test_a_staging_directory_is_empty_and_private(artifacts: Artifacts) -> None:
    """A start removes all staging directories."""
    first = artifacts.make_staging_directory("compile-1")
    (first / "left").write_text("half")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert artifacts.make_staging_directory("compile-1") == first
    assert list(first.iterdir()) == []
    (artifacts.make_staging_directory("compile-2") / "left").write_text("half")
    artifacts.clean_staging()
    assert list_staged_files(artifacts) == []
    assert not first.exists()


async def test_of_two_equal_keys_one_is_sealed(artifacts: Artifacts) -> None:
    """Ten workers seal one key at once: one complete artifact stays, and is counted once."""
    assert artifacts.size == 0
    manifests: list[Manifest] = []

    async def seal_one(worker: int) -> None:
        manifests.append(await seal_files(artifacts, "abcd", b"%d" % worker, f"compile-{worker}"))

    async with anyio.create_task_group() as tasks:
        for worker in range(10):
            tasks.start_soon(seal_one, worker)
    path = artifacts.find_artifact("abcd")
    assert path is not None
    assert manifests == [manifest.verify(path, required=["kernel.so"])] * 10
    assert artifacts.size == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert list_staged_files(artifacts) == []


async def test_an_incomplete_artifact_is_replaced(artifacts: Artifacts) -> None:
    """A directory without a readable manifest does not keep its key."""
    ruin = artifacts.directory / "ab" / "abcd"
    ruin.mkdir(parents=True)
    (ruin / "kernel.so").write_text("half")
    assert artifacts.find_artifact("abcd") is None
    sealed = await seal_files(artifacts, "abcd")
    assert manifest.verify(ruin, required=["kernel.so"]) == sealed


async def test_a_damaged_artifact_is_discarded_and_rebuilt(artifacts: Artifacts) -> None:
    """It is removed, is missing from then on, and can be sealed again."""
    await seal_files(artifacts, "abcd")
    path = artifacts.find_artifact("abcd")
    assert path is not None
    (path / "kernel.so").chmod(0o600)
    (path / "kernel.so").write_bytes(b"bitrot")
    with pytest.raises(DamagedArtifact):
        manifest.verify(path, required=["kernel.so"])
    artifacts.discard_artifact("abcd")
    artifacts.discard_artifact("abcd")
    assert artifacts.find_artifact("abcd") is None
    assert artifacts.size == 0
    await seal_files(artifacts, "abcd")
    manifest.verify(path, required=["kernel.so"])


@pytest.mark.parametrize("served", list(itertools.permutations(["aa1", "bb2", "cc3"])))
async def test_the_least_recently_served_artifact_is_removed_first(
    artifacts: Artifacts, clock: SettableClock, served: tuple[str, ...]
) -> None:
    """Another process finds the same order."""
    for key in ("aa1", "bb2", "cc3"):
        await seal_files(artifacts, key, b"x" * 4000)
    for key in served:
        clock.now += 60.0
        artifacts.mark_served([key])
    before = artifacts.size
    later = Artifacts(artifacts.directory, CAP_BYTES)
    removed = await later.collect_garbage(keep=[])
    assert [key for key in served if later.find_artifact(key)] == list(served[1:])
    assert list(removed) == [served[0]]
    assert before - sum(removed.values()) == later.size <= CAP_BYTES
    assert await later.collect_garbage(keep=[]) == {}


async def test_winners_are_removed_last(artifacts: Artifacts, clock: SettableClock) -> None:
    """An old winner outlives newer artifacts, unless winners alone exceed the cap."""
    for key in ("aa1", "bb2", "cc3"):
        await seal_files(artifacts, key, b"x" * 4000)
        clock.now += 60.0
        artifacts.mark_served([key])
    await artifacts.collect_garbage(keep={"aa1"})
    assert artifacts.find_artifact("aa1")
    assert not artifacts.find_artifact("bb2")
    tiny = Artifacts(artifacts.directory, 10)
    assert sum((await tiny.collect_garbage(keep={"aa1"})).values()) > 8000
    assert tiny.find_artifact("aa1") is tiny.find_artifact("cc3") is None
    assert tiny.size == 0


async def test_a_removed_artifact_is_not_marked(artifacts: Artifacts, clock: SettableClock) -> None:
    """The others are."""
    await seal_files(artifacts, "abcd")
    clock.now += 60.0
    artifacts.mark_served(["gone", "abcd"])
    assert (artifacts.directory / "ab" / "abcd" / MANIFEST_NAME).stat().st_mtime == clock.now


async def test_a_file_in_place_of_the_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = Artifacts(tmp_path / "file" / "artifacts", CAP_BYTES)
    for call in (broken.clean_staging, lambda: broken.make_staging_directory("compile-1")):
        with pytest.raises(StoreError, match="a part of its path is a file"):
            call()


ON_A_SMALL_DISK = """
import sys
from pathlib import Path
from ktuned.store import Artifacts
from ktuned.store.faults import DISK_ERRORS
from ktuned.worker.seal import seal_artifact

def main() -> None:
    artifacts = Artifacts(Path(sys.argv[1]), 10**9)
    for key, size in (("aa11", 200_000), ("bb22", 40_960)):
        path = artifacts.make_staging_directory("compile-1") / key
        path.mkdir()
        (path / "kernel.so").write_bytes(b"x" * size)
        try:
            # The second one's files fit; its manifest does not.
            place = artifacts.locate_artifact(key)
            seal_artifact(path, place, key=key, backend="b", facts={"log": "y" * 9000}, required=["kernel.so"])
            print("kept", key)
        except OSError as error:
            print("refused", key, error.errno in DISK_ERRORS)
        print(artifacts.find_artifact(key) is not None)

main()
"""


async def test_a_full_disk_while_sealing_is_an_error_of_the_disk(tmp_path: Path) -> None:
    """The artifact does not exist."""
    lines = run_on_mount('mount -t tmpfs -o size=256k none "$2"', ON_A_SMALL_DISK, tmp_path / "disk")
    assert lines[:4] == ["kept aa11", "True", "refused bb22 True", "False"]


def make_keys() -> Iterator[str]:
    """Yield keys without an end."""
    return (f"{number:02x}ff" for number in itertools.count())


async def test_collecting_while_sealing_leaves_valid_artifacts(artifacts: Artifacts) -> None:
    names = list(itertools.islice(make_keys(), 12))
    async with anyio.create_task_group() as tasks:
        for key in names:
            tasks.start_soon(seal_files, artifacts, key, b"x" * 3000, f"compile-{key}")
            tasks.start_soon(artifacts.collect_garbage, [])
    await artifacts.collect_garbage([])
    paths = [path for key in names if (path := artifacts.find_artifact(key))]
    assert paths
    assert artifacts.size <= CAP_BYTES
    for path in paths:
        manifest.verify(path, required=["kernel.so"])
