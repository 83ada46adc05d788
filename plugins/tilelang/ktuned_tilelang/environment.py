"""TileLang in an application: its tuners' module, and the variables that change what it compiles."""

from __future__ import annotations

import os
import sys
from typing import Final

from ktuned_tilelang.execution import VARIABLES

TUNER_MODULE: Final = "tilelang.autotuner.tuner"
"""The module that defines TileLang's tuners."""

_NOT_DECIDING: Final = (
    "TILELANG_AUTO_TUNING_",
    "TILELANG_CACHE_DIR",
    "TILELANG_CLEANUP_TEMP_FILES",
    "TILELANG_DEFAULT_TARGET",
    "TILELANG_DISABLE_CACHE",
    "TILELANG_EXECUTION_BACKEND",
    "TILELANG_JIT_DIAGNOSTICS",
    "TILELANG_KERNEL_CACHE_USE_LIB_STAMP",
    "TILELANG_PASS_",
    "TILELANG_PRINT_ON_COMPILATION",
    "TILELANG_TMP_DIR",
    "TILELANG_VERBOSE",
)
"""Prefixes of variables that do not count: those for the places of files and for output, and those whose effect is in
the recorded call already (target, execution backend)."""

_COMPILERS: Final = ("CUDA_HOME", "CUDA_PATH")


def find_deciding_variables() -> dict[str, str]:
    """Return the variables of this process that its kernels depend on, with their values."""
    prefixes = tuple(pattern.removesuffix("*") for pattern in VARIABLES)
    # Importing TileLang sets some variables to its own directories, in a worker, too, so they do not count.
    own = os.path.dirname(getattr(sys.modules.get("tilelang"), "__file__", None) or "")
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in _COMPILERS
        or (name.startswith(prefixes) and not name.startswith(_NOT_DECIDING) and not (own and value.startswith(own)))
    }
