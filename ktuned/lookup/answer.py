"""The result of a lookup: the answer that is sent, and facts about it that only the daemon uses."""

from __future__ import annotations

from time import time

import msgspec

from ktuned.model import Config, KernelInfo, Objective, Problem, WinnerKey
from ktuned.protocol import Answer
from ktuned.store import Context


class WantedTuning(msgspec.Struct, frozen=True):
    """The tuning of a problem in a context, which would improve an answer."""

    kernel: KernelInfo
    problem: Problem
    context: Context
    objective: Objective

    @property
    def key(self) -> WinnerKey:
        """The key whose winner is wanted."""
        return self.context.key_for(self.objective)

    @property
    def kernel_state(self) -> tuple[Context, str]:
        """The state of the kernel that would be tuned."""
        return self.context, self.kernel.plan_digest


class Lookup(msgspec.Struct, frozen=True):
    """A lookup's answer, with facts that are not sent. The facts say which work would improve the answer.

    Attributes:
        answer: the answer that is sent.
        is_certain: if not, there may be a better answer in a moment.
        undecided: configs that may be served instead once a worker has found that the space has them.
        failure: why no tuning is wanted, if it would fail again; the answer's ``message`` may give another reason.
        tuning: the tuning that would improve the answer.
    """

    answer: Answer
    is_certain: bool = True
    undecided: tuple[Config, ...] = ()
    failure: str = ""
    tuning: WantedTuning | None = None


def compute_age(decided: float | None) -> float | None:
    """Return the seconds since a Unix time, rounded to milliseconds; None stays."""
    return None if decided is None else round(max(0.0, time() - decided), 3)
