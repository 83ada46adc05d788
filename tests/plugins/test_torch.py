"""The torch backend: the conformance suite, and its own features."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from ktuned.backends import cpu
from ktuned.backends.contract import Compiled, Unit
from ktuned.backends.registry import Registry
from ktuned.declaration.digest import describe_kernel
from ktuned.declaration.loader import forget_modules, load_file
from ktuned.fleet import SET_IN_WORKERS
from ktuned.ipc import Places, requests
from ktuned.model.device import Device
from ktuned.model.errors import Unsupported
from ktuned.model.values import Outcome
from ktuned.testing.backends import check_backend
from ktuned.worker.compile import compile_units
from ktuned_torch import Build, Torch, TorchKernel, inductor
from ktuned_torch.backend import CODE_FILE, EAGER, KERNEL_FILE, NO_CODE, NO_LAYOUTS, ON_DEVICE, ON_LANE
from ktuned_torch.bound_function import explain_unsupported
from tests.plugins import torch_kernels
from tests.plugins.examples_on_gpus import find_first_gpu, run_python
from tests.plugins.torch_kernels import COMPILED, FILE, LAYOUTS
from tests.plugins.torch_trials import SMALL, Trials, load_kernel
from tests.worker.reply_collector import ReplyCollector

pytestmark = [
    # torch.compile starts with some ten seconds of imports and C++ compiler checks.
    pytest.mark.timeout(300),
    # torch.compile calls deprecated parts of torch.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

Compile = Callable[..., tuple[Compiled, Path]]

TRACE_ONLY = {"backend": "eager"}
"""Options with which torch.compile traces but does not compile."""


@pytest.fixture(autouse=True)
def _compile_in_one_thread() -> Generator[None]:
    """Inductor compiles in the calling thread, as in a worker; a pool's threads would outlive the test."""
    from torch._inductor import config

    with config.patch(compile_threads=1):
        yield


@pytest.fixture
def compile_one(tmp_path: Path) -> Compile:
    """A function that compiles a Build into a new directory."""
    numbers = itertools.count()

    def compile_one(build: Build, target: str = "") -> tuple[Compiled, Path]:
        key = f"unit{next(numbers)}"
        (tmp_path / key).mkdir()
        unit = Unit(key, build, (), FILE, "scale", target or cpu.target())
        (result,) = Torch().compile([unit], tmp_path)
        return result, tmp_path / key

    return compile_one


def load_kernel_on_cpu(build: Build, artifact: Path) -> TorchKernel:
    """Load a Build's artifact on the CPU."""
    return Torch().load(artifact, Unit("key", build, (), FILE, "scale", cpu.target()), cpu.device())


def name_example_function(name: str) -> str:
    """Return the name by which a function of torch_kernels travels."""
    return f"{torch_kernels.__name__}:{name}"


def test_the_backend_passes_the_conformance_suite(tmp_path: Path) -> None:
    """The suite runs on the first device."""
    check_backend(Registry().load("torch"), torch_kernels.EAGER, tmp_path)


def test_compiled_code_passes_the_conformance_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process compiles nothing again, even with an empty cache and on more cores."""
    (tmp_path / "new").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "new"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    check_backend(torch_kernels.OnOneCore(), COMPILED, tmp_path / "scratch")


def test_describing_imports_no_torch() -> None:
    """Devices and fingerprint cost reading a few files; no context is made."""
    code = """if True:
        import sys
        from ktuned_torch import Torch
        Torch().fingerprint(), Torch().devices()
        print(sorted({"torch", "numpy", "triton"} & sys.modules.keys()))
    """
    assert run_python(code) == "[]"


def test_workers_start_no_compile_workers_of_inductor() -> None:
    """A kernel file's function may call torch.compile; a pool that it leaves behind costs the lane its worker."""
    code = """if True:
        from torch._inductor.async_compile import AsyncCompile
        from ktuned.worker.residues import list_children
        AsyncCompile.warm_pool()
        print(len(list_children()))
    """
    assert run_python(code, **SET_IN_WORKERS) == "0"


def test_the_cpu_is_the_same_device_in_every_backend() -> None:
    """It follows the GPUs; model and target are those of other plugins, so that they share a lane."""
    devices = cast("tuple[Device, ...]", Torch().devices())
    assert devices[-1] == cpu.device()
    assert all(device.kind == "cuda" for device in devices[:-1])


