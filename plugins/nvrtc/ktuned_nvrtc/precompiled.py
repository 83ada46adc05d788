"""Precompiled headers: the options by which NVRTC stores and reuses a source's leading ``#include`` lines.

NVRTC reuses one only within its process (it is mapped to a fixed address), for the same leading lines and options.
Making one takes about half as long as parsing the headers, and some are hundreds of MB. So only options that several
kernels share get one, in one program or in successive ones, and few are kept.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections import OrderedDict
from pathlib import Path

from ktuned.backends import process_directory
from ktuned_nvrtc import program

MAX_HEAP_BYTES = 1 << 30
"""Limit of the heap for precompiling headers: all of libcu++ and CUB takes a third of it."""

MAX_KEPT = 2
"""Precompiled headers that a process keeps: workers compile one kernel for a long time, or two in turns."""


def options(key: str, kernels: int) -> tuple[str, ...]:
    """Return the options that make or use the precompiled header of ``key``, for this number of kernels.

    None if NVRTC has no precompiled headers, there is no private directory for them, or one kernel alone needs it.
    """
    if program.version() < program.FIRST_WITH_PRECOMPILED_HEADERS:
        return ()
    kept = _of_this_process()
    return kept.options(key, kernels) if kept else ()


def tell(key: str, heap_bytes_wanted: int) -> None:
    """Record the result of a program with :func:`options`, see :class:`ktuned_nvrtc.program.Program`."""
    if heap_bytes_wanted and (kept := _of_this_process()):
        kept.give_up(key)


class PrecompiledHeaders:
    """Precompiled headers of this process, in a directory that only this user can write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: set[str] = set()
        self._given_up: set[str] = set()
        self._kept: OrderedDict[str, Path] = OrderedDict()

    def options(self, key: str, kernels: int) -> tuple[str, ...]:
        """Return no options for the first kernel of a key, otherwise those that make or use its precompiled header."""
        is_first = key not in self._seen
        self._seen.add(key)
        if is_first and kernels == 1:
            return ()
        if key in self._given_up:
            return ()
        if key not in self._kept:
            self._kept[key] = Path(tempfile.mkdtemp(dir=self._directory))
            if len(self._kept) > MAX_KEPT:
                _, oldest = self._kept.popitem(last=False)
                shutil.rmtree(oldest, ignore_errors=True)
        self._kept.move_to_end(key)
        return ("-pch", f"-pch-dir={self._kept[key]}", "-pch-messages=false")

    def give_up(self, key: str) -> None:
        """Make none for ``key`` again: a failed attempt costs as much as a success."""
        self._given_up.add(key)


@functools.cache
def _of_this_process() -> PrecompiledHeaders | None:
    own = process_directory("nvrtc")
    if own is None:
        return None
    # At once, because the needed size is known only after a failed attempt. Unused address space costs nothing.
    program.set_heap(MAX_HEAP_BYTES)
    return PrecompiledHeaders(own)
