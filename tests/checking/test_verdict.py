"""Comparison of outputs with the expected outputs."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ktuned.checking.verdict import Verdict, compare_outputs, run_check
from ktuned.declaration.poisons import fill_with_poison


def compare_one(out: Any, reference: Any, *, rtol: float = 0.0, atol: float = 0.0, ratio: float = 0.0) -> Verdict:
    """Compare one tensor ``y``, given as tensors or as lists."""
    tensors = [value if isinstance(value, torch.Tensor) else torch.tensor(value) for value in (out, reference)]
    is_given = rtol > 0 or atol > 0
    return compare_outputs(
        {"y": tensors[0]},
        {"y": tensors[1]},
        rtol=rtol,
        atol=atol,
        max_mismatched_ratio=ratio,
        has_exact_integers=not is_given,
    )


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint32, torch.uint64, torch.bool]


@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS], ids=str)
def test_every_dtype_is_compared(dtype: torch.dtype) -> None:
    """One wrong element is found, and the ratio is exact."""
    right = torch.tensor([0, 1, 1, 0]).to(dtype)
    wrong = torch.tensor([0, 1, 0, 0]).to(dtype)
    assert compare_one(right, right) == Verdict(ok=True)
    verdict = compare_one(wrong, right)
    assert (verdict.ok, verdict.max_error, verdict.mismatched_ratio) == (False, 1.0, 0.25)
    assert verdict.message.startswith("y: 1 of 4 elements (25.00%) out of tolerance, the first at [2]: ")


@pytest.mark.parametrize(
    ("out", "reference", "ok"),
    [
        (1.1, 1.0, True),
        (1.2, 1.0, False),
        (110.9, 100.0, False),
        (105.0, 100.0, True),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.inf, math.inf, True),
        (-math.inf, math.inf, False),
        (1e300, math.inf, False),
        (math.inf, 1.0, False),
    ],
)
def test_the_tolerance_is_that_of_isclose(out: float, reference: float, ok: bool) -> None:
    """|out − ref| ≤ atol + rtol · |ref|; NaN equals NaN, and an infinity equals only itself."""
    left, right = torch.tensor([out], dtype=torch.float64), torch.tensor([reference], dtype=torch.float64)
    assert compare_one(left, right, rtol=0.05, atol=0.1).ok is ok
    assert torch.allclose(left, right, rtol=0.05, atol=0.1, equal_nan=True) is ok


def test_half_types_are_compared_in_double() -> None:
    """Neither the difference nor the tolerance is rounded to half precision, in which 2049 equals 2048."""
    verdict = compare_one(torch.tensor([2048.0], dtype=torch.float16), torch.tensor([2049.0]), atol=0.5)
    assert (verdict.ok, verdict.max_error) == (False, 1.0)


@pytest.mark.parametrize("value", [1.0, True, 1])
def test_the_reference_may_have_another_dtype(value: float) -> None:
    """Values are compared: a float reference for an integer output is no mismatch."""
    assert compare_one(torch.tensor([1], dtype=torch.int32), torch.tensor([value])).ok


def test_large_integers_are_not_rounded() -> None:
    """Integers beyond float32's precision are compared exactly, with and without a tolerance."""
    for atol in (0.0, 2.0):
        assert not compare_one([2**30 + 3], [2**30], atol=atol).ok
    assert compare_one([2**30 + 2], [2**30], atol=2.0).ok
    assert not compare_one([2**63 - 1], [-1], atol=2.0).ok
    assert not compare_one([2**62 + 3], [2**62], atol=2.0).ok


def test_a_share_of_mismatches_may_be_allowed() -> None:
    """The verdict still says how many elements were wrong and by how much."""
    out, reference = [0.0] * 98 + [3.0, 4.0], [0.0] * 100
    verdict = compare_one(out, reference, ratio=0.02)
    assert verdict == Verdict(True, "", 4.0, 0.02)
    assert not compare_one(out, reference, ratio=0.019).ok


def test_another_shape_is_a_mismatch() -> None:
    """Shapes are not broadcast."""
    verdict = compare_one(torch.zeros(2, 1), torch.zeros(2))
    assert (verdict.ok, verdict.mismatched_ratio) == (False, 1.0)
    assert verdict.message == "y has shape (2, 1), the reference (2,)"


def test_the_first_wrong_element_is_shown_with_both_values() -> None:
    """The message has the index in all dimensions."""
    out = torch.zeros(3, 4)
    out[1, 2] = 7
    assert "the first at [1, 2]: 7.0 where the reference has 0.0" in compare_one(out, torch.zeros(3, 4)).message


@pytest.mark.parametrize(
    ("out", "reference", "dtype", "message_end"),
    [
        (0.1, 0.1 + 0.2, torch.float64, "0.1 where the reference has 0.30000000000000004"),
        (0.1, 0.1 + 0.2, torch.float32, "0.1 where the reference has 0.3"),
        (0.1, 0.1 + 0.2, torch.bfloat16, "0.1 where the reference has 0.3"),
        (1, 2, torch.int32, "1 where the reference has 2"),
        (math.nan, -math.inf, torch.float32, "nan where the reference has -inf"),
    ],
)
def test_values_are_shown_as_short_as_their_dtype_allows(
    out: float, reference: float, dtype: torch.dtype, message_end: str
) -> None:
    """A float32 has no seventeen digits."""
    verdict = compare_one(torch.tensor([out], dtype=dtype), torch.tensor([reference], dtype=dtype))
    assert verdict.message.endswith(message_end)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)], ids=str)
