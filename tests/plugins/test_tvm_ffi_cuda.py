"""The CUDA half of the tvm_ffi plugin: nvcc's libraries, of one config or of several, for a device or without one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ktuned.backends.contract import Absent, Compiled, Unit
from ktuned.backends.registry import Registry
from ktuned.ipc import Places, replies, requests
from ktuned.ipc.manifest import digest_file
from ktuned.model.device import Device
from ktuned.model.errors import BackendError, Unsupported
from ktuned.model.keys import DeviceModel, DeviceName, Phase, Target
from ktuned.model.values import Outcome
from ktuned.testing.backends import check_backend
from ktuned.worker.inspect import Inspector
from ktuned.worker.reply import Reply
from ktuned_tvm_ffi import Build, TvmFfi, TvmFfiCuda
from tests.plugins.nvcc_here import has_nvcc, needs_nvcc
from tests.plugins.shift import EXAMPLE, SOURCE

TARGET = "sm_90a"

CUDA_SOFTMAX = Path(__file__).parents[2] / "examples" / "cuda_softmax"

CompileGroup = Callable[..., tuple[dict[str, Compiled], Path]]


def shift(by: int) -> Build:
    """Return a Build of one instance of the example, through C++; without optimising, which is faster."""
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
def test_it_keeps_every_promise_of_a_backend(tmp_path: Path) -> None:
    """The public conformance suite passes; without a GPU up to where loading needs one."""
    check_backend(TvmFfiCuda(), EXAMPLE, tmp_path)


@needs_nvcc
def test_a_group_is_one_library_whose_bad_unit_is_alone_with_its_error(compile_group: CompileGroup) -> None:
    """The others share a library, each under its own name; the artifacts hold all that they need."""
    results, into = compile_group({"bad": shift(100), "a": shift(1), "b": shift(2)})
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
    """Neither the place of the sources nor nvcc's temporary files show in ``kernel.so``."""
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    shutil.copy(SOURCE, elsewhere)
    results, _ = compile_group({"here": EXAMPLE.good})
    compile_group({"there": EXAMPLE.good}, elsewhere / SOURCE.name)
    assert digest_file(tmp_path / "here/kernel.so") == digest_file(tmp_path / "there/kernel.so")
    facts = results["here"].facts  # the assembler's report, as the config's own where there is but one kernel
    assert facts["function"] == "shift"
    assert facts["registers"] > 0
    assert facts["spill_store_bytes"] == 0
    assert len(facts["kernels"]) == 1


def test_a_target_that_is_no_gpu_is_unsupported(compile_group: CompileGroup, tmp_path: Path) -> None:
    """A CPU is nothing that nvcc compiles for, and what is for another architecture is not loaded."""
    unit = Unit("key", shift(1), (SOURCE,), SOURCE, "shift", "native-elsewhere")
    if has_nvcc():
        (result,) = TvmFfiCuda().compile([unit], tmp_path)
        assert result.outcome is Outcome.UNSUPPORTED
    with pytest.raises(Unsupported, match="sm_80"):
        TvmFfiCuda().load(
            tmp_path,
            EXAMPLE.unit("key", shift(1), "sm_80"),
            Device(DeviceName("cuda:0"), DeviceModel("GPU"), Target("sm_90a")),
        )


@pytest.mark.parametrize(("names", "backend"), [(["a.cc"], "tvm_ffi"), (["a.cc", "b.cu"], "tvm_ffi_cuda")])
def test_sources_choose_the_backend(names: list[str], backend: str) -> None:
    """A kernel file says ``tvm_ffi``; a ``.cu`` source makes it run on CUDA."""
    assert TvmFfi.for_sources([Path(name) for name in names]) == backend


def test_the_daemon_is_told_the_backend_that_the_sources_choose(tmp_path: Path) -> None:
    """Devices, toolchain and group size are that one's; the kernel file names the family."""

    class KeptItems(Reply):
        def __init__(self) -> None:
            """Have no pipe."""

        def begin_phase(self, phase: Phase) -> None:
            """Ignore it."""

        def send_item(self, value: replies.InspectedFile, *, hold_s: float = 0.0) -> None:
            """Keep it."""
            items.append(value)

    items: list[replies.InspectedFile] = []
    shutil.copytree(CUDA_SOFTMAX, tmp_path / "softmax")
    places = Places({"p": str(tmp_path)}, "", "")
    Inspector(Registry(), places).inspect_files(requests.Inspect("p", ("softmax/tune_softmax.py",)), KeptItems())
    ((kernel,),) = (item.kernels for item in items)
    assert kernel.backend == "tvm_ffi_cuda"


def test_a_missing_nvcc_is_a_backend_error_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fingerprint and devices still answer; compiling is an error with what mends it."""
    monkeypatch.setenv("CUDACXX", str(tmp_path / "no-nvcc"))
    assert TvmFfiCuda().fingerprint()["compiler"] == "none"
    assert isinstance(TvmFfiCuda().devices(), Absent)
    with pytest.raises(BackendError, match="no-nvcc") as caught:
        list(TvmFfiCuda().compile([EXAMPLE.unit("key", shift(1), TARGET)], tmp_path))
    assert "CUDACXX" in caught.value.hint


@pytest.mark.parametrize("name", ["a b", "f<1>; evil()", "f(1)", "f<{}>", ""])
def test_an_expression_that_names_no_function_is_an_error_at_once(name: str) -> None:
    """Before anything is compiled, where the kernel function says it."""
    with pytest.raises(ValueError, match="neither an identifier nor a function"):
        Build(name, ())


@needs_nvcc
def test_compiling_imports_neither_torch_nor_tvm_ffi(tmp_path: Path) -> None:
    """Compile workers stay light, and so does what reports the devices."""
    code = """if True:
        import sys
        from ktuned_tvm_ffi import TvmFfiCuda
        TvmFfiCuda().fingerprint(), TvmFfiCuda().devices()
        print(sorted({"torch", "tvm_ffi", "numpy"} & sys.modules.keys()))
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert said.stdout.strip() == "[]"
