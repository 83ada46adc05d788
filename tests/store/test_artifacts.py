"""Artifacts: sealed whole or not at all, unchanged afterwards, least recently served out first."""

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
from tests.store.test_database_file import on_a_mount

pytestmark = pytest.mark.anyio

CAP_BYTES = 10_000


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Return the clock that :func:`artifacts` goes by."""
    return Clock()


@pytest.fixture
def artifacts(tmp_path: Path, clock: Clock) -> Artifacts:
    """Return the artifacts of a directory that is not there yet."""
    made = Artifacts(tmp_path / "cache" / "artifacts", CAP_BYTES, clock=clock)
    made.clean_staging()
    return made


def staged(artifacts: Artifacts, worker: str, key: str, content: bytes = b"binary") -> Path:
    """Return what a compile left: a binary, and a source in a directory of its own."""
    path = artifacts.make_staging_directory(worker) / key
    (path / "sources").mkdir(parents=True)
    (path / "kernel.so").write_bytes(content)
    (path / "sources" / "gemm.cc").write_text("int main() {}")
    return path


async def sealed(artifacts: Artifacts, key: str, content: bytes = b"binary", worker: str = "compile-1") -> Manifest:
    """Seal one artifact, as a compile worker does: beside the daemon."""
    path = staged(artifacts, worker, key, content)

    def work() -> tuple[Manifest, int]:
        place = artifacts.locate_artifact(key)
        return seal_artifact(path, place, key=key, backend="tvm_ffi", facts={"flags": "-O3"}, required=["kernel.so"])

    made, size = await anyio.to_thread.run_sync(work)
    artifacts.count_added_bytes(size)
    return made


def left_in_staging(artifacts: Artifacts) -> list[str]:
    """Return the files that were left half done."""
    return [path.name for path in (artifacts.directory / ".staging").rglob("*") if path.is_file()]


async def test_a_sealed_artifact_is_found_whole(artifacts: Artifacts) -> None:
    """It lies under its key's first two characters, verifies, is read-only, and nothing is left in staging."""
    assert artifacts.find_artifact("abcd") is None
    made = await sealed(artifacts, "abcd")
    path = artifacts.find_artifact("abcd")
    assert path == artifacts.directory / "ab" / "abcd"
    assert manifest.verify(path, required=["kernel.so"]) == made
    assert set(made.files) == {"kernel.so", "sources/gemm.cc"}
    assert made.facts == {"flags": "-O3"}
    files = [file for file in path.rglob("*") if file.is_file()]
    assert not any(stat.S_IMODE(file.stat().st_mode) & 0o222 for file in files)
    assert artifacts.size == sum(file.stat().st_size for file in files)
    assert left_in_staging(artifacts) == []


async def test_staging_is_fresh_and_private(artifacts: Artifacts) -> None:
    """A worker's directory holds nothing of its last compile and is closed to others; a start removes them all."""
    first = artifacts.make_staging_directory("compile-1")
    (first / "left").write_text("half")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert artifacts.make_staging_directory("compile-1") == first
    assert list(first.iterdir()) == []
    (artifacts.make_staging_directory("compile-2") / "left").write_text("half")
    artifacts.clean_staging()
    assert left_in_staging(artifacts) == []
    assert not first.exists()


async def test_of_two_equal_keys_one_stands(artifacts: Artifacts) -> None:
    """Ten workers that seal one key at once: one artifact stands, which is whole, and is counted once."""
    assert artifacts.size == 0
    told: list[Manifest] = []

    async def seal_one(worker: int) -> None:
        told.append(await sealed(artifacts, "abcd", b"%d" % worker, f"compile-{worker}"))

    async with anyio.create_task_group() as tasks:
        for worker in range(10):
            tasks.start_soon(seal_one, worker)
    place = artifacts.find_artifact("abcd")
    assert place is not None
    assert told == [manifest.verify(place, required=["kernel.so"])] * 10
    assert artifacts.size == sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    assert left_in_staging(artifacts) == []


async def test_a_ruin_under_the_key_is_replaced(artifacts: Artifacts) -> None:
    """A directory without a readable manifest does not stand in the way of a rebuilt artifact."""
    ruin = artifacts.directory / "ab" / "abcd"
    ruin.mkdir(parents=True)
    (ruin / "kernel.so").write_text("half")
    assert artifacts.find_artifact("abcd") is None
    made = await sealed(artifacts, "abcd")
    assert manifest.verify(ruin, required=["kernel.so"]) == made


async def test_a_damaged_artifact_is_discarded_and_rebuilt(artifacts: Artifacts) -> None:
    """What fails its verification is removed, is a miss from then on, and can be sealed again."""
    await sealed(artifacts, "abcd")
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
    await sealed(artifacts, "abcd")
    manifest.verify(path, required=["kernel.so"])


@pytest.mark.parametrize("served", list(itertools.permutations(["aa1", "bb2", "cc3"])))
async def test_least_recently_served_goes_first(artifacts: Artifacts, clock: Clock, served: tuple[str, ...]) -> None:
    """Of three that do not fit, the two that were served last stay; another process finds the same order."""
    for key in ("aa1", "bb2", "cc3"):
        await sealed(artifacts, key, b"x" * 4000)
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


async def test_winners_go_last(artifacts: Artifacts, clock: Clock) -> None:
    """An old winner outlives newer artifacts, and only a cap that winners alone exceed removes it."""
    for key in ("aa1", "bb2", "cc3"):
        await sealed(artifacts, key, b"x" * 4000)
        clock.now += 60.0
        artifacts.mark_served([key])
    await artifacts.collect_garbage(keep={"aa1"})
    assert artifacts.find_artifact("aa1")
    assert not artifacts.find_artifact("bb2")
    tiny = Artifacts(artifacts.directory, 10)
    assert sum((await tiny.collect_garbage(keep={"aa1"})).values()) > 8000
    assert tiny.find_artifact("aa1") is tiny.find_artifact("cc3") is None
    assert tiny.size == 0


async def test_an_artifact_that_is_gone_is_not_marked(artifacts: Artifacts, clock: Clock) -> None:
    """The others are."""
    await sealed(artifacts, "abcd")
    clock.now += 60.0
    artifacts.mark_served(["gone", "abcd"])
    assert (artifacts.directory / "ab" / "abcd" / MANIFEST_NAME).stat().st_mtime == clock.now


async def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    """A file in the way is one line of the store's."""
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


async def test_a_disk_that_fills_up_while_sealing(tmp_path: Path) -> None:
    """The artifact is not there, and the error is one that says it of the disk."""
    lines = on_a_mount('mount -t tmpfs -o size=256k none "$2"', ON_A_SMALL_DISK, tmp_path / "disk")
    assert lines[:4] == ["kept aa11", "True", "refused bb22 True", "False"]


def keys() -> Iterator[str]:
    """Return endless keys."""
    return (f"{number:02x}ff" for number in itertools.count())


async def test_collecting_beside_sealing_leaves_whole_artifacts(artifacts: Artifacts) -> None:
    """Whatever is found after both ran at once verifies."""
    names = list(itertools.islice(keys(), 12))
    async with anyio.create_task_group() as tasks:
        for key in names:
            tasks.start_soon(sealed, artifacts, key, b"x" * 3000, f"compile-{key}")
            tasks.start_soon(artifacts.collect_garbage, [])
    await artifacts.collect_garbage([])
    found = [path for key in names if (path := artifacts.find_artifact(key))]
    assert found
    assert artifacts.size <= CAP_BYTES
    for path in found:
        manifest.verify(path, required=["kernel.so"])
