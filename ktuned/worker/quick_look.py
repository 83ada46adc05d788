"""One look at all tensors of a problem on a GPU after a launch, which says whether all is surely well.

It is made on the device, and one short vector comes back: each wait for a GPU costs as much as comparing millions of
elements there. Whatever is not surely well is looked at again, tensor by tensor, for the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ktuned.worker.check import MOST_ATOL, SURE

if TYPE_CHECKING:
    import torch

MOST_BYTES = 1 << 28
"""Memory for the bounds of all outputs. Larger ones take longer to compare than to wait for."""

Keep = Callable[[str, Any], Any]
"""Takes a name and a tensor, and returns the copy of it that no launch may change."""


class QuickLook:
    """The bounds of what a problem's outputs may be, and what its inputs must stay."""

    def __init__(self, bounds: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._bounds = bounds

    @classmethod
    def of(
        cls,
        kind: str,
        tensors: Mapping[str, Any],
        expected: Mapping[str, Any],
        *,
        rtol: float,
        atol: float,
        keep: Keep,
    ) -> QuickLook | None:
        """Return the look at tensors that are all torch's, and on one device of a ``kind``; ``None`` if they are not.

        The bounds lie within the tolerance by more than rounding, and are kept by ``keep``.
        """
        import torch

        if not expected or not all(_is_plain(tensor, kind) for tensor in tensors.values()):
            return None
        if len({tensor.device for tensor in tensors.values()}) > 1 or not 0 <= atol <= MOST_ATOL or rtol < 0:
            return None
        bounds: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        room = MOST_BYTES
        for name, reference in expected.items():
            out = tensors[name]
            if not (out.is_floating_point() and reference.is_floating_point()) or out.shape != reference.shape:
                return None
            width = max(out.element_size(), reference.element_size())
            wide = reference.to(torch.float32 if width <= _SINGLE else torch.float64)
            room -= 2 * wide.numel() * wide.element_size()
            if room < 0 or not out.numel():
                return None
            bounds[name] = _bounds(name, wide, rtol, atol, keep)
        return cls(bounds)

    def finds_right(
        self, tensors: Mapping[str, Any], unchanged: Sequence[tuple[Any, Any]] = (), intact: Any = None
    ) -> bool:
        """Return whether the outputs are within their bounds, each of the ``unchanged`` as its copy, and ``intact``, a
        flag on the device, is true.
        """
        import torch

        from ktuned.spec import view_as_bits

        # One wait for the device, whatever there is to look at.
        flags = [flag for name, ends in self._bounds.items() for flag in _are_within(tensors[name], *ends)]
        flags += [(view_as_bits(one) == view_as_bits(other)).all() for one, other in unchanged]
        flags += [] if intact is None else [intact]
        return all(torch.stack(flags).tolist())

    def flag(self, tensors: Mapping[str, Any]) -> Any:
        """Return a flag on the device that the outputs are within their bounds; it waits for nothing."""
        import torch

        flags = [flag for name, ends in self._bounds.items() for flag in _are_within(tensors[name], *ends)]
        return torch.stack(flags).all()


_SINGLE = 4
"""Bytes of the widest numbers that are compared in single precision."""


def _is_plain(tensor: Any, kind: str) -> bool:
    import torch

    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.device.type == kind


def _bounds(name: str, wide: Any, rtol: float, atol: float, keep: Keep) -> tuple[Any, Any]:
    """Return the ends of what an output may be: by one number of their type nearer than rounding may have put them."""
    import torch

    allowed = (wide.abs() * (rtol * SURE)).add_(atol * SURE)
    low = torch.nextafter(wide - allowed, wide)
    high = torch.nextafter(wide + allowed, wide)
    return keep(f"the least {name}", low), keep(f"the greatest {name}", high)


def _are_within(out: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Return two flags on the device; NaN is within nothing. To join them by element loads one kernel more."""
    return (out >= low).all(), (out <= high).all()
