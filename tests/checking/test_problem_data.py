"""A problem's data: equal for every config and worker, restored, and checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ktuned import tensor
from ktuned.checking.problem_data import ProblemData
from ktuned.checking.quick_look import QuickLook
from ktuned.declaration.declared_kernel import Kernel
from ktuned.model.errors import KernelFileError
from tests.checking.problems import PROBLEM, run_config
from tests.worker.declaring import CPU, LENGTH, declare_kernel


@pytest.fixture
def expected_path(tmp_path: Path) -> Path:
    """Where the expected outputs are saved for the next worker."""
    return tmp_path / "expected" / "it.safetensors"


def make_problem_data(kernel: Kernel, expected_path: Path) -> ProblemData:
    """Return the data of a problem, ready for trials, as ``open`` leaves it."""
    data = ProblemData(kernel, PROBLEM, CPU)
    data.provide_expected_outputs(expected_path)
    data.save_expected_outputs(expected_path)
    return data


def write_double(tensors: dict[str, torch.Tensor]) -> None:
    """Launch the right kernel."""
    tensors["y"].copy_(2 * tensors["x"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_a_kernel_that_writes_nothing_is_found_out(expected_path: Path, dtype: str) -> None:
    """It fails even if a good config has left the right answer in the same output."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(LENGTH, dtype), y=tensor(LENGTH, dtype, output=True))

    data = make_problem_data(declare_kernel(inputs=inputs), expected_path)
    assert run_config(data, write_double).ok
    verdict = run_config(data, lambda tensors: None)
    assert (verdict.ok, verdict.mismatched_ratio) == (False, 1.0)
    assert run_config(data, lambda tensors: tensors["y"][1:].copy_(2 * tensors["x"][1:])).mismatched_ratio == 1 / LENGTH


@pytest.mark.parametrize(
    ("reference", "is_copied"),
    [
        (lambda x, y: x[:], True),
        (lambda x, y: dict(y=x.sum().expand(LENGTH)), True),
        (lambda x, y: 2 * x, False),
        (lambda x, y: y.copy_(x), False),
    ],
    ids=["a view", "one element, repeated", "a new tensor", "the output itself"],
)
def test_a_view_that_the_reference_returns_is_written_while_it_is_timed(
    monkeypatch: pytest.MonkeyPatch, reference: Any, is_copied: bool
) -> None:
    """A config writes its outputs, too; a view takes no time."""
    data = ProblemData(declare_kernel(reference=reference), PROBLEM, CPU)
    launch = data.make_reference_launch()
    assert launch is not None
    written: list[torch.Tensor] = []
    monkeypatch.setattr(data.library, "copy_elements", lambda source, target: written.append(target.copy_(source)))
    for number in (1, 2):
        launch()
        assert len(written) == number * is_copied


@pytest.mark.parametrize(("sizes", "kind"), [((0, 1), "input"), ((1, 0), "output")])
def test_a_problem_without_work_is_refused(sizes: tuple[int, int], kind: str) -> None:
    """Every config would be right and equally fast, and a wrong problem would be tuned at each save."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(sizes[0]), bias=tensor(0), y=tensor(sizes[1], output=True))

    with pytest.raises(KernelFileError, match=f"no {kind} has an element: there is nothing to measure"):
        ProblemData(declare_kernel(inputs=inputs), PROBLEM, CPU)


def test_an_overwritten_input_is_put_back(expected_path: Path) -> None:
    """A config that overwrites an input does not affect other configs."""
    data = make_problem_data(declare_kernel(), expected_path)
    run_config(data, lambda tensors: tensors["x"].zero_())
    assert run_config(data, write_double).ok


@pytest.mark.parametrize(
    ("x", "arguments", "overwritten"),
    [
        (tensor(LENGTH), {}, ("x",)),
        (tensor(LENGTH), {"setup": "x"}, ()),
        (tensor(LENGTH), {"setup": lambda tensors: None}, ()),
        (tensor(LENGTH, fill="empty"), {}, ()),
        (tensor(LENGTH, "complex64"), {}, ("x",)),
    ],
    ids=["undeclared", "restored", "prepared", "workspace", "complex"],
)
def test_an_overwritten_input_is_named(x: Any, arguments: dict[str, Any], overwritten: tuple[str, ...]) -> None:
    """The name is left out if the kernel file declares the write: as an output, in ``setup``, or as a workspace."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=x, y=tensor(LENGTH, output=True))

    data = ProblemData(declare_kernel(inputs=inputs, check=None, **arguments), PROBLEM, CPU)
    data.reset_tensors()
    data.tensors["y"].zero_()
    assert data.find_overwritten_inputs() == ()
    data.tensors["x"][LENGTH - 1] = 7
    assert data.find_overwritten_inputs() == overwritten


