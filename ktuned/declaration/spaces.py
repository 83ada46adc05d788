"""The configs of a kernel: axes with constraints, a fixed list, or a callable. Never materialised.

A space is declared once (:func:`space`) and bound to each problem (:meth:`Space.bind`), because constraints and
callables look at the problem. Bound spaces of axes or lists can be indexed; those of callables can only be walked.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from msgspec.structs import replace

from ktuned.declaration.bound_space import (
    AxisProduct,
    BoundSpace,
    Conditional,
    ConfigList,
    GeneratedSpace,
    IndexedSpace,
    Where,
)
from ktuned.declaration.constraint_syntax import write_constraint
from ktuned.declaration.user_values import Site, find_key_fault, find_mapping_fault, find_scalar_fault
from ktuned.model import Config, Expression, Problem, Scalar, SpaceInfo, UsageError, canonical, listed, spell_values

NOWHERE = Site()

MAX_PLAIN_VALUES = 1000
"""Most axis values or configs that :meth:`Space.describe_space` spells out, for people and for messages."""

MAX_PLAIN_CHARS = 8_000
"""Most characters of constraints as texts: the daemon evaluates them during lookups, which must be fast."""

LARGEST_PLAIN_SIZE = 2**63 - 1
"""MessagePack and SQLite carry no larger integer."""


def make_plain_size(size: int | None) -> int | None:
    """Return a space's size as messages and the store carry it: ``None`` also for a size that is too large for them."""
    return None if size is None or size > LARGEST_PLAIN_SIZE else size


@dataclass(frozen=True)
class Space(ABC):
    """A declared space, not yet bound to a problem.

    ``fault`` is the error in the declaration, or empty. It is raised when the space is given to a kernel, or by
    :meth:`bind`, because only then the kernel and the file are known that the error must name.
    """

    where: tuple[Where, ...]
    fault: str

    @property
    @abstractmethod
    def knobs(self) -> tuple[str, ...] | None:
        """The names of the knobs, in order; ``None`` for a callable."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of configs before ``where``; ``None`` for a callable."""

    def bind(self, problem: Problem, site: Site = NOWHERE) -> BoundSpace:
        """Return the space for one problem; errors name ``site``.

        Raises:
            KernelFileError: the declaration has a fault.
        """
        if self.fault:
            raise site.make_error(self.fault)
        return self._bind(problem, site)

    def describe_space(self) -> SpaceInfo:
        """Return the declaration as data, without user code, and with up to :data:`MAX_PLAIN_VALUES` values."""
        texts = [write_constraint(where, self.knobs or ()) for where in self.where]
        constraints = tuple(text for text in texts if text is not None)
        if len(constraints) < len(texts) or sum(map(len, constraints)) > MAX_PLAIN_CHARS:
            constraints = ()
        return replace(
            self._describe_space(),
            constrained=bool(self.where),
            constraints=constraints,
            size=make_plain_size(self.size),
        )

    @abstractmethod
    def _bind(self, problem: Problem, site: Site) -> BoundSpace: ...

    @abstractmethod
    def _describe_space(self) -> SpaceInfo: ...


@dataclass(frozen=True)
class CartesianSpace(Space):
    """Every combination of the axes' values; the last axis varies fastest."""

    axes: Mapping[str, Sequence[Scalar]]

    @property
    def knobs(self) -> tuple[str, ...]:
        """The axes' names."""
        return tuple(self.axes)

    @property
    def size(self) -> int:
        """The product of the axes' lengths."""
        return math.prod(len(values) for values in self.axes.values())

    def _bind(self, problem: Problem, site: Site) -> BoundSpace:
        return IndexedSpace(AxisProduct(self.axes), problem, self.where, site)

    def _describe_space(self) -> SpaceInfo:
        is_small = sum(len(values) for values in self.axes.values()) <= MAX_PLAIN_VALUES
        axes = {knob: tuple(values) for knob, values in self.axes.items()} if is_small else None
        return SpaceInfo("cartesian", axes=axes)


@dataclass(frozen=True)
class ListSpace(Space):
    """The configs of a fixed list, in its order."""

    configs: tuple[Config, ...]

    @property
    def knobs(self) -> tuple[str, ...]:
        """The keys that all configs share."""
        return tuple(self.configs[0])

    @property
    def size(self) -> int:
        """The length of the list."""
        return len(self.configs)

    def _bind(self, problem: Problem, site: Site) -> BoundSpace:
        return IndexedSpace(ConfigList(self.configs), problem, self.where, site)

    def _describe_space(self) -> SpaceInfo:
        is_small = self.size <= MAX_PLAIN_VALUES
        return SpaceInfo("list", configs=tuple(map(dict, self.configs)) if is_small else None)


@dataclass(frozen=True)
class CallableSpace(Space):
    """The configs that a callable or generator function yields for a problem, in its order."""

    function: Callable[[Any], Iterable[Config]]

    @property
    def knobs(self) -> None:
        """Unknown."""
        return None

    @property
    def size(self) -> None:
        """Unknown."""
        return None

    def _bind(self, problem: Problem, site: Site) -> BoundSpace:
        return GeneratedSpace(self.function, problem, self.where, site)

    def _describe_space(self) -> SpaceInfo:
        return SpaceInfo("callable")


