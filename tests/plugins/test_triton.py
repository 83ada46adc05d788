"""The triton backend: what every backend promises, and what this one promises besides."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import msgspec
import pytest
import triton
import triton.language as tl

from ktuned.backends import Absent, Registry, Unit
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.digest import describe_kernel
from ktuned.declaration.loader import load_file
from ktuned.model import BackendError, Device, Outcome, Unsupported
from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.testing.backends import check_backend
from ktuned_triton import Build, Triton, load
from ktuned_triton.arguments import pack_number
from ktuned_triton.descriptors import Descriptor, expand_descriptor
from ktuned_triton.launch_plan import LaunchPlan, Parameter
from ktuned_triton.limits import explain_unlaunchable
from ktuned_triton.lowering import Lowered, is_supported_version
from tests.plugins import triton_scale
from tests.plugins.examples_on_gpus import (
    CompileOne,
    check_outputs_on_gpu,
    find_first_gpu,
    make_compile_one,
    make_units,
    run_python,
)
from tests.plugins.triton_scale import DTYPES, EXAMPLE, FILE, SIZE, build

TUNE_MATMUL = Path(__file__).parent.parent.parent / "examples/triton_matmul/tune_matmul.py"
H100 = Device(DeviceName("cuda:0"), DeviceModel("NVIDIA H100"), Target("sm_90a"))
HALVES = dict.fromkeys(("a", "b", "c"), "float16")


def product(block: int = 64, **sizes: Any) -> Build:
    """Return a Build of a matrix product, for its shared memory."""
    constants = {"SIZE": 1024, "BLOCK": block}
    return Build("product", ("a", "b", "c"), constants, (1024 // block, 1024 // block), dtypes=HALVES, **sizes)


@pytest.fixture
def compile_one(tmp_path: Path) -> CompileOne:
    """Return a function that compiles a Build of a kernel file into a new directory."""
    return make_compile_one(Triton(), FILE, tmp_path)


def plan_of(artifact: Path) -> LaunchPlan:
    """Return an artifact's launch plan."""
    return LaunchPlan.from_json((artifact / "launch.json").read_text())


def test_it_keeps_the_promises_of_every_backend(tmp_path: Path) -> None:
    """The entry point leads to a class that passes the conformance suite, on a GPU or up to where loading needs one."""
    check_backend(Registry().load("triton"), EXAMPLE, tmp_path)


def test_what_the_probe_asks_imports_nothing_large() -> None:
    """Identity, fingerprint and devices are found out without Triton, torch and CUDA's bindings."""
    code = """if True:
        import sys
        from ktuned_triton import Triton
        Triton().fingerprint()
        Triton().devices()
        print(sorted({"torch", "triton", "numpy", "cuda.bindings"} & sys.modules.keys()))
    """
    assert run_python(code) == "[]"


def test_compiling_leaves_nothing_behind(tmp_path: Path) -> None:
    """Triton's cache, the environment, temporary files and Triton's driver are as they were."""
    code = """if True:
        import os, sys
        from pathlib import Path
        from ktuned_triton import Triton
        from tests.plugins.triton_scale import EXAMPLE
        before, into = dict(os.environ), Path(sys.argv[1])
        (into / "key").mkdir()
        (result,) = Triton().compile([EXAMPLE.unit("key", EXAMPLE.good, "sm_90a")], into)
        assert result.outcome is None, result.message
        from triton.runtime.driver import driver
        print(dict(os.environ) == before, driver._active, sorted(os.listdir(sys.argv[2])))
    """
    home = tmp_path / "home"
    home.mkdir()
    assert run_python(code, tmp_path, home, HOME=str(home), TMPDIR=str(home)) == "True None []"


