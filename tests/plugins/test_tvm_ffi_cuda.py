"""The CUDA half of the tvm_ffi plugin: nvcc's libraries, for one config or several, with a device or without."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ktuned.backends.contract import Absent, Compiled, Unit
from ktuned.backends.registry import Registry
from ktuned.ipc import Places, requests
from ktuned.ipc.manifest import digest_file
from ktuned.model.device import Device
from ktuned.model.errors import BackendError, Unsupported
from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.model.values import Outcome
from ktuned.testing.backends import check_backend
from ktuned.worker.inspect import Inspector
from ktuned_tvm_ffi import Build, TvmFfi, TvmFfiCuda
from tests.plugins.examples_on_gpus import run_python
from tests.plugins.nvcc_here import has_nvcc, needs_nvcc
from tests.plugins.shift import EXAMPLE, SOURCE
from tests.worker.reply_collector import ReplyCollector

TARGET = "sm_90a"

CUDA_SOFTMAX = Path(__file__).parents[2] / "examples" / "cuda_softmax"

CompileGroup = Callable[..., tuple[dict[str, Compiled], Path]]


def make_shift_build(by: int) -> Build:
    """Return a Build of one instance of the example; it is not optimised, because that compiles faster."""
    return Build(f"shift<{by}>", ("x", "y", 128), flags=("-O0",))


@pytest.fixture
def compile_group(tmp_path: Path) -> CompileGroup:
    """Return a function that compiles Builds, by their keys, as one group."""

    def compile_group(builds: dict[str, Build], source: Path = SOURCE) -> tuple[dict[str, Compiled], Path]:
        units = [Unit(key, build, (source,), source, "shift", TARGET) for key, build in builds.items()]
        for unit in units:
            (tmp_path / unit.key).mkdir()
        return {result.key: result for result in TvmFfiCuda().compile(units, tmp_path)}, tmp_path

    return compile_group


@needs_nvcc
def test_the_backend_passes_the_conformance_suite(tmp_path: Path) -> None:
    """Without a GPU, the suite ends where loading needs one."""
    check_backend(TvmFfiCuda(), EXAMPLE, tmp_path)


@needs_nvcc
def test_a_group_is_one_library_whose_bad_unit_is_alone_with_its_error(compile_group: CompileGroup) -> None:
    """The other units share a library, each with its own function; the artifacts hold all that they need."""
    results, into = compile_group({"bad": make_shift_build(100), "a": make_shift_build(1), "b": make_shift_build(2)})
    outcomes = {key: result.outcome for key, result in results.items()}
    assert outcomes == {"bad": Outcome.COMPILE_ERROR, "a": None, "b": None}
    assert "BY is too large" in results["bad"].message
    assert digest_file(into / "a" / "kernel.so") == digest_file(into / "b" / "kernel.so")
    names = [results[key].facts["function"] for key in "ab"]
    assert len(set(names)) == 2
    library = (into / "a" / "kernel.so").read_bytes()
    assert all(f"__tvm_ffi_{name}\0".encode() in library for name in names)
    assert [path.name for path in (into / "a" / "sources").rglob("*")] == ["shift.cu"]


@needs_nvcc
def test_equal_sources_give_equal_bytes_wherever_they_are(compile_group: CompileGroup, tmp_path: Path) -> None:
    """The bytes depend neither on the sources' directory nor on nvcc's temporary files."""
    other_directory = tmp_path / "else where"
    other_directory.mkdir()
    shutil.copy(SOURCE, other_directory)
    results, _ = compile_group({"here": EXAMPLE.good})
    compile_group({"there": EXAMPLE.good}, other_directory / SOURCE.name)
    assert digest_file(tmp_path / "here/kernel.so") == digest_file(tmp_path / "there/kernel.so")
    facts = results["here"].facts  # with one kernel, the assembler's report is the config's
    assert facts["function"] == "shift"
    assert facts["registers"] > 0
    assert facts["spill_store_bytes"] == 0
    assert len(facts["kernels"]) == 1


def test_a_target_that_is_no_gpu_is_unsupported(compile_group: CompileGroup, tmp_path: Path) -> None:
    """Nvcc does not compile for a CPU, and code for another architecture is not loaded."""
    unit = Unit("key", make_shift_build(1), (SOURCE,), SOURCE, "shift", "native-elsewhere")
    if has_nvcc():
        (result,) = TvmFfiCuda().compile([unit], tmp_path)
        assert result.outcome is Outcome.UNSUPPORTED
    with pytest.raises(Unsupported, match="sm_80"):
        TvmFfiCuda().load(
            tmp_path,
            EXAMPLE.unit("key", make_shift_build(1), "sm_80"),
            Device(DeviceName("cuda:0"), DeviceModel("GPU"), Target("sm_90a")),
        )


@pytest.mark.parametrize(("names", "backend"), [(["a.cc"], "tvm_ffi"), (["a.cc", "b.cu"], "tvm_ffi_cuda")])
def test_sources_choose_the_backend(names: list[str], backend: str) -> None:
    """A kernel file says ``tvm_ffi``; a ``.cu`` source selects CUDA."""
    assert TvmFfi.for_sources([Path(name) for name in names]) == backend


def test_the_daemon_gets_the_backend_that_the_sources_choose(tmp_path: Path) -> None:
    """Devices, toolchain and group size are that backend's; the kernel file only names the family."""
    reply = ReplyCollector()
    shutil.copytree(CUDA_SOFTMAX, tmp_path / "softmax")
    places = Places({"p": str(tmp_path)}, "", "")
    Inspector(Registry(), places).inspect_files(requests.Inspect("p", ("softmax/tune_softmax.py",)), reply)
    ((kernel,),) = (item.kernels for item in reply.items)
    assert kernel.backend == "tvm_ffi_cuda"


def test_a_missing_nvcc_is_a_backend_error_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fingerprint and devices still answer."""
    monkeypatch.setenv("CUDACXX", str(tmp_path / "no-nvcc"))
    assert TvmFfiCuda().fingerprint()["compiler"] == "none"
    assert isinstance(TvmFfiCuda().devices(), Absent)
    with pytest.raises(BackendError, match="no-nvcc") as caught:
        list(TvmFfiCuda().compile([EXAMPLE.unit("key", make_shift_build(1), TARGET)], tmp_path))
    assert "CUDACXX" in caught.value.hint


@pytest.mark.parametrize("name", ["a b", "f<1>; evil()", "f(1)", "f<{}>", ""])
def test_an_expression_that_names_no_function_is_an_error_at_once(name: str) -> None:
    """The error comes from the kernel function."""
    with pytest.raises(ValueError, match="neither an identifier nor a function"):
        Build(name, ())


@needs_nvcc
def test_compiling_imports_neither_torch_nor_tvm_ffi(tmp_path: Path) -> None:
    """Compile workers stay small, and so does a probe."""
    code = """if True:
        import sys
        from ktuned_tvm_ffi import TvmFfiCuda
        TvmFfiCuda().fingerprint(), TvmFfiCuda().devices()
        print(sorted({"torch", "tvm_ffi", "numpy"} & sys.modules.keys()))
    """
    assert run_python(code) == "[]"
