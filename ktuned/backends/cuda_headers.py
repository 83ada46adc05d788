"""Finds CUDA's headers (``cuda_fp16.h``, ``mma.h``, …) that match the installed NVRTC."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ktuned.model import FrozenStruct

_VERSION = re.compile(r"^\s*#\s*define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)


class Headers(FrozenStruct):
    """The directories to search for ``#include <…>``, and their CUDA version."""

    directories: tuple[Path, ...]
    version: tuple[int, int]


def find(wanted: tuple[int, int]) -> Headers | None:
    """Return the headers of exactly this CUDA version, else of the same major version, else ``None``.

    The search covers ``$CUDA_HOME``, ``$CUDA_PATH``, the wheels of this interpreter, the nvcc on the PATH and
    ``/usr/local/cuda``, in this order. All directories of the chosen version are returned, because each wheel may have
    a part of the headers. Other versions are left out, because headers of two versions often do not compile together.
    """
    candidates = [headers for directory in _yield_candidates() if (headers := _read_headers(directory)) is not None]
    versions = [headers.version for headers in candidates]
    chosen = wanted if wanted in versions else next((version for version in versions if version[0] == wanted[0]), None)
    if chosen is None:
        return None
    parts = [part for headers in candidates if headers.version == chosen for part in headers.directories]
    return Headers(tuple(dict.fromkeys(parts)), chosen)


def _yield_candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable], "include").resolve()
    wheels = importlib.util.find_spec("nvidia")
    for directory in wheels.submodule_search_locations or () if wheels else ():
        yield from sorted(Path(directory).glob("*/include"))
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield Path(nvcc).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include").resolve()


def _read_headers(directory: Path) -> Headers | None:
    """Return the headers of a directory, with libcu++ and the parts that wheels have in neighbouring directories."""
    try:
        version = _VERSION.search((directory / "cuda_runtime_api.h").read_text(errors="replace"))
    except OSError:
        return None
    if version is None:
        return None
    parts = (
        directory,
        directory / "cccl",
        *(directory.parent.with_name(name) / "include" for name in ("cuda_cccl", "cuda_nvcc")),
    )
    number = int(version[1])
    return Headers(tuple(part for part in parts if part.is_dir()), (number // 1000, number % 1000 // 10))
