"""A problem's data: the same for every config and worker, restored, and judged."""

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
from tests.worker.declaring import CPU, N, declare

PROBLEM = {"M": 4}


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """Where the expected outputs are kept for the next worker."""
    return tmp_path / "expected" / "it.safetensors"


def opened(kernel: Kernel, cached: Path) -> ProblemData:
    """Return the data of a problem, ready for trials, as ``open`` leaves it."""
    data = ProblemData(kernel, PROBLEM, CPU)
    data.provide_expected_outputs(cached)
    data.save_expected_outputs(cached)
    return data


def run(data: ProblemData, launch: Callable[[dict[str, torch.Tensor]], object]) -> Any:
    """Try one config, as the bench does, and return the verdict."""
    data.reset_tensors()
    data.prepare_checked_launch()
    launch(data.tensors)
    assert data.take_damage() is None
    return data.check_outputs()


def double(tensors: dict[str, torch.Tensor]) -> None:
    """Launch the right kernel."""
    tensors["y"].copy_(2 * tensors["x"])


def test_a_right_kernel_passes_and_a_wrong_one_does_not(cached: Path) -> None:
    """The reference decides; one trial leaves nothing behind that changes the next one's verdict."""
    data = opened(declare(), cached)
    for _ in range(2):
        assert run(data, double).ok
        assert not run(data, lambda tensors: tensors["y"].copy_(3 * tensors["x"])).ok


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_a_kernel_that_writes_nothing_is_found_out(cached: Path, dtype: str) -> None:
    """Also after a good config left the right answer where this one must write."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(N, dtype), y=tensor(N, dtype, output=True))

    data = opened(declare(inputs=inputs), cached)
    assert run(data, double).ok
    verdict = run(data, lambda tensors: None)
    assert (verdict.ok, verdict.mismatched_ratio) == (False, 1.0)
    assert run(data, lambda tensors: tensors["y"][1:].copy_(2 * tensors["x"][1:])).mismatched_ratio == 1 / N


def test_an_overwritten_input_is_put_back(cached: Path) -> None:
    """A config that writes to what it must only read spoils no other config."""
    data = opened(declare(), cached)
    run(data, lambda tensors: tensors["x"].zero_())
    assert run(data, double).ok


@pytest.mark.parametrize(
    ("x", "arguments", "found"),
    [
        (tensor(N), {}, ("x",)),
        (tensor(N), {"setup": "x"}, ()),
        (tensor(N), {"setup": lambda tensors: None}, ()),
        (tensor(N, fill="empty"), {}, ()),
        (tensor(N, "complex64"), {}, ("x",)),
    ],
    ids=["undeclared", "restored", "prepared", "workspace", "complex"],
)
def test_an_overwritten_input_is_named(x: Any, arguments: dict[str, Any], found: tuple[str, ...]) -> None:
    """Unless the kernel file says that it is written: as an output, in ``setup``, as a workspace."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=x, y=tensor(N, output=True))

    data = ProblemData(declare(inputs=inputs, check=None, **arguments), PROBLEM, CPU)
    data.reset_tensors()
    data.tensors["y"].zero_()
    assert data.find_overwritten_inputs() == ()
    data.tensors["x"][N - 1] = 7
    assert data.find_overwritten_inputs() == found


def test_a_failed_check_says_that_nothing_was_written() -> None:
    """The kernel file's own check sees the poison as numbers; the message says what it is."""
    data = ProblemData(declare(check=lambda inputs, outputs: False), PROBLEM, CPU)
    data.reset_tensors()
    assert data.check_outputs().message == "y was never written; check returned False"


def test_every_worker_gets_the_same_inputs() -> None:
    """Two workers draw equal tensors for one problem, and other ones for another problem or kernel."""
    first, again = (ProblemData(declare(), PROBLEM, CPU).tensors["x"] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, ProblemData(declare(), {"M": 5}, CPU).tensors["x"])
    assert not torch.equal(first, ProblemData(declare(name="other"), PROBLEM, CPU).tensors["x"])


