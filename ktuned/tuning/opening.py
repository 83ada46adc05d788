"""Opening of a job: the configs that lookups were answered with so far are tried before anything becomes the winner.

Otherwise the first measured config, whichever it is, would take the place of a better answer: the winner of a near
problem, the declared default, the winner from before an edit. Decides; no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto

from ktuned.model import FAILURES, RETRIED_BY_NEXT_JOB, Config, Outcome, canonical


class _Fate(Enum):
    """The meaning of an outcome for a config that is served."""

    OPEN = auto()
    KNOWN = auto()
    FAILED = auto()


def _judge_fate(outcome: Outcome | None) -> _Fate:
    if outcome is None or outcome in RETRIED_BY_NEXT_JOB:
        return _Fate.OPEN
    return _Fate.FAILED if outcome in FAILURES else _Fate.KNOWN


class Opening:
    """The configs that are served, the first one first, and their outcomes here; the next is served if one fails.

    It is over once the first that has not failed is known to be as fast as it is, or too slow, or all have failed. An
    outcome that says nothing of the config, as ``contended``, ends nothing.
    """

    def __init__(self, served: Iterable[Config], outcome: Callable[[Config], Outcome | None] = lambda config: None):
        self.served = tuple({canonical(config): config for config in served}.values())
        self._fates = {canonical(config): _judge_fate(outcome(config)) for config in self.served}

    @property
    def awaited_config(self) -> Config | None:
        """The served config whose outcome decides whether it gives way; ``None`` when the opening is over."""
        for config in self.served:
            fate = self._fates[canonical(config)]
            if fate is not _Fate.FAILED:
                return config if fate is _Fate.OPEN else None
        return None

    @property
    def is_over(self) -> bool:
        """True when something better than what is served may become the winner."""
        return self.awaited_config is None

    def record_outcome(self, config: Config, outcome: Outcome) -> bool:
        """Note a config's outcome; return whether that was the one that the opening waited for."""
        was_open, text = not self.is_over, canonical(config)
        if text in self._fates:
            self._fates[text] = _judge_fate(outcome)
        return was_open and self.is_over


def choose_served_configs(
    incumbent: Config | None, near: Iterable[Config], default: Config | None, admits: Callable[[Config], bool]
) -> list[Config]:
    """Return the configs that lookups are answered with while a context has no winner.

    ``incumbent`` is the winner from before a change, ``near`` are those of near problems, the nearest first: the next
    one is served where one fails.
    """
    if incumbent is not None and admits(incumbent):
        return [incumbent]
    return [config for config in (*near, default) if config is not None and admits(config)]
