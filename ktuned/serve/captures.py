"""The method ``capture``: has a problem measured with an application's own tensors as its inputs.

The daemon names a directory. The application writes its tensors there, into a file named by the digest of its content,
and sends only this digest.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any, Final

import anyio.to_thread
import msgspec

from ktuned.catalog import CapturedInputs, Catalog, check_problem
from ktuned.model import UsageError, canonical
from ktuned.protocol import CAPTURE, CaptureAnswer, CaptureParams
from ktuned.scheduling import Jobs
from ktuned.serve.method import Handler, Peer
from ktuned.store import Capture, explain_file_error

MAX_CAPTURE_BYTES: Final = 2 * 2**30
"""Size limit of one problem's tensors: about as much as a GPU reads in a millisecond."""

MAX_CAPTURED_BYTES: Final = 16 * 2**30
"""Size limit of all captures together, on the user's disk."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Captures(msgspec.Struct, frozen=True):
    """Accepts captured inputs.

    Attributes:
        inputs: The captured inputs.
        catalog: Finds the kernel.
        jobs: The kernel's jobs under way measure in the old context, so they are cancelled.
        changed: Called with the kernel whose context has changed.
    """

    inputs: CapturedInputs
    catalog: Catalog
    jobs: Jobs
    changed: Callable[[str], None]

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(CAPTURE, self.handle_capture)]

    async def handle_capture(self, params: CaptureParams, peer: Peer) -> CaptureAnswer:
        """Return where to write a problem's tensors, accept those that were written, or remove a capture."""
        kernel = self.catalog.resolve_kernel(params.kernel, params.directory)
        check_problem(kernel, params.problem)
        if (representative := kernel.choose_representative(params.problem)) != dict(params.problem):
            raise UsageError(
                f"{kernel.name} measures {canonical(representative)} for {canonical(params.problem)}",
                hint="capture the tensors of the problem that stands for the bucket",
            )
        problem = canonical(kernel.select_key_values(params.problem))
        directory = self.inputs.directory
        if params.remove:
            await self.inputs.drop_capture(kernel.name, problem)
            await self._replace_context(kernel.name)
            return CaptureAnswer(kernel=kernel.name, digest=None, bytes=0)
        if params.digest is None:
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise explain_file_error(error, f"{directory} cannot be made") from error
            return CaptureAnswer(directory=str(directory), max_bytes=MAX_CAPTURE_BYTES)
        if not _DIGEST.fullmatch(params.digest):
            raise UsageError("`digest` is not a SHA-256", hint="give the 64 hexadecimal digits that name the file")
        size = await anyio.to_thread.run_sync(
            _check_captured_file, self.inputs.locate_captured_file(params.digest), params.digest
        )
        others = self.inputs.measure_other_captures(kernel.name, problem)
        if others + size > MAX_CAPTURED_BYTES:
            self.inputs.remove_unused_capture(params.digest)
            raise UsageError(
                f"the captures have {others} bytes, and may have {MAX_CAPTURED_BYTES} with these {size}",
                hint="forget some: the method `capture` with `remove`",
            )
        if await self.inputs.keep_capture(Capture(kernel.name, problem, params.digest, size, time())):
            await self._replace_context(kernel.name)
        return CaptureAnswer(kernel=kernel.name, digest=params.digest, bytes=size)

    async def _replace_context(self, kernel: str) -> None:
        self.changed(kernel)
        await self.jobs.cancel_jobs_of_kernel(kernel)


def _check_captured_file(path: Path, digest: str) -> int:
    """Return the size of a file after checking that its content matches its name.

    Raises:
        UsageError: the file is missing, not ours or too large, or its content does not match.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise UsageError(f"{path} is not a regular file of this user")
            if found.st_size > MAX_CAPTURE_BYTES:
                raise UsageError(f"{path} has {found.st_size} bytes, and may have {MAX_CAPTURE_BYTES}")
            if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                raise UsageError(f"{path} is not what its name promises", hint="capture it again")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return found.st_size
