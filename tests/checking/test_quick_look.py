"""The quick look at a problem's tensors never accepts what the full comparison rejects."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from ktuned.checking.quick_look import QuickLook
from ktuned.checking.verdict import compare_outputs


def make_quick_look(
    tensors: dict[str, Any], expected: dict[str, Any], rtol: float = 1e-3, atol: float = 1e-2
) -> QuickLook | None:
    """Return the quick look at tensors on the CPU, with bounds that nothing guards."""
    return QuickLook.from_expected("cpu", tensors, expected, rtol=rtol, atol=atol, keep=lambda name, value: value)


def are_outputs_right(out: torch.Tensor, reference: torch.Tensor, rtol: float = 1e-3, atol: float = 1e-2) -> bool:
    """Return whether a quick look accepts one output."""
    quick_look = make_quick_look({"y": out}, {"y": reference}, rtol, atol)
    assert quick_look is not None
    return quick_look.are_outputs_right({"y": out})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rtol", [0.0, 1e-7, 1e-3])
def test_the_quick_look_accepts_nothing_that_the_comparison_rejects(dtype: torch.dtype, rtol: float) -> None:
    """Rounding decides at the edge of the tolerance; outputs far inside are accepted."""
    torch.manual_seed(5)
    random.seed(5)
    reference = torch.randn(4000).to(dtype) * 10
    for atol in (0.0, 1e-6, 1e-2):
        edge = reference.double() + (atol + rtol * reference.double().abs()) * random.choice((-1, 1))
        for out in (edge.to(dtype), torch.nextafter(edge, reference.double()).to(dtype)):
            each = [
                (element[None], reference_element[None])
                for element, reference_element in zip(out[:300], reference[:300], strict=True)
            ]
            for element, reference_element in each:
                verdict = compare_outputs(
                    {"y": element}, {"y": reference_element}, rtol=rtol, atol=atol, max_mismatched_ratio=0.0
                )
                assert verdict.ok or not are_outputs_right(element, reference_element, rtol, atol)
        assert are_outputs_right(reference, reference, rtol, atol)
    assert are_outputs_right(reference + 1e-3, reference)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.5])
def test_one_wrong_element_fails_the_quick_look(value: float) -> None:
    """NaN is within no bounds: where the reference has NaN, the full comparison decides."""
    out = torch.ones(100)
    out[7] = value
    assert not are_outputs_right(out, torch.ones(100))
    assert not are_outputs_right(out, out.clone()) or value == 1.5


def test_the_quick_look_covers_inputs_and_guards() -> None:
    """Inputs are compared by bits: NaN equals itself, and -0.0 differs from 0.0."""
    y, x = torch.ones(4), torch.tensor([float("nan"), 0.0])
    quick_look = make_quick_look({"x": x, "y": y}, {"y": y.clone()})
    assert quick_look is not None
    assert quick_look.are_outputs_right({"x": x, "y": y}, [(x, x.clone())], torch.tensor(True))
    assert not quick_look.are_outputs_right({"x": x, "y": y}, [(x, torch.tensor([float("nan"), -0.0]))])
    assert not quick_look.are_outputs_right({"x": x, "y": y}, [(x, x.clone())], torch.tensor(False))


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (dict(y=torch.ones(4, dtype=torch.int32)), dict(y=torch.ones(4, dtype=torch.int32))),
        (dict(y=torch.ones(4)), {}),
        (dict(y=torch.ones(4), x=torch.ones(4, device="meta")), dict(y=torch.ones(4))),
        (dict(y=torch.ones(4), n=3), dict(y=torch.ones(4))),
        (dict(y=torch.ones(4)), dict(y=torch.ones(5))),
        (dict(y=torch.empty(1 << 26)), dict(y=torch.ones(1).expand(1 << 26))),
    ],
)
def test_unsuitable_tensors_have_no_quick_look(tensors: dict[str, Any], expected: dict[str, Any]) -> None:
    """Examples: integers, other devices or shapes, and outputs whose bounds would take much memory."""
    assert make_quick_look(tensors, expected) is None
