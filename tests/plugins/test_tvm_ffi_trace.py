"""What C++ compilers and linkers read, and where they look in vain, as the observer sees it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ktuned.backends.contract import Unit
from ktuned.model.values import Outcome
from ktuned_tvm_ffi import Build, TvmFfi, TvmFfiCuda
from ktuned_tvm_ffi.compiler import Compiler
from tests.plugins.observed_compiles import ObservedNames, Result, compile_observed

KERNEL = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <vector>
{top}
void run(tvm::ffi::TensorView x) {{ static_cast<float*>(x.data_ptr())[0] = {value}; }}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""


def compile_kernel(project: Path, top: str, *flags: str, value: str = "1.f") -> tuple[Result, ObservedNames]:
    """Compile a kernel whose source begins with ``top``; return the result and the names observed in the project."""
    source = project / "k.cc"
    source.write_text(KERNEL.format(top=top, value=value))
    devices = TvmFfi().devices()
    assert isinstance(devices, tuple), devices
    unit = Unit("unit", Build("run", ("x",), flags=flags), (source,), source, "k", devices[0].target)
    (result,), names = compile_observed(TvmFfi, [unit], project)
    return result, names


def write_project(directory: Path, **files: str) -> Path:
    """Write files (``__`` in a name is a slash, the last ``_`` a dot) and return their directory without links."""
    directory = directory.resolve()
    for name, text in files.items():
        path = directory / ".".join(name.replace("__", "/").rsplit("_", 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def test_what_no_scan_can_find_is_observed(tmp_path: Path) -> None:
    """Macros and flags name headers of any suffix in the last directory; the earlier directories count as absent."""
    top = '#define CFG "cfg.def"\n#include CFG\n#include <angled.h>\n#if __has_include(<option.h>)\n#endif'
    root = write_project(
        tmp_path,
        late__cfg_def="#define VALUE 2.f\n",
        late__angled_h='#include "below/deep.h"\n',
        late__below__deep_h="",
        first__unused_h="",
        forced_h="",
    )
    result, names = compile_kernel(root, top, "-include", "forced.h", "-Ifirst", "-Ilate", value="VALUE")
    assert result.outcome is None, result.message
    assert names.found >= {"forced.h", "late/cfg.def", "late/angled.h", "late/below/deep.h"}
    assert names.absent >= {"cfg.def", "first/cfg.def", "first/angled.h", "first/vector", "first/option.h"}
    assert "late/option.h" in names.absent
    assert not {"first/unused.h", "late/angled.def"} & (names.found | names.absent)


@pytest.mark.skipif(not Compiler.find().is_gcc, reason="precompiled by GCC")
def test_a_precompiled_header_is_observed(tmp_path: Path) -> None:
    """GCC reads it instead of a header that a flag names, and no dependency output says so."""
    root = write_project(tmp_path, all_h="#define VALUE 1.f\n", other_h="#define VALUE 2.f\n")
    flags = Compiler.find().standard_flags("native")
    first_result, names = compile_kernel(root, "", "-include", "all.h", value="VALUE")
    assert "all.h.gch" in names.absent
    subprocess.run(["c++", *flags, "-x", "c++-header", "other.h", "-o", "all.h.gch"], cwd=root, check=True)
    second_result, names = compile_kernel(root, "", "-include", "all.h", value="VALUE")
    assert "all.h.gch" in names.found
    assert [result.outcome for result in (first_result, second_result)] == [None, None]


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ('#define CFG "cfg.h"\n#include CFG', {"inc/cfg.h"}),
        ('#define CFG "gone.h"\n#include CFG', {"inc/gone.h", "gone.h"}),
    ],
)
def test_a_compile_error_depends_on_what_was_read(tmp_path: Path, top: str, expected: set[str]) -> None:
    """Files that were read before the error decide it, and so do files that were not found."""
    result, names = compile_kernel(write_project(tmp_path, inc__cfg_h="#error not yet\n"), top, "-Iinc")
    assert result.outcome is Outcome.COMPILE_ERROR
    assert names.found | names.absent >= expected


def test_what_a_linker_read_is_observed(tmp_path: Path) -> None:
    """This covers a library, the earlier places where it was looked up, and a version script that only a flag names."""
    root = write_project(
        tmp_path, libs__mine_c="float value(void) { return 2.f; }\n", exports_map="{ local: hidden; };\n"
    )
    subprocess.run(["cc", "-c", "-fPIC", "mine.c", "-o", "mine.o"], cwd=root / "libs", check=True)
    subprocess.run(["ar", "rcs", "libmine.a", "mine.o"], cwd=root / "libs", check=True)
    flags = ("-Lnone", "-Llibs", "-lmine", "-Wl,--version-script=exports.map")
    result, names = compile_kernel(root, 'extern "C" float value(void);', *flags, value="value()")
    assert result.outcome is None, result.message
    assert names.found >= {"libs/libmine.a", "exports.map"}
    assert "none/libmine.a" in names.absent or "none" in names.absent


def test_a_header_that_a_flag_declares_as_the_system_s_is_observed(tmp_path: Path) -> None:
    """The header is still the user's."""
    result, names = compile_kernel(
        write_project(tmp_path, lib__far_h="#define VALUE 3.f\n"), "#include <far.h>", "-isystem", "lib", value="VALUE"
    )
    assert result.outcome is None, result.message
    assert "lib/far.h" in names.found


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_reports_what_host_and_device_code_read(tmp_path: Path) -> None:
    """Headers of one side only are observed; no GPU is needed."""
    root = write_project(tmp_path, inc__dev_h="#define SIDE 1\n", inc__host_h="#define SIDE 2\n", late__cfg_def="\n")
    source = root / "k.cu"
    source.write_text(
        "#ifdef __CUDA_ARCH__\n#define WHICH <dev.h>\n#else\n#define WHICH <host.h>\n#endif\n#include WHICH\n"
        '#define CFG "cfg.def"\n#include CFG\n'
        "#include <tvm/ffi/function.h>\n__global__ void k(float* x) { x[0] = SIDE; }\nvoid run() {}\n"
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);\n"
    )
    unit = Unit("unit", Build("run", (), flags=("-Iinc", "-Ilate")), (source,), source, "k", "sm_90a")
    (result,), names = compile_observed(TvmFfiCuda, [unit], root)
    assert result.outcome is None, result.message
    assert names.found >= {"inc/dev.h", "inc/host.h", "late/cfg.def"}
    assert names.absent >= {"inc/cfg.def", "cfg.def"}