class TestBuild:
    """A function travels as its name."""

    def test_a_function_becomes_its_name(self) -> None:
        """The name includes the module, unless it is a kernel file; the plain data gives an equal Build."""
        build = Build(torch_kernels.scale, ("x", "y", 3), {"options": {"sizes": (1, 2)}}, LAYOUTS)
        assert build.function == name_example_function("scale")
        assert Build.from_plain(json.loads(json.dumps(build.to_plain()))) == build

    def test_a_lambda_is_an_error_at_once(self) -> None:
        """The error comes from the kernel function, not from a worker."""
        with pytest.raises(ValueError, match="a lambda has no name"):
            Build(lambda x: None, ("x",))

    def test_compile_must_be_a_map(self) -> None:
        """``compile=True`` looks plausible."""
        with pytest.raises(TypeError, match="compile is True, not a dict"):
            Build("f", (), True)  # type: ignore[arg-type]

    def test_a_compiled_build_records_the_layouts_of_its_tensors(self) -> None:
        """Only tensors in ``args`` count; eager code needs no layouts, so one artifact serves every problem."""
        layouts = {**LAYOUTS, "z": ("int8", (1,), (1,))}
        assert Build("f", ("x", 3), {}).given(lambda: layouts).layouts == {"x": LAYOUTS["x"]}
        assert Build("f", ("x", 3)).given(lambda: layouts).layouts == {}