def test_a_failed_check_says_that_nothing_was_written() -> None:
    """The kernel file's own check sees poison as numbers; the message explains it."""
    data = ProblemData(declare_kernel(check=lambda inputs, outputs: False), PROBLEM, CPU)
    data.reset_tensors()
    assert data.check_outputs().message == "y was never written; check returned False"


def test_every_worker_gets_the_same_inputs() -> None:
    """Another problem or kernel gets other inputs."""
    first, second = (ProblemData(declare_kernel(), PROBLEM, CPU).tensors["x"] for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, ProblemData(declare_kernel(), {"M": 5}, CPU).tensors["x"])
    assert not torch.equal(first, ProblemData(declare_kernel(name="other"), PROBLEM, CPU).tensors["x"])


def test_tensors_that_the_file_draws_itself_are_the_same_too(expected_path: Path) -> None:
    """``inputs`` may use torch's generator: a second worker draws the inputs of the saved reference."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=torch.rand(LENGTH), y=tensor(LENGTH, output=True))

    kernel = declare_kernel(inputs=inputs)
    make_problem_data(kernel, expected_path)
    assert run_config(make_problem_data(kernel, expected_path), write_double).ok


def test_an_in_place_kernel_is_restored_before_each_run(expected_path: Path) -> None:
    """The tensors that ``setup`` names get their first content before every launch, timed ones included."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(LENGTH, "float32", "uniform", output=True))

    def double_in_place(tensors: dict[str, torch.Tensor]) -> None:
        tensors["x"].mul_(2)

    data = make_problem_data(declare_kernel(inputs=inputs, setup="x", reference=lambda x: 2 * x), expected_path)
    assert data.restores
    assert run_config(data, double_in_place).ok
    for _ in range(3):
        data.restore_inputs()
        double_in_place(data.tensors)
        assert data.check_outputs().ok


def test_a_setup_function_is_called_before_each_run(expected_path: Path) -> None:
    """A ``setup`` function gets the kernel's tensors and may change them."""
    calls: list[set[str]] = []

    def setup(tensors: dict[str, torch.Tensor]) -> None:
        calls.append(set(tensors))
        tensors["y"].zero_()

    data = make_problem_data(declare_kernel(setup=setup), expected_path)
    assert data.restores
    assert run_config(data, lambda tensors: tensors["y"].add_(2 * tensors["x"])).ok
    data.restore_inputs()
    assert calls == [{"x", "y"}] * 2


def test_without_setup_nothing_is_restored() -> None:
    assert not ProblemData(declare_kernel(), PROBLEM, CPU).restores


REFERENCES: dict[str, Callable[..., Any]] = {
    "by-name": lambda x: dict(y=2 * x),
    "bare": lambda x: 2 * x,
    "all-inputs": lambda x, y: dict(y=2 * x),
    "keywords": lambda **tensors: dict(y=2 * tensors["x"]),
    "other-dtype": lambda x: 2 * x.double(),
    "not-contiguous": lambda x: torch.stack([2 * x, x], dim=1)[:, 0],
    "writes-its-input": lambda x: x.mul_(2),
    "with-gradient": lambda x: 2 * x.requires_grad_(),
}


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_references_of_every_kind(expected_path: Path, reference: Callable[..., Any]) -> None:
    """The verdict depends neither on the reference's form nor on the worker that reads its saved outputs."""
    kernel = declare_kernel(reference=reference)
    for _ in range(2):
        data = make_problem_data(kernel, expected_path)
        assert run_config(data, write_double).ok
        assert not run_config(data, lambda tensors: tensors["y"].copy_(tensors["x"])).ok


