"""Rows of a batch-invariant kernel: the same ones under every problem of its group.

All problems of a group get the inputs of the largest one, narrowed along each dimension that goes with the batch. What
a smaller problem's outputs hold are then the same rows as the first ones of the largest problem's outputs, and are
digested alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ktuned.model import Problem, canonical
from ktuned.worker.tensor_library import library_of

if TYPE_CHECKING:
    from ktuned.spec import Kernel as DeclaredKernel

Shape = tuple[int, ...]


class BatchRows:
    """A problem's place in its group: the ``largest`` problem, the problem's ``own`` inputs as they are declared, and
    the shapes of the outputs under each ``smaller`` problem, by its canonical text, where this one is the largest.
    """

    def __init__(self, kernel: DeclaredKernel, problem: Problem, group: Sequence[Problem]) -> None:
        self.largest = group[-1]
        self.own = kernel.evaluate_inputs(problem)
        self.smaller: dict[str, dict[str, Shape]] = {}
        self._kernel = kernel
        self._is_smaller = canonical(problem) != canonical(self.largest)
        if not self._is_smaller:
            for other in group[:-1]:
                found = kernel.evaluate_inputs(other)
                self._check(found, self.own)
                outputs = {name: entry for name, entry in found.items() if getattr(entry, "output", False)}
                self.smaller[canonical(other)] = {name: _shape(entry) for name, entry in outputs.items()}

    def check_own(self, of_largest: Mapping[str, Any]) -> None:
        """Check that the largest problem's inputs can be narrowed to this one's.

        Raises:
            KernelFileError: a tensor does not fit into that of the largest problem, or an output has no batch.
        """
        if self._is_smaller:
            self._check(self.own, of_largest)

    def narrow_input(self, name: str, tensor: Any) -> Any:
        """Return the part of the largest problem's tensor that this problem has."""
        shape = _shape(self.own[name])
        return tensor if _shape(tensor) == shape else narrow(tensor, shape)

    def _check(self, found: Mapping[str, Any], of_largest: Mapping[str, Any]) -> None:
        for name, entry in of_largest.items():
            if name not in found:
                raise self._kernel.site.make_error(
                    f"batch_invariant: inputs(p) makes {name} for the largest problem alone"
                )
            small, large = _shape(found[name]), _shape(entry)
            if len(small) != len(large) or any(size > most for size, most in zip(small, large, strict=True)):
                raise self._kernel.site.make_error(
                    f"batch_invariant: {name} of {small} is no part of that of {large}, which the largest problem has"
                )
            if getattr(entry, "output", False) and small == large:
                raise self._kernel.site.make_error(
                    f"batch_invariant: the output {name} of {small} has no dimension that goes with "
                    f"{', '.join(self._kernel.batch_invariant)}"
                )


def narrow(tensor: Any, shape: Iterable[int]) -> Any:
    """Return a contiguous copy of the first elements of a tensor along each dimension."""
    part = tensor[tuple(slice(0, size) for size in shape)]
    return library_of(tensor).make_contiguous(part)


def _shape(entry: Any) -> Shape:
    return tuple(entry.shape)
