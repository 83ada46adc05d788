"""Chooses the strategy for a job: the named one, or for ``auto`` one that suits the space and the budget.

Every strategy is supervised here: if a third party's strategy fails or breaks its promises, its job ends with one line
that names the strategy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import islice

from ktuned.declaration import BoundSpace
from ktuned.dependencies import ACCESSES
from ktuned.model import (
    Config,
    KernelFileError,
    KtunedError,
    Outcome,
    Plan,
    Scalar,
    UsageError,
    canonical,
    spell_values,
)
from ktuned.search.strategy import Count, Strategy, describe_error, load_strategy

AUTO = "auto"

COUNTED = 20_000
"""A space of at most this many candidates is walked to find out whether the budget covers it."""

WHOLE = 40
"""A space of at most this many configs is tried completely, even by a job that ends once it has converged."""

MAX_REMEMBERED = 1_000_000
"""Most configs that are remembered to notice repetitions: as many as a job may try. They take 200 MiB in the end."""


class StrategyFault(UsageError):
    """A strategy broke its promises; the message names the strategy."""

    code = "strategy_fault"


def choose_strategy(space: BoundSpace, plan: Plan) -> SupervisedStrategy:
    """Return the strategy that a plan names for a space, supervised.

    ``auto`` is exhaustive if the budget covers the space, otherwise guided, or random if there is no NumPy.

    Raises:
        UsageError: There is no such strategy, or it cannot be imported.
        StrategyFault: The strategy cannot be started.
        KernelFileError: The space's own code is at fault.
    """
    name, notice = _choose_automatically(space, plan) if plan.strategy == AUTO else (plan.strategy, "")
    return SupervisedStrategy(name, load_strategy(name), space, plan.seed, notice)


def _choose_automatically(space: BoundSpace, plan: Plan) -> tuple[str, str]:
    whole = min(plan.trials, WHOLE) if plan.until == "converged" else plan.trials
    if plan.time_limit_s is None and _is_covered(space, whole):
        return "exhaustive", ""
    if not _has_numpy():
        return "random", "guided search needs NumPy, which cannot be imported here: searching at random instead"
    return "guided", ""


@cache
def _has_numpy() -> bool:
    """Return whether NumPy can be imported here; it may be installed and still fail."""
    try:
        # Not recorded as an import of the kernel's: NumPy is for ktuned's own arithmetic here.
        with ACCESSES.pause_recording():
            import numpy  # noqa: F401
    except Exception:
        return False
    return True


def _is_covered(space: BoundSpace, trials: int) -> bool:
    """Return whether this many trials are enough for all configs of a space."""
    size = space.size
    if size is not None and size <= trials:
        return True
    if size is None or size > COUNTED or not space.where:
        return False
    valid = 0
    for config in space.walk():
        valid += config is not None
        if valid > trials:
            return False
    return True


class SupervisedStrategy(Strategy):
    """Passes on a strategy's proposals, after checking that they are new and valid.

    Attributes:
        name: The strategy's name.
        notice: A remark for the user about the choice, if there is one.
    """

    def __init__(self, name: str, kind: type[Strategy], space: BoundSpace, seed: int, notice: str = "") -> None:
        super().__init__(space, seed)
        self.name = name
        self.notice = notice
        self._proposed: set[str] = set()
        with self._blame_strategy("starts"):
            self._strategy = kind(space, seed)

    def ask(self, n: int) -> list[dict[str, Scalar]]:
        """Return new, valid configs from the strategy.

        Raises:
            StrategyFault: The strategy raised, or proposed a config that is repeated or not in the space.
        """
        with self._blame_strategy("chooses"):
            # The strategy may return an endless iterator.
            configs = list(islice(self._strategy.ask(n), n + 1))
        if len(configs) > n:
            raise self._strategy_fault(f"proposed more configs than the {n} that it was asked for")
        for config in configs:
            self._check_proposal(config)
        return configs

    def tell(self, config: Config, outcome: Outcome, latency_us: float | None) -> None:
        """Pass an outcome on.

        Raises:
            StrategyFault: The strategy raised. The other methods raise this, too.
        """
        with self._blame_strategy("records an outcome"):
            self._strategy.tell(config, outcome, latency_us)

    def doubt(self, config: Config, share: float) -> None:
        """Pass a latency's uncertainty on."""
        with self._blame_strategy("records an outcome"):
            self._strategy.doubt(config, share)

    @property
    def valid(self) -> Count | None:
        """The strategy's count."""
        with self._blame_strategy("counts the space"):
            found = self._strategy.valid
        if not isinstance(found, Count | None):
            raise self._strategy_fault(f"counts the space as {found!r}, which is neither a Count nor None")
        return found

    @property
    def learns(self) -> bool:
        """True if the strategy learns."""
        with self._blame_strategy("says if it learns"):
            return bool(self._strategy.learns)

    @property
    def finished(self) -> bool:
        """True if the strategy is finished."""
        with self._blame_strategy("says if it is finished"):
            return bool(self._strategy.finished)

    @property
    def converged(self) -> bool:
        """True if the strategy has converged."""
        with self._blame_strategy("says if it has converged"):
            return bool(self._strategy.converged)

    @contextmanager
    def _blame_strategy(self, when: str) -> Iterator[None]:
        """Turn any exception of the strategy, also an attempt to exit, into one line that names the strategy."""
        try:
            yield
        except KtunedError:
            raise
        except (Exception, SystemExit) as error:
            raise self._strategy_fault(f"failed as it {when}: {describe_error(error)}") from error

    def _check_proposal(self, config: Config) -> None:
        try:
            text = canonical(config) if _is_mapping(config) else ""
            # A callable's space would be walked for each question. Strategies only propose what it has yielded.
            is_held = not self.space.indexable or config in self.space
        except KernelFileError:
            raise
        except Exception as error:
            raise self._strategy_fault(f"proposed something that is not a config: {describe_error(error)}") from error
        if not text:
            raise self._strategy_fault(f"proposed {config!r:.100}, which is not a config")
        if not is_held:
            raise self._strategy_fault(f"proposed a config that is not in the space: {spell_values(config)}")
        if text in self._proposed:
            raise self._strategy_fault(f"proposed a config twice: {spell_values(config)}")
        if len(self._proposed) < MAX_REMEMBERED:
            self._proposed.add(text)

    def _strategy_fault(self, words: str) -> StrategyFault:
        return StrategyFault(f"the strategy {self.name!r} {words}", hint='name another one, such as strategy="auto"')


def _is_mapping(proposed: object) -> bool:
    return isinstance(proposed, Mapping)