def space(
    configs: Iterable[Config] | Callable[[Any], Iterable[Config]] | None = None,
    /,
    *,
    where: Where | str | Sequence[Where | str] = (),
    when: Mapping[str, Where | str] | Sequence[Scalar] = (),
    **axes: Sequence[Scalar],
) -> Space:
    """Declare a space: axes (``BM=[32, 64]``), a list of configs, or a callable ``p -> configs``.

    ``where`` holds one or several constraints ``(p, c)``, or texts such as ``"BM * BN <= 1024"`` whose names are knobs
    or problem keys; a config is valid when all are truthy. Values are bools, ints, floats and strings; an axis is a
    list, a tuple or a range. Nothing is enumerated here, and an error in the declaration is raised by the kernel that
    takes it.

    ``when={"STAGES": lambda p, c: c.ASYNC}`` says that a knob exists only where a condition holds. Elsewhere it keeps
    its first value, so that no two configs differ only in a knob that has no effect.
    """
    if when and not isinstance(when, Mapping):
        # An axis may be called `when`.
        axes["when"], when = when, {}
    constraints: tuple[Any, ...] = tuple(where) if isinstance(where, list | tuple) else (where,)
    conditions: dict[str, Any] = dict(when or {})  # type: ignore[arg-type]
    try:
        constraints = tuple(map(_parse_constraint, constraints))
        conditions = {knob: _parse_constraint(holds) for knob, holds in conditions.items()}
        fault = "" if all(map(callable, constraints)) else "where takes a callable (p, c), a text, or a list of them"
    except UsageError as error:
        fault = f"{error.message}; {error.hint}" if error.hint else error.message
    fault = fault or _find_when_fault(conditions, axes)
    if configs is None and not fault:
        constraints += tuple(Conditional(knob, axes[knob][0], holds) for knob, holds in conditions.items())
    if configs is None:
        return CartesianSpace(constraints, fault or _find_axes_fault(axes), dict(axes))
    if axes:
        fault = fault or f"space() takes configs or axes, not both (axes: {', '.join(axes)})"
    if callable(configs):
        return CallableSpace(constraints, fault, configs)
    if not isinstance(configs, list | tuple):
        fault = fault or f"space() takes a list of configs or a callable, not {type(configs).__name__}"
        return ListSpace(constraints, fault, ())
    fault = fault or _find_configs_fault(configs)
    return ListSpace(constraints, fault, tuple(configs))


def _parse_constraint(constraint: object) -> object:
    return Expression(constraint) if isinstance(constraint, str) else constraint


def _find_when_fault(conditions: Mapping[str, Any], axes: Mapping[str, Sequence[Scalar]]) -> str:
    for knob, holds in conditions.items():
        if knob not in axes:
            return f"when= refers to the unknown knob {knob!r} {listed(axes, near=str(knob))}"
        if not callable(holds):
            return f"when: the condition of {knob} is of type {type(holds).__name__}, not a callable (p, c)"
        if fault := _find_axis_fault(axes[knob]):
            return f"the knob {knob}: {fault}"
    return ""


def _find_axes_fault(axes: Mapping[str, Sequence[Scalar]]) -> str:
    if not axes:
        return "the space is empty: space() needs axes, a list of configs or a callable"
    for knob, values in axes.items():
        if fault := find_key_fault(knob) or _find_axis_fault(values):
            return f"the knob {knob}: {fault}"
    return ""


def _find_axis_fault(values: object) -> str:
    if not isinstance(values, list | tuple | range):
        return f"its values are of type {type(values).__name__}, not a list (one value is written [value])"
    if not values:
        return "it is empty, so the space is empty, too"
    # A range holds distinct ints by construction and may be huge.
    if isinstance(values, range):
        return find_scalar_fault(values[0]) or find_scalar_fault(values[-1])
    seen: set[tuple[type, Scalar]] = set()
    for value in values:
        if fault := find_scalar_fault(value):
            return fault
        if (type(value), value) in seen:
            return f"the value {value!r} is listed twice"
        seen.add((type(value), value))
    return ""


def _find_configs_fault(configs: Sequence[Config]) -> str:
    if not configs:
        return "the space is empty: its list holds no config"
    seen: dict[str, int] = {}
    for position, config in zip(count(), configs, strict=False):
        what = f"config {position} of the space's list"
        if fault := find_mapping_fault(config, what):
            return fault
        if config.keys() != configs[0].keys():
            odd = sorted(config.keys() ^ configs[0].keys())
            return f"{what} differs from the first in its knobs: {', '.join(odd)} {listed(configs[0])}"
        text = canonical(config)
        if text in seen:
            return f"{what} repeats config {seen[text]}: {spell_values(config)}"
        seen[text] = position
    return ""
