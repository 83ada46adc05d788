"""Checks of a kernel's outputs, against the reference and by the kernel file's own function.

An element is wrong if it is out of tolerance, or was never written. Comparing values does not show that an element was
never written: outputs begin with a poison, which is a NaN for floats, and the reference may hold NaN as well. So the
check looks for the poison's exact bits. In dtypes whose values may equal the poison (integers), such an element only
counts if it is also out of tolerance.

The full comparison is made in double precision, where neither the difference nor the tolerance is rounded. Most outputs
do not need it: if every element is inside the tolerance by more than the rounding error of single precision
(:data:`SURE_SHARE`), they are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ktuned.checking.tensor_library import TensorLibrary, find_library
from ktuned.model import FrozenStruct


class Verdict(FrozenStruct):
    """The result of a check.

    Attributes:
        ok: whether the outputs are right.
        message: one sentence about what is wrong, or nothing.
        max_error: the largest absolute error of an element that is out of tolerance.
        mismatched_ratio: the share of elements that are out of tolerance, from 0 to 1.
        is_dissent: whether the outputs only differ from those of the default config, which may be wrong itself.
    """

    ok: bool
    message: str = ""
    max_error: float = 0.0
    mismatched_ratio: float = 0.0
    is_dissent: bool = False

    @property
    def finite_error(self) -> float | None:
        """The largest error, or ``None`` if it is infinite, which JSON cannot carry."""
        return self.max_error if math.isfinite(self.max_error) else None


def compare_outputs(
    outputs: Mapping[str, Any],
    expected: Mapping[str, Any],
    *,
    rtol: float,
    atol: float,
    max_mismatched_ratio: float,
    poisoned: Collection[str] = (),
    has_exact_integers: bool = True,
) -> Verdict:
    """Compare tensors by name, and return the verdict on the worst one.

    An element mismatches when |out - ref| > atol + rtol · |ref|, as in ``torch.isclose``. NaN equals NaN.

    Args:
        outputs: the outputs that a launch left, by name; tensors without an expected one are not compared.
        expected: the reference's tensors.
        rtol: the relative tolerance.
        atol: the absolute tolerance.
        max_mismatched_ratio: the share of elements, from 0 to 1, that may be out of tolerance.
        poisoned: names of outputs that began with the poison. An element that still has its bits was never written,
            and is wrong whatever the reference has there.
        has_exact_integers: whether integers and bools must be equal, without any tolerance.
    """
    worst = Verdict(ok=True)
    for name, reference in expected.items():
        verdict = _compare_tensor(
            name,
            outputs[name],
            reference,
            *((0.0, 0.0) if has_exact_integers and _holds_integers(outputs[name]) else (rtol, atol)),
            max_mismatched_ratio,
            is_poisoned=name in poisoned,
        )
        if (not verdict.ok, verdict.mismatched_ratio) > (not worst.ok, worst.mismatched_ratio):
            worst = verdict
    return worst


def _compare_tensor(
    name: str, out: Any, reference: Any, rtol: float, atol: float, allowed: float, *, is_poisoned: bool
) -> Verdict:
    tensors = find_library(out)
    if tuple(out.shape) != tuple(reference.shape):
        return Verdict(False, f"{name} has shape {tuple(out.shape)}, the reference {tuple(reference.shape)}", 0.0, 1.0)
    if not (count := math.prod(out.shape)):
        return Verdict(ok=True)
    kinds = {tensors.find_number_kind(out), tensors.find_number_kind(reference)}
    # Step 1: most outputs are well within the tolerance, which one pass in single precision shows.
    if kinds == {"float"} and _is_surely_close(out, reference, rtol, atol, tensors):
        return Verdict(ok=True)
    # Step 2: compare in double, where neither the difference nor the tolerance is rounded.
    wide = "complex128" if "complex" in kinds else "float64" if "float" in kinds else "int64"
    left, right = tensors.cast_tensor(out, wide), tensors.cast_tensor(tensors.move_to_device_of(reference, out), wide)
    library = tensors.module
    with tensors.silence_warnings():
        if wide == "int64":
            error = _compute_integer_error(left, right, tensors)
            close = error <= atol + rtol * abs(tensors.cast_tensor(right, "float64"))
        else:
            error = tensors.cast_tensor(abs(left - right), "float64")
            close = library.isclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
    # Step 3: find elements that were never written.
    unwritten = tensors.find_unwritten(out) if is_poisoned else False
    if is_poisoned and tensors.find_number_kind(out) != "int":
        # The poison is a NaN, and would equal a NaN of the reference. In integers it may be the right value.
        close &= ~unwritten
    # Step 4: count the wrong elements, and describe the first of them.
    wrong = ~close
    ratio = int(wrong.sum()) / count
    error[close] = 0.0
    largest = float(library.nan_to_num(error, nan=math.inf, posinf=math.inf).max())
    if ratio <= allowed:
        return Verdict(True, "", largest, ratio)
    return Verdict(False, _describe_wrong_elements(name, out, reference, wrong, wrong & unwritten), largest, ratio)


def _describe_wrong_elements(name: str, out: Any, reference: Any, wrong: Any, unwritten: Any) -> str:
    """Return a sentence about an output's wrong elements; ``wrong`` and ``unwritten`` are masks."""
    count, wrong_count, unwritten_count = math.prod(out.shape), int(wrong.sum()), int(unwritten.sum())
    if unwritten_count == count:
        return f"{name} was never written; if the kernel updates it in place, name it in setup"
    # Show a value that is wrong, if there is one.
    shown = wrong & ~unwritten if unwritten_count < wrong_count else unwritten
    first = [int(index) for index in find_library(out).module.argwhere(shown)[0]]
    place = tuple(first)
    if unwritten_count == wrong_count:
        return f"{name}: {unwritten_count} of {count} elements were never written, the first at {first}"
    return (
        f"{name}: {wrong_count} of {count} elements ({wrong_count / count:.2%}) out of tolerance"
        + (f", {unwritten_count} of them never written" if unwritten_count else "")
        + f", the first at {first}: {_format_element(out[place])} where the reference has "
        + f"{_format_element(reference[place])}"
    )


