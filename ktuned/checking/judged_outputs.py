"""The outputs of a launch that was judged right, with which the outputs of the timed launches are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from ktuned.checking.problem_data import ProblemData
from ktuned.checking.verdict import Verdict


class JudgedOutputs:
    """The outputs of the last launch, and those of the timed launches, which are compared with them.

    The outputs exist in several *sets*: set 0 is the problem's own tensors, the others are copies for launches that are
    timed together. In dtypes whose poison is an ordinary number, launches alternate between two poisons: an unwritten
    element may have the right value under one of them, but not under the other.

    Args:
        data: the problem's data.
        is_judged: whether the launch was judged right; otherwise nothing is compared.
        arithmetic: enters the floating-point state in which outputs are judged.

    Attributes:
        is_comparable: whether there are outputs that were judged right.
        has_differed: whether a launch left other bits that are right, too. From then on, bits are not compared.
    """

    def __init__(
        self,
        data: ProblemData,
        *,
        is_judged: bool,
        arithmetic: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.is_comparable = is_judged
        self._data = data
        self._library = data.library
        self._arithmetic = arithmetic
        self._launches = 0
        self._poison_calls: list[list[tuple[Callable[[int], object], tuple[int, int]]]] = []
        self._right_bits = [
            self._library.clone_tensor(view)
            for name in (data.roles.outputs if is_judged else ())
            for view, _ in self._library.view_bits(data.tensors[name])
        ]
        self._has_one_answer = True
        self.has_differed = False
        # If the quick look was not sure about the first launch, it will not be about later ones.
        self._quick_look = data.quick_look if data.was_surely_right else None

    @property
    def poisons(self) -> bool:
        """True if there are outputs to poison."""
        return bool(self._data.roles.poisoned)

    @property
    def copies(self) -> int:
        """Number of sets, the problem's own included."""
        return 1 + self._data.copies

    @property
    def is_flag_certain(self) -> bool:
        """True if an unset flag means wrong outputs, and not just other bits."""
        return self._quick_look is not None

    def poison_output_sets(self, count: int) -> None:
        """Poison the outputs of the first ``count`` sets, with the other poison than last time."""
        self._launches += 1
        turn = self._launches % 2
        while len(self._poison_calls) < min(count, self.copies):
            tensors = self._find_output_set(len(self._poison_calls))
            views = [one for name in self._data.roles.poisoned for one in self._library.view_bits(tensors[name])]
            self._poison_calls.append([(getattr(view, "fill_", None) or view.fill, poisons) for view, poisons in views])
        for fills in self._poison_calls[:count]:
            for fill, poisons in fills:
                fill(poisons[turn])

    def judge_output_set(self, place: int) -> Verdict:
        """Judge the outputs of a set: by their bits if that is enough, else as the first launch was judged."""
        tensors = self._find_output_set(place)
        if self._has_one_answer and self._has_same_bits(tensors):
            return Verdict(ok=True)
        verdict = Verdict(ok=True)
        if self._quick_look is None or not self._quick_look.are_outputs_right(tensors):
            with self._arithmetic():
                verdict = self._data.check_outputs(tensors)
        self.has_differed |= verdict.ok
        return verdict

    def make_right_flag(self, place: int) -> Any:
        """Return a flag on the device that is true if a set's outputs are right; ``None`` if only judging can tell."""
        tensors = self._find_output_set(place)
        if self._quick_look is not None:
            return self._quick_look.make_right_flag(tensors)
        if not self._has_one_answer or not self._right_bits:
            return None
        import torch

        return torch.stack([(view == right).all() for view, right in self._pair_views(tensors)]).all()

    def read_flags(self, flags: Iterable[Any]) -> list[bool]:
        """Read flags from the device, with one wait for all."""
        import torch

        found: list[bool] = torch.stack(list(flags)).tolist()
        return found

    def accept_other_bits(self) -> None:
        """Stop comparing bits: this config's right outputs differ from launch to launch."""
        self._has_one_answer = False
        self.has_differed = True

    def _find_output_set(self, place: int) -> Mapping[str, Any]:
        return self._data.provide_output_copy(place) if place else self._data.tensors

    def _pair_views(self, tensors: Mapping[str, Any]) -> Iterable[tuple[Any, Any]]:
        views = [view for name in self._data.roles.outputs for view, _ in self._library.view_bits(tensors[name])]
        return zip(views, self._right_bits, strict=True)

    def _has_same_bits(self, tensors: Mapping[str, Any]) -> bool:
        try:
            return all(self._library.are_equal_bits(view, right) for view, right in self._pair_views(tensors))
        except (RuntimeError, ValueError):
            # The launch has resized an output, so the views do not match.
            return False
