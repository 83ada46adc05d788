"""The interface of strategies, and how one is found by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from ktuned.model import Config, EarlierSearch, Outcome, Record, Scalar, UsageError, record
from ktuned.spec import BoundSpace

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "ktuned.strategies"

ASK_S = 0.5
"""Limit of one ``ask`` over candidates that are slow to find: a ``where`` that rejects all never blocks a worker."""


@record
class Count(Record):
    """A number of configs; an estimate where it is not exact."""

    number: int
    is_exact: bool = True


class Strategy(ABC):
    """Chooses configs of one space, each at most once. The caller asks, tries and reports, in any interleaving."""

    def __init__(self, space: BoundSpace, seed: int) -> None:
        self.space = space
        self.seed = seed

    @abstractmethod
    def ask(self, n: int) -> list[dict[str, Scalar]]:
        """Return at most ``n`` new valid configs; fewer or none while it waits for ``tell`` or still searches.

        Raises:
            KernelFileError: the space's user code is at fault, or the space turned out to have no valid config.
        """

    @abstractmethod
    def tell(self, config: Config, outcome: Outcome, latency_us: float | None) -> None:
        """Record the outcome of a config; ``latency_us`` is the median in µs if it was measured.

        Where configs are judged by another objective it is their cost by that: less is better, and it is positive.
        """

    def doubt(self, config: Config, share: float) -> None:  # noqa: B027 - a strategy may ignore it
        """Record how well the next reported latency is known: half of its 95 % interval as a share of it.

        A config that cannot win is sampled no further than that takes.
        """

    def recall(self, earlier: Sequence[EarlierSearch]) -> None:  # noqa: B027 - a strategy may ignore it
        """Learn from similar searches, the most similar first; called at most once, before the first ``ask``.

        Their best configs are tried first in any case. Some of their configs may be outside this space.
        """

    @property
    def valid(self) -> Count | None:
        """The number of valid configs, if the strategy had to count or estimate it; ``None`` by default."""
        return None

    @property
    def learns(self) -> bool:
        """True if what it proposes depends on outcomes, as by default; else it is asked far ahead of them."""
        return True

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True if ``ask`` will never return a config again."""

    @property
    def converged(self) -> bool:
        """True if a config that is more than 1 % faster than the best is unlikely to be found; never, by default."""
        return False


class Walk(Strategy):
    """A strategy that walks its candidates in an order fixed beforehand and learns nothing on the way."""

    def __init__(self, space: BoundSpace, seed: int) -> None:
        super().__init__(space, seed)
        self._candidates = self.walk_candidates()
        self._found_any = False
        self._finished = False

    @abstractmethod
    def walk_candidates(self) -> Iterator[dict[str, Scalar] | None]:
        """Yield every candidate once, with ``None`` for the rejected ones."""

    def ask(self, n: int) -> list[dict[str, Scalar]]:
        """Return the next valid configs, as many as are found in :data:`ASK_S`."""
        configs: list[dict[str, Scalar]] = []
        deadline = monotonic() + ASK_S
        while len(configs) < n and not self._finished and monotonic() < deadline:
            try:
                candidate = next(self._candidates)
            except StopIteration:
                self._finished = True
                if not self._found_any:
                    raise self.space.make_empty_error() from None
                break
            if candidate is not None:
                self._found_any = True
                configs.append(candidate)
        return configs

    def tell(self, config: Config, outcome: Outcome, latency_us: float | None) -> None:
        """Ignore what became of a config."""

    @property
    def learns(self) -> bool:
        """False: the order is fixed."""
        return False

    @property
    def finished(self) -> bool:
        """True if every candidate has been looked at."""
        return self._finished


def installed_strategies() -> list[str]:
    """Return the names of the installed strategies, with ``auto``, which chooses among them."""
    from importlib.metadata import entry_points

    return sorted({"auto", *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def load_strategy(name: str, points: Sequence[EntryPoint] | None = None) -> type[Strategy]:
    """Import the strategy called ``name`` (``points`` replaces the installed entry points).

    Raises:
        UsageError: no such strategy, it cannot be imported, or it is not a :class:`Strategy`.
    """
    from importlib.metadata import entry_points

    known = entry_points(group=ENTRY_POINT_GROUP) if points is None else points
    # Another distribution's strategy does not take the place of one of ktuned's.
    found = {point.name: point for point in sorted(known, key=lambda point: point.value.startswith("ktuned."))}
    if name not in found:
        installed = ", ".join(sorted({*found, "auto"}))
        raise UsageError(f"there is no strategy {name!r} (installed: {installed})", hint="name one that is installed")
    try:
        strategy = found[name].load()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"the strategy {name!r} cannot be imported: {describe_error(error)}",
            hint="reinstall its distribution into this interpreter",
        ) from error
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise UsageError(f"the entry point of strategy {name!r} is not a subclass of ktuned.search.Strategy")
    return strategy


def describe_error(error: BaseException) -> str:
    """Return an error of another's code in one line; its own words may fail."""
    try:
        words = str(error)
    except Exception:
        words = ""
    return " ".join(f"{type(error).__name__}: {words}".split())
