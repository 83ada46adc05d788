"""From a program to the code files that TileLang loads later, without a GPU.

TileLang's adapters compile a kernel and load it in one step, and loading needs a GPU. So its code generators are called
here as the adapters call them, one function for each execution backend, and nothing is loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ktuned.backends import cuda_headers, redirect_compiler
from ktuned_tilelang import precompiled
from ktuned_tilelang.elaboration import Program
from ktuned_tilelang.execution import CODE_FILES, HOST_SOURCE_FILE, SOURCE_FILE

CALLEE_ALLOCATES = "tilelang_callee_allocated_outputs"
"""A program with this attribute set to 0 takes its outputs as arguments, so that it writes where ktuned checks."""

_DEVICE_FLAGS = "tl.device_compile_flags"


class Block(NamedTuple):
    """A block of a launch: its threads, and its dynamic shared memory."""

    threads: int
    shared_bytes: int


class LoweredProgram:
    """A program that TileLang has lowered: TileLang's kernel object without a loaded kernel, and the generated code."""

    def __init__(self, program: Program) -> None:
        """Lower a program.

        Raises:
            Exception: whatever TileLang raises.
        """
        kernel: Any = importlib.import_module("tilelang.jit.kernel")
        self.program = program
        self.kernel = kernel.JITKernel(
            program.prim_func,
            execution_backend=program.execution_backend,
            target=dict(program.target),
            pass_configs=dict(program.pass_configs),
            compile_flags=list(program.compile_flags),
            from_database=True,
        )
        self.execution_backend: str = self.kernel.execution_backend
        self.pass_configs = dict(self.kernel.pass_configs or {})
        if program.compile_flags:
            self.pass_configs[_DEVICE_FLAGS] = [
                *_to_list(self.pass_configs.get(_DEVICE_FLAGS)),
                *program.compile_flags,
            ]
        self.name = str(program.prim_func.attrs["global_symbol"])
        described = {"kernel": self.name, "target": str(self.kernel.target), "backend": self.execution_backend}
        self.artifact = self.kernel._compile_artifact(program.prim_func, self.pass_configs, described)

    def list_blocks(self) -> list[Block]:
        """Return the block of each kernel; a size that is not known yet is 0."""
        blocks = []
        for _, function in self.artifact.device_mod.functions.items():
            attributes = dict(function.attrs)
            threads = 1
            for tag, extent in dict(attributes.get("thread_extent", {})).items():
                if str(tag).startswith("threadIdx"):
                    threads *= _to_int(extent)
            blocks.append(Block(threads, _to_int(attributes.get("dyn_shared_memory_buf", 0))))
        return blocks


def generate_code(lowered: LoweredProgram, artifact: Path, scratch: Path) -> None:
    """Write the code files that a lowered program's execution backend loads, and their sources.

    Raises:
        Exception: whatever TileLang or the compiler that it calls raises.
    """
    # NVRTC compiles for the current target; without one, for the GPU of the machine.
    with lowered.kernel.target:
        host_source = _GENERATORS[lowered.execution_backend](lowered, artifact, scratch)
    (artifact / SOURCE_FILE).write_text(lowered.artifact.kernel_source or "")
    (artifact / HOST_SOURCE_FILE).write_text(host_source or "")


def _write_for_tvm_ffi(lowered: LoweredProgram, artifact: Path, scratch: Path) -> str:
    """Write the code files of the execution backend ``tvm_ffi``; return the host source."""
    runtime: Any = importlib.import_module("tvm.runtime")
    runtime.Executable(lowered.artifact.rt_mod).export_library(str(artifact / CODE_FILES["tvm_ffi"][0]))
    return str(lowered.artifact.rt_mod.inspect_source())


def _write_for_nvrtc(lowered: LoweredProgram, artifact: Path, scratch: Path) -> str:
    """Write the code files of the execution backend ``nvrtc``; return the host source."""
    adapters: Any = importlib.import_module("tilelang.jit.adapter.nvrtc")
    wrapped = _generate_host_code(lowered, "TLPyWrapper")
    # Verbose, because otherwise a compile error has no message.
    generator = adapters.NVRTCLibraryGenerator(lowered.kernel.target, True)
    generator.update_lib_code(lowered.artifact.kernel_source)
    generator.update_host_func(wrapped["host_func"])
    generator.assign_compile_flags(
        [*lowered.program.compile_flags, *_find_missing_includes(), *precompiled.make_options()]
    )
    generator.compile_lib()
    cubin, launcher = CODE_FILES["nvrtc"]
    shutil.move(generator.libpath, artifact / cubin)
    shutil.move(generator.pypath, artifact / launcher)
    return str(wrapped["host_func"])


def _write_for_cython(lowered: LoweredProgram, artifact: Path, scratch: Path) -> str:
    """Write the code files of the execution backend ``cython``; return the host source."""
    libraries: Any = importlib.import_module("tilelang.jit.adapter.libgen")
    source = _generate_host_code(lowered, "TLWrapper")
    generator = libraries.LibraryGenerator(lowered.kernel.target)
    generator.assign_pass_configs(lowered.pass_configs)
    generator.assign_compile_flags([*lowered.program.compile_flags, f"-L{_make_driver_stand_in(scratch)}"])
    generator.update_lib_code(source)
    generator.compile_lib()
    shutil.move(generator.libpath, artifact / CODE_FILES["cython"][0])
    return str(source)


