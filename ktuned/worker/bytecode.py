"""Bytecode cache of workers, for interpreters whose packages have none.

Packages that were installed without bytecode (uv and many container images do that) are compiled again by each process
that imports them: `import torch` takes 4.7 s instead of 1.3 s. Workers then keep bytecode of their own in the user's
cache, shared by all daemons. They write it only while they import what is installed, never of a project: its files may
change twice within the second that bytecode knows them by.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

DECIDING = ("ktuned", "torch")
"""Modules whose missing bytecode makes workers keep their own: what every worker imports, and the slowest."""


def use(environ: dict[str, str] | os._Environ[str], modules: Sequence[str] = DECIDING) -> None:
    """Keep bytecode in the user's cache from now on if one of ``modules`` is installed without."""
    if sys.pycache_prefix is None and not all(map(_has_bytecode, modules)):
        cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        sys.pycache_prefix = os.path.join(cache, "ktuned", "bytecode")


def _has_bytecode(name: str) -> bool:
    """Return whether a module's bytecode is there; one that is not installed needs none."""
    spec = importlib.util.find_spec(name)
    return spec is None or spec.cached is None or os.path.exists(spec.cached)


@contextmanager
def written() -> Iterator[None]:
    """Write the bytecode of what is imported meanwhile, if it goes to the cache and not beside the sources."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = sys.pycache_prefix is None
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
