"""The interface of strategies, and the lookup of a strategy by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from ktuned.declaration import BoundSpace
from ktuned.dependencies import ACCESSES
from ktuned.model import Config, FrozenStruct, Outcome, Scalar, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "ktuned.strategies"

ASK_S = 0.5
"""Time limit for one ``ask`` of a walk, so that a ``where`` that rejects everything never blocks a worker."""


class Count(FrozenStruct):
    """A number of configs: exact, or an estimate."""

    number: int
    is_exact: bool = True


class Strategy(ABC):
    """Chooses configs of one space, each at most once. The caller asks, tries and reports, in any interleaving."""

    def __init__(self, space: BoundSpace, seed: int) -> None:
        self.space = space
        self.seed = seed

    @abstractmethod
    def ask(self, n: int) -> list[dict[str, Scalar]]:
        """Return at most ``n`` new valid configs; fewer or none if the strategy needs outcomes or more time first.

        Raises:
            KernelFileError: The space's user code is at fault, or the space turned out to have no valid config.
        """

    @abstractmethod
    def tell(self, config: Config, outcome: Outcome, latency_us: float | None) -> None:
        """Record the outcome of a config; ``latency_us`` is its median in µs if it was measured.

        If configs are judged by another objective, ``latency_us`` is the config's cost by that objective instead:
        positive, and less is better.
        """

    def doubt(self, config: Config, share: float) -> None:  # noqa: B027 - a strategy may ignore it
        """Record the uncertainty of the latency reported next: half of its 95 % interval, as a share of the latency.

        It may be large for slow configs, because they are sampled only until it is clear that they cannot win.
        """

    @property
    def valid(self) -> Count | None:
        """The number of valid configs, if the strategy had to count or estimate it; ``None`` by default."""
        return None

    @property
    def learns(self) -> bool:
        """True, the default, if proposals depend on outcomes; otherwise configs are asked for far ahead of outcomes."""
        return True

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True if ``ask`` will never return a config again."""

    @property
    def converged(self) -> bool:
        """True if a config more than 1 % faster than the best is unlikely to be found; by default never."""
        return False


class Walk(Strategy):
    """A strategy that walks its candidates in a fixed order and learns nothing."""

    def __init__(self, space: BoundSpace, seed: int) -> None:
        super().__init__(space, seed)
        self._candidates = self.walk_candidates()
        self._found_any = False
        self._finished = False

    @abstractmethod
    def walk_candidates(self) -> Iterator[dict[str, Scalar] | None]:
        """Yield every candidate once, with ``None`` for the rejected ones."""

    def ask(self, n: int) -> list[dict[str, Scalar]]:
        """Return the next ``n`` valid configs, or those that are found within :data:`ASK_S`."""
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
        """Ignore the outcome."""

    @property
    def learns(self) -> bool:
        """False: the order is fixed."""
        return False

    @property
    def finished(self) -> bool:
        """True if every candidate has been checked."""
        return self._finished


def installed_strategies() -> list[str]:
    """Return the names of the installed strategies, with ``auto``, which chooses among them."""
    from importlib.metadata import entry_points

    with ACCESSES.pause_recording():
        return sorted({"auto", *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def load_strategy(name: str, points: Sequence[EntryPoint] | None = None) -> type[Strategy]:
    """Import the strategy called ``name`` (``points`` replaces the installed entry points).

    Raises:
        UsageError: There is no such strategy, it cannot be imported, or it is not a :class:`Strategy`.
    """
    from importlib.metadata import entry_points

    with ACCESSES.pause_recording():
        known = entry_points(group=ENTRY_POINT_GROUP) if points is None else points
    # Another distribution's strategy must not replace one of ktuned's own.
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
    """Return an error of foreign code in one line; even its ``str`` may raise."""
    try:
        words = str(error)
    except Exception:
        words = ""
    return " ".join(f"{type(error).__name__}: {words}".split())