def _write_for_cutedsl(lowered: LoweredProgram, artifact: Path, scratch: Path) -> str:
    """Write the code files of the execution backend ``cutedsl``; return the host source."""
    libraries: Any = importlib.import_module("tilelang.jit.adapter.cutedsl.libgen")
    wrapped = _generate_host_code(lowered, "TLPyWrapper")
    generator = libraries.CuTeDSLLibraryGenerator(lowered.kernel.target)
    generator.update_lib_code(lowered.artifact.kernel_source)
    generator.update_host_func(wrapped["host_func"])
    generator.update_launcher_cpp_code(wrapped["launcher_cpp_code"])
    generator.update_launcher_lib_name(wrapped["launcher_lib_name"])
    generator.assign_compile_flags(list(lowered.program.compile_flags))
    with _link_against(_make_driver_stand_in(scratch)):
        generator.compile_lib()
    _, launcher, cubin = CODE_FILES["cutedsl"]
    source_file = Path(generator.libpath)
    generator.load_lib()
    generator.pymodule._generate_cubin_if_needed(*_make_meta_arguments(lowered))
    shutil.move(source_file, artifact / source_file.name)
    shutil.move(generator.launcher_libpath, artifact / launcher)
    shutil.move(source_file.with_suffix(".cubin"), artifact / cubin)
    return str(wrapped["host_func"])


def _find_missing_includes() -> list[str]:
    """Return the options for CUDA's headers if TileLang does not find them itself (those of wheels, for example)."""
    environment: Any = importlib.import_module("tilelang.env")
    paths: Any = importlib.import_module("tilelang.jit.adapter.nvrtc.include_paths")
    home = environment.CUDA_HOME or "/usr/local/cuda"
    if any(Path(place, "cuda_runtime_api.h").is_file() for place in paths.discover_cuda_include_paths(home)):
        return []
    nvrtc: Any = importlib.import_module("tilelang.contrib.nvrtc")
    headers = cuda_headers.find(nvrtc.get_nvrtc_version())
    return [] if headers is None else [f"-I{directory}" for directory in headers.directories]


def _make_driver_stand_in(directory: Path) -> Path:
    """Make an empty ``libcuda.so`` to link against on machines without a driver; return its directory.

    When the code is loaded later, the real library is found by the same soname.
    """
    name = "libcuda.so"
    compiler: Any = importlib.import_module("tilelang.contrib.cc")
    command = [compiler.get_cplus_compiler(), "-shared", "-nostdlib", f"-Wl,-soname,{name}.1", "-o", name, "-x", "c"]
    subprocess.run([*command, os.devnull], cwd=directory, check=True, capture_output=True)
    return directory


def _link_against(directory: Path) -> contextlib.AbstractContextManager[None]:
    """Make compilers also search a directory for libraries, after the directories that their command names."""
    listed = filter(None, [str(directory), os.environ.get("LIBRARY_PATH")])
    return redirect_compiler({"LIBRARY_PATH": os.pathsep.join(listed)})


_GENERATORS: Mapping[str, Callable[[LoweredProgram, Path, Path], str]] = {
    "tvm_ffi": _write_for_tvm_ffi,
    "nvrtc": _write_for_nvrtc,
    "cython": _write_for_cython,
    "cutedsl": _write_for_cutedsl,
}


def _generate_host_code(lowered: LoweredProgram, wrapper: str) -> Any:
    """Return the host code that TileLang generates around a kernel."""
    tvm: Any = importlib.import_module("tilelang").tvm
    wrappers: Any = importlib.import_module("tilelang.jit.adapter.wrapper")
    generator = getattr(wrappers, wrapper)(lowered.kernel.target)
    generator.assign_optimized_module(tvm.IRModule({lowered.name: lowered.program.prim_func}))
    generator.assign_pass_configs(lowered.pass_configs)
    generator.assign_host_module(lowered.artifact.host_mod)
    generator.assign_device_module(lowered.artifact.device_mod)
    return generator.wrap(lowered.artifact.kernel_source)


def _make_meta_arguments(lowered: LoweredProgram) -> list[Any]:
    """Return tensors without memory for a kernel's parameters; symbolic sizes become 1."""
    torch: Any = importlib.import_module("torch")
    arguments: list[Any] = []
    for parameter in lowered.artifact.params:
        shape = [size if isinstance(size, int) else 1 for size in parameter.shape]
        arguments.append(torch.empty(shape, dtype=parameter.torch_dtype(), device="meta") if shape else 1)
    return arguments


def _to_list(flags: Any) -> list[str]:
    return [] if flags is None else [flags] if isinstance(flags, str) else list(flags)


def _to_int(value: Any) -> int:
    """Return a constant of TVM's as an int; 0 for a symbol."""
    try:
        return int(value)
    except TypeError:
        return 0
