"""Environment variables that change what Triton makes of a function, by the rules of the backend and of Triton itself.

A module of its own: the backend's fingerprint and the application's drop-in go by it, and neither imports the other.
"""

from __future__ import annotations

import os

ASSEMBLERS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")

_NOT_DECIDING = frozenset({"TRITON_CACHE_DIR", "TRITON_DUMP_DIR", "TRITON_DUMP_PTXAS_LOG", "TRITON_HOME"})
"""Triton's variables that say where files go; all others may change what it makes."""

_OTHERS_DECIDING = ("DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5", "DISABLE_PTXAS_OPT", "NVPTX_ENABLE_DUMP")
"""Variables without its prefix that Triton counts as part of a kernel's key."""


def possibly_deciding() -> list[tuple[str, str]]:
    """Return the variables of this process that may change what a compiler makes: for fingerprints."""
    names = [name for name in os.environ if name.startswith("TRITON_") and name not in _NOT_DECIDING]
    names += [name for name in _OTHERS_DECIDING if name in os.environ]
    return [(name, os.environ[name]) for name in sorted(names)]


def deciding_variables() -> tuple[tuple[str, str], ...]:
    """Return the variables of an application that its kernels are compiled with: those that Triton's keys have."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    names = {*get_cache_invalidating_env_vars(), *ASSEMBLERS}
    return tuple((name, os.environ[name]) for name in sorted(names) if name in os.environ)
