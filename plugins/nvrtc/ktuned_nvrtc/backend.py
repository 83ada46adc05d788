"""The backend: how ktuned compiles CUDA C++ with NVRTC and loads the artifacts."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import cast

from ktuned import backends
from ktuned.backends import DEFAULT_TARGET, Absence, Absent, Compiled, Unit, cuda_headers, runs_on, torch_cuda_devices
from ktuned.model import BackendError, Device, Unsupported
from ktuned_nvrtc import program
from ktuned_nvrtc.build import Build
from ktuned_nvrtc.compiler import CUBIN_FILE, DESCRIPTION_FILE, compile_units, list_standard_options
from ktuned_nvrtc.description import Description
from ktuned_nvrtc.launch import NvrtcKernel
from ktuned_nvrtc.program import INSTALL_HINT, NoNvrtc


class Nvrtc(backends.Backend):
    """CUDA C++ through NVRTC; compiles on machines without a GPU, runs on torch's CUDA tensors."""

    name = "nvrtc"
    api_version = 1
    build = Build
    required_files = (CUBIN_FILE, DESCRIPTION_FILE)
    decisive_files = (CUBIN_FILE, DESCRIPTION_FILE)
    group_size = 4
    default_target = DEFAULT_TARGET

    def fingerprint(self) -> Mapping[str, str]:
        """Return the versions of NVRTC, of CUDA's headers and of this plugin, and the standard options."""
        plugin = {"ktuned-nvrtc": version("ktuned-nvrtc")}
        try:
            headers = cuda_headers.find(program.read_version())
            return {
                **plugin,
                "nvrtc": program.read_full_version(),
                "headers": ".".join(map(str, headers.version)) if headers else "none",
                "options": " ".join(list_standard_options()),
            }
        except NoNvrtc:
            return {**plugin, "nvrtc": "none"}

    def toolchain_files(self) -> Iterable[Path]:
        """Return the loaded NVRTC's libraries, and the first of CUDA's headers."""
        try:
            version = program.read_version()
        except NoNvrtc:
            return ()
        headers = cuda_headers.find(version)
        return (*program.find_libraries(), *((headers.directories[0] / "cuda_runtime_api.h",) if headers else ()))

    def devices(self) -> Sequence[Device] | Absent:
        """Return the GPUs that this process may use, or the reason for their absence."""
        gpus = torch_cuda_devices()
        if isinstance(gpus, Absent):
            return gpus
        try:
            program.read_version()
        except NoNvrtc as error:
            return Absent(Absence.NO_COMPILER, str(error), INSTALL_HINT)
        return gpus

    def prepare(self) -> None:
        """Import the bindings of NVRTC and of the driver; if they are not installed, compiling reports it."""
        with suppress(ImportError):
            importlib.import_module("cuda.bindings.nvrtc")
            importlib.import_module("cuda.bindings.driver")

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Compile each unit; units that differ only in ``entry`` are one program, and each gets its cubin.

        Raises:
            BackendError: NVRTC is not installed, or has an internal failure.
        """
        try:
            yield from compile_units(units, into)
        except NoNvrtc as error:
            raise BackendError(str(error), hint=INSTALL_HINT) from error

    def load(self, artifact: Path, unit: Unit, device: Device) -> NvrtcKernel:
        """Load ``kernel.cubin`` into the device's primary context, which becomes the current one.

        Raises:
            Unsupported: it is for another architecture, or needs more than the device has.
            BackendError: the device cannot be reached.
        """
        description = Description.from_json((artifact / DESCRIPTION_FILE).read_text())
        if not runs_on(description.target, device.target):
            raise Unsupported(f"compiled for {description.target}, and {device.name} is {device.target}")
        cubin = (artifact / CUBIN_FILE).read_bytes()
        return NvrtcKernel(cubin, description.lowered, cast(Build, unit.build), device, description.constants)
