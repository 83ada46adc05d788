"""Environment variables that change what Triton compiles.

The backend's fingerprint must not import Triton, so it includes every variable that may have an effect. The
application's drop-in asks Triton itself which variables have one.
"""

from __future__ import annotations

import os

ASSEMBLERS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")

_NOT_DECIDING = frozenset({"TRITON_CACHE_DIR", "TRITON_DUMP_DIR", "TRITON_DUMP_PTXAS_LOG", "TRITON_HOME"})
"""Triton's variables for the locations of files; all its other variables may change what it compiles."""

_OTHERS_DECIDING = ("DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5", "DISABLE_PTXAS_OPT", "NVPTX_ENABLE_DUMP")
"""Variables without Triton's prefix that are part of a kernel's key."""


def find_possible_variables() -> list[tuple[str, str]]:
    """Return the variables of this process that may change what Triton compiles, with their values."""
    names = [name for name in os.environ if name.startswith("TRITON_") and name not in _NOT_DECIDING]
    names += [name for name in _OTHERS_DECIDING if name in os.environ]
    return [(name, os.environ[name]) for name in sorted(names)]


def find_deciding_variables() -> dict[str, str]:
    """Return the variables of this process that Triton counts in a kernel's key, and its assemblers, with values."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    names = {*get_cache_invalidating_env_vars(), *ASSEMBLERS}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}
