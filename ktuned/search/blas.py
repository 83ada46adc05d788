"""Limits linear algebra to one thread while a strategy chooses.

The matrices are small, and the other cores compile, so threads would only wait for each other. NumPy has no setting for
this, so the loaded library's own functions are called, as threadpoolctl does. Libraries other than OpenBLAS are left
alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

PREFIXES = ("scipy_openblas", "openblas")
SUFFIXES = ("64_", "", "_64")
"""Names of OpenBLAS's functions in NumPy's wheels and in distributions' packages."""


@contextmanager
def limit_blas_to_one_thread() -> Iterator[None]:
    """Run a block with one thread for linear algebra, then restore the earlier setting."""
    controls = _find_openblas_controls()
    before = [get() for get, _ in controls]
    for _, use in controls:
        use(1)
    try:
        yield
    finally:
        for (_, use), number in zip(controls, before, strict=True):
            use(number)


@cache
def _find_openblas_controls() -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """Return the functions that read and set the number of threads, for each OpenBLAS that this process has loaded."""
    found = []
    for path in _loaded_openblas_paths():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix in PREFIXES:
            for suffix in SUFFIXES:
                get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
                use = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
                if get is not None and use is not None:
                    found.append((get, use))
    return tuple(found)


def _loaded_openblas_paths() -> set[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "openblas" in line}
    except OSError:
        return set()
    return {path for path in paths if path.startswith("/")}
