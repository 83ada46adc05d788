"""Environment variables that decide what is compiled or how fast it runs: the lists that backends share, and readers.

Three kinds of variables matter. *Deciding* variables match the patterns of a backend, and are part of keys. *Finding*
variables (``PATH`` and the like) are not: the programs that are found with them are in the fingerprint instead.
Variables that a project sets itself always count, but only by digest, because they may be secrets. A pattern is a name,
or a prefix with an asterisk (``OMP_*``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from ktuned.model import ENVIRONMENT

MAX_SHOWN = 80
"""Longest value that is kept unchanged; a longer one is replaced by its digest."""

COMPILING_VARIABLES = (
    "AR", "AS", "CC", "CCC_OVERRIDE_OPTIONS", "CFLAGS", "COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "CPPFLAGS",
    "CUDACXX", "CUDAHOSTCXX", "CUDA_HOME", "CUDA_PATH", "CXX", "CXXFLAGS", "C_INCLUDE_PATH", "GCC_COMPARE_DEBUG",
    "GCC_EXEC_PREFIX", "LD", "LDEMULATION", "LDFLAGS", "LD_RUN_PATH", "LIBRARY_PATH", "NVCC_*", "SOURCE_DATE_EPOCH",
)  # fmt: skip
"""Variables that C, C++ and CUDA compilers read; they are part of artifacts' keys."""

MEASURING_VARIABLES = (
    "ATEN_*", "BLIS_*", "CUBLAS_*", "CUDA_*", "CUDNN_*", "DNNL_*", "GLIBC_TUNABLES", "GOMP_*", "GOTO_NUM_THREADS",
    "KMP_*", "LD_AUDIT", "LD_BIND_NOW", "LD_LIBRARY_PATH", "LD_PRELOAD", "LRU_CACHE_CAPACITY", "MALLOC_*", "MIMALLOC_*",
    "MKL_*", "NPY_*", "NUMBA_*", "NUMEXPR_*", "NVIDIA_TF32_OVERRIDE", "OMP_*", "ONEDNN_*", "OPENBLAS_*",
    "PYTHONDEVMODE", "PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHONUTF8", "PYTHONWARNINGS", "PYTORCH_*",
    "TBB_*", "TCMALLOC_*", "TORCHINDUCTOR_*", "TORCH_*", "TRITON_*",
)  # fmt: skip
"""Variables that libraries, runtimes and drivers read while a kernel runs; they are part of measurements' keys."""

NOT_DECIDING = frozenset(
    {
        "CUDA_CACHE_MAXSIZE", "CUDA_CACHE_PATH", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "TILELANG_CACHE_DIR",
        "TILELANG_CLEANUP_TEMP_FILES", "TILELANG_DISABLE_CACHE", "TILELANG_PRINT_ON_COMPILATION", "TILELANG_TMP_DIR",
        "TILELANG_VERBOSE", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR", "TORCH_HOME", "TORCH_LOGS", "TORCH_LOGS_OUT", "TRITON_CACHE_DIR", "TRITON_DUMP_DIR",
        "TRITON_HOME", "TRITON_PRINT_AUTOTUNING",
    }
)  # fmt: skip
"""Variables that only choose a device, which has a fingerprint of its own, or the places of files and logs."""

OBSERVER_NAME = "/libktuned_observer-"
"""Part of the path of ktuned's own observer library."""

FINDING_VARIABLES = (
    "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "PATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPATH",
    "PYTHONUSERBASE", "VIRTUAL_ENV",
)  # fmt: skip
"""Variables by which compilers, packages and devices are found; when one changes, a probe shows what is found now."""


def select_finding_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the finding variables of an environment, by their names in a fingerprint."""
    return {ENVIRONMENT + name: shorten_value(environment[name]) for name in FINDING_VARIABLES if name in environment}


def select_deciding_variables(patterns: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that match a backend's ``patterns``, by their names in a fingerprint."""
    wanted = tuple(patterns)
    environment = {**environment, **_remove_observer(environment)}
    environment = {name: value for name, value in environment.items() if value or name not in _PRELOADING}
    names = {name for name in wanted if name in environment}
    prefixes = tuple(pattern.removesuffix("*") for pattern in wanted if pattern.endswith("*"))
    names |= (
        {name for name in environment if name.startswith(prefixes) and name not in NOT_DECIDING} if prefixes else set()
    )
    return {ENVIRONMENT + name: shorten_value(environment[name]) for name in sorted(names)}


_PRELOADING = ("LD_AUDIT", "LD_PRELOAD")


def _remove_observer(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the preloading variables without ktuned's own observer, which does not affect results."""
    lists = {name: environment[name].split(":") for name in _PRELOADING if name in environment}
    return {name: ":".join(one for one in found if OBSERVER_NAME not in one) for name, found in lists.items()}


def shorten_value(value: str) -> str:
    """Return a value as it stands in a fingerprint: unchanged, or its digest if it is long."""
    return value if len(value) <= MAX_SHOWN else f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:16]}"


def digest_own_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a root's own variables for a fingerprint, by digest, because they may be secrets."""
    return {
        ENVIRONMENT + name: f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:16]}"
        for name, value in sorted(variables.items())
    }
