"""A space for one problem: its configs by index or in order, each decoded when it is asked for."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from ktuned.declaration.user_values import Site, Values, find_mapping_fault
from ktuned.model import Config, FrozenStruct, KernelFileError, Problem, Scalar, canonical, is_among, spell_values

MEMBERSHIP_BOUND = 100_000
"""Most configs of a callable that a membership test reads: 0.5 s for a simple generator."""

DUPLICATES_WATCHED = 100_000
"""Most configs of a callable that are checked for duplicates: their texts take 10 MiB."""

Where = Callable[[Any, Any], object]
"""A constraint ``(p, c)``: truthy for configs that may be tried."""


class Conditional(FrozenStruct):
    """A constraint on a knob that exists only where ``when`` holds. Elsewhere the knob keeps its first value."""

    knob: str
    first: Scalar
    when: Where

    def __call__(self, p: Any, c: Any) -> bool:
        """Return whether the knob exists, or has its first value."""
        return bool(self.when(p, c)) or c[self.knob] == self.first


class BoundSpace(ABC):
    """The configs of a space for one problem, in a fixed order.

    Walking a space raises :class:`~ktuned.model.errors.KernelFileError` when user code (``where``, a callable) raises
    or yields something that is not a config, and when no config is valid.

    ``where`` has the constraints, as they were declared.
    """

    def __init__(self, problem: Problem, where: tuple[Where, ...], site: Site) -> None:
        self.problem = dict(problem)
        self.where = where
        self._site = site

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of configs before ``where``; ``None`` for a callable."""

    @property
    def axes(self) -> Mapping[str, Sequence[Scalar]] | None:
        """The axes of which the space is the product, before ``where``; ``None`` for lists and callables."""
        return None

    @cached_property
    def problem_view(self) -> Values:
        """The problem as constraints see it."""
        return Values(self.problem, "problem key")

    @property
    def indexable(self) -> bool:
        """True if :meth:`at` works, which is when the size is known."""
        return self.size is not None

    @abstractmethod
    def at(self, index: int) -> dict[str, Scalar] | None:
        """Return the config at ``index`` (0 ≤ index < size), or ``None`` if ``where`` rejects it.

        Raises:
            TypeError: the space is not indexable.
        """

    @abstractmethod
    def walk(self) -> Iterator[dict[str, Scalar] | None]:
        """Yield all configs in order, and ``None`` for each that ``where`` rejects, so that callers can pause."""

    @abstractmethod
    def __contains__(self, config: object) -> bool: ...

    def __iter__(self) -> Iterator[dict[str, Scalar]]:
        empty = True
        for config in self.walk():
            if config is not None:
                empty = False
                yield config
        if empty:
            raise self.make_empty_error()

    def make_empty_error(self) -> KernelFileError:
        """Return the error for a space that turned out to hold no valid config for its problem."""
        return self._site.make_error(f"the space has no valid config for the problem {self.problem_view!r}")

    def view(self, config: Config) -> Values:
        """Return a config as constraints see it."""
        return Values(config, "knob")

    def accepts(self, config: Config) -> bool:
        """Return whether ``where`` admits one of the space's configs.

        Raises:
            KernelFileError: ``where`` raised, or a condition of ``when``.
        """
        if not self.where:
            return True
        view = Values(config, "knob")
        asked = self.where[0]
        try:
            for asked in self.where:
                if not asked(self.problem_view, view):
                    return False
        except Exception as error:
            name = f"when[{asked.knob!r}]" if isinstance(asked, Conditional) else "where"
            raise self._site.make_failure(f"{name}(p, c) with c = {view!r}", error) from error
        return True


