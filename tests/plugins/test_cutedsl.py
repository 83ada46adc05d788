"""The cutedsl backend: the conformance suite, and its own features."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from ktuned.backends import cubin
from ktuned.backends.contract import Unit
from ktuned.backends.registry import Registry
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.loader import forget_modules, load_file
from ktuned.ipc.manifest import digest_file
from ktuned.model.device import Device
from ktuned.model.errors import BackendError, Unsupported
from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.model.values import Outcome
from ktuned.testing.backends import check_backend
from ktuned_cutedsl import Build, CuteDsl, resources
from ktuned_cutedsl.compiler import CUBIN_FILE, LIBRARY_FILE

if find_spec("cutlass") is None:
    pytest.skip("CuTe DSL is missing: pip install nvidia-cutlass-dsl", allow_module_level=True)

from tests.plugins.cutedsl_scale import EXAMPLE, FILE, LAYOUTS, SIZE, make_build
from tests.plugins.examples_on_gpus import (
    CompileOne,
    check_outputs_on_gpu,
    find_first_gpu,
    make_compile_one,
    make_units,
    run_python,
)

TUNE_RMSNORM = Path(__file__).parent.parent.parent / "examples/cutedsl_rmsnorm/tune_rmsnorm.py"
H200 = Device(DeviceName("cuda:0"), DeviceModel("NVIDIA H200"), Target("sm_90a"))


@pytest.fixture
def compile_one(tmp_path: Path) -> CompileOne:
    """A function that compiles a Build of a kernel file into a new directory."""
    return make_compile_one(CuteDsl(), FILE, tmp_path)


def test_the_backend_passes_the_conformance_suite(tmp_path: Path) -> None:
    """Without a GPU, the suite ends where loading needs one."""
    check_backend(Registry().load("cutedsl"), EXAMPLE, tmp_path)


def test_a_probe_imports_nothing_large() -> None:
    """Identity, fingerprint and devices need neither CuTe DSL nor torch nor tvm-ffi."""
    code = """if True:
        import sys
        from ktuned_cutedsl import CuteDsl
        CuteDsl().fingerprint()
        CuteDsl().devices()
        print(sorted({"torch", "cutlass", "tvm_ffi", "numpy", "cuda.bindings"} & sys.modules.keys()))
    """
    assert run_python(code) == "[]"


def test_an_artifact_loads_in_a_new_process_without_cute_dsl(compile_one: CompileOne) -> None:
    """Neither CuTe DSL nor the kernel file is imported before the launch: the artifact has the machine code."""
    result, artifact = compile_one(make_build(THREADS=256))
    assert result.outcome is None, result.message
    code = """if True:
        import sys
        from pathlib import Path
        import msgpack, torch
        from ktuned.backends import Unit
        from ktuned.model import Device
        from ktuned_cutedsl import Build, CuteDsl
        artifact, size = Path(sys.argv[1]), int(sys.argv[2])
        build = Build.from_plain(msgpack.unpackb(bytes.fromhex(sys.argv[3])))
        unit = Unit("key", build, (), Path("/nowhere/tune_it.py"), "scale", "sm_90a")
        kernel = CuteDsl().load(artifact, unit, Device("cuda:0", "NVIDIA H200", "sm_90a"))
        launch = kernel.bind({"x": torch.ones(size), "y": torch.ones(size)})
        assert "cutlass" not in sys.modules
        try:
            launch()
        except ValueError as error:
            print(error)
    """
    output = run_python(code, artifact, SIZE, msgpack.packb(make_build(THREADS=256).to_plain()).hex())
    assert f"scale(x: Tensor([{SIZE}], float32), y: Tensor([{SIZE}], float32), factor: float32)" in output
    assert "expected device_type=cuda" in output


def test_equal_functions_give_equal_bytes_wherever_they_are(compile_one: CompileOne, tmp_path: Path) -> None:
    """The bytes depend on neither the directory, the process nor the order of constants."""
    _, first_artifact = compile_one(make_build(THREADS=256, VECTOR=2))
    other_file = tmp_path / "else" / "where" / "tune_other.py"
    other_file.parent.mkdir(parents=True)
    shutil.copy(FILE, other_file)
    _, second_artifact = compile_one(make_build(VECTOR=2, THREADS=256), file=other_file)
    code = """if True:
        import sys
        from pathlib import Path
        from ktuned_cutedsl import CuteDsl
        from tests.plugins.cutedsl_scale import EXAMPLE, make_build
        into = Path(sys.argv[1])
        (into / "key").mkdir(parents=True)
        (result,) = CuteDsl().compile([EXAMPLE.unit("key", make_build(THREADS=256, VECTOR=2), "sm_90a")], into)
        sys.exit(result.message or 0)
    """
    run_python(code, tmp_path / "third")
    digests = {
        digest_file(path / LIBRARY_FILE) for path in (first_artifact, second_artifact, tmp_path / "third" / "key")
    }
    assert len(digests) == 1
    assert str(tmp_path).encode() not in (first_artifact / LIBRARY_FILE).read_bytes()


def test_an_edited_kernel_file_is_compiled_as_it_is_now(compile_one: CompileOne, tmp_path: Path) -> None:
    """Once the project's modules are forgotten, the function and its imports are read again."""
    shutil.copy(FILE, tmp_path / "kernels.py")
    file = tmp_path / "tune_it.py"
    file.write_text("from kernels import scale\n")
    build = make_build("kernels:scale")
    _, first_artifact = compile_one(build, file=file)
    text = (tmp_path / "kernels.py").read_text()
    # The length differs, because bytecode of the same second and length would count as current.
    (tmp_path / "kernels.py").write_text(text.replace(".load() * factor", ".load() + 2 * factor"))
    forget_modules()
    # A worker would forget this module together with the kernel file's.
    sys.modules.pop("kernels", None)
    _, second_artifact = compile_one(build, file=file)
    assert (first_artifact / CUBIN_FILE).read_bytes() != (second_artifact / CUBIN_FILE).read_bytes()
    assert "kernels" in sys.modules
    forget_modules()


