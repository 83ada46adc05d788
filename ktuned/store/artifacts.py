"""Artifacts on the disk: sealed directories ``ab/<key>/``, staged beside themselves and renamed into place.

A sealed artifact never changes. Its manifest's modification time says when it was last served; the least recently
served go first when the directory outgrows its cap.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import structlog

from ktuned.ipc import MANIFEST_NAME, DamagedArtifact, Manifest, locate_artifact, locate_staging, manifest
from ktuned.protocol import ArtifactsInfo
from ktuned.store.faults import file_fault

_log = structlog.get_logger()

TOUCH_EVERY_S = 60.0
"""Resolution of "recently served": a lookup's answer must not cost a write to the disk each time."""

_PROBE_BYTES = 256 * 1024


class _Sealed(msgspec.Struct, frozen=True):
    """One artifact, as :meth:`Artifacts.collect_garbage` sees it."""

    key: str
    size: int
    served: float


class Artifacts:
    """The artifacts below ``directory``; :meth:`collect_garbage` keeps them within ``cap_bytes``.

    ``clock`` is Unix time in s.
    """

    def __init__(self, directory: Path, cap_bytes: int, *, clock: Callable[[], float] = time.time) -> None:
        self.directory = directory
        self.cap_bytes = cap_bytes
        self._clock = clock
        self._touched: dict[str, float] = {}
        self._made: dict[str, anyio.Event] = {}
        self._size: int | None = None

    @property
    def size(self) -> int:
        """Bytes in all sealed artifacts; the first call walks over them."""
        if self._size is None:
            self._size = sum(entry.size for entry in self._list_sealed())
        return self._size

    def describe_artifacts(self) -> ArtifactsInfo:
        """Return how large all artifacts are, how large they may get, and where they are."""
        return ArtifactsInfo(self.size, self.cap_bytes, str(self.directory))

    def clean_staging(self) -> None:
        """Remove unfinished artifacts of an earlier daemon.

        Raises:
            StoreError: the directory cannot be made or written.
        """
        try:
            shutil.rmtree(locate_staging(self.directory), ignore_errors=True)
            self._ensure_staging_directory()
        except OSError as error:
            raise file_fault(error, f"the artifacts' directory {self.directory} cannot be prepared") from error

    def make_staging_directory(self, worker: str) -> Path:
        """Return a fresh directory, private to a worker; what its last one held is removed.

        Raises:
            StoreError: it cannot be made.
        """
        path = locate_staging(self.directory, worker)
        try:
            self._ensure_staging_directory()
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(mode=0o700)
        except OSError as error:
            raise file_fault(error, f"the staging directory {path} cannot be made") from error
        return path

    @contextmanager
    def mark_in_progress(self, keys: Collection[str]) -> Iterator[None]:
        """Note that artifacts are being compiled, so that others wait instead of compiling them, too."""
        made = anyio.Event()
        self._made |= dict.fromkeys(keys, made)
        try:
            yield
        finally:
            for key in keys:
                del self._made[key]
            made.set()

    def is_making(self, key: str) -> bool:
        """Return whether an artifact is being compiled now."""
        return key in self._made

    async def await_made(self, key: str) -> None:
        """Wait until an artifact is no longer being compiled, whether it is there then or not."""
        if key in self._made:
            await self._made[key].wait()

    def note_added(self, size: int) -> None:
        """Take into account that a compile worker has put an artifact of so many bytes in its :meth:`artifact_path`."""
        if self._size is not None:
            self._size += size

    async def check_writable(self) -> None:
        """Write and remove a small file.

        Raises:
            StoreError: nothing can be written now.
        """

        def write() -> None:
            try:
                with tempfile.NamedTemporaryFile(dir=self._ensure_staging_directory()) as stream:
                    stream.write(bytes(_PROBE_BYTES))
                    stream.flush()
            except OSError as error:
                raise file_fault(error, f"{self.directory} cannot be written") from error

        await anyio.to_thread.run_sync(write)

    def find_artifact(self, key: str) -> Path | None:
        """Return the directory of a sealed artifact; its files are yet to be verified by who loads them."""
        path = self.artifact_path(key)
        return path if (path / MANIFEST_NAME).exists() else None

    def is_sealed(self, key: str) -> bool:
        """Return whether an artifact is sealed."""
        # Each config asks. A Path would have the interpreter keep the key among its interned strings.
        return os.path.exists(f"{self.directory}/{key[:2]}/{key}/{MANIFEST_NAME}")

    async def verify_artifact(self, key: str) -> Manifest | None:
        """Return an artifact's manifest after reading all its files; a damaged one is removed, and is a miss like none.

        Raises:
            StoreError: a damaged one cannot be removed.
        """
        path = self.find_artifact(key)
        if path is None:
            return None
        try:
            return await anyio.to_thread.run_sync(lambda: manifest.verify(path, required=()))
        except DamagedArtifact as error:
            _log.debug("artifact_damaged", artifact=key, reason=str(error))
            self.discard_artifact(key)
            return None

    def read_manifest(self, key: str) -> Manifest | None:
        """Return an artifact's manifest, or ``None`` where there is none that can be read; its files are not."""
        try:
            return manifest.read(self.artifact_path(key))
        except DamagedArtifact:
            return None

    def discard_artifact(self, key: str) -> None:
        """Remove an artifact, atomically for readers; harmless when it is gone.

        Raises:
            StoreError: it cannot be removed.
        """
        try:
            self._remove_artifact(key)
        except OSError as error:
            raise file_fault(error, f"artifact {key} cannot be removed") from error
        self._size = None

    def mark_served(self, key: str) -> None:
        """Note that an artifact was served, to within :data:`TOUCH_EVERY_S`."""
        now = self._clock()
        # A clock that was set back must not keep it from being noted until it is where it was.
        if 0 <= now - self._touched.get(key, 0.0) < TOUCH_EVERY_S:
            return
        try:
            os.utime(self.artifact_path(key) / MANIFEST_NAME, (now, now))
        except OSError:
            # Gone, or on a disk that went read-only: serving goes on, and only the order of removal suffers.
            return
        self._touched[key] = now

    async def collect_garbage(self, keep: Collection[str], cap_bytes: int | None = None) -> dict[str, int]:
        """Remove the least recently served artifacts, those in ``keep`` last, until the cap holds.

        ``cap_bytes`` stands in for the cap. Returns the bytes of each one that went, by key.

        Raises:
            StoreError: one cannot be removed.
        """
        cap_bytes = self.cap_bytes if cap_bytes is None else cap_bytes
        removed, self._size = await anyio.to_thread.run_sync(self._collect_blocking, frozenset(keep), cap_bytes)
        return removed

    async def list_surplus(self, keep: Collection[str], cap_bytes: int) -> dict[str, int]:
        """Return what :meth:`collect_garbage` would remove now: bytes by key."""
        found, _ = await anyio.to_thread.run_sync(self._find_surplus, frozenset(keep), cap_bytes)
        return found

    def artifact_path(self, key: str) -> Path:
        """Return where the artifact of ``key`` is, or would be."""
        return locate_artifact(self.directory, key)

    def count_by_backend(self) -> dict[str, tuple[int, int]]:
        """Return how many artifacts there are of each backend, and their bytes; reads every manifest.

        Those whose manifest cannot be read are counted under ``""``; one of a backend that is no more stays until the
        cap needs its room.
        """
        found: dict[str, tuple[int, int]] = {}
        for entry in self._list_sealed():
            try:
                backend = manifest.read(self.artifact_path(entry.key)).backend
            except DamagedArtifact:
                backend = ""
            count, size = found.get(backend, (0, 0))
            found[backend] = (count + 1, size + entry.size)
        return found

    def _ensure_staging_directory(self) -> Path:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = locate_staging(self.directory)
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def _remove_artifact(self, key: str) -> None:
        """Rename an artifact away first, so that no reader finds half of it."""
        with tempfile.TemporaryDirectory(dir=self._ensure_staging_directory(), ignore_cleanup_errors=True) as away:
            try:
                self.artifact_path(key).rename(Path(away, key))
            except FileNotFoundError:
                return

    def _collect_blocking(self, keep: frozenset[str], cap_bytes: int) -> tuple[dict[str, int], int]:
        surplus, size = self._find_surplus(keep, cap_bytes)
        for key in surplus:
            try:
                self._remove_artifact(key)
            except OSError as error:
                raise file_fault(error, f"artifact {key} cannot be removed") from error
        return surplus, size - sum(surplus.values())

    def _find_surplus(self, keep: frozenset[str], cap_bytes: int) -> tuple[dict[str, int], int]:
        """Return the artifacts to remove, in order, and the bytes that all artifacts take now."""
        entries = sorted(self._list_sealed(), key=lambda entry: (entry.key in keep, entry.served))
        size = left = sum(entry.size for entry in entries)
        surplus: dict[str, int] = {}
        for entry in entries:
            if left <= cap_bytes:
                break
            surplus[entry.key] = entry.size
            left -= entry.size
        return surplus, size

    def _list_sealed(self) -> Iterator[_Sealed]:
        for path in self.directory.glob(f"[!.]*/*/{MANIFEST_NAME}"):
            try:
                served = path.stat().st_mtime
                size = sum(file.lstat().st_size for file in path.parent.rglob("*") if not file.is_dir())
            except FileNotFoundError:
                continue
            yield _Sealed(path.parent.name, size, served)