def _holds_integers(tensor: Any) -> bool:
    return find_library(tensor).find_number_kind(tensor) == "int"


SURE_SHARE = 1 - 1e-5
"""Share of the tolerance that the quick comparison allows. The rest is more than the rounding error of float32."""

MOST_ATOL = 1e30
"""The largest absolute tolerance of the quick comparison: a larger one may overflow in float32."""


def _is_surely_close(out: Any, reference: Any, rtol: float, atol: float, tensors: TensorLibrary) -> bool:
    """Return whether every element is within the tolerance by more than rounding.

    This costs an eighth of the comparison in double, and brings one number back from a device. NaN and infinities make
    that number NaN or infinite, so that the answer is no, and the comparison in double decides.
    """
    width = max(tensors.count_element_bytes(one) for one in (out, reference)) // math.prod(out.shape)
    narrow = "float32" if width <= 4 else "float64"
    left, right = (
        tensors.cast_tensor(out, narrow),
        tensors.cast_tensor(tensors.move_to_device_of(reference, out), narrow),
    )
    if not 0 <= atol <= MOST_ATOL or rtol < 0:
        return False
    with tensors.silence_warnings():
        allowed = abs(right)
        allowed *= rtol * SURE_SHARE
        beyond = abs(left - right)
        beyond -= allowed
        return bool(beyond.max() <= atol * SURE_SHARE)


def _format_element(element: Any) -> object:
    """Return an element's value for a message; a float is shortened as far as its dtype still gives the same number."""
    value = element.item()
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    shorter = (float(f"{value:.{digits}g}") for digits in range(1, 18))
    rounded = find_library(element).round_number
    return next((number for number in shorter if rounded(number, element) == value), value)


def _compute_integer_error(left: Any, right: Any, tensors: TensorLibrary) -> Any:
    """Return |left - right| of int64 tensors as float64: exact up to 2^53, and without overflow of the difference.

    ``torch.isclose`` is no help: it compares integers in float32, where neighbours beyond 2^24 are equal.
    """
    rounded = abs(tensors.cast_tensor(left, "float64") - tensors.cast_tensor(right, "float64"))
    exact = tensors.cast_tensor(abs(left - right), "float64")
    return tensors.module.where(rounded < 2**53, exact, rounded)


def run_check(
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], object],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
) -> Verdict:
    """Run a kernel file's own ``check(inputs, outputs)``. An exception or a false result is a mismatch."""
    try:
        # Besides None and bools, a check may return a tensor with one bool, such as (a == b).all().
        passed = (result := check(inputs, outputs)) is None or bool(result)
    except Exception as error:
        return Verdict(False, f"check raised {type(error).__name__}: {error}", 0.0, 1.0)
    return Verdict(ok=True) if passed else Verdict(False, f"check returned {result!r}", 0.0, 1.0)
