"""Precompiled headers: decides when NVRTC stores a source's leading ``#include`` lines in parsed form, and reuses them.

NVRTC can reuse a precompiled header only in the process that made it (it is mapped to a fixed address), and only for
the same leading lines and options. Making one takes about half as long as parsing the headers, and some have hundreds
of MB. Therefore

- the first kernel of a set of options gets none, unless several kernels are compiled in one program,
- a process keeps :data:`MAX_KEPT` of them, and
- a set of options whose header did not fit NVRTC's heap is never tried again (*given up*).
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
"""Most precompiled headers of a process; a worker compiles one kernel for a long time, or two alternately."""


def choose_options(key: str, kernels: int) -> tuple[str, ...]:
    """Return NVRTC's options for making or using the precompiled header of ``key``.

    Args:
        key: stands for the source, its headers and the options.
        kernels: how many kernels the program has.

    Returns:
        no options if NVRTC has no precompiled headers, if there is no private directory, or if it does not pay.
    """
    if program.read_version() < program.FIRST_WITH_PRECOMPILED_HEADERS:
        return ()
    headers = _open_for_process()
    return headers.choose_options(key, kernels) if headers else ()


def record_result(key: str, heap_bytes_wanted: int) -> None:
    """Record the result of a program with :func:`options`, see :class:`ktuned_nvrtc.program.Program`."""
    if heap_bytes_wanted and (headers := _open_for_process()):
        headers.exclude_key(key)


class PrecompiledHeaders:
    """The precompiled headers of this process, in a directory that only this user can write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen_once: set[str] = set()
        self._excluded: set[str] = set()
        self._directories: OrderedDict[str, Path] = OrderedDict()

    def choose_options(self, key: str, kernels: int) -> tuple[str, ...]:
        """Return the options for a key's header; none if this is its first and only kernel, or the key is given up."""
        is_first = key not in self._seen_once
        self._seen_once.add(key)
        if is_first and kernels == 1:
            return ()
        if key in self._excluded:
            return ()
        if key not in self._directories:
            self._directories[key] = Path(tempfile.mkdtemp(dir=self._directory))
            if len(self._directories) > MAX_KEPT:
                _, oldest = self._directories.popitem(last=False)
                shutil.rmtree(oldest, ignore_errors=True)
        self._directories.move_to_end(key)
        return ("-pch", f"-pch-dir={self._directories[key]}", "-pch-messages=false")

    def exclude_key(self, key: str) -> None:
        """Never try ``key`` again: a failed attempt costs as much as a success."""
        self._excluded.add(key)


@functools.cache
def _open_for_process() -> PrecompiledHeaders | None:
    directory = process_directory("nvrtc")
    if directory is None:
        return None
    # The largest heap from the start: the needed size is known only after a failed attempt, and unused address space
    # costs nothing.
    program.reserve_heap(MAX_HEAP_BYTES)
    return PrecompiledHeaders(directory)
