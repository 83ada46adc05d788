"""Captured inputs: real tensors from an application, with which one problem's configs are measured.

They are files in one directory, each named by the SHA-256 of its content. This digest is part of a measurement's
context, so that results with other inputs are never mixed with these.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ktuned.model import NotFound
from ktuned.store import Capture, Store
from ktuned_client.tensor_file import SUFFIX


class CapturedInputs:
    """The captured inputs of every problem that has some: in memory, in the store, and as files of ``directory``."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.directory = directory
        self._store = store
        self._captures = {(held.kernel, held.problem): held for held in store.captured.list_captures()}

    def find_captured_digest(self, kernel: str, problem: str) -> str:
        """Return the digest of a problem's (canonical text) captured inputs; empty if there are none."""
        held = self._captures.get((kernel, problem))
        return "" if held is None else held.digest

    def locate_captured_file(self, digest: str) -> Path:
        """Return the file of the inputs with a digest."""
        return self.directory / f"{digest}{SUFFIX}"

    def measure_other_captures(self, kernel: str, problem: str) -> int:
        """Return the size of all captures except one problem's, in bytes."""
        return sum(held.bytes for key, held in self._captures.items() if key != (kernel, problem))

    async def keep_capture(self, capture: Capture) -> bool:
        """Keep a capture in place of its problem's last one; return whether the content differs.

        Raises:
            StoreError: it cannot be recorded.
        """
        key = capture.kernel, capture.problem
        before = self.find_captured_digest(*key)
        await self._store.captured.save_capture(capture)
        self._captures[key] = capture
        if before:
            self.remove_unused_capture(before)
        return before != capture.digest

    async def drop_capture(self, kernel: str, problem: str) -> None:
        """Forget a problem's captured inputs.

        Raises:
            NotFound: the problem has none.
            StoreError: the change cannot be recorded.
        """
        digest = self.find_captured_digest(kernel, problem)
        if not digest:
            raise NotFound(f"{kernel} has no captured inputs for {problem}")
        await self._store.captured.remove_capture(kernel, problem)
        del self._captures[kernel, problem]
        self.remove_unused_capture(digest)

    def remove_unused_capture(self, digest: str) -> None:
        """Remove a file that no problem uses any longer."""
        if all(held.digest != digest for held in self._captures.values()):
            with suppress(OSError):
                self.locate_captured_file(digest).unlink()