@pytest.mark.parametrize(("target", "flags"), [("sm_80", 0x50), ("sm_90a", 0x5A), ("sm_120a", 0x78)])
def test_the_cubin_is_for_the_target(target: str, flags: int, compile_one: CompileOne) -> None:
    """The ELF header's flags show it, whatever this machine has and whatever was compiled before."""
    result, artifact = compile_one(replace(make_build(), options="--gpu-arch sm_86"), target)
    assert result.outcome is None, result.message
    assert result.facts["target"] == target
    header = int.from_bytes((artifact / CUBIN_FILE).read_bytes()[48:52], "little")
    assert flags in (header >> 8 & 0xFF, header & 0xFF)


def test_facts_tell_what_the_kernel_takes_and_how_it_is_launched(compile_one: CompileOne) -> None:
    """Registers and shared memory come from the binary, launch sizes from the host code."""
    result, _ = compile_one(make_build(THREADS=64, VECTOR=2, SHARED=1000, CLUSTER=2))
    (kernel,), (launch,) = result.facts["kernels"], result.facts["launches"]
    assert "scale_kernel" in kernel["name"]
    assert 8 <= kernel["registers"] <= 64
    assert (kernel["threads"], kernel["stack_bytes"], kernel["shared_bytes"]) == (64, 0, 0)
    blocks = SIZE // 128
    assert launch == {"grid": [blocks, 1, 1], "block": [64, 1, 1], "cluster": [2, 1, 1], "shared_bytes": 4000}