def test_tensors_that_the_file_draws_itself_are_the_same_too(cached: Path) -> None:
    """``inputs`` may call torch's generator: the worker that takes over draws what the reference was computed from."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=torch.rand(N), y=tensor(N, output=True))

    kernel = declare(inputs=inputs)
    opened(kernel, cached)
    assert run(opened(kernel, cached), double).ok


def test_an_in_place_kernel_is_restored_before_each_run(cached: Path) -> None:
    """What ``setup`` names holds its first content before every launch, the timed ones too."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(N, "float32", "uniform", output=True))

    def double_in_place(tensors: dict[str, torch.Tensor]) -> None:
        tensors["x"].mul_(2)

    data = opened(declare(inputs=inputs, setup="x", reference=lambda x: 2 * x), cached)
    assert data.restores
    assert run(data, double_in_place).ok
    for _ in range(3):
        data.restore_inputs()
        double_in_place(data.tensors)
        assert data.check_outputs().ok


def test_a_setup_function_is_called_before_each_run(cached: Path) -> None:
    """A callable ``setup`` gets the tensors that the kernel will get, and may change them."""
    calls: list[set[str]] = []

    def setup(tensors: dict[str, torch.Tensor]) -> None:
        calls.append(set(tensors))
        tensors["y"].zero_()

    data = opened(declare(setup=setup), cached)
    assert data.restores
    assert run(data, lambda tensors: tensors["y"].add_(2 * tensors["x"])).ok
    data.restore_inputs()
    assert calls == [{"x", "y"}] * 2


def test_without_setup_nothing_is_restored() -> None:
    """A kernel that says nothing costs nothing between its launches."""
    assert not ProblemData(declare(), PROBLEM, CPU).restores


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
def test_references_of_every_kind(cached: Path, reference: Callable[..., Any]) -> None:
    """Whichever tensors it takes and however it returns the outputs, it judges alike, here and in the next worker."""
    kernel = declare(reference=reference)
    for _ in range(2):
        data = opened(kernel, cached)
        assert run(data, double).ok
        assert not run(data, lambda tensors: tensors["y"].copy_(tensors["x"])).ok


def test_two_outputs_may_be_one_tensor(cached: Path) -> None:
    """A reference that returns one tensor under two names is kept like any other."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(N), y=tensor(N, output=True), z=tensor(N, output=True))

    def reference(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return dict(y=x, z=x)

    opened(declare(inputs=inputs, reference=reference), cached)
    data = opened(declare(inputs=inputs, reference=reference), cached)
    assert run(data, lambda tensors: [tensors[name].copy_(tensors["x"]) for name in "yz"]).ok


def fail(x: torch.Tensor) -> None:
    """Raise words of two lines."""
    raise ValueError("no such\nshape")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (fail, "reference: ValueError: no such shape"),
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
def test_a_bad_reference_is_one_clear_line(cached: Path, reference: Callable[..., Any], message: str) -> None:
    """What a reference did wrong is reported with the kernel's name and place, and nothing is kept of it."""
    with pytest.raises(KernelFileError, match=rf":\d+: it: {message}") as caught:
        opened(declare(reference=reference), cached)
    assert "\n" not in caught.value.message
    assert not cached.exists()


