"""Artifacts on the disk: sealed directories ``ab/<key>/``, made in a staging directory and renamed into place.

A sealed artifact never changes. Its manifest's modification time says when it was last served. When all artifacts
together exceed their cap, the least recently served ones are removed first.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import structlog

from ktuned.ipc import MANIFEST_NAME, DamagedArtifact, Manifest, locate_artifact, locate_staging, manifest
from ktuned.model import FrozenStruct
from ktuned.protocol import ArtifactsInfo
from ktuned.store.faults import explain_file_error

_log = structlog.get_logger()

_PROBE_BYTES = 256 * 1024


class _Sealed(FrozenStruct):
    """One artifact, as :meth:`Artifacts.collect_garbage` sees it."""

    key: str
    size: int
    served: float


class Artifacts(msgspec.Struct, eq=False):
    """The artifacts below ``directory``; :meth:`collect_garbage` keeps them within ``cap_bytes``.

    ``clock`` returns the Unix time in seconds.
    """

    directory: Path
    cap_bytes: int
    clock: Callable[[], float] = time.time
    _made: dict[str, anyio.Event] = {}
    _size: int | None = None

    @property
    def size(self) -> int:
        """Bytes in all sealed artifacts; the first call reads all their directories."""
        if self._size is None:
            self._size = sum(entry.size for entry in self._list_sealed())
        return self._size

    def describe_artifacts(self) -> ArtifactsInfo:
        """Return the size of all artifacts, their cap, and where they are."""
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
            raise explain_file_error(error, f"the artifacts' directory {self.directory} cannot be prepared") from error

    def make_staging_directory(self, worker: str) -> Path:
        """Return an empty directory for one worker only; the content of its previous one is removed.

        Raises:
            StoreError: the directory cannot be made.
        """
        path = locate_staging(self.directory, worker)
        try:
            self._ensure_staging_directory()
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(mode=0o700)
        except OSError as error:
            raise explain_file_error(error, f"the staging directory {path} cannot be made") from error
        return path

    @contextmanager
    def mark_in_progress(self, keys: Collection[str]) -> Iterator[None]:
        """Mark artifacts as being compiled during the block, so that others wait instead of compiling them, too."""
        made = anyio.Event()
        self._made |= dict.fromkeys(keys, made)
        try:
            yield
        finally:
            for key in keys:
                del self._made[key]
            made.set()

    def is_compiling(self, key: str) -> bool:
        """Return whether an artifact is being compiled now."""
        return key in self._made

    async def await_compiled(self, key: str) -> None:
        """Wait until an artifact is no longer being compiled, whether that succeeds or not."""
        if key in self._made:
            await self._made[key].wait()

    def count_added_bytes(self, size: int) -> None:
        """Count an artifact of ``size`` bytes that a compile worker has put at its :meth:`locate_artifact`."""
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
                raise explain_file_error(error, f"{self.directory} cannot be written") from error

        await anyio.to_thread.run_sync(write)

    def find_artifact(self, key: str) -> Path | None:
        """Return the directory of a sealed artifact, if it exists; the caller verifies the files that it loads."""
        path = self.locate_artifact(key)
        return path if (path / MANIFEST_NAME).exists() else None

    def is_sealed(self, key: str) -> bool:
        """Return whether an artifact is sealed."""
        # Called for each config. A Path would make the interpreter intern the key and keep it.
        return os.path.exists(f"{self.directory}/{key[:2]}/{key}/{MANIFEST_NAME}")

    async def verify_artifact(self, key: str) -> Manifest | None:
        """Read all files of an artifact and return its manifest; a damaged artifact is removed, and None returned.

        Raises:
            StoreError: a damaged artifact cannot be removed.
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
        """Return an artifact's manifest without reading its other files; ``None`` if the manifest cannot be read."""
        try:
            return manifest.read(self.locate_artifact(key))
        except DamagedArtifact:
            return None

    def copy_tensors(self, source: str, target: str, problem: str) -> bool:
        """Record with an artifact which tensors another one was measured with for a problem, given as canonical text.

        Returns whether that is recorded; the source may be gone.
        """
        known = manifest.read_tensors(self.locate_artifact(source)).get(problem)
        if known is None:
            return False
        with suppress(OSError):
            manifest.add_tensors(self.locate_artifact(target), problem, known)
            return True
        return False

    def discard_artifact(self, key: str) -> None:
        """Remove an artifact, atomically for readers; does nothing if it is gone.

        Raises:
            StoreError: the artifact cannot be removed.
        """
        try:
            self._remove_artifact(key)
        except OSError as error:
            raise explain_file_error(error, f"artifact {key} cannot be removed") from error
        self._size = None

    def mark_served(self, keys: Iterable[str]) -> None:
        """Record that artifacts were served until now."""
        now = self.clock()
        for key in keys:
            # An artifact may be gone, or its disk read-only now: only the order of removal suffers.
            with suppress(OSError):
                os.utime(self.locate_artifact(key) / MANIFEST_NAME, (now, now))

    async def collect_garbage(self, keep: Collection[str]) -> dict[str, int]:
        """Remove the least recently served artifacts, those in ``keep`` last, until the rest is within the cap.

        Returns the bytes of each removed artifact, by key.

        Raises:
            StoreError: an artifact cannot be removed.
        """
        removed, self._size = await anyio.to_thread.run_sync(self._collect_blocking, frozenset(keep), self.cap_bytes)
        return removed

    def locate_artifact(self, key: str) -> Path:
        """Return where the artifact of ``key`` is, or would be."""
        return locate_artifact(self.directory, key)

    def _ensure_staging_directory(self) -> Path:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = locate_staging(self.directory)
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def _remove_artifact(self, key: str) -> None:
        """Remove an artifact; rename it away first, so that no reader finds half of it."""
        with tempfile.TemporaryDirectory(dir=self._ensure_staging_directory(), ignore_cleanup_errors=True) as away:
            try:
                self.locate_artifact(key).rename(Path(away, key))
            except FileNotFoundError:
                return

    def _collect_blocking(self, keep: frozenset[str], cap_bytes: int) -> tuple[dict[str, int], int]:
        surplus, size = self._find_surplus(keep, cap_bytes)
        for key in surplus:
            try:
                self._remove_artifact(key)
            except OSError as error:
                raise explain_file_error(error, f"artifact {key} cannot be removed") from error
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