def test_a_class_is_made_with_its_constants(compile_one: CompileOne) -> None:
    """``__init__`` gets its constants after their travel, with tuples as tuples."""
    travelled = Build.from_plain(msgpack.unpackb(msgpack.packb(make_build("Scale", threads=64, tile=[2]).to_plain())))
    result, _ = compile_one(travelled)
    assert result.outcome is None, result.message
    assert result.facts["function"] == "Scale"
    assert result.facts["launches"][0]["block"] == [64, 1, 1]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (make_build("missing"), "there is no function 'missing'"),
        (make_build("SIZE"), "'SIZE' is of type int, which cannot be called"),
        (make_build("undecorated", ("x",)), "@cute.jit"),
        (make_build("without_stream", ("x", "y")), "without_stream has no parameter 'stream'"),
        (make_build(args=("x", "y")), "scale takes 'factor', which args and constants lack"),
        (make_build(args=("x", "y", 3.0, 128)), "args has 128 more"),
        (make_build(args=("x", "z", 3.0)), "args names the tensor 'z', which inputs(p) does not make"),
        (make_build(args=("x", "y"), factor=2.0), "factor of scale is a constant, but not annotated cutlass.Constexpr"),
        (make_build(THREAD=64), "scale has no constexpr parameter 'THREAD'"),
        (make_build("Scale", threads=64), "missing 1 required positional argument: 'tile'"),
        (replace(make_build(), options="--no-such-option"), "--no-such-option"),
        (replace(make_build(), options="--ptxas-options --no-such-flag"), "no-such-flag"),
        (replace(make_build(), layouts={**LAYOUTS, "x": ("complex64", (SIZE,), (1,))}), "'x' is of complex64"),
        (make_build(VECTOR=0), "cutedsl_scale.py"),
        (make_build(FAULT="broken"), "cutedsl_scale.py:55: AssertionError: FAULT is broken"),
        (make_build(FAULT="name"), "'missing_name'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_way_of_not_compiling_is_a_result(build: Build, message: str, compile_one: CompileOne) -> None:
    """Errors of the Build, of CuTe DSL and of the function are compile errors with a message."""
    result, artifact = compile_one(build)
    assert result.outcome is Outcome.COMPILE_ERROR, result
    assert message in result.message
    assert "\x1b" not in result.message
    assert list(artifact.iterdir()) == []


@pytest.mark.parametrize(
    ("build", "target", "message"),
    [
        (make_build(), "native-0123", "compiles for NVIDIA GPUs (sm_90a), not for native-0123"),
        (make_build(THREADS=2048), "sm_90a", "a block has 2048 threads; sm_90a allows 1024"),
        (make_build(SHARED=60_000), "sm_90a", "needs 240000 bytes of shared memory; sm_90a has 232448"),
        (make_build(SHARED=30_000), "sm_120a", "needs 120000 bytes of shared memory; sm_120a has 101376"),
        (make_build(CLUSTER=32), "sm_90a", "a cluster has 32 blocks; sm_90a allows 16"),
        (make_build(CLUSTER=3), "sm_90a", "cannot be cut into clusters of [3, 1, 1]"),
        (make_build(FAULT="unsupported"), "sm_90a", "this config is for another GPU"),
    ],
)
def test_what_the_architecture_cannot_launch_is_unsupported(
    build: Build, target: str, message: str, compile_one: CompileOne
) -> None:
    """The compilation reports it, before any device is involved."""
    result, _ = compile_one(build, target)
    assert result.outcome is Outcome.UNSUPPORTED, result
    assert message in result.message


def test_shared_memory_up_to_the_limit_is_compiled(compile_one: CompileOne) -> None:
    """A block may use 227 KiB, but not four bytes more."""
    most = 227 * 1024 // 4
    assert compile_one(make_build(SHARED=most))[0].outcome is None
    assert compile_one(make_build(SHARED=most + 1))[0].outcome is Outcome.UNSUPPORTED


def test_too_many_registers_for_a_block_are_unsupported() -> None:
    """Registers are allocated to whole warps in units of eight."""
    from ktuned_cutedsl.limits import explain_unlaunchable

    kernel = cubin.Kernel("k", registers=65, stack_bytes=0, shared_bytes=0, threads=897)
    assert explain_unlaunchable("sm_90a", [kernel], []) == (
        "a block of 897 threads with 65 registers each needs 66816 registers; sm_90a has 65536"
    )
    assert explain_unlaunchable("sm_90a", [replace(kernel, threads=896)], []) == ""
    assert explain_unlaunchable("sm_90a", [replace(kernel, threads=None)], [resources.Launch()]) == ""


def test_sources_are_refused(tmp_path: Path) -> None:
    """With sources, the function's Python would not be part of the source digest, so edits would go unnoticed."""
    (tmp_path / "key").mkdir()
    (result,) = CuteDsl().compile([Unit("key", make_build(), (FILE,), FILE, "scale", "sm_90a")], tmp_path)
    assert result.outcome is Outcome.COMPILE_ERROR
    assert "has no sources" in result.message


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false"])
def test_a_linker_that_fails_is_not_the_configs_fault(
    compiler: str, compile_one: CompileOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is recorded for the config if the linker is missing or fails."""
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(BackendError, match=compiler):
        compile_one(make_build())


def test_another_architectures_artifact_is_unsupported(tmp_path: Path) -> None:
    """Architecture-specific code runs only on its own architecture."""
    unit = EXAMPLE.unit("key", EXAMPLE.good, "sm_90a")
    with pytest.raises(Unsupported, match="sm_90a, and cuda:0 is sm_100a"):
        CuteDsl().load(tmp_path, unit, msgspec.structs.replace(H200, target=Target("sm_100a")))


def test_a_missing_runtime_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint has the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"libcute_dsl_runtime\.so") as caught:
        CuteDsl().load(tmp_path, EXAMPLE.unit("key", EXAMPLE.good, "sm_90a"), H200)
    assert "nvidia-cutlass-dsl" in caught.value.hint


def test_the_environment_of_cute_dsl_is_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuTe DSL's variables change what is compiled."""
    before = CuteDsl().fingerprint()
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
    assert CuteDsl().fingerprint() != before


class TestBuild:
    """A Build travels as names and plain values."""

    def test_a_function_becomes_its_name(self) -> None:
        """The name includes the module, unless the function belongs to the kernel file."""
        from tests.plugins import cutedsl_scale

        assert Build(cutedsl_scale.scale, ()).function == "tests.plugins.cutedsl_scale:scale"
        assert Build(cutedsl_scale.Scale, ()).symbol == "Scale"

    def test_a_type_as_a_constant_is_an_error_at_once(self) -> None:
        """The message says what to write instead."""
        with pytest.raises(TypeError, match=r"the constant acc is a type; .* pass a dtype by its name"):
            Build("f", (), {"acc": int})

    def test_only_the_tensors_that_args_names_are_recorded(self) -> None:
        """Other tensors do not enter the artifact's key."""
        layouts = dict.fromkeys(("a", "b", "c"), ("float16", (4, 4), (4, 1)))
        assert set(Build("f", ("a", 1, "c", "d")).given(lambda: layouts).layouts) == {"a", "c"}


@pytest.fixture(scope="module")
def rmsnorm_kernel() -> Kernel:
    """The example's kernel."""
    loaded = load_file(TUNE_RMSNORM, TUNE_RMSNORM.parent)
    assert loaded.errors == ()
    return loaded.kernels[0]


class TestExample:
    """examples/cutedsl_rmsnorm: its configs compile, and compute correctly on a GPU."""

    def choose_configs(self, kernel: Kernel) -> list[dict[str, Any]]:
        """Return the default and some other configs, including the first and last."""
        admitted = [dict(config) for config in kernel.bind_space(kernel.list_problems()[0])]
        assert kernel.default in admitted
        assert len(admitted) >= 64
        return [dict(kernel.default or {}), admitted[0], *admitted[7::20], admitted[-1]]

    def test_the_examples_configs_compile(self, rmsnorm_kernel: Kernel, tmp_path: Path) -> None:
        """No GPU is needed, and no config spills."""
        units = make_units(rmsnorm_kernel, TUNE_RMSNORM, self.choose_configs(rmsnorm_kernel), tmp_path, "sm_90a")
        results = list(CuteDsl().compile(units, tmp_path))
        assert [result.message for result in results if result.outcome] == []
        assert all(result.facts["kernels"][0]["stack_bytes"] == 0 for result in results)

    def test_the_source_digest_includes_what_the_function_calls(self, rmsnorm_kernel: Kernel, tmp_path: Path) -> None:
        """An edit of the device code changes the source digest, and so the artifact."""
        from ktuned.declaration.digest import describe_kernel

        before = describe_kernel(rmsnorm_kernel, "p", TUNE_RMSNORM.parent)
        text = TUNE_RMSNORM.read_text()
        (tmp_path / "tune_rmsnorm.py").write_text(text.replace("cute.math.rsqrt(", "1.0 * cute.math.rsqrt("))
        (edited,) = load_file(tmp_path / "tune_rmsnorm.py", tmp_path).kernels
        assert describe_kernel(edited, "p", tmp_path).source_digest != before.source_digest
        (tmp_path / "tune_rmsnorm.py").write_text(text + "# a remark\n")
        (same,) = load_file(tmp_path / "tune_rmsnorm.py", tmp_path).kernels
        assert describe_kernel(same, "p", tmp_path).source_digest == before.source_digest

    @pytest.mark.gpu
    def test_the_examples_configs_are_right(self, rmsnorm_kernel: Kernel, tmp_path: Path) -> None:
        """The reference computes in float32."""
        check_outputs_on_gpu(CuteDsl(), rmsnorm_kernel, TUNE_RMSNORM, self.choose_configs(rmsnorm_kernel), tmp_path)


@pytest.mark.gpu
class TestOnGpu:
    """Behaviour that only a device shows."""

    @pytest.fixture
    def launch(self, compile_one: CompileOne) -> Callable[..., Callable[[], float | None]]:
        """Return a function that compiles, loads and binds."""

        def launch(build: Build, **tensors: Any) -> Callable[[], float | None]:
            device = find_first_gpu(CuteDsl())
            result, artifact = compile_one(build, device.target)
            assert result.outcome is None, result.message
            unit = EXAMPLE.unit("key", build, device.target)
            return CuteDsl().load(artifact, unit, device).bind(tensors)

        return launch

    @pytest.mark.parametrize("constants", [dict(SHARED=227 * 1024 // 4), dict(CLUSTER=8), dict(CLUSTER=16)], ids=str)
    def test_kernels_at_the_limits_of_the_architecture_launch(
        self, constants: dict[str, Any], launch: Callable[..., Callable[[], float | None]]
    ) -> None:
        import torch

        x, y = torch.arange(float(SIZE), device="cuda"), torch.zeros(SIZE, device="cuda")
        launch(make_build(**constants), x=x, y=y)()
        torch.cuda.synchronize()
        assert torch.equal(y, 3 * x)

    def test_a_tensor_of_another_shape_is_refused(self, launch: Callable[..., Callable[[], float | None]]) -> None:
        """The compiled function checks its arguments and says what it expects."""
        import torch

        x, y = torch.ones(SIZE + 1, device="cuda"), torch.ones(SIZE, device="cuda")
        with pytest.raises(ValueError, match=r"scale\(x: Tensor\("):
            launch(make_build(), x=x, y=y)()

    def test_compiling_takes_nothing_of_the_gpu(self, tmp_path: Path) -> None:
        """A compile worker makes no context on a device that a lane uses."""
        code = """if True:
            import sys
            from pathlib import Path
            from cuda.bindings import driver
            from ktuned_cutedsl import CuteDsl
            from tests.plugins.cutedsl_scale import EXAMPLE
            into = Path(sys.argv[1])
            (into / "key").mkdir()
            (result,) = CuteDsl().compile([EXAMPLE.unit("key", EXAMPLE.good, "sm_90a")], into)
            assert result.outcome is None, result.message
            driver.cuInit(0)
            _, device = driver.cuDeviceGet(0)
            print(driver.cuDevicePrimaryCtxGetState(device)[2])
        """
        assert run_python(code, tmp_path) == "0"
