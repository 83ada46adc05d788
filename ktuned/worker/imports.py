"""Imports in workers: their bytecode is kept, and what a worker begins with is not searched for garbage meanwhile.

Packages that were installed without bytecode (uv and many container images do that) are compiled again by each process
that imports them: `import torch` takes 4.7 s instead of 1.3 s. Workers then keep bytecode of their own in the user's
cache, shared by all daemons. There Python looks for that of all modules, those with bytecode of their own too: so it is
written whenever a module is imported. A project's modules have none: the observer of its code compiles them from the
bytes that it digests (:mod:`ktuned.dependencies.code_observer`).

An import makes objects that stay. To look through them for garbage, again and again, is a sixth of the import of torch.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

DECIDING = ("ktuned", "torch")
"""Modules whose missing bytecode makes workers keep their own: what every worker imports, and the slowest."""


def keep_bytecode(environ: dict[str, str] | os._Environ[str], modules: Sequence[str] = DECIDING) -> None:
    """Keep bytecode in the user's cache from now on if one of ``modules`` is installed without.

    None is written beside the sources: that would be a change that the daemon watches.
    """
    if sys.pycache_prefix is None and not all(map(_has_bytecode, modules)):
        cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        sys.pycache_prefix = os.path.join(cache, "ktuned", "bytecode")
    sys.dont_write_bytecode = sys.pycache_prefix is None


def _has_bytecode(name: str) -> bool:
    """Return whether a module's bytecode is there; one that is not installed needs none."""
    spec = importlib.util.find_spec(name)
    return spec is None or spec.cached is None or os.path.exists(spec.cached)


@contextmanager
def without_collections() -> Iterator[None]:
    """Have the collector of garbage rest meanwhile, if it is on."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
