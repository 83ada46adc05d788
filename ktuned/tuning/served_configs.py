"""The configs that lookups get now. A job tries them first, before any other config may become the winner. No IO.

A context without a winner still answers lookups: with the winner from before an edit, the winner of a near problem, or
the declared default. The first measured config would replace that answer, although it may be much worse. So a job tries
these *served* configs first, and changes nothing until the config that lookups get has an outcome:

=======================================  ==============================================================================
its outcome                              what follows
=======================================  ==============================================================================
none yet, or one that says nothing       the job keeps waiting; ``contended``, for example, says nothing. At the job's
                                         end a config that surely beats it is served (:func:`surely_beats`)
measured, or too slow                    from now on a better config may become the winner
a failure                                lookups would get the next served config, so the job waits for that one
=======================================  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto

from ktuned.model import FAILURES, RETRIED_BY_NEXT_JOB, Config, Outcome, canonical
from ktuned.protocol import Trial
from ktuned.store import Winner


class _Standing(Enum):
    """What is known of a served config in this context."""

    UNKNOWN = auto()
    WORKS = auto()
    FAILS = auto()


def _read_standing(outcome: Outcome | None) -> _Standing:
    if outcome is None or outcome in RETRIED_BY_NEXT_JOB:
        return _Standing.UNKNOWN
    return _Standing.FAILS if outcome in FAILURES else _Standing.WORKS


class ServedConfigs:
    """The served configs of one job, and what is known of each.

    Args:
        configs: The configs, in the order of lookups, which get the first that does not fail.
        find_outcome: Returns the known outcome of a config, or ``None``.
    """

    def __init__(
        self, configs: Iterable[Config] = (), find_outcome: Callable[[Config], Outcome | None] = lambda config: None
    ) -> None:
        self.configs = tuple({canonical(config): config for config in configs}.values())
        self._standings = {canonical(config): _read_standing(find_outcome(config)) for config in self.configs}

    @property
    def awaited_config(self) -> Config | None:
        """The config that lookups get, while its outcome is unknown; otherwise ``None``."""
        for config in self.configs:
            standing = self._standings[canonical(config)]
            if standing is not _Standing.FAILS:
                return config if standing is _Standing.UNKNOWN else None
        return None

    @property
    def are_judged(self) -> bool:
        """True when another config may become the winner."""
        return self.awaited_config is None

    def record_outcome(self, config: Config, outcome: Outcome) -> bool:
        """Take note of a config's outcome; return whether it was the last one that the job waited for."""
        were_judged, text = self.are_judged, canonical(config)
        if text in self._standings:
            self._standings[text] = _read_standing(outcome)
        return not were_judged and self.are_judged


def choose_served_configs(
    incumbent: Config | None, near: Iterable[Config], default: Config | None, admits: Callable[[Config], bool]
) -> list[Config]:
    """Return the configs that lookups get while a context has no winner, in their order.

    Args:
        incumbent: The winner from before a change.
        near: The winners of near problems, the nearest first.
        default: The declared default.
        admits: Returns whether the kernel's space still holds a config.
    """
    if incumbent is not None and admits(incumbent):
        return [incumbent]
    return [config for config in (*near, default) if config is not None and admits(config)]


def surely_beats(best: Trial, disturbed: Trial | None, before: Winner | None) -> bool:
    """Return whether a measured config is faster than a served one without a figure, by more than the uncertainty.

    Args:
        best: The measured config.
        disturbed: The served config's trial in this context. Disturbance only adds time, so its fastest timing counts.
        before: The served config as the winner of an earlier context, if it has no such timing.
    """
    fastest_us = None if disturbed is None else disturbed.detail.timing.low_us
    if fastest_us is None and before is not None:
        fastest_us = before.latency_us - (before.spread_us or 0.0)
    slowest_us = best.detail.timing.high_us or (best.latency_us or 0.0) + (best.spread_us or 0.0)
    return fastest_us is not None and slowest_us < fastest_us
