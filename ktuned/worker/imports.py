"""Faster imports in workers: bytecode is kept, and garbage collection pauses.

Packages that were installed without bytecode (by uv, and in many container images) are compiled again by each process
that imports them: `import torch` takes 4.7 s instead of 1.3 s. Workers then keep bytecode in the user's cache, shared
by all daemons. Python looks there for the bytecode of all modules, also of those that were installed with it, so every
imported module is written there. Modules of a project have no bytecode: the observer compiles them from the bytes that
it digests (:mod:`ktuned.dependencies.code_observer`).

An import makes objects that stay. Searching them for garbage, again and again, takes a sixth of the import of torch.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from typing import Any

from ktuned.user_directories import NoHomeDirectory, find_user_directories

DECIDING = ("ktuned", "torch")
"""If one of these modules lacks bytecode, workers keep their own: all workers import ktuned, and torch is slowest."""


def keep_bytecode(environ: dict[str, str] | os._Environ[str], modules: Sequence[str] = DECIDING) -> None:
    """Keep bytecode in the user's cache from now on, if one of ``modules`` is installed without bytecode.

    It is not written next to the sources, where the daemon would take it for a change.
    """
    if sys.pycache_prefix is None and not all(map(_has_bytecode, modules)):
        with suppress(NoHomeDirectory):
            sys.pycache_prefix = str(find_user_directories(environ).cache / "bytecode")
            SourceFileLoader.set_data = _write_whole_file  # type: ignore[method-assign, assignment]
    sys.dont_write_bytecode = sys.pycache_prefix is None


_write_file = SourceFileLoader.set_data


def _write_whole_file(loader: SourceFileLoader, path: str, data: bytes, **options: Any) -> None:
    """Write a file of bytecode as Python does, and remove it if the full disk took only a part.

    Python does not notice that, and each later import of the module would fail.
    """
    _write_file(loader, path, data, **options)
    with suppress(OSError):
        if os.path.getsize(path) != len(data):
            os.unlink(path)


def _has_bytecode(name: str) -> bool:
    """Return whether a module is installed with bytecode; true for a module that is not installed at all."""
    spec = importlib.util.find_spec(name)
    return spec is None or spec.cached is None or os.path.exists(spec.cached)


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Turn off garbage collection for a while, if it is on."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