LOWERED = {
    "dtype": build(THROUGH=tl.float16),
    "none": build("sized", ("x", "y", None, 3.0)),
    "tuples": build("scale_by", ("x", "y", (2, 3.0)), SIZE=1024, FUNCTION=triton_scale.doubled, WIDTHS=(1, 4)),
    "scratch": build("copy_by_descriptor", ("x", "y", 4096), BLOCK=64),
    "options": product(num_warps=8, num_stages=2, maxnreg=128, options={"enable_fp_fusion": False}),
}
"""Builds of all kinds: constants, dtypes, functions, tuples, scratch memory, options. Not clusters: Triton's own code
for them differs from run to run."""


def text_of(wanted: Build) -> str:
    """Return the text that the front end makes of a Build."""
    made = Triton().lower(Unit("it", wanted, (), FILE, "scale", "sm_90a"))
    assert isinstance(made, bytes)
    return Lowered.from_bytes(made).text


class TestLowering:
    """A function that was translated apart compiles to the same artifact, by a process that imports nothing."""

    @pytest.mark.parametrize("wanted", LOWERED.values(), ids=LOWERED)
    def test_a_lowered_unit_gives_the_same_artifact_as_a_compile_in_one_piece(
        self, wanted: Build, compile_one: CompileOne, tmp_path: Path
    ) -> None:
        """Machine code, assembly, launch, metadata with Triton's key, and facts."""
        whole, expected = compile_one(wanted)
        lowered = Triton().lower(Unit("it", wanted, (), FILE, "scale", "sm_90a"))
        assert isinstance(lowered, bytes)
        (tmp_path / "it").mkdir()
        unit = Unit("it", wanted, (), tmp_path / "absent.py", "scale", "sm_90a", lowered)
        (result,) = Triton().compile([unit], tmp_path)
        assert (result.outcome, result.message) == (whole.outcome, whole.message)
        assert result.facts == whole.facts
        for name in Triton.required_files:
            assert (tmp_path / "it" / name).read_bytes() == (expected / name).read_bytes(), name

    def test_nothing_of_the_users_is_imported(self, tmp_path: Path) -> None:
        """Nor torch."""
        lowered = Triton().lower(EXAMPLE.unit("it", EXAMPLE.good, "sm_90a"))
        assert isinstance(lowered, bytes)
        (tmp_path / "lowered").write_bytes(lowered)
        (tmp_path / "build").write_bytes(msgpack.packb(EXAMPLE.good.to_plain()))
        code = """if True:
            import sys, msgpack
            from pathlib import Path
            from ktuned.backends import Unit
            from ktuned_triton import Build, Triton
            into = Path(sys.argv[1])
            (into / "it").mkdir()
            build = Build.from_plain(msgpack.unpackb((into / "build").read_bytes()))
            unit = Unit("it", build, (), Path("absent.py"), "scale", "sm_90a", (into / "lowered").read_bytes())
            (result,) = Triton().compile([unit], into)
            print(result.outcome, sorted({"torch", "tests"} & sys.modules.keys()))
        """
        assert run_python(code, tmp_path) == "None []"

    def test_configs_that_differ_in_sizes_share_a_text(self, capfd: pytest.CaptureFixture[str]) -> None:
        """The front end runs once for them, and again for another constant, be it only of another type."""
        first = Build("announced", ("y",), {"TEXT": "1"}, (1,), dtypes=DTYPES)
        others = replace(first, num_warps=8), replace(first, num_stages=2), replace(first, maxnreg=64)
        texts = [text_of(one) for one in (first, *others)]
        assert (len(set(texts)), capfd.readouterr().out.count("translated")) == (1, 1)
        text_of(replace(first, constants={"TEXT": 1}))
        assert capfd.readouterr().out.count("translated") == 1
        text_of(replace(first, options={"enable_fp_fusion": False}))
        assert capfd.readouterr().out.count("translated") == 1

    def test_a_size_that_a_function_reads_has_its_own_text(self) -> None:
        """It would be compiled for the warps of another config."""
        few, many, again = (
            text_of(Build("warps", ("y",), {}, (1,), dtypes=DTYPES, num_warps=one)) for one in (4, 8, 4)
        )
        assert few == again != many

    def test_a_front_end_needs_no_torch(self) -> None:
        """Where the user's module does without it, two seconds are saved; a later import finds the real one."""
        code = """if True:
            import sys
            from ktuned_triton import Triton
            from tests.plugins.triton_scale import EXAMPLE
            assert isinstance(Triton().lower(EXAMPLE.unit("it", EXAMPLE.good, "sm_90a")), bytes)
            print("torch" in sys.modules)
        """
        assert run_python(code) == "False"

    def test_text_that_this_triton_does_not_read_is_compiled_whole(self, tmp_path: Path) -> None:
        """The process imports the function after all."""
        lowered = Triton().lower(EXAMPLE.unit("it", EXAMPLE.good, "sm_90a"))
        assert isinstance(lowered, bytes)
        unit = msgspec.structs.replace(
            EXAMPLE.unit("it", EXAMPLE.good, "sm_90a"), lowered=lowered.replace(b"tt.func", b"tt.what")
        )
        (tmp_path / "it").mkdir()
        (result,) = Triton().compile([unit], tmp_path)
        assert result.outcome is None, result.message

    @pytest.mark.parametrize(
        ("version", "known"), [("3.5.1", False), ("3.6.0", True), ("3.7.0+git1", True), ("4.0", False)]
    )
    def test_front_ends_are_split_off_from_triton_3_6_on(self, version: str, known: bool) -> None:
        """Others compile in one piece."""
        assert is_supported_version(version) == known


