"""A single look at all tensors of a problem on a GPU after a launch, which says whether everything is surely right.

Each wait for a GPU costs as much as comparing millions of elements there. So all comparisons are made on the device,
and one short vector of flags comes back. The outputs are compared with bounds that lie inside the tolerance by more
than the rounding error. Outputs outside these bounds may still be right, and are then checked tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ktuned.checking.verdict import MOST_ATOL, SURE_SHARE

if TYPE_CHECKING:
    import torch

MOST_BYTES = 1 << 28
"""Most memory for the bounds of all outputs. Comparing larger outputs takes longer than the wait that this saves."""

Keep = Callable[[str, Any], Any]
"""Takes a name and a tensor, and returns a copy of it that no launch may change."""


class QuickLook:
    """The least and the greatest value that each element of a problem's outputs may have, kept on the device."""

    def __init__(self, bounds: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._bounds = bounds

    @classmethod
    def from_expected(
        cls,
        kind: str,
        tensors: Mapping[str, Any],
        expected: Mapping[str, Any],
        *,
        rtol: float,
        atol: float,
        keep: Keep,
    ) -> QuickLook | None:
        """Return the bounds around the expected outputs, or ``None`` if such a look is impossible or not worth it.

        It needs strided tensors of torch on one device of this ``kind``, and floating-point outputs that are not too
        large. The bounds are handed to ``keep``, which protects them.
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
            bounds[name] = _make_bounds(name, wide, rtol, atol, keep)
        return cls(bounds)

    def are_outputs_right(
        self, tensors: Mapping[str, Any], unchanged: Sequence[tuple[Any, Any]] = (), intact: Any = None
    ) -> bool:
        """Return whether the outputs are within their bounds, and nothing else has changed.

        Args:
            tensors: the outputs, by name.
            unchanged: pairs of tensors that must hold equal bits.
            intact: a flag on the device that must be true, if given.
        """
        import torch

        from ktuned.declaration import view_as_bits

        # All flags are made before the only wait for the device.
        flags = self._make_output_flags(tensors)
        flags += [(view_as_bits(one) == view_as_bits(other)).all() for one, other in unchanged]
        flags += [] if intact is None else [intact]
        return all(torch.stack(flags).tolist())

    def make_right_flag(self, tensors: Mapping[str, Any]) -> Any:
        """Return a flag on the device that is true if the outputs are within their bounds, without waiting for it."""
        import torch

        return torch.stack(self._make_output_flags(tensors)).all()

    def _make_output_flags(self, tensors: Mapping[str, Any]) -> list[Any]:
        """Return flags on the device, one for each bound of each output; NaN is within no bounds.

        They are not joined here, because that would load one more GPU kernel.
        """
        return [
            flag
            for name, (low, high) in self._bounds.items()
            for flag in ((tensors[name] >= low).all(), (tensors[name] <= high).all())
        ]


_SINGLE = 4
"""Widest numbers, in bytes, that are compared in single precision."""


def _is_plain(tensor: Any, kind: str) -> bool:
    import torch

    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.device.type == kind


def _make_bounds(name: str, wide: Any, rtol: float, atol: float, keep: Keep) -> tuple[Any, Any]:
    """Return the least and the greatest allowed value of each element.

    Each bound is moved by one representable number towards the reference, in case rounding has moved it outwards.
    """
    import torch

    allowed = (wide.abs() * (rtol * SURE_SHARE)).add_(atol * SURE_SHARE)
    low = torch.nextafter(wide - allowed, wide)
    high = torch.nextafter(wide + allowed, wide)
    return keep(f"the least {name}", low), keep(f"the greatest {name}", high)
