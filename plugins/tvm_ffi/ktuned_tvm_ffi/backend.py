"""The backends for C++ and CUDA C++: they differ in their compiler, their devices and what their launches take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, cast

from ktuned import backends
from ktuned.backends import DEFAULT_TARGET, Absence, Absent, Compiled, Unit, cpu, runs_on, torch_cuda_devices
from ktuned.model import BackendError, Device, Outcome, Unsupported
from ktuned_tvm_ffi import nvcc
from ktuned_tvm_ffi.build import Build
from ktuned_tvm_ffi.compiler import INSTALL_HINT, STANDARD_FLAGS, Compiler, NoCompiler
from ktuned_tvm_ffi.kernel import TvmFfiCudaKernel, TvmFfiKernel
from ktuned_tvm_ffi.nvcc import CUDA_FLAGS, Nvcc
from ktuned_tvm_ffi.units import KERNEL_FILE, compile_units

CXX_SUFFIXES = frozenset({".cc", ".cpp", ".cxx", ".c++", ".C"})
CUDA_SUFFIX = ".cu"


class TvmFfi(backends.Backend):
    """C++ through the system's compiler; the kernel is called through apache-tvm-ffi on CPU tensors."""

    name = "tvm_ffi"
    api_version = 1
    build = Build
    required_files = (KERNEL_FILE,)
    decisive_files = (KERNEL_FILE,)

    compiler: ClassVar[type[Compiler]] = Compiler
    suffixes: ClassVar[frozenset[str]] = CXX_SUFFIXES
    flags: ClassVar[tuple[str, ...]] = STANDARD_FLAGS
    kernel: ClassVar[type[TvmFfiKernel]] = TvmFfiKernel
    install_hint: ClassVar[str] = INSTALL_HINT

    @classmethod
    def for_sources(cls, sources: Sequence[Path]) -> str:
        """Return ``tvm_ffi_cuda`` for a kernel with a ``.cu`` source, else ``tvm_ffi``."""
        return TvmFfiCuda.name if any(source.suffix == CUDA_SUFFIX for source in sources) else TvmFfi.name

    def fingerprint(self) -> Mapping[str, str]:
        """Return the versions of the compiler, tvm-ffi and this plugin, and the standard flags."""
        try:
            compiler = self.compiler.find().version
        except NoCompiler:
            compiler = "none"
        return {
            "compiler": compiler,
            "apache-tvm-ffi": version("apache-tvm-ffi"),
            "ktuned-tvm-ffi": version("ktuned-tvm-ffi"),
            "flags": " ".join(self.flags),
        }

    def toolchain_files(self) -> Iterable[Path]:
        """Yield the compiler's files, and the paths where another compiler would be found first."""
        yield from self.compiler.list_files()

    def devices(self) -> Sequence[Device] | Absent:
        """Return this machine's CPU as ``cpu:0``, or the absence of a compiler."""
        return self._find_missing_compiler() or (cpu.device(),)

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Compile units; the compiler runs as a child in this process's group.

        Raises:
            BackendError: there is no compiler, or the disk is full.
        """
        try:
            compiler = self.compiler.find()
        except NoCompiler as error:
            raise BackendError(str(error), hint=self.install_hint) from error
        able = []
        for unit in units:
            if reason := self._explain_unsupported_target(unit.target):
                yield Compiled(unit.key, Outcome.UNSUPPORTED, reason)
            else:
                able.append(unit)
        yield from compile_units(compiler, able, into, self.suffixes)

    def load(self, artifact: Path, unit: Unit, device: Device) -> TvmFfiKernel:
        """Load ``kernel.so`` and look up its function.

        Raises:
            Unsupported: it was compiled for another target than this device's.
        """
        if not self._is_compatible(unit.target, device.target):
            raise Unsupported(f"compiled for {unit.target}, and {device.name} is {device.target}")
        import tvm_ffi

        build = cast(Build, unit.build)
        module = tvm_ffi.load_module(str((artifact / KERNEL_FILE).resolve()))
        return self.kernel(module.get_function(build.symbol), build.args)

    def _explain_unsupported_target(self, target: str) -> str:
        """Return why this compiler does not support a target; empty if it does."""
        return "" if target == cpu.target() else f"the target is {target}; the compiler here aims at {cpu.target()}"

    def _is_compatible(self, built_for: str, target: str) -> bool:
        return built_for == target

    def _find_missing_compiler(self) -> Absent | None:
        try:
            self.compiler.find()
        except NoCompiler as error:
            return Absent(Absence.NO_COMPILER, str(error), self.install_hint)
        return None


class TvmFfiCuda(TvmFfi):
    """CUDA C++ through nvcc: the backend of ``tvm_ffi`` kernels with a ``.cu`` source, on CUDA tensors.

    It compiles on machines without a GPU.
    """

    name = "tvm_ffi_cuda"
    group_size = 4
    default_target = DEFAULT_TARGET

    compiler = Nvcc
    suffixes = CXX_SUFFIXES | {CUDA_SUFFIX}
    flags = CUDA_FLAGS
    kernel = TvmFfiCudaKernel
    install_hint = nvcc.INSTALL_HINT

    def devices(self) -> Sequence[Device] | Absent:
        """Return the GPUs that this process may use, or the reason for their absence."""
        gpus = torch_cuda_devices()
        return gpus if isinstance(gpus, Absent) else self._find_missing_compiler() or gpus

    def _explain_unsupported_target(self, target: str) -> str:
        return "" if nvcc.is_gpu_target(target) else f"the target is {target}; nvcc compiles for GPUs, such as sm_90a"

    def _is_compatible(self, built_for: str, target: str) -> bool:
        return runs_on(built_for, target)
