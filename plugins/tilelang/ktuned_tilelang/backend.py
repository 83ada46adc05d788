"""The backend: how ktuned compiles TileLang functions and loads their artifacts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from ktuned import backends
from ktuned.backends import (
    COMPILING_VARIABLES,
    DEFAULT_TARGET,
    Absent,
    Compiled,
    Unit,
    compile_singly,
    find_version,
    on_path,
    torch_cuda_devices,
)
from ktuned.model import BackendError, Device
from ktuned_tilelang.artifact import RECIPE_FILE, SIGNATURE_FILE
from ktuned_tilelang.build import Build
from ktuned_tilelang.compiler import CompileError, compile_unit, prepare_process
from ktuned_tilelang.execution import HOST_SOURCE_FILE, PARAMETERS_FILE, SOURCE_FILE, VARIABLES
from ktuned_tilelang.kernel import TileLangKernel, load_kernel_on

INSTALL_HINT = "pip install 'tilelang>=0.1.15,<0.2'"

_PARTS = ("tilelang", "apache-tvm-ffi", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cutlass-dsl", "ktuned-tilelang")
"""Distributions that decide what is compiled; a missing one does not count."""


class TileLang(backends.Backend):
    """TileLang functions; compiles on machines without a GPU, runs on torch's CUDA tensors."""

    name = "tilelang"
    api_version = 1
    build = Build
    compiling_variables = (*COMPILING_VARIABLES, *VARIABLES)
    required_files = (HOST_SOURCE_FILE, PARAMETERS_FILE, RECIPE_FILE, SIGNATURE_FILE, SOURCE_FILE)
    decisive_files = (RECIPE_FILE, PARAMETERS_FILE, SIGNATURE_FILE)
    default_target = DEFAULT_TARGET

    def fingerprint(self) -> Mapping[str, str]:
        """Return the versions of TileLang, of the packages that it compiles with, and of this plugin."""
        return {name: found for name in _PARTS if (found := find_version(name))}

    def toolchain_files(self) -> Iterable[Path]:
        """Return the paths of nvcc, which some execution backends call."""
        for name in ("CUDA_HOME", "CUDA_PATH"):
            if home := os.environ.get(name):
                return [Path(home, "bin", "nvcc")]
        return on_path("nvcc")

    def devices(self) -> Sequence[Device] | Absent:
        """Return the GPUs that this process may use, or why there are none."""
        return torch_cuda_devices()

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Compile each unit in this process.

        Raises:
            BackendError: TileLang cannot be imported; the disk is full.
        """
        self.prepare()
        yield from compile_singly(units, into, compile_unit, CompileError)

    def prepare(self) -> None:
        """Import TileLang.

        Raises:
            BackendError: it cannot be imported.
        """
        try:
            prepare_process()
        except ImportError as error:
            raise BackendError(f"TileLang cannot be imported: {error}", hint=INSTALL_HINT) from error

    def load(self, artifact: Path, unit: Unit, device: Device) -> TileLangKernel:
        """Load a kernel's code through TileLang, without compiling.

        Raises:
            Unsupported: it is for another architecture, or another TileLang compiled it.
            BackendError: the device cannot be reached.
        """
        return load_kernel_on(artifact, device, cast(Build, unit.build).args)