def test_two_outputs_may_be_one_tensor(expected_path: Path) -> None:
    """A reference may return one tensor under two names."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(LENGTH), y=tensor(LENGTH, output=True), z=tensor(LENGTH, output=True))

    def reference(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return dict(y=x, z=x)

    make_problem_data(declare_kernel(inputs=inputs, reference=reference), expected_path)
    data = make_problem_data(declare_kernel(inputs=inputs, reference=reference), expected_path)
    assert run_config(data, lambda tensors: [tensors[name].copy_(tensors["x"]) for name in "yz"]).ok


def raise_error(x: torch.Tensor) -> None:
    """Raise an error whose message has two lines."""
    raise ValueError("no such\nshape")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (raise_error, "reference: ValueError: no such shape"),
        (lambda x: dict(z=x), "the reference returned z; the outputs are y"),
        (lambda x: dict(y=x, z=x), "the reference returned y, z; the outputs are y"),
        (lambda x: {}, "the reference returned nothing; the outputs are y"),
        (lambda x: None, "the reference returned a NoneType for y, not a torch.Tensor"),
        (lambda x: dict(y=2.0), "the reference returned a float for y, not a torch.Tensor"),
        (lambda x: dict(y=x[:1]), r"the reference returned y of shape \(1,\), and inputs\(p\) makes it of shape "),
        (lambda x, q: x, r"the reference takes 'q', which inputs\(p\) does not make \(there are: x, y\)"),
    ],
    ids=["raises", "other-name", "one-too-many", "empty", "none", "number", "shape", "unknown-input"],
)
def test_a_bad_reference_is_one_clear_line(expected_path: Path, reference: Callable[..., Any], message: str) -> None:
    """The message has the kernel's name and line, and no outputs are saved."""
    with pytest.raises(KernelFileError, match=rf":\d+: it: {message}") as caught:
        make_problem_data(declare_kernel(reference=reference), expected_path)
    assert "\n" not in caught.value.message
    assert not expected_path.exists()


def test_several_outputs_need_their_names(expected_path: Path) -> None:
    """With two outputs, a reference cannot return a bare tensor."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(LENGTH), y=tensor(LENGTH, output=True), z=tensor(LENGTH, output=True))

    with pytest.raises(KernelFileError, match="must return a dict with the outputs y, z"):
        make_problem_data(declare_kernel(inputs=inputs, reference=lambda x: x), expected_path)


def test_a_reference_needs_an_output() -> None:
    """Without a tensor that is marked as output, opening the problem fails."""
    with pytest.raises(KernelFileError, match="no tensor with output=True"):
        ProblemData(declare_kernel(inputs=lambda p: dict(x=tensor(LENGTH))), PROBLEM, CPU)


def test_the_reference_is_computed_once(expected_path: Path) -> None:
    """The next worker reads the outputs that the first one saved."""
    calls = []

    def reference(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return 2 * x

    for _ in range(3):
        assert run_config(make_problem_data(declare_kernel(reference=reference), expected_path), write_double).ok
    assert len(calls) == 1
    assert [path.name for path in expected_path.parent.iterdir()] == [expected_path.name]


def test_the_reference_can_be_launched_to_be_timed(expected_path: Path) -> None:
    """It runs on copies, so the kernels' tensors stay as they are."""
    data = make_problem_data(declare_kernel(reference=lambda x: x.mul_(2)), expected_path)
    launch = data.make_reference_launch()
    assert launch is not None
    launch()
    launch()
    assert run_config(data, write_double).ok


