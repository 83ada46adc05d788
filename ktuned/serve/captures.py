"""Captured inputs: real tensors that an application handed over, for the tuning of one problem to measure with.

An application writes them itself, into a directory that it is told, as a file named by its content; only the name
travels. It enters the ground of what is measured, so that figures of other inputs are never mixed with these.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any, Final

import anyio.to_thread

from ktuned.catalog import Catalog, check_problem
from ktuned.model import KernelInfo, NotFound, Problem, UsageError, canonical
from ktuned.scheduling import Jobs
from ktuned.serve.connection import Connection
from ktuned.serve.method import Method
from ktuned.serve.params import CaptureParams
from ktuned.store import Capture, Store, file_fault
from ktuned_client.tensor_file import SUFFIX

MAX_CAPTURE_BYTES: Final = 2 * 2**30
"""One problem's tensors: what a GPU reads in a millisecond."""

MAX_CAPTURED_BYTES: Final = 16 * 2**30
"""All captures together, on the user's disk."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Captures:
    """Knows which problems have captured inputs; ``changed`` is called with a kernel whose ground is another now.

    Its jobs that are under way stand on the ground before, and are superseded.
    """

    def __init__(
        self, store: Store, directory: Path, catalog: Catalog, jobs: Jobs, changed: Callable[[str], None]
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._directory = directory
        self._catalog = catalog
        self._changed = changed
        self._held = {(held.kernel, held.problem): held for held in store.captured.all()}

    def table(self) -> dict[str, Method[Any]]:
        """Return the methods by their names on the wire."""
        return {"capture": Method(CaptureParams, self.capture)}

    def digest(self, kernel: str, problem: str) -> str:
        """Return the digest of a problem's (canonical text) captured inputs; empty if there are none."""
        held = self._held.get((kernel, problem))
        return "" if held is None else held.digest

    def path(self, kernel: KernelInfo, problem: Problem) -> str:
        """Return the file of a problem's captured inputs; empty if there are none."""
        digest = self.digest(kernel.name, canonical(kernel.specialized(problem)))
        return str(self._file(digest)) if digest else ""

    async def capture(self, wanted: CaptureParams, connection: Connection) -> dict[str, Any]:
        """Say where to write a problem's tensors, or take note of those that were written."""
        kernel = self._catalog.resolve(wanted.kernel)
        check_problem(kernel, wanted.problem)
        key = (kernel.name, canonical(kernel.specialized(wanted.problem)))
        if wanted.remove:
            return await self._remove(key)
        if wanted.digest is None:
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise file_fault(error, f"{self._directory} cannot be made") from error
            return {"directory": str(self._directory), "max_bytes": MAX_CAPTURE_BYTES}
        if not _DIGEST.fullmatch(wanted.digest):
            raise UsageError("`digest` is no SHA-256", hint="give the 64 hexadecimal digits that name the file")
        size = await anyio.to_thread.run_sync(_checked_size, self._file(wanted.digest), wanted.digest)
        others = sum(held.bytes for other, held in self._held.items() if other != key)
        if others + size > MAX_CAPTURED_BYTES:
            self._sweep(wanted.digest)
            raise UsageError(
                f"the captures have {others} bytes, and may have {MAX_CAPTURED_BYTES} with these {size}",
                hint="forget some: the method `capture` with `remove`",
            )
        before = self._held.get(key)
        made = Capture(*key, wanted.digest, size, time())
        await self._store.captured.save(made)
        self._held[key] = made
        if before is not None:
            self._sweep(before.digest)
        if before is None or before.digest != made.digest:
            await self._replace_ground(kernel.name)
        return {"kernel": kernel.name, "digest": made.digest, "bytes": size}

    async def _remove(self, key: tuple[str, str]) -> dict[str, Any]:
        held = self._held.get(key)
        if held is None:
            raise NotFound(f"{key[0]} has no captured inputs for {key[1]}")
        await self._store.captured.remove(*key)
        del self._held[key]
        self._sweep(held.digest)
        await self._replace_ground(key[0])
        return {"kernel": key[0], "digest": None, "bytes": 0}

    async def _replace_ground(self, kernel: str) -> None:
        self._changed(kernel)
        await self._jobs.supersede(kernel)

    def _sweep(self, digest: str) -> None:
        """Remove a file that no problem has any more."""
        if all(held.digest != digest for held in self._held.values()):
            with suppress(OSError):
                self._file(digest).unlink()

    def _file(self, digest: str) -> Path:
        return self._directory / f"{digest}{SUFFIX}"


def _checked_size(path: Path, digest: str) -> int:
    """Return the size of a file that is what its name promises.

    Raises:
        UsageError: it is not there, not ours, too large, or something else.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise UsageError(f"{path} is no file of ours")
            if found.st_size > MAX_CAPTURE_BYTES:
                raise UsageError(f"{path} has {found.st_size} bytes, and may have {MAX_CAPTURE_BYTES}")
            if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                raise UsageError(f"{path} is not what its name promises", hint="capture it again")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return found.st_size
