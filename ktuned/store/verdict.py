"""Whether a trial's new result changes who the winner is: the rule alone, without IO."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Standing:
    """A trial as the rule sees it: its row, its ground (the context's row) and its figure, ``None`` if not measured."""

    trial: int
    ground: int
    latency_us: float | None


class Verdict(Enum):
    """What happens to the winner's seat."""

    KEEP = auto()
    TAKE = auto()
    VACATE = auto()


def judge(told: Standing, seated: Standing | None) -> Verdict:
    """Decide about the seat of one (kernel, problem, device) after ``told`` got a result.

    Figures of two grounds are never compared: what is measured on today's ground replaces yesterday's winner. A
    winner that is measured again keeps its seat with the new figure, for the trials that look faster now were
    measured in a noisier hour; whoever beats the new figure from then on takes the seat.
    """
    if told.latency_us is None:
        return Verdict.VACATE if seated and seated.trial == told.trial else Verdict.KEEP
    if seated is None or seated.latency_us is None or seated.trial == told.trial or seated.ground != told.ground:
        return Verdict.TAKE
    return Verdict.TAKE if told.latency_us < seated.latency_us else Verdict.KEEP