def test_an_own_check_is_asked_as_well(expected_path: Path) -> None:
    """Both the reference and the check must pass; ``check`` gets pristine inputs, and outputs only."""
    names: list[tuple[set[str], set[str]]] = []

    def check(inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> bool:
        names.append((set(inputs), set(outputs)))
        return bool((inputs["x"] != 0).any()) and bool((outputs["y"] < 100).all())

    def double_and_clear_input(tensors: dict[str, torch.Tensor]) -> None:
        write_double(tensors)
        tensors["x"].zero_()

    data = make_problem_data(declare_kernel(reference=lambda x: 2 * x, check=check), expected_path)
    assert run_config(data, double_and_clear_input).ok
    assert not run_config(data, lambda tensors: tensors["y"].zero_()).ok
    assert names == [({"x", "y"}, {"y"})]
    data = ProblemData(declare_kernel(check=check), PROBLEM, CPU)
    assert run_config(data, lambda tensors: tensors["y"].fill_(99)).ok
    assert not run_config(data, lambda tensors: tensors["y"].fill_(101)).ok


def test_check_none_checks_nothing(expected_path: Path) -> None:
    """There is no reference to time, either."""
    data = make_problem_data(declare_kernel(check=None), expected_path)
    assert run_config(data, lambda tensors: None).ok
    assert data.make_reference_launch() is None
    assert not expected_path.exists()


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_resized_tensor_is_made_anew(expected_path: Path, name: str) -> None:
    """A config that resizes or replaces a tensor does not affect the next config."""

    def swap_data(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].data = torch.zeros(3, dtype=torch.int32)

    data = make_problem_data(declare_kernel(), expected_path)
    assert not data.replace_changed_tensors()
    for spoil_tensor in (swap_data, lambda tensors: tensors[name].resize_(3)):
        data.reset_tensors()
        spoil_tensor(data.tensors)
        assert data.replace_changed_tensors()
        assert run_config(data, write_double).ok
        assert not data.replace_changed_tensors()
    with pytest.raises(RuntimeError, match="not resizable"):
        data.tensors[name].resize_(100_000)
    data.replace_changed_tensors()
    assert run_config(data, write_double).ok


def test_an_input_that_does_not_fit_into_memory_is_named() -> None:
    """The message names the tensor, the kernel and its line."""
    kernel = declare_kernel(inputs=lambda p: dict(x=tensor((1 << 50,)), y=tensor(1, output=True)))
    with pytest.raises(KernelFileError, match=r"it: inputs\(p\): x: RuntimeError"):
        ProblemData(kernel, PROBLEM, CPU)


def test_one_quick_look_replaces_the_checks_of_outputs_inputs_and_guards(expected_path: Path) -> None:
    """It accepts a launch only if all three checks do, and one config's mistake does not affect the next."""
    kernel = declare_kernel()
    data = make_problem_data(kernel, expected_path)
    data.quick_look = QuickLook.from_expected(
        "cpu", data.tensors, data._expected, rtol=kernel.rtol, atol=kernel.atol, keep=lambda name, value: value
    )

    def launch_and_look(launch: Callable[[dict[str, torch.Tensor]], object], *, is_last: bool = True) -> bool:
        data.reset_tensors()
        data.prepare_checked_launch()
        launch(data.tensors)
        return data.look_at_outputs(is_last=is_last)

    def double_and_overwrite_input(tensors: dict[str, torch.Tensor]) -> None:
        write_double(tensors)
        tensors["x"][3] += 1

    for _ in range(2):
        assert launch_and_look(write_double)
        assert data.take_damage() is None
        assert launch_and_look(double_and_overwrite_input, is_last=False)
        assert not launch_and_look(double_and_overwrite_input)
        assert data.find_overwritten_inputs() == ("x",)
        assert not launch_and_look(lambda tensors: tensors["y"].zero_())
        assert launch_and_look(write_double)
        # An accepted launch says nothing about a later one.
        assert not launch_and_look(lambda tensors: None)