class TestSpecialisation:
    """The machine code is the one that the real call would get."""

    @pytest.mark.parametrize(
        ("value", "kinds"),
        [
            (4096, "*fp32 *fp32 i32 fp32"),
            (1, "*fp32 *fp32 fp32"),
            (2**40, "*fp32 *fp32 i64 fp32"),
            (None, "*fp32 *fp32 fp32"),
        ],
    )
    def test_parameters_are_what_is_not_compiled_in(self, value: Any, kinds: str, compile_one: CompileOne) -> None:
        """An int that is 1 and None are, others are typed by their size."""
        wanted = build("sized", ("x", "y", value, 3.0))
        result, artifact = compile_one(wanted)
        assert result.outcome is None, result.message
        assert " ".join(parameter.type for parameter in plan_of(artifact).parameters) == kinds

    def test_divisibility_by_16_is_compiled_in(self, compile_one: CompileOne) -> None:
        """Of ints, too: other code for a size that vectors of loads do not fit."""
        even, odd = (compile_one(build(args=("x", "y", size, 3.0)))[1] for size in (SIZE, SIZE - 1))
        assert ".v4.b32" in (even / "kernel.ptx").read_text()
        assert ".v4.b32" not in (odd / "kernel.ptx").read_text()

    def test_dtypes_are_compiled_in_and_shapes_are_not(self) -> None:
        """Two problems whose arguments are the same share an artifact."""
        wanted = Build("scale", ("x", ("y", 1)))
        layouts = [dict.fromkeys("xyz", ("float16", (size,), (1,))) for size in (64, 4096)]
        small, large = wanted.given(lambda: layouts[0]), wanted.given(lambda: layouts[1])
        assert small == large
        assert small.dtypes == {"x": "float16", "y": "float16"}

    def test_tuples_dtypes_and_functions_travel(self, compile_one: CompileOne) -> None:
        """As arguments and as constants, after they have been MessagePack."""
        constants = {"SIZE": 1024, "FUNCTION": triton_scale.doubled, "WIDTHS": (1, 2), "THROUGH": tl.float16}
        wanted = Build("scale_by", ("x", "y", (2.0, 3)), constants, dtypes=triton_scale.DTYPES)
        travelled = Build.from_plain(msgpack.unpackb(msgpack.packb(wanted.to_plain())))
        assert travelled == wanted
        result, artifact = compile_one(travelled)
        assert result.outcome is None, result.message
        assert [parameter.value for parameter in plan_of(artifact).parameters] == ["x", "y", 2.0, 3]

    @pytest.mark.parametrize("target", ["sm_80", "sm_120a"])
    def test_the_machine_code_is_for_the_target(self, target: str, compile_one: CompileOne) -> None:
        """Whatever the machine has or lacks, and whatever was compiled before."""
        result, artifact = compile_one(build(), target)
        assert result.outcome is None, result.message
        assert f".target {target}\n" in (artifact / "kernel.ptx").read_text()
        assert plan_of(artifact).target == target