def test_scalars_and_empty_tensors_are_compared(shape: tuple[int, ...]) -> None:
    assert compare_one(torch.zeros(shape), torch.zeros(shape)).ok
    if not shape:
        assert "the first at []: 1.0" in compare_one(torch.ones(()), torch.zeros(())).message


def test_the_verdict_is_of_the_worst_tensor() -> None:
    """A failed tensor outranks an allowed share of mismatches, and the larger share outranks the smaller."""
    expected = {name: torch.zeros(10) for name in "abcd"}
    outputs = {name: tensor.clone() for name, tensor in expected.items()}
    outputs["b"][:2] = 1
    outputs["c"][:5] = 1
    outputs["d"][:3] = 1
    verdict = compare_outputs(outputs, expected, rtol=0.0, atol=0.0, max_mismatched_ratio=0.2)
    assert verdict.message.startswith("c: 5 of 10")
    outputs["c"][:5] = outputs["d"][:3] = 0
    assert compare_outputs(outputs, expected, rtol=0.0, atol=0.0, max_mismatched_ratio=0.2) == Verdict(
        True, "", 1.0, 0.2
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_infinite_error_is_sent_as_none(value: float) -> None:
    """NaN and infinity make the largest error infinite, which JSON cannot represent."""
    verdict = compare_one([value, 1.0], [1.0, 1.0])
    assert verdict.max_error == math.inf
    assert (verdict.finite_error, verdict.mismatched_ratio) == (None, 0.5)
    assert compare_one([2.0, 1.0], [1.0, 1.0]).finite_error == 1.0


def raise_assertion(inputs: Any, outputs: Any) -> object:
    """Fail as an assertion does."""
    raise AssertionError("y is not sorted")


@pytest.mark.parametrize(
    ("check", "ok", "message"),
    [
        (lambda inputs, outputs: None, True, ""),
        (lambda inputs, outputs: True, True, ""),
        (lambda inputs, outputs: False, False, "check returned False"),
        (lambda inputs, outputs: (outputs["y"] == inputs["x"]).all(), True, ""),
        (lambda inputs, outputs: (outputs["y"] != inputs["x"]).all(), False, "check returned tensor(False)"),
        (lambda inputs, outputs: outputs["y"] == inputs["x"], False, "check raised RuntimeError: .*ambiguous"),
        (raise_assertion, False, "check raised AssertionError: y is not sorted"),
        (lambda inputs, outputs: outputs["z"], False, "check raised KeyError: 'z'"),
    ],
    ids=["none", "true", "false", "tensor-true", "tensor-false", "many-bools", "raises", "key"],
)
def test_a_kernel_files_own_check_decides(check: Callable[[Any, Any], object], ok: bool, message: str) -> None:
    """It passes by returning None or a true value, and fails by raising or by a false value, tensors included."""
    verdict = run_check(check, {"x": torch.ones(2)}, {"y": torch.ones(2)})
    assert verdict.ok is ok
    assert pytest.approx(verdict.mismatched_ratio) == (0.0 if ok else 1.0)
    assert re.match(message.replace("(", r"\(").replace(")", r"\)"), verdict.message)


PARTLY_WRITTEN = (
    "y: 3 of 4 elements (75.00%) out of tolerance, 2 of them never written, "
    "the first at [1]: {} where the reference has {}"
)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({}, "y was never written; if the kernel updates it in place, name it in setup"),
        ({0: 0.0, 1: 1.0}, "y: 2 of 4 elements were never written, the first at [2]"),
        (
            {0: 0.0, 1: 5.0},
            PARTLY_WRITTEN,
        ),
    ],
    ids=["nothing", "a-part", "a-part-wrongly"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint16], ids=str)
def test_unwritten_elements_are_reported_as_never_written(
    dtype: torch.dtype, written: dict[int, float], words: str
) -> None:
    """The message shows the value of an element only if the kernel wrote it."""
    out = fill_with_poison(torch.empty(4, dtype=dtype))
    for index, value in written.items():
        out[index] = value
    expected = torch.arange(4).to(dtype)
    verdict = compare_outputs({"y": out}, {"y": expected}, rtol=0, atol=0, max_mismatched_ratio=0, poisoned=["y"])
    shown_values = (5.0, 1.0) if dtype.is_floating_point else (5, 1)
    assert (verdict.ok, verdict.message) == (False, words.format(*shown_values))


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.tuples(st.floats(width=32), st.floats(-1.0, 1.0)), min_size=1, max_size=8),
    rtol=st.sampled_from([0.0, 1e-7, 1e-3, 0.1]),
    atol=st.sampled_from([0.0, 1e-40, 1e-5, 1.0, 1e35]),
)
def test_the_quick_comparison_agrees_with_double(values: list[tuple[float, float]], rtol: float, atol: float) -> None:
    """The verdict is that of isclose on doubles."""
    reference = torch.tensor([value for value, _ in values], dtype=torch.float32)
    distances = torch.tensor([distance for _, distance in values], dtype=torch.float64)
    out = (reference.double() + distances * (atol + rtol * reference.double().abs())).float()
    for scale in (1.0, 0.999999, 1.000001):
        scaled = (out.double() * scale).float()
        expected = torch.allclose(scaled.double(), reference.double(), rtol=rtol, atol=atol, equal_nan=True)
        assert compare_one(scaled, reference, rtol=rtol, atol=atol).ok is expected
