"""The OpenMP and BLAS libraries of this process: their settings, and the ends of their thread pools.

A library is found once it is mapped, and opened without loading it. A pool's threads have the floating-point control
that they were started with, so that a pool must end before it may compute with another one.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ktuned.worker.process_settings import Setting

_PAUSE_HARD = 2
_OPENMP = re.compile(r"/lib(gomp|omp|iomp5)[^/]*\.so[^/]*$")
_BLAS = re.compile(r"/lib[^/]*(openblas|mkl_rt|blis)[^/]*\.so[^/]*$")
_BLAS_CALLS = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
)
_OPENMP_CALLS = (
    ("omp_get_max_threads", "omp_set_num_threads"),
    ("omp_get_dynamic", "omp_set_dynamic"),
    ("omp_get_max_active_levels", "omp_set_max_active_levels"),
)

_USUAL_VALUES = {"omp_get_dynamic": (0,), "omp_get_max_active_levels": (1, 2**31 - 1)}
"""Initial values by the function that reads them; those of all others are the number of cores."""


class ThreadingLibraries:
    """The OpenMP and BLAS libraries that were found in this process so far.

    Attributes:
        settings: the settings of all libraries; their names start with the function that reads them.
    """

    def __init__(self) -> None:
        self.settings: list[Setting] = []
        self._libraries: dict[bytes, ctypes.CDLL] = {}

    def add_mapped_libraries(self, files: Iterable[bytes]) -> None:
        """Add those of the mapped files that are such libraries."""
        for file in files:
            name = os.fsdecode(file)
            if file in self._libraries or not (_OPENMP.search(name) or _BLAS.search(name)):
                continue
            try:
                library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            except OSError:
                continue
            self._libraries[file] = library
            self.settings += [
                Setting(f"{reader} of {os.path.basename(name)}", getattr(library, reader), getattr(library, writer))
                for reader, writer in (*_OPENMP_CALLS, *_BLAS_CALLS)
                if hasattr(library, reader) and hasattr(library, writer)
            ]

    @contextmanager
    def use_one_thread(self) -> Iterator[None]:
        """Let all libraries compute with one thread for a while."""
        counts = [one for one in self.settings if "threads" in one.name.partition(" ")[0].casefold()]
        before = [count.read() for count in counts]
        for count in counts:
            count.write(1)
        try:
            yield
        finally:
            for count, number in zip(counts, before, strict=True):
                count.write(number)

    def end_thread_pools(self) -> None:
        """End the pools of OpenMP's threads; each starts anew when it is needed."""
        for library in self._libraries.values():
            if hasattr(library, "omp_pause_resource_all"):
                library.omp_pause_resource_all(_PAUSE_HARD)


def is_usual_value(name: str, value: Any) -> bool:
    """Return whether a library's setting has the value that such a library usually starts with."""
    reader = name.partition(" ")[0]
    return value in _USUAL_VALUES.get(reader, (len(os.sched_getaffinity(0)),))
