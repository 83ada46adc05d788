"""Verdicts: what a judged trial's outcome says of its config, and what the verdicts on several problems say. No IO.

A config that reached the referee has the referee's verdict in its trial's detail. All others ended before, because they
do not compile, or beside it, because the referee itself died: their verdict follows from the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from ktuned.model.trial import Judgement, JudgeVerdict, TrialResult
from ktuned.model.values import Outcome

T = TypeVar("T")

_VERDICTS: Mapping[Outcome, JudgeVerdict] = {
    Outcome.COMPILE_ERROR: JudgeVerdict.COMPILE_ERROR,
    Outcome.COMPILE_TIMEOUT: JudgeVerdict.COMPILE_ERROR,
    Outcome.MISMATCH: JudgeVerdict.WRONG,
    Outcome.LAUNCH_ERROR: JudgeVerdict.CRASHED,
    Outcome.CRASHED: JudgeVerdict.CRASHED,
    Outcome.HUNG: JudgeVerdict.HUNG,
}
"""The verdict of each outcome that says something about the config. All others say that nothing was found out."""

SEVERITY = {verdict: place for place, verdict in enumerate(JudgeVerdict)}
"""How bad a verdict is, from the best to the worst."""


def read_judgement(result: TrialResult) -> Judgement:
    """Return the judgement on a trial that has ended: the referee's, or else the one that its outcome implies.

    Only the referee can find a config right: without its judgement a measured config is refused.
    """
    judged = result.detail.judged
    if judged.verdict:
        return judged
    verdict = JudgeVerdict.REFUSED if result.outcome is None else _VERDICTS.get(result.outcome, JudgeVerdict.REFUSED)
    reason = result.message.strip().partition("\n")[0]
    return Judgement(verdict, reason or f"the trial ended as {result.outcome or 'stopped'}, and was not judged")


def find_worst(judgements: Iterable[Judgement]) -> Judgement:
    """Return the worst of some judgements, the first among equals: a config is only right if it is so for all problems.

    Without any, the config was not judged, so it is refused.
    """
    nothing = Judgement(JudgeVerdict.REFUSED, "it was judged on no problem")
    return max(judgements, key=lambda one: SEVERITY[JudgeVerdict(one.verdict)], default=nothing)


def list_distinct(groups: Iterable[Iterable[T]]) -> tuple[T, ...]:
    """Return what several problems have shown, such as the sentences of their judgements, each once, in their order."""
    return tuple(dict.fromkeys(one for group in groups for one in group))


def compute_factor(base_us: float | None, latency_us: float | None) -> float | None:
    """Return how many times as fast as its base a config is; None if either has no latency."""
    return base_us / latency_us if base_us and latency_us else None
