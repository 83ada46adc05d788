"""The opening of a job: configs that lookups are answered with are tried before anything becomes the winner. No IO.

Even in a context without a winner, lookups are answered: with the winner of a near problem, the declared default, or
the winner from before an edit. Whichever config is measured first would replace that answer, although it may be much
worse. So the *served* configs are tried first. There is no new winner before the outcome of the config that lookups get
is known:

=======================================  ==============================================================================
its outcome                              what follows
=======================================  ==============================================================================
none yet, or one that says nothing       the opening continues; ``contended``, for example, says nothing
measured, or too slow                    the opening is over: a better config may become the winner
a failure                                lookups would get the next served config, so the opening waits for that one
=======================================  ==============================================================================
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
    """The served configs, in the order in which lookups would get them, and whether each is known here.

    Args:
        served: The configs; lookups get the first that does not fail.
        outcome: Returns the known outcome of a config, or ``None``.
    """

    def __init__(self, served: Iterable[Config], outcome: Callable[[Config], Outcome | None] = lambda config: None):
        self.served = tuple({canonical(config): config for config in served}.values())
        self._fates = {canonical(config): _judge_fate(outcome(config)) for config in self.served}

    @property
    def awaited_config(self) -> Config | None:
        """The served config whose outcome the opening waits for; ``None`` when it is over."""
        for config in self.served:
            fate = self._fates[canonical(config)]
            if fate is not _Fate.FAILED:
                return config if fate is _Fate.OPEN else None
        return None

    @property
    def is_over(self) -> bool:
        """True when a measured config may become the winner."""
        return self.awaited_config is None

    def record_outcome(self, config: Config, outcome: Outcome) -> bool:
        """Take note of a config's outcome; return whether that ended the opening."""
        was_open, text = not self.is_over, canonical(config)
        if text in self._fates:
            self._fates[text] = _judge_fate(outcome)
        return was_open and self.is_over


def choose_served_configs(
    incumbent: Config | None, near: Iterable[Config], default: Config | None, admits: Callable[[Config], bool]
) -> list[Config]:
    """Return the configs that lookups are answered with while a context has no winner, in order.

    ``incumbent`` is the winner from before a change; ``near`` are the winners of near problems, the nearest first.
    """
    if incumbent is not None and admits(incumbent):
        return [incumbent]
    return [config for config in (*near, default) if config is not None and admits(config)]
