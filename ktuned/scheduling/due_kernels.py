"""Kernels for which a part has work to do soon."""

from __future__ import annotations

import anyio


class DueKernels:
    """Kernels that events add, and that one part takes."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._woken = anyio.Event()

    def add_kernel(self, kernel: str) -> None:
        """Have the part do its work for a kernel soon."""
        self._names.add(kernel)
        self._woken.set()

    def take_kernels(self) -> set[str]:
        """Return the kernels and forget them."""
        names, self._names = self._names, set()
        return names

    def wake_up(self) -> None:
        """End :meth:`wait_for_kernel`."""
        self._woken.set()

    async def wait_for_kernel(self, at_most_s: float | None = None) -> None:
        """Wait until a kernel is added or :meth:`wake_up` is called, or at most ``at_most_s``."""
        with anyio.move_on_after(at_most_s):
            await self._woken.wait()
        self._woken = anyio.Event()