class IndexedSpace(BoundSpace):
    """A bound space whose candidates can be computed from their index."""

    def __init__(
        self, candidates: AxisProduct | ConfigList, problem: Problem, where: tuple[Where, ...], site: Site
    ) -> None:
        super().__init__(problem, where, site)
        self._candidates = candidates

    @property
    def size(self) -> int:
        """Number of candidates."""
        return self._candidates.size

    @property
    def axes(self) -> Mapping[str, Sequence[Scalar]] | None:
        """The axes of a product."""
        return self._candidates.axes if isinstance(self._candidates, AxisProduct) else None

    def at(self, index: int) -> dict[str, Scalar] | None:
        """Decode the candidate at ``index``, and return it if ``where`` accepts it."""
        if not 0 <= index < self._candidates.size:
            raise IndexError(f"index {index} is not below the space's size {self._candidates.size}")
        config = self._candidates.decode(index)
        return config if self.accepts(config) else None

    def walk(self) -> Iterator[dict[str, Scalar] | None]:
        """Decode one index after the other."""
        return map(self.at, range(self.size))

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Mapping) and self._candidates.holds(config) and self.accepts(config)


class GeneratedSpace(BoundSpace):
    """A bound space that a callable yields; each walk calls it afresh."""

    def __init__(
        self, function: Callable[[Any], Iterable[Config]], problem: Problem, where: tuple[Where, ...], site: Site
    ) -> None:
        super().__init__(problem, where, site)
        self._function = function

    @property
    def size(self) -> None:
        """Unknown: a callable's configs are counted as it yields them."""
        return None

    def at(self, index: int) -> dict[str, Scalar] | None:
        """Refuse: there are no indices."""
        raise TypeError("the space of a callable cannot be indexed, only walked")

    def walk(self) -> Iterator[dict[str, Scalar] | None]:
        """Yield the configs that the space's callable yields for the bound problem, each checked."""
        seen: dict[str, int] = {}
        knobs: tuple[str, ...] = ()
        for position, config in enumerate(self._call_function()):
            what = f"config {position} of the space's callable"
            if fault := find_mapping_fault(config, what):
                raise self._site.make_error(fault)
            knobs = knobs or tuple(config)
            if set(config) != set(knobs):
                raise self._site.make_error(
                    f"{what} has the knobs {', '.join(config)}; the first had {', '.join(knobs)}"
                )
            plain = {knob: config[knob] for knob in knobs}
            text = canonical(plain)
            if text in seen:
                raise self._site.make_error(f"{what} repeats config {seen[text]}: {spell_values(plain)}")
            if len(seen) < DUPLICATES_WATCHED:
                seen[text] = position
            yield plain if self.accepts(plain) else None

    def __contains__(self, config: object) -> bool:
        if not isinstance(config, Mapping) or find_mapping_fault(config, "config"):
            return False
        wanted = canonical(config)
        walked = zip(range(MEMBERSHIP_BOUND), self.walk(), strict=False)
        return any(found is not None and canonical(found) == wanted for _, found in walked)

    def _call_function(self) -> Iterator[Config]:
        """Yield the configs of the space's callable for the bound problem; its errors name the kernel's place."""
        try:
            yield from self._function(self.problem_view)
        except Exception as error:
            raise self._site.make_failure("the space's callable", error) from error


class AxisProduct:
    """The product of axes, decoded from an index by mixed radix."""

    def __init__(self, axes: Mapping[str, Sequence[Scalar]]) -> None:
        self.axes = axes
        self.size = math.prod(len(values) for values in axes.values())

    def decode(self, index: int) -> dict[str, Scalar]:
        """Return the combination at ``index``."""
        digits: list[Scalar] = []
        for values in reversed(list(self.axes.values())):
            index, digit = divmod(index, len(values))
            digits.append(values[digit])
        return dict(zip(self.axes, reversed(digits), strict=True))

    def holds(self, config: Mapping[Any, Any]) -> bool:
        """Return whether a config is one of the combinations."""
        return config.keys() == self.axes.keys() and all(
            is_among(config[knob], values) for knob, values in self.axes.items()
        )


class ConfigList:
    """A fixed list of configs."""

    def __init__(self, configs: tuple[Config, ...]) -> None:
        self._configs = configs
        self.size = len(configs)

    def decode(self, index: int) -> dict[str, Scalar]:
        """Return the config at ``index``."""
        return dict(self._configs[index])

    def holds(self, config: Mapping[Any, Any]) -> bool:
        """Return whether a config is in the list."""
        return not find_mapping_fault(config, "config") and canonical(config) in self._texts

    @cached_property
    def _texts(self) -> frozenset[str]:
        return frozenset(map(canonical, self._configs))