class TestArtifact:
    """What it holds, and the ways back into a program."""

    def test_the_plan_says_all_that_a_launch_takes(self, compile_one: CompileOne) -> None:
        """Sizes, shared and scratch memory, clusters."""
        result, artifact = compile_one(product(128, num_warps=4, num_ctas=2))
        assert result.outcome is None, result.message
        plan = plan_of(artifact)
        assert (plan.grid, plan.blocks, plan.threads, plan.cluster) == ((8, 8, 1), (16, 8, 1), 128, 2)
        assert plan.shared_bytes > 48 * 1024
        _, artifact = compile_one(Build("copy_by_descriptor", ("a", "b", 4096), {"BLOCK": 64}, dtypes=HALVES))
        assert plan_of(artifact).global_scratch_bytes > 0

    def test_facts_are_the_assemblers_report(self, compile_one: CompileOne) -> None:
        """Registers, spills, shared memory."""
        roomy, tight = (compile_one(product(128, maxnreg=most))[0].facts for most in (None, 128))
        assert roomy["registers"] > 128 >= tight["registers"] > 0
        assert (roomy["spill_store_bytes"], roomy["spill_load_bytes"]) == (0, 0)
        assert tight["spill_store_bytes"] > 0
        assert roomy["dynamic_shared_bytes"] > 0

    def test_triton_finds_an_installed_one_in_its_cache(self, compile_one: CompileOne, tmp_path: Path) -> None:
        """The same function called in another process, from another module, compiles nothing."""
        result, artifact = compile_one(build())
        shutil.copy(FILE, tmp_path / "kernels.py")
        code = """if True:
            import sys
            sys.path.insert(0, sys.argv[1])
            import kernels
            from triton.backends.compiler import GPUTarget
            from triton.backends.nvidia.compiler import CUDABackend
            from triton.runtime.driver import driver
            from types import SimpleNamespace
            from ktuned_triton import install
            import torch
            target = GPUTarget("cuda", 90, 32)
            driver.set_active(SimpleNamespace(
                get_current_target=lambda: target, get_current_device=lambda: 0, get_current_stream=lambda device: 0))
            del CUDABackend.make_cubin
            def call():
                return kernels.scale.warmup(torch.float32, torch.float32, kernels.SIZE, 3.0, BLOCK=1024, grid=(64,))
            try:
                call()
            except AttributeError as error:
                print(error)
            install(sys.argv[2])
            print(call().metadata.hash)
        """
        said = run_python(code, tmp_path, artifact, TRITON_CACHE_DIR=str(tmp_path / "cache"))
        assert said.splitlines() == ["'CUDABackend' object has no attribute 'make_cubin'", result.facts["triton_key"]]

    def test_another_architectures_artifact_is_unsupported(self, compile_one: CompileOne) -> None:
        """Architecture-specific code runs on its own alone."""
        _, artifact = compile_one(build())
        with pytest.raises(Unsupported, match="sm_90a, and cuda:0 is sm_100a"):
            load(artifact, msgspec.structs.replace(H100, target=Target("sm_100a")))

    def test_without_a_driver_loading_says_so(self, compile_one: CompileOne) -> None:
        """As a failure of the machine, not of the config."""
        if not isinstance(Triton().devices(), Absent):
            pytest.skip("there is a GPU")
        _, artifact = compile_one(build())
        with pytest.raises(BackendError, match="a kernel cannot be loaded"):
            load(artifact, H100)

    def test_it_is_the_same_wherever_the_kernel_file_lies(self, compile_one: CompileOne, tmp_path: Path) -> None:
        """All but the line table, which names the file: the PTX up to its debug sections."""
        elsewhere = tmp_path / "else" / "where.py"
        elsewhere.parent.mkdir()
        shutil.copy(FILE, elsewhere)
        texts = [(compile_one(build(), file=file)[1] / "kernel.ptx").read_text() for file in (FILE, elsewhere)]
        first, second = (
            [line.partition("//")[0] for line in text.partition(".file")[0].splitlines()] for text in texts
        )
        assert first == second


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (build("missing"), "there is no function 'missing'"),
        (build("SIZE"), "'SIZE' is of type int, which cannot be called"),
        (build("plain", ("x", "y")), "plain is not decorated with @triton.jit"),
        (build(args=("x", "y")), "scale takes 'size', which is neither in args nor in constants"),
        (build(args=("x", "y", SIZE, 3.0, 128)), "args has 1 more: 128"),
        (build(args=("x", "z", SIZE, 3.0)), "args names the tensor 'z', which inputs(p) does not make"),
        (build(factor=2.0), "factor of scale is a constant, but not annotated tl.constexpr"),
        (build(BLOK=64), "scale has no parameter 'BLOK'"),
        (build("scale_by", ("x", "y", (1, 2))), "SIZE of scale_by is a tl.constexpr: give it in constants"),
        (build(BLOCK=1000), "arange's range must be a power of 2"),
        (build(FAULT="assertion"), "FAULT is an assertion"),
        (build(FAULT="name"), "missing_name is not defined"),
        (replace(build(), num_warps=3), "num_warps must be a power of 2"),
        (replace(build(), options={"no_such_option": 1}), "no_such_option"),
        (replace(build(), options={"ptx_options": "--no-such-flag"}), "no-such-flag"),
        (product(128, maxnreg=64), "fatal   : (C7602) Insufficient registers (64)"),
        (replace(build(), dtypes={"x": "complex64", "y": "float32"}), "'x' is of complex64"),
        (
            build("scale_by", ("x", "y", (1.0, 2.0)), SIZE=64, FUNCTION={"function": "missing"}),
            "the constant FUNCTION: triton_scale.py: there is no function 'missing'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_way_of_not_compiling_is_a_result(wanted: Build, message: str, compile_one: CompileOne) -> None:
    """The first line says what does not fit, or what Triton refuses; there is no artifact."""
    result, artifact = compile_one(wanted)
    assert result.outcome is Outcome.COMPILE_ERROR, result
    assert message in result.message.partition("\n")[0]
    assert list(artifact.iterdir()) == []


@pytest.mark.parametrize(
    ("wanted", "target", "message"),
    [
        (build(), "native-0123", "compiles for NVIDIA GPUs (sm_90a), not for native-0123"),
        (build(), "sm_90", "Triton compiles for sm_90a, not for sm_90"),
        (replace(build(), num_warps=64), "sm_90a", "num_warps=64 is 2048 threads in a block; sm_90a allows 1024"),
        (replace(build(), grid=(1, 65536)), "sm_90a", "the grid is 65536 in y; sm_90a allows 65535"),
        (product(256, num_warps=8, num_stages=5), "sm_90a", "bytes of shared memory; sm_90a has 232448"),
        (product(128, num_stages=5), "sm_120a", "bytes of shared memory; sm_120a has 101376"),
    ],
)
def test_what_the_architecture_cannot_launch_is_unsupported(
    wanted: Build, target: str, message: str, compile_one: CompileOne
) -> None:
    """It is found out when it is compiled, before any device has seen it."""
    result, _ = compile_one(wanted, target)
    assert result.outcome is Outcome.UNSUPPORTED, result
    assert message in result.message


def test_too_many_registers_for_a_block_are_unsupported() -> None:
    """They are given out by eights to whole warps."""
    plan = LaunchPlan("k", "k", "sm_90a", (), (1, 1, 1), warps=16)
    used = SimpleNamespace(registers=129, static_shared_bytes=0)
    assert "needs 69632 registers; sm_90a has 65536" in explain_unlaunchable(plan, used)  # type: ignore[arg-type]
    assert explain_unlaunchable(replace(plan, warps=8), used) == ""  # type: ignore[arg-type]
    assert "num_ctas=32 blocks in a cluster" in explain_unlaunchable(replace(plan, warps=8, cluster=32), used)  # type: ignore[arg-type]


def test_a_missing_triton_is_a_backend_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that brings it."""
    monkeypatch.setitem(sys.modules, "triton.compiler", None)
    with pytest.raises(BackendError, match="Triton cannot be imported") as caught:
        list(Triton().compile([EXAMPLE.unit("key", EXAMPLE.good, "sm_90a")], tmp_path))
    assert caught.value.hint == "pip install triton"


def test_the_environment_of_triton_is_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables change what is compiled, except those that say where files go."""
    before = Triton().fingerprint()
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    assert Triton().fingerprint() == before
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert Triton().fingerprint() != before


@pytest.mark.parametrize(
    ("kind", "value", "content"),
    [
        ("i32", -2, "feffffff"),
        ("u64", 2**64 - 1, "ff" * 8),
        ("u1", True, "01"),
        ("i8", -1, "ff"),
        ("fp16", 1.0, "003c"),
        ("bf16", 1.0, "803f"),
        ("fp32", 1e300, "0000807f"),
        ("fp32", 3, "00004040"),
        ("fp64", 1.0, "000000000000f03f"),
    ],
)
def test_numbers_are_packed_as_triton_packs_them(kind: str, value: Any, content: str) -> None:
    """Lowest byte first; a float that float32 cannot hold is infinite."""
    assert pack_number(kind, value).hex() == content


def test_a_number_that_does_not_fit_is_refused() -> None:
    """So is a type that there is not."""
    with pytest.raises(ValueError, match="300 does not fit a parameter of Triton's type i8"):
        pack_number("i8", 300)
    with pytest.raises(ValueError, match="of Triton's type i128"):
        pack_number("i128", 0)


class TestBuild:
    """What travels: names and plain values."""

    def test_a_function_becomes_its_name(self) -> None:
        """Of the module that defines it."""
        assert Build(triton_scale.scale).function == "tests.plugins.triton_scale:scale"

    def test_an_autotuned_function_is_refused_with_what_to_do(self) -> None:
        """So is one with heuristics, and a closure."""
        tuned = triton.autotune([triton.Config({"BLOCK": 64})], key=["size"])(triton_scale.scale)
        with pytest.raises(TypeError, match=r"decorated with triton\.autotune: remove the decorator"):
            Build(tuned)
        with pytest.raises(TypeError, match=r"decorated with triton\.heuristics"):
            Build(triton.heuristics({"BLOCK": lambda args: 64})(triton_scale.scale))

        @triton.jit
        def inner(x):  # type: ignore[no-untyped-def]
            tl.store(x, 0)

        with pytest.raises(ValueError, match="inside another function, where no other process could find it"):
            Build(inner)

    @pytest.mark.parametrize("grid", [(), (0,), (1, 2, 3, 4), (1.5,), 8])
    def test_a_grid_is_one_to_three_positive_ints(self, grid: Any) -> None:
        """A kernel function that divides wrongly is noticed at once."""
        with pytest.raises(
            (TypeError, ValueError), match=r"grid must be a tuple of one to three positive ints|grid.* is"
        ):
            Build("f", grid=grid)

    def test_sizes_are_positive(self) -> None:
        """Stages may be none."""
        with pytest.raises(ValueError, match="num_warps must be a positive int, not 0"):
            Build("f", num_warps=0)
        assert Build("f", num_stages=0).num_stages == 0

    def test_a_descriptor_travels_to_the_launch(self) -> None:
        """By itself and in a tuple, to the compiler and, as a tensor map, to the artifact."""
        descriptor = Descriptor("x", (64, 64), (64, 1), (16, 16), "zero")
        build = Build("m:f", (descriptor, ("y", descriptor), 4))
        travelled = Build.from_plain(json.loads(json.dumps(build.to_plain())))
        assert travelled == build
        assert travelled.tensors == ("x", "y")
        parameter = Parameter("tensordesc<fp16[16,16]>", descriptor)
        assert Parameter.from_plain(json.loads(json.dumps(asdict(parameter)))) == parameter
        layout = {"block_size": [16, 16], "swizzle": 1, "elem_size": 2, "elem_type": 6}
        parameters = tuple(
            Parameter(kind, value) for kind, value in expand_descriptor(parameter.type, descriptor, layout, (3, 6))
        )
        plan = LaunchPlan("f", "f", "sm_90a", parameters, (1, 1, 1), 4)
        assert LaunchPlan.from_json(plan.to_json()) == plan
        assert [one.tensor for one in parameters] == ["x", None, None, None, None]

    def test_what_does_not_travel_is_an_error_at_once(self) -> None:
        """It says what does."""
        with pytest.raises(TypeError, match="the constant acc is a type; numbers, strings"):
            Build("f", (), {"acc": int})
        with pytest.raises(TypeError, match="is a value of the type object; a tensor is given by its name"):
            Build("f", (object(),))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def matmul() -> Kernel:
    """Return the example's kernel."""
    loaded = load_file(TUNE_MATMUL, TUNE_MATMUL.parent)
    assert loaded.errors == ()
    return loaded.kernels[0]


class TestExample:
    """examples/triton_matmul: what it declares compiles, and on a GPU it is right."""

    def configs(self, kernel: Kernel, step: int) -> list[dict[str, Any]]:
        """Return some configs, the default among them."""
        (problem, *_) = kernel.list_problems()
        admitted = [dict(config) for config in kernel.bind_space(problem)]
        assert kernel.default in admitted
        return [dict(kernel.default or {}), *admitted[::step]]

    def test_its_configs_compile(self, matmul: Kernel, tmp_path: Path) -> None:
        """For an H100, without one, or are found not to fit it."""
        units = make_units(matmul, TUNE_MATMUL, self.configs(matmul, 24), tmp_path, "sm_90a")
        results = list(Triton().compile(units, tmp_path))
        assert {result.outcome for result in results} <= {None, Outcome.UNSUPPORTED}
        assert results[0].outcome is None

    def test_its_meaning_includes_what_the_function_calls(self, matmul: Kernel, tmp_path: Path) -> None:
        """An edit of the device code is a new source digest, a comment is not."""
        before = describe_kernel(matmul, "p", TUNE_MATMUL.parent)
        text = (TUNE_MATMUL.parent / "matmul.py").read_text()
        file = Path(shutil.copy(TUNE_MATMUL, tmp_path))
        (tmp_path / "matmul.py").write_text(text.replace("tl.dot(left, right, total)", "tl.dot(left, right)"))
        (edited,) = load_file(file, tmp_path).kernels
        assert describe_kernel(edited, "p", tmp_path).source_digest != before.source_digest
        (tmp_path / "matmul.py").write_text(text + "# a remark\n")
        (same,) = load_file(file, tmp_path).kernels
        assert describe_kernel(same, "p", tmp_path).source_digest == before.source_digest

    @pytest.mark.gpu
    def test_its_configs_agree_with_the_reference(self, matmul: Kernel, tmp_path: Path) -> None:
        """Against the reference, which computes in float32."""
        configs, outcomes = self.configs(matmul, 12), (None, Outcome.UNSUPPORTED)
        check_outputs_on_gpu(Triton(), matmul, TUNE_MATMUL, configs, tmp_path, outcomes)


@pytest.mark.gpu
class TestOnGpu:
    """What only a device can show."""

    @pytest.fixture
    def launch(self, compile_one: CompileOne) -> Callable[..., Callable[[], float | None]]:
        """Return a function that compiles, loads and binds."""

        def launch(wanted: Build, **tensors: Any) -> Callable[[], float | None]:
            device = find_first_gpu(Triton())
            result, artifact = compile_one(wanted, device.target)
            assert result.outcome is None, result.message
            return load(artifact, device).bind(tensors)

        return launch

    @pytest.mark.parametrize(
        "wanted", [product(128, num_warps=8, num_stages=5), product(128, num_ctas=2)], ids=["shared", "cluster"]
    )
    def test_shared_memory_and_clusters_are_allowed(
        self, wanted: Build, launch: Callable[..., Callable[[], float | None]]
    ) -> None:
        """More than what a kernel has without asking; the product is torch's."""
        import torch

        a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.float16) for _ in "ab")
        c = torch.zeros_like(a)
        launch(wanted, a=a, b=b, c=c)()
        torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-1)

    def test_a_kernel_gets_the_scratch_memory_that_it_needs(
        self, launch: Callable[..., Callable[[], float | None]]
    ) -> None:
        """Descriptors that the kernel makes live there."""
        import torch

        x = torch.randn(4096, 64, device="cuda", dtype=torch.float16)
        y = torch.zeros_like(x)
        wanted = Build(
            "copy_by_descriptor", ("x", "y", 4096), {"BLOCK": 64}, (64,), dtypes=dict.fromkeys("xy", "float16")
        )
        launch(wanted, x=x, y=y)()
        assert torch.equal(y, x)

    def test_tuples_and_folded_arguments_launch(self, launch: Callable[..., Callable[[], float | None]]) -> None:
        """With as many parameters as the machine code has."""
        import torch

        x, y = torch.ones(1024, device="cuda"), torch.zeros(1024, device="cuda")
        constants = {"SIZE": 1024, "FUNCTION": triton_scale.doubled, "WIDTHS": (1, 5)}
        launch(Build("scale_by", ("x", "y", (2.0, 1)), constants, dtypes=triton_scale.DTYPES), x=x, y=y)()
        assert torch.equal(y, 20 * x)

    def test_a_kernel_for_a_tensor_that_is_not_aligned_launches(
        self, launch: Callable[..., Callable[[], float | None]]
    ) -> None:
        """It reads the tensor's own elements, and writes nothing before or after its output."""
        import torch

        x = torch.arange(SIZE + 1, device="cuda", dtype=torch.float32)[1:]
        whole = torch.full((SIZE + 2,), -1.0, device="cuda")
        launch(replace(build(), unaligned=("x", "y")), x=x, y=whole[1:-1])()
        aligned = torch.empty(SIZE, device="cuda")
        launch(build(), x=x.clone(), y=aligned)()
        assert torch.equal(whole[1:-1], aligned)
        assert (float(whole[0]), float(whole[-1])) == (-1.0, -1.0)

    def test_a_tensor_that_is_not_aligned_is_refused(self, launch: Callable[..., Callable[[], float | None]]) -> None:
        """The machine code would fault, or read elsewhere."""
        import torch

        x, y = torch.ones(SIZE + 1, device="cuda")[1:], torch.ones(SIZE, device="cuda")
        with pytest.raises(ValueError, match="the tensor 'x' lies at 0x"):
            launch(build(), x=x, y=y)
