"""Checks of a kernel's outputs, against the reference and by the kernel file's own function."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ktuned.model import Record, record


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
) -> Verdict:
    """Compare tensors by name: an element mismatches when |out - ref| > atol + rtol · |ref| (as ``torch.isclose``).

    NaN equals NaN. The verdict is of the worst tensor. Elements that mismatch because they still hold the poison, in
    the outputs that were ``poisoned``, were never written.
    """
    worst = Verdict(ok=True)
    for name, reference in expected.items():
        verdict = _compare_one(
            name, outputs[name], reference, rtol, atol, max_mismatched_ratio, is_poisoned=name in poisoned
        )
        if (not verdict.ok, verdict.mismatched_ratio) > (not worst.ok, worst.mismatched_ratio):
            worst = verdict
    return worst


def _compare_one(
    name: str, out: Any, reference: Any, rtol: float, atol: float, allowed: float, *, is_poisoned: bool
) -> Verdict:
    import torch

    from ktuned.spec import unwritten

    if tuple(out.shape) != tuple(reference.shape):
        return Verdict(False, f"{name} has shape {tuple(out.shape)}, the reference {tuple(reference.shape)}", 0.0, 1.0)
    if not out.numel():
        return Verdict(ok=True)
    # Half types are compared in double, where neither the difference nor the tolerance is rounded.
    wide = torch.float64 if out.is_floating_point() or reference.is_floating_point() else torch.int64
    if out.is_complex() or reference.is_complex():
        wide = torch.complex128
    left, right = out.to(wide), reference.to(device=out.device, dtype=wide)
    if wide is torch.int64:
        error = _integer_error(left, right)
        close = error <= atol + rtol * right.to(torch.float64).abs()
    else:
        error = (left - right).abs().to(torch.float64)
        close = torch.isclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
    wrong = int((~close).sum())
    ratio = wrong / close.numel()
    error[close] = 0.0
    largest = float(error.nan_to_num(nan=math.inf, posinf=math.inf).max())
    if ratio <= allowed:
        return Verdict(True, "", largest, ratio)
    wrong_at = ~close
    never = unwritten(out) & wrong_at if is_poisoned else wrong_at.new_zeros(())
    missing = int(never.sum())
    if missing == out.numel():
        return Verdict(False, f"{name} was never written", largest, ratio)
    shown = wrong_at & ~never if missing < wrong else never
    first = [int(index) for index in shown.nonzero()[0]]
    place = tuple(first)
    if missing == wrong:
        message = f"{name}: {missing} of {out.numel()} elements were never written, the first at {first}"
    else:
        message = (
            f"{name}: {wrong} of {close.numel()} elements ({ratio:.2%}) out of tolerance"
            + (f", {missing} of them never written" if missing else "")
            + f", the first at {first}: {_shown(out[place])} where the reference has {_shown(reference[place])}"
        )
    return Verdict(False, message, largest, ratio)


def _shown(element: Any) -> object:
    """Return an element's value, of a floating dtype the shortest number that is the same in it."""
    value = element.item()
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    rounded = (float(f"{value:.{digits}g}") for digits in range(1, 18))
    return next((number for number in rounded if element.new_tensor(number).item() == value), value)


def _integer_error(left: Any, right: Any) -> Any:
    """Return |left - right| as float64: exact where that is small, and never of a difference that wrapped around.

    ``torch.isclose`` compares integers in float32, where those beyond 2^24 run together.
    """
    import torch

    rounded = (left.to(torch.float64) - right.to(torch.float64)).abs()
    return torch.where(rounded < 2**53, (left - right).abs().to(torch.float64), rounded)


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
