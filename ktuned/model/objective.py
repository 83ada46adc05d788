"""Objectives: the figure by which a tuning compares configs. No IO.

An objective is a text: ``latency``, or a metric with its direction, ``max:tflops`` or ``min:energy``. Configs are
compared by a figure's *cost*; lower is better.

A metric of the kernel file is computed from the latency, so each measured config has it, and it steers the search. The
energy of a launch needs launches of its own, which take half a second. So ``min:energy`` searches by the latency, and
the energy decides among the finalists.

*Numerics* are a part of an objective: ``exact:latency`` is the latency of configs that leave the same bits as the
anchor, and other configs have no such figure (docs/reference/numerics.md). So jobs, winners and lookups with exact
numerics are separate from those with a tolerance.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NewType

from ktuned.model.errors import UsageError

Objective = NewType("Objective", str)
"""The figure by which configs are compared; see :func:`read_objective` for its form."""

LATENCY = Objective("latency")

JUDGED = Objective("judged")
"""Stands for the objective of a judged job, which searches for no winner. So nothing else has the job's key."""

ENERGY = "energy"
"""The metric that every kernel has: the energy of a launch in J."""

TOLERANCE = "tolerance"
EXACT = "exact"

NUMERICS = (TOLERANCE, EXACT)
"""How outputs are compared: with the reference's outputs within a tolerance, and for ``exact`` also with the anchor's
outputs bit by bit.
"""

_MOST, _LEAST = "max:", "min:"
_SAME_BITS = f"{EXACT}:"


def with_numerics(objective: str, numerics: str | None) -> Objective:
    """Return an objective with other numerics; unchanged if ``numerics`` is None.

    Raises:
        UsageError: there are no such numerics.
    """
    if numerics is None:
        return Objective(objective)
    if numerics not in NUMERICS:
        raise UsageError(f"there is no numerics mode {numerics!r}", hint=f"there are {' and '.join(NUMERICS)}")
    plain = strip_numerics(objective)
    return Objective(f"{_SAME_BITS}{plain}") if numerics == EXACT else plain


def is_exact(objective: str) -> bool:
    """Return whether an objective admits only configs with the anchor's bits."""
    return objective.startswith(_SAME_BITS)


def strip_numerics(objective: str) -> Objective:
    """Return an objective without its numerics: the same figure, of any config."""
    return Objective(objective.removeprefix(_SAME_BITS))


def is_latency(objective: str) -> bool:
    """Return whether an objective's figure is the latency, with any numerics."""
    return strip_numerics(objective) == LATENCY


def needs_metric(objective: str) -> bool:
    """Return whether an objective compares configs by one of their metrics, and not by the latency."""
    return not is_latency(objective)


def needs_own_launches(objective: str) -> bool:
    """Return whether an objective's metric needs launches of its own, so that only finalists have it."""
    return name_figure(objective) == ENERGY


def choose_search_objective(objective: Objective) -> Objective:
    """Return the objective by which configs are compared until the finalists are known, with the same numerics."""
    if not needs_own_launches(objective):
        return objective
    return with_numerics(LATENCY, EXACT if is_exact(objective) else None)


def maximize(metric: str) -> Objective:
    """Return the objective to make a metric as large as possible."""
    return Objective(f"{_MOST}{metric}")


def minimize(metric: str) -> Objective:
    """Return the objective to make a metric as small as possible."""
    return Objective(f"{_LEAST}{metric}")


def read_objective(text: str) -> Objective:
    """Return the objective that a text names.

    Raises:
        UsageError: the text names no objective.
    """
    plain = strip_numerics(text)
    metric = name_figure(plain)
    if plain == LATENCY or (plain.startswith((_MOST, _LEAST)) and metric.isidentifier() and metric != LATENCY):
        # Intern the text, because a field is known to hold its default by the object's identity.
        return Objective(sys.intern(text))
    hint = "give latency, or a metric with its direction: min:energy, or max:NAME or min:NAME of one of metrics="
    raise UsageError(f"there is no objective {text!r}", hint=hint)


def is_maximized(objective: Objective) -> bool:
    """Return whether more of the figure is better."""
    return strip_numerics(objective).startswith(_MOST)


def name_figure(objective: str) -> str:
    """Return the name of an objective's figure: ``latency``, or a metric's name."""
    plain = strip_numerics(objective)
    return plain.partition(":")[2] or plain


def name_unit(objective: Objective) -> str:
    """Return the unit of an objective's figures; for a metric, its name."""
    return "µs" if is_latency(objective) else name_figure(objective)


def format_objective_suffix(objective: str) -> str:
    """Return an objective as the end of a phrase, ``" by max:tflops"``; empty for the latency."""
    return "" if objective == LATENCY else f" by {objective}"


def select_figure(objective: Objective, latency_us: float | None, metrics: Mapping[str, float]) -> float | None:
    """Return a config's figure, the latency in µs or a metric; ``None`` if it has none."""
    return latency_us if is_latency(objective) else metrics.get(name_figure(objective))


def convert_to_cost(objective: Objective, figure: float | None) -> float | None:
    """Return a figure's cost: less is better, and ratios of costs are ratios of figures.

    It is None if there is no figure, or if it is not positive, because configs are compared by ratios.
    """
    if figure is None or figure <= 0:
        return None
    return 1 / figure if is_maximized(objective) else figure


def compute_gain(objective: Objective, before: float | None, now: float | None) -> float | None:
    """Return how many times better ``now`` is than ``before``; None if either is unknown."""
    old, new = convert_to_cost(objective, before), convert_to_cost(objective, now)
    return old / new if old and new else None