def test_several_outputs_need_their_names(cached: Path) -> None:
    """A bare tensor cannot be distinguished when there are two outputs."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(N), y=tensor(N, output=True), z=tensor(N, output=True))

    with pytest.raises(KernelFileError, match="must return a dict with the outputs y, z"):
        opened(declare(inputs=inputs, reference=lambda x: x), cached)


def test_a_reference_needs_an_output() -> None:
    """With nothing marked as an output there is nothing to compare: said when the problem is opened."""
    with pytest.raises(KernelFileError, match="no tensor with output=True"):
        ProblemData(declare(inputs=lambda p: dict(x=tensor(N))), PROBLEM, CPU)


def test_the_reference_is_computed_once(cached: Path) -> None:
    """The worker that takes over reads what the first one left, and judges by it."""
    calls = []

    def reference(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return 2 * x

    for _ in range(3):
        assert run(opened(declare(reference=reference), cached), double).ok
    assert len(calls) == 1
    assert [path.name for path in cached.parent.iterdir()] == [cached.name]


def test_the_reference_can_be_launched_to_be_timed(cached: Path) -> None:
    """It runs on copies: timing it changes nothing of what the kernels are given."""
    data = opened(declare(reference=lambda x: x.mul_(2)), cached)
    launch = data.make_reference_launch()
    assert launch is not None
    launch()
    launch()
    assert run(data, double).ok


def test_an_own_check_is_asked_as_well(cached: Path) -> None:
    """Where a kernel gives both, both must pass; ``check`` sees pristine inputs and the outputs alone."""
    seen: list[tuple[set[str], set[str]]] = []

    def check(inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> bool:
        seen.append((set(inputs), set(outputs)))
        return bool((inputs["x"] != 0).any()) and bool((outputs["y"] < 100).all())

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        double(tensors)
        tensors["x"].zero_()

    data = opened(declare(reference=lambda x: 2 * x, check=check), cached)
    assert run(data, spoil).ok
    assert not run(data, lambda tensors: tensors["y"].zero_()).ok
    assert seen == [({"x", "y"}, {"y"})]
    data = ProblemData(declare(check=check), PROBLEM, CPU)
    assert run(data, lambda tensors: tensors["y"].fill_(99)).ok
    assert not run(data, lambda tensors: tensors["y"].fill_(101)).ok


def test_check_none_checks_nothing(cached: Path) -> None:
    """``check=None`` is taken at its word, and has no reference to time."""
    data = opened(declare(check=None), cached)
    assert run(data, lambda tensors: None).ok
    assert data.make_reference_launch() is None
    assert not cached.exists()


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_resized_tensor_is_made_anew(cached: Path, name: str) -> None:
    """A config that resizes or replaces what it was given fails alone: the next one is given what the first one was."""

    def swap(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].data = torch.zeros(3, dtype=torch.int32)

    data = opened(declare(), cached)
    assert not data.replace_changed_tensors()
    for spoil in (swap, lambda tensors: tensors[name].resize_(3)):
        data.reset_tensors()
        spoil(data.tensors)
        assert data.replace_changed_tensors()
        assert run(data, double).ok
        assert not data.replace_changed_tensors()
    with pytest.raises(RuntimeError, match="not resizable"):
        data.tensors[name].resize_(100_000)
    data.replace_changed_tensors()
    assert run(data, double).ok


def test_inputs_that_do_not_fit_into_memory_are_told_by_name() -> None:
    """Which tensor of which kernel it is, and where the kernel is declared."""
    kernel = declare(inputs=lambda p: dict(x=tensor((1 << 50,)), y=tensor(1, output=True)))
    with pytest.raises(KernelFileError, match=r"it: inputs\(p\): x: RuntimeError"):
        ProblemData(kernel, PROBLEM, CPU)


def test_one_quick_look_replaces_the_checks_of_outputs_inputs_and_guards(cached: Path) -> None:
    """It finds a launch right only if all three do, and leaves no config's mistake to the next."""
    kernel = declare()
    data = opened(kernel, cached)
    data.quick_look = QuickLook.from_expected(
        "cpu", data.tensors, data._expected, rtol=kernel.rtol, atol=kernel.atol, keep=lambda name, value: value
    )

    def look(launch: Callable[[dict[str, torch.Tensor]], object], *, is_last: bool = True) -> bool:
        data.reset_tensors()
        data.prepare_checked_launch()
        launch(data.tensors)
        return data.look_at_outputs(is_last=is_last)

    def overwriting(tensors: dict[str, torch.Tensor]) -> None:
        double(tensors)
        tensors["x"][3] += 1

    for _ in range(2):
        assert look(double)
        assert data.take_damage() is None
        assert look(overwriting, is_last=False)
        assert not look(overwriting)
        assert data.find_overwritten_inputs() == ("x",)
        assert not look(lambda tensors: tensors["y"].zero_())
        assert look(double)
        # The look after a right launch says nothing of a later one.
        assert not look(lambda tensors: None)
