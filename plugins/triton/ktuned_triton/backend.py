"""The backend: how ktuned compiles Triton functions and loads their artifacts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, cast

from ktuned import backends
from ktuned.backends import (
    DEFAULT_TARGET,
    Absent,
    Compiled,
    Kernel,
    Unit,
    compile_singly,
    refuse_unit,
    torch_cuda_devices,
)
from ktuned.model import BackendError, Device, Unsupported
from ktuned_triton.artifact import CUBIN_FILE, LAUNCH_FILE, METADATA_FILE, PTX_FILE, load
from ktuned_triton.build import Build, Library
from ktuned_triton.compiler import CompileError, compile_unit, lower_unit, prepare_process
from ktuned_triton.environment import ASSEMBLERS, find_possible_variables

REINSTALL_HINT = "pip install triton"


class Triton(backends.Backend):
    """Triton functions; compiles on machines without a GPU, runs on torch's CUDA tensors."""

    name = "triton"
    api_version = 1
    build = Build
    required_files: ClassVar[tuple[str, ...]] = (CUBIN_FILE, LAUNCH_FILE, METADATA_FILE, PTX_FILE)
    decisive_files: ClassVar[tuple[str, ...]] = (CUBIN_FILE, LAUNCH_FILE)
    default_target = DEFAULT_TARGET
    lowers = True

    def fingerprint(self) -> Mapping[str, str]:
        """Return the versions of Triton and this plugin, and the variables that may change what Triton compiles."""
        return {
            "triton": version("triton"),
            "ktuned-triton": version("ktuned-triton"),
            "environment": " ".join(f"{name}={value}" for name, value in find_possible_variables()),
        }

    def toolchain_files(self) -> Iterable[Path]:
        """Return the assemblers that replace Triton's own, if any are set. Triton contains all other tools."""
        return [Path(os.environ[name]) for name in ASSEMBLERS if os.environ.get(name)]

    def devices(self) -> Sequence[Device] | Absent:
        """Return the GPUs that this process may use, or why there are none."""
        return torch_cuda_devices()

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Compile each unit in this process.

        Raises:
            BackendError: Triton cannot be imported; the disk is full.
        """
        self.prepare()
        yield from compile_singly(units, into, compile_unit, CompileError)

    def prepare(self) -> None:
        """Import Triton's compiler.

        Raises:
            BackendError: it cannot be imported.
        """
        try:
            prepare_process()
        except ImportError as error:
            raise BackendError(f"Triton cannot be imported: {error}", hint=REINSTALL_HINT) from error

    def open_library(self, library: Mapping[str, Any], build: backends.Build | None = None) -> None:
        """Import an application's library, and the module of the function that a Build names.

        Raises:
            BackendError: it cannot be imported.
        """
        Library.from_plain(library).import_modules(cast(Build | None, build))

    def lower(self, unit: Unit) -> bytes | Compiled:
        """Call Triton's front end, in a process that has imported the function's module.

        Raises:
            BackendError: Triton cannot be imported; the disk is full.
        """
        self.prepare()
        started = time.perf_counter()
        try:
            return lower_unit(unit)
        except (CompileError, Unsupported) as error:
            return refuse_unit(unit, error, started)

    def load(self, artifact: Path, unit: Unit, device: Device) -> Kernel:
        """Load ``kernel.cubin`` into the device's primary context, which becomes current; Triton is not imported.

        Raises:
            Unsupported: it is for another architecture, or needs more than the device has.
            BackendError: the device cannot be reached.
        """
        return load(artifact, device)