class TestKeeping:
    """What a unit keeps, and the reason if it keeps nothing."""

    @pytest.mark.parametrize(
        ("build", "target", "reason"),
        [
            (Build("scale", ("x", "y", 3)), "", EAGER),
            (Build("scale", ("x", "y", 3), TRACE_ONLY, LAYOUTS), "", NO_CODE),
            (Build("scale", ("x", "y", 3), {}), "", NO_LAYOUTS),
            (Build("scale", ("x", "y", 3), {"mode": "max-autotune"}, LAYOUTS), "", ON_LANE),
            (Build("scale", ("x", "y", 3), {"options": {"max-autotune-gemm": True}}, LAYOUTS), "", ON_LANE),
            (Build("scale", ("x", "y", 3), {}, LAYOUTS), "sm_90a", ON_DEVICE),
        ],
    )
    def test_a_unit_that_keeps_no_code_says_why(
        self, build: Build, target: str, reason: str, compile_one: Compile
    ) -> None:
        """The reason is in the facts, which results show, and in the artifact."""
        result, artifact = compile_one(build, target)
        assert result.outcome is None, result.message
        assert result.facts == {"persisted": False, "reason": reason}
        assert [path.name for path in artifact.iterdir()] == [KERNEL_FILE]
        assert json.loads((artifact / KERNEL_FILE).read_text())["reason"] == reason

    def test_every_unit_keeps_its_own_code(self, compile_one: Compile) -> None:
        """This includes code that an equal unit has already compiled in this process."""
        sizes = []
        for _ in range(2):
            result, artifact = compile_one(COMPILED.good)
            assert result.facts == {"persisted": True}, result.message
            sizes.append((artifact / CODE_FILE).stat().st_size)
        assert sizes[0] == sizes[1]

    def test_artifacts_of_two_keys_differ(self, compile_one: Compile) -> None:
        """Equal artifacts would count as equal kernels, and an edit of the function shows only in the key."""
        (_, first), (_, second) = (compile_one(Build("scale", ("x", "y", 3))) for _ in range(2))
        assert (first / KERNEL_FILE).read_bytes() != (second / KERNEL_FILE).read_bytes()

    def test_an_unknown_option_is_refused_without_a_device(self, compile_one: Compile) -> None:
        """The message is torch's own, even if the code is made on the device."""
        result, _ = compile_one(Build("scale", ("x", "y", 3), {"mode": "fastest"}, LAYOUTS), "sm_90a")
        assert result.outcome is Outcome.COMPILE_ERROR
        assert "Unrecognized mode=fastest" in result.message

    def test_another_cpus_target_is_unsupported(self, compile_one: Compile, tmp_path: Path) -> None:
        """Code for one CPU is never compiled or loaded as another machine's."""
        result, _ = compile_one(COMPILED.good, "native-elsewhere")
        assert result.outcome is Outcome.UNSUPPORTED
        with pytest.raises(Unsupported, match="native-elsewhere"):
            Torch().load(tmp_path, COMPILED.unit("key", COMPILED.good, "native-elsewhere"), cpu.device())

    def test_what_the_cpu_lacks_is_unsupported_when_it_is_compiled(self, compile_one: Compile) -> None:
        """It is no compile error, because another device may have it."""
        layouts = {"x": ("float32", (1, 1, 8, 8), (64, 64, 8, 1))}
        result, _ = compile_one(Build("run_cudnn_attention", ("x",), TRACE_ONLY, layouts))
        assert result.outcome is Outcome.UNSUPPORTED
        assert "No viable backend" in result.message

    @pytest.mark.parametrize(("shape", "strides"), [((4, 3), (1, 4)), ((4, 3), (1, 0)), ((0, 3), (3, 1)), ((), ())])
    def test_tensors_for_compiling_are_laid_out_like_the_inputs(
        self, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        """This includes transposed, overlapping, empty and scalar tensors."""
        zeros = inductor.make_zeros(("bfloat16", shape, strides))
        assert (zeros.dtype, tuple(zeros.shape), zeros.stride()) == (torch.bfloat16, shape, strides)
        assert not zeros.any()


class TestCalling:
    """Bound functions: they are compiled before their launch, and their errors become outcomes."""

    def test_the_tenth_config_is_compiled_like_the_first(self, compile_one: Compile) -> None:
        """Dynamo silently gives up a function after eight versions, so each config starts afresh."""
        x = torch.zeros(3)
        is_compiled = []
        for size in range(2, 12):
            build = Build("record_whether_compiled", ("x",), TRACE_ONLY)
            x = torch.zeros(size)
            load_kernel_on_cpu(build, compile_one(build)[1]).bind({"x": x})()
            is_compiled.append(float(x[0]))
        assert is_compiled == [1.0] * 10

    def test_compiling_leaves_the_tensors_alone(self, compile_one: Compile) -> None:
        """Functions are compiled by calling them on copies; a tensor that is passed twice is one copy."""
        build = Build("scale", ("x", "x", 3), TRACE_ONLY)
        x = torch.ones(4)
        launch = load_kernel_on_cpu(build, compile_one(build)[1]).bind({"x": x})
        assert x.tolist() == [1.0] * 4
        launch()
        assert x.tolist() == [3.0] * 4

    def test_a_result_that_nobody_takes_is_an_error(self, compile_one: Compile) -> None:
        """The message says how to write the function; in-place functions may return a given tensor."""
        artifact = compile_one(Build("return_result", ("x",)))[1]
        with pytest.raises(TypeError, match="return_result returned a Tensor, which is ignored: it must write into"):
            load_kernel_on_cpu(Build("return_result", ("x",)), artifact).bind({"x": torch.ones(4)})()
        x = torch.ones(4)
        load_kernel_on_cpu(Build("add_in_place", ("x",)), artifact).bind({"x": x})()
        assert x.tolist() == [2.0] * 4

    def test_what_the_cpu_lacks_is_unsupported(self, compile_one: Compile) -> None:
        """The message is torch's; on another device the outcome may differ."""
        build = Build("run_cudnn_attention", ("x",))
        launch = load_kernel_on_cpu(build, compile_one(build)[1]).bind({"x": torch.ones(1, 1, 8, 8)})
        with pytest.raises(Unsupported, match="No viable backend"):
            launch()

    def test_other_errors_come_through(self, compile_one: Compile) -> None:
        """A wrong call is not the device's fault."""
        build = Build("scale", ("x", "y"))
        with pytest.raises(TypeError, match="factor"):
            load_kernel_on_cpu(build, compile_one(build)[1]).bind({"x": torch.ones(1), "y": torch.ones(1)})()


KERNEL = """
from ktuned import kernel, space, tensor
from ktuned_torch import Build
from scaling import scaled

def double(x, y):
    # {comment}
    y.copy_({factor} * x)

@kernel(backend="torch", space=space(FAST=[False, True]), inputs=lambda p: dict(x=tensor(4), y=tensor(4, output=True)),
        reference=lambda x: dict(y=2 * x), problems=[dict(n=4)])
def it(p, c):
    return Build(function=scaled if c.FAST else double, args=("x", "y"))
"""


class TestEditing:
    """A function's code is the kernel's source."""

    def write_project(self, root: Path, factor: int = 2, comment: str = "", module_factor: int = 2) -> Path:
        """Write the kernel file and the module beside it."""
        (root / "scaling.py").write_text(f"def scaled(x, y):\n    y.copy_({module_factor} * x)\n")
        path = root / "tune_it.py"
        path.write_text(KERNEL.format(factor=factor, comment=comment))
        return path

    def compute_source_digest(self, root: Path, **changes: Any) -> str:
        """Return the kernel's source digest, which enters its artifacts' keys."""
        path = self.write_project(root, **changes)
        forget_modules()
        (kernel,) = load_file(path, root).kernels
        digest = describe_kernel(kernel, "project", root).source_digest
        forget_modules()
        return digest

    def test_an_edit_of_the_function_changes_the_artifacts_keys(self, tmp_path: Path) -> None:
        """This includes functions of other modules; a comment changes nothing."""
        first = self.compute_source_digest(tmp_path)
        assert self.compute_source_digest(tmp_path, comment="twice as much") == first
        assert self.compute_source_digest(tmp_path, factor=3) != first
        assert self.compute_source_digest(tmp_path, module_factor=3) != first

    def test_a_worker_compiles_the_new_function_after_a_save(self, tmp_path: Path) -> None:
        """A compile worker outlives a save: it imports the file again for each request."""
        path = self.write_project(tmp_path)
        kernel = requests.KernelRef("project", path.name, "it", "torch", (), {})
        unit = requests.UnitRef("key", Build("double", ("x", "y")).to_plain())
        request = requests.Compile(kernel, cpu.target(), "into", (unit,))
        places = Places({"project": str(tmp_path)}, str(tmp_path / "artifacts"), "")
        reply = ReplyCollector()
        compile_units(Registry(), places, request, reply)
        path.write_text(path.read_text().replace("double", "twice"))
        compile_units(Registry(), places, request, reply)
        forget_modules()
        assert [item.outcome for item in reply.items] == [None, Outcome.COMPILE_ERROR]
        assert reply.items[1].message.startswith("tune_it.py: there is no function 'double'")


def test_the_example_of_attention_agrees_with_float32(tmp_path: Path) -> None:
    """Inductor compiles it for the CPU and a small problem."""
    trials = Trials(load_kernel("attention_choice", "tune_attention.py"), SMALL, cpu.device(), tmp_path)
    assert trials.is_right({"IMPLEMENTATION": "composed", "COMPILE": "default"})


@pytest.mark.gpu
@pytest.mark.allow_leaks(reason="Inductor keeps its compile workers until the process ends")
class TestOnCuda:
    """Behaviour that only a GPU shows."""

    def compile_and_load(self, build: Build, compile_one: Compile) -> TorchKernel:
        """Compile and load a Build on the GPU."""
        device = find_first_gpu(Torch())
        result, artifact = compile_one(build, device.target)
        assert result.outcome is None, result.message
        return Torch().load(artifact, Unit("key", build, (), FILE, "scale", device.target), device)

    @pytest.mark.parametrize("options", [None, {}, {"mode": "max-autotune-no-cudagraphs"}])
    def test_eager_and_compiled_functions_compute_the_right_result(
        self, options: dict[str, Any] | None, compile_one: Compile
    ) -> None:
        tensors = torch_kernels.make_inputs("cuda:0")
        self.compile_and_load(Build("scale", ("x", "y", 3), options, LAYOUTS), compile_one).bind(tensors)()
        torch_kernels.verify_output(tensors)

    def test_what_the_gpu_lacks_is_unsupported_when_it_is_bound(self, compile_one: Compile) -> None:
        """CuDNN's attention does not take float32."""
        with pytest.raises(Unsupported, match="No available kernel"):
            self.compile_and_load(Build("run_cudnn_attention", ("x",)), compile_one).bind(
                {"x": torch.ones(1, 1, 8, 8).cuda()}
            )


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Torch not compiled with CUDA enabled", "it runs only on GPUs, and this device is not one: Torch not"),
        ("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)", "it runs only on GPUs"),
        ("0 active drivers ([]). There should only be one.", "it runs only on GPUs"),
        ("No available kernel. Aborting execution.", "^No available kernel"),
        ("division by zero", "^$"),
    ],
)
def test_a_kernel_for_gpus_says_so_on_a_cpu(message: str, words: str) -> None:
    """The message may belong to the error's cause; other errors are not affected."""
    error = RuntimeError("a launcher's own words")
    error.__cause__ = AssertionError(message)
    assert re.search(words, explain_unsupported(error))
