"""One look at a problem's tensors never finds right what the comparison finds wrong."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from ktuned.checking.quick_look import QuickLook
from ktuned.checking.verdict import compare_outputs


def look(tensors: dict[str, Any], expected: dict[str, Any], rtol: float = 1e-3, atol: float = 1e-2) -> QuickLook | None:
    """Return the look at tensors on the CPU, whose bounds nothing guards."""
    return QuickLook.from_expected("cpu", tensors, expected, rtol=rtol, atol=atol, keep=lambda name, value: value)


def are_outputs_right(out: torch.Tensor, reference: torch.Tensor, rtol: float = 1e-3, atol: float = 1e-2) -> bool:
    """Look once at one output."""
    found = look({"y": out}, {"y": reference}, rtol, atol)
    assert found is not None
    return found.are_outputs_right({"y": out})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rtol", [0.0, 1e-7, 1e-3])
def test_the_quick_look_accepts_nothing_that_the_comparison_rejects(dtype: torch.dtype, rtol: float) -> None:
    """At the edge of the tolerance, where rounding decides; what is far inside is found right."""
    torch.manual_seed(5)
    random.seed(5)
    reference = torch.randn(4000).to(dtype) * 10
    for atol in (0.0, 1e-6, 1e-2):
        edge = reference.double() + (atol + rtol * reference.double().abs()) * random.choice((-1, 1))
        for out in (edge.to(dtype), torch.nextafter(edge, reference.double()).to(dtype)):
            each = [(one[None], other[None]) for one, other in zip(out[:300], reference[:300], strict=True)]
            for one, other in each:
                verdict = compare_outputs({"y": one}, {"y": other}, rtol=rtol, atol=atol, max_mismatched_ratio=0.0)
                assert verdict.ok or not are_outputs_right(one, other, rtol, atol)
        assert are_outputs_right(reference, reference, rtol, atol)
    assert are_outputs_right(reference + 1e-3, reference)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.5])
def test_one_wrong_element_fails_the_quick_look(value: float) -> None:
    """NaN is within no bounds; where the reference has it, the comparison decides."""
    out = torch.ones(100)
    out[7] = value
    assert not are_outputs_right(out, torch.ones(100))
    assert not are_outputs_right(out, out.clone()) or value == 1.5


def test_the_quick_look_covers_inputs_and_guards() -> None:
    """By bits, so that NaN is itself and -0.0 is not 0.0."""
    y, x = torch.ones(4), torch.tensor([float("nan"), 0.0])
    found = look({"x": x, "y": y}, {"y": y.clone()})
    assert found is not None
    assert found.are_outputs_right({"x": x, "y": y}, [(x, x.clone())], torch.tensor(True))
    assert not found.are_outputs_right({"x": x, "y": y}, [(x, torch.tensor([float("nan"), -0.0]))])
    assert not found.are_outputs_right({"x": x, "y": y}, [(x, x.clone())], torch.tensor(False))


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
    """Integers, tensors elsewhere or of another shape, and outputs whose bounds would take much memory."""
    assert look(tensors, expected) is None
