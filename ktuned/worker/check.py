"""Checks of a kernel's outputs, against the reference and by the kernel file's own function."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ktuned.model import Record, record
from ktuned.worker.tensor_library import TensorLibrary, library_of


@record
class Verdict(Record):
    """``ok``, or what is wrong: a sentence, the largest absolute error of an element
    that is out of tolerance, and the share of such elements.

    ``is_dissent`` says that it is no more than a difference from the default config's outputs.
    """

    ok: bool
    message: str = ""
    max_error: float = 0.0
    mismatched_ratio: float = 0.0
    is_dissent: bool = False

    @property
    def finite_error(self) -> float | None:
        """The largest error, or ``None`` if it has no bound: JSON cannot carry an infinity."""
        return self.max_error if math.isfinite(self.max_error) else None


def compare(
    outputs: Mapping[str, Any],
    expected: Mapping[str, Any],
    *,
    rtol: float,
    atol: float,
    max_mismatched_ratio: float,
    poisoned: Collection[str] = (),
    has_exact_integers: bool = True,
) -> Verdict:
    """Compare tensors by name: an element mismatches when |out - ref| > atol + rtol · |ref| (as ``torch.isclose``).

    NaN equals NaN, unless it is the poison: an element of a ``poisoned`` output whose bits still are those was never
    written, whatever the reference has there. Outputs of integers and bools have no tolerance if
    ``has_exact_integers``. The verdict is of the worst tensor.
    """
    worst = Verdict(ok=True)
    for name, reference in expected.items():
        verdict = _compare_one(
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


def _compare_one(
    name: str, out: Any, reference: Any, rtol: float, atol: float, allowed: float, *, is_poisoned: bool
) -> Verdict:
    tensors = library_of(out)
    if tuple(out.shape) != tuple(reference.shape):
        return Verdict(False, f"{name} has shape {tuple(out.shape)}, the reference {tuple(reference.shape)}", 0.0, 1.0)
    if not (count := math.prod(out.shape)):
        return Verdict(ok=True)
    kinds = {tensors.kind(out), tensors.kind(reference)}
    if kinds == {"float"} and _is_surely_close(out, reference, rtol, atol, tensors):
        return Verdict(ok=True)
    # Half types are compared in double, where neither the difference nor the tolerance is rounded.
    wide = "complex128" if "complex" in kinds else "float64" if "float" in kinds else "int64"
    left, right = tensors.cast(out, wide), tensors.cast(tensors.beside(reference, out), wide)
    library = tensors.arithmetic
    with tensors.quiet():
        if wide == "int64":
            error = _integer_error(left, right, tensors)
            close = error <= atol + rtol * abs(tensors.cast(right, "float64"))
        else:
            error = tensors.cast(abs(left - right), "float64")
            close = library.isclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
    unwritten = tensors.unwritten(out) if is_poisoned else False
    if is_poisoned and tensors.kind(out) != "int":
        # The poison is a NaN, which equals the reference's by value; integers may hold the poison's number rightly.
        close &= ~unwritten
    wrong = int((~close).sum())
    ratio = wrong / count
    error[close] = 0.0
    largest = float(library.nan_to_num(error, nan=math.inf, posinf=math.inf).max())
    if ratio <= allowed:
        return Verdict(True, "", largest, ratio)
    wrong_at = ~close
    never = wrong_at & unwritten
    missing = int(never.sum())
    if missing == count:
        return Verdict(False, f"{name} was never written", largest, ratio)
    shown = wrong_at & ~never if missing < wrong else never
    first = [int(index) for index in library.argwhere(shown)[0]]
    place = tuple(first)
    if missing == wrong:
        message = f"{name}: {missing} of {count} elements were never written, the first at {first}"
    else:
        message = (
            f"{name}: {wrong} of {count} elements ({ratio:.2%}) out of tolerance"
            + (f", {missing} of them never written" if missing else "")
            + f", the first at {first}: {_shown(out[place])} where the reference has {_shown(reference[place])}"
        )
    return Verdict(False, message, largest, ratio)


def _holds_integers(tensor: Any) -> bool:
    return library_of(tensor).kind(tensor) == "int"


SURE = 1 - 1e-5
"""Share of the tolerance that is looked at first: the rest is more than what float32 rounds."""

MOST_ATOL = 1e30
"""A tolerance beyond this may not be finite in float32."""


def _is_surely_close(out: Any, reference: Any, rtol: float, atol: float, tensors: TensorLibrary) -> bool:
    """Return whether every element is within the tolerance by more than rounding; it costs an eighth of the comparison
    in double, and one number comes back from a device. With NaN and infinities it is NaN or infinite, and they are left
    to the comparison.
    """
    width = max(tensors.size(one) for one in (out, reference)) // math.prod(out.shape)
    narrow = "float32" if width <= 4 else "float64"
    left, right = tensors.cast(out, narrow), tensors.cast(tensors.beside(reference, out), narrow)
    if not 0 <= atol <= MOST_ATOL or rtol < 0:
        return False
    with tensors.quiet():
        allowed = abs(right)
        allowed *= rtol * SURE
        beyond = abs(left - right)
        beyond -= allowed
        return bool(beyond.max() <= atol * SURE)


def _shown(element: Any) -> object:
    """Return an element's value, of a floating dtype the shortest number that is the same in it."""
    value = element.item()
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    shorter = (float(f"{value:.{digits}g}") for digits in range(1, 18))
    rounded = library_of(element).rounded
    return next((number for number in shorter if rounded(number, element) == value), value)


def _integer_error(left: Any, right: Any, tensors: TensorLibrary) -> Any:
    """Return |left - right| as float64: exact where that is small, and never of a difference that wrapped around.

    ``torch.isclose`` compares integers in float32, where those beyond 2^24 run together.
    """
    rounded = abs(tensors.cast(left, "float64") - tensors.cast(right, "float64"))
    exact = tensors.cast(abs(left - right), "float64")
    return tensors.arithmetic.where(rounded < 2**53, exact, rounded)


def run_check(
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], object],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
) -> Verdict:
    """Run a kernel file's own ``check(inputs, outputs)``: an exception or a false result is a mismatch."""
    try:
        # A tensor of one bool, as (a == b).all() gives, is an answer too.
        passed = (result := check(inputs, outputs)) is None or bool(result)
    except Exception as error:
        return Verdict(False, f"check raised {type(error).__name__}: {error}", 0.0, 1.0)
    return Verdict(ok=True) if passed else Verdict(False, f"check returned {result!r}", 0.0, 1.0)
