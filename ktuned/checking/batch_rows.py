"""Rows of a batch-invariant kernel: each row's bits must not depend on how many other rows are in the batch.

To compare rows across problems, the problems of a group get the same inputs: those of the largest one, narrowed along
each dimension that grows with the batch. A smaller problem's outputs must then have the same bits as the first rows of
the largest problem's outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ktuned.checking.tensor_library import find_library
from ktuned.model import Problem, canonical

if TYPE_CHECKING:
    from ktuned.spec import Kernel as DeclaredKernel

Shape = tuple[int, ...]


class BatchRows:
    """One problem within its group.

    Attributes:
        largest: the largest problem of the group.
        smaller: the shapes of the outputs under each smaller problem, by that problem's canonical text; empty unless
            this problem is the largest.
    """

    def __init__(self, kernel: DeclaredKernel, problem: Problem, group: Sequence[Problem]) -> None:
        self.largest = group[-1]
        self._declared = kernel.evaluate_inputs(problem)
        self.smaller: dict[str, dict[str, Shape]] = {}
        self._kernel = kernel
        self._is_smaller = canonical(problem) != canonical(self.largest)
        if not self._is_smaller:
            for smaller_problem in group[:-1]:
                declared = kernel.evaluate_inputs(smaller_problem)
                self._check_narrowing(declared, self._declared)
                outputs = {name: entry for name, entry in declared.items() if getattr(entry, "output", False)}
                self.smaller[canonical(smaller_problem)] = {name: _read_shape(entry) for name, entry in outputs.items()}

    def check_declared_shapes(self, of_largest: Mapping[str, Any]) -> None:
        """Check that the largest problem's inputs can be narrowed to this one's.

        Raises:
            KernelFileError: a tensor does not fit into that of the largest problem, or an output does not grow with
                the batch.
        """
        if self._is_smaller:
            self._check_narrowing(self._declared, of_largest)

    def narrow_input(self, name: str, tensor: Any) -> Any:
        """Return this problem's part of the largest problem's tensor."""
        shape = _read_shape(self._declared[name])
        return tensor if _read_shape(tensor) == shape else narrow_tensor(tensor, shape)

    def _check_narrowing(self, found: Mapping[str, Any], of_largest: Mapping[str, Any]) -> None:
        for name, entry in of_largest.items():
            if name not in found:
                raise self._kernel.site.make_error(
                    f"batch_invariant: inputs(p) makes {name} for the largest problem alone"
                )
            small, large = _read_shape(found[name]), _read_shape(entry)
            if len(small) != len(large) or any(size > most for size, most in zip(small, large, strict=True)):
                raise self._kernel.site.make_error(
                    f"batch_invariant: {name} of shape {small} does not fit into that of the largest problem, {large}"
                )
            if getattr(entry, "output", False) and small == large:
                raise self._kernel.site.make_error(
                    f"batch_invariant: the output {name} of shape {small} has no dimension that grows with "
                    f"{', '.join(self._kernel.batch_invariant)}"
                )


def narrow_tensor(tensor: Any, shape: Iterable[int]) -> Any:
    """Return a contiguous copy of a tensor's first elements along each dimension, as ``shape`` counts them."""
    part = tensor[tuple(slice(0, size) for size in shape)]
    return find_library(tensor).make_contiguous(part)


def _read_shape(entry: Any) -> Shape:
    return tuple(entry.shape)
