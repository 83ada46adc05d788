"""Checks of the arguments of ``@kernel``. Each function returns the error in one line, or ``""``. No IO."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ktuned.declaration.spaces import CartesianSpace, ListSpace, Space
from ktuned.declaration.user_values import find_mapping_fault
from ktuned.declaration.work import find_work_fault, list_given_metrics
from ktuned.model import (
    ENERGY,
    EXACT,
    LATENCY,
    NUMERICS,
    PRESETS,
    UNTIL,
    UsageError,
    canonical,
    find_rule_fault,
    is_among,
    listed,
    name_figure,
    read_objective,
    spell_values,
)

DEADLINES = ("spawn", "inspect", "compile", "load", "reference", "first_launch", "check", "timing", "floor")
"""Phases for which a kernel file may declare a deadline."""

TIMINGS = ("events", "graph", "returned")
"""Ways to time a kernel on a GPU; on the CPU, the host's clock is always used."""

UNSET: Any = object()
"""Stands for an argument that was not given, where ``None`` has a meaning."""

MAX_METRICS = 16
"""Most metrics of a kernel: a table has no room for more columns."""

MAX_PROBLEMS = 1000

MAX_NAME_CHARS = 200
"""Longest name of a kernel: it is a column of every table, and names a file where winners are exported."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


def find_unknown_argument(unknown: Mapping[str, object], known: Iterable[str]) -> str:
    """Return the error about an argument that ``kernel`` does not have."""
    if not unknown:
        return ""
    name = next(iter(unknown))
    return f"kernel() has no argument {name!r} {listed(known, near=name)}"


def find_check_fault(reference: object, check: object) -> str:
    """Return the error if results are checked by nothing, or by contradictory arguments."""
    if reference is None and check is UNSET:
        return "no check is declared: give reference= or check=, or check=None to measure without checking"
    if reference is not None and check is None:
        return "check=None turns checking off, but there is a reference: leave one of them out"
    if reference is not None and reference != "default" and not callable(reference):
        return "reference is not callable; it takes the inputs by name and returns a dict of outputs, or is 'default'"
    if check is UNSET or check is None:
        return ""
    if not callable(check):
        return "check is not callable; it takes (inputs, outputs) and raises or returns a bool"
    try:
        inspect.signature(check).bind({}, {})
    except TypeError as error:
        return f"check cannot be called with (inputs, outputs): {error}"
    except ValueError:
        # A builtin does not tell its parameters.
        return ""
    return ""


def find_kernel_fault(declared: Any) -> str:
    """Return the first error in a ``Kernel``, any of whose values may have a wrong type."""
    if not isinstance(declared.name, str) or not _NAME.fullmatch(declared.name):
        return f"the name {declared.name!r} is not letters, digits, '_', '.' and '-'"
    if len(declared.name) > MAX_NAME_CHARS:
        return f"the name has {len(declared.name)} characters; at most {MAX_NAME_CHARS} are allowed"
    if not isinstance(declared.backend, str):
        return "backend= is missing or not a string"
    if not isinstance(declared.space, Space):
        return "space= is missing or not made by space(...)"
    if not callable(declared.inputs):
        return "inputs= is missing or not a callable p -> dict of tensors"
    if any(not isinstance(source, str) for source in declared.sources):
        return f"sources must be strings, not {declared.sources!r}"
    if any(not isinstance(pattern, str) or not pattern for pattern in declared.depends):
        return f"depends must be patterns of files, not {declared.depends!r}"
    if declared.specialize is not None and any(not isinstance(key, str) for key in declared.specialize):
        return f"specialize must name problem keys, not {declared.specialize!r}"
    if declared.prior is not None and not callable(declared.prior):
        return f"prior is of type {type(declared.prior).__name__}, not a callable (p, c) -> score or p -> configs"
    if not (callable(declared.cores) or declared.cores is None or _is_count(declared.cores)):
        return f"cores={declared.cores!r} is neither an int >= 1 nor a callable (p, c) -> int"
    fault = _find_metrics_fault(declared.metrics) or find_work_fault(declared.flops, declared.bytes, declared.metrics)
    named = {*declared.metrics, *list_given_metrics(declared.flops, declared.bytes)} if not fault else ()
    fault = fault or _find_objective_fault(declared.plan.objective, named)
    if fault := fault or _find_bucket_fault(declared.bucket):
        return fault
    if isinstance(declared.setup, tuple) and any(not isinstance(item, str) for item in declared.setup):
        return f"setup must name tensors or be a callable, not {declared.setup!r}"
    return (
        declared.space.fault
        or _find_default_fault(declared.default, declared.space)
        or (
            ""
            if callable(declared.problems)
            else find_problems_fault(declared.problems, declared.specialize, declared.bucket or ())
        )
        or _find_number_fault(declared)
        or _find_plan_fault(declared.plan)
    )


def find_numerics_fault(numerics: object, default: object, *, is_data: bool) -> str:
    """Return the error if outputs cannot be compared as ``numerics`` says."""
    if numerics is UNSET:
        return ""
    if not isinstance(numerics, str) or numerics not in NUMERICS:
        return f"numerics={numerics!r} is neither {' nor '.join(map(repr, NUMERICS))}"
    # A program that writes kernel files chooses their anchors itself.
    if numerics == EXACT and default is None and not is_data:
        return "numerics='exact' needs default=: winners must match its output bit for bit"
    return ""


def _find_metrics_fault(metrics: Any) -> str:
    if not isinstance(metrics, Mapping):
        return f"metrics is of type {type(metrics).__name__}, not a dict of functions (p, t) -> number"
    if len(metrics) > MAX_METRICS:
        return f"there are {len(metrics)} metrics; at most {MAX_METRICS} are allowed"
    for name, function in metrics.items():
        if not isinstance(name, str) or not name.isidentifier() or name in (LATENCY, ENERGY):
            return f"a metric cannot be called {name!r}; its name is an identifier, and not {LATENCY} or {ENERGY}"
        if not callable(function):
            return f"the metric {name} is of type {type(function).__name__}, not a function (p, t) -> number"
    return ""


def _find_bucket_fault(bucket: Any) -> str:
    if bucket is None:
        return ""
    if not isinstance(bucket, Mapping):
        return f"bucket is of type {type(bucket).__name__}, not a dict of rules by problem key"
    for name, rule in bucket.items():
        if not isinstance(name, str):
            return f"bucket: {name!r} is not a problem key"
        if fault := find_rule_fault(name, rule):
            return fault
    return ""


def _find_objective_fault(objective: Any, metrics: Collection[str]) -> str:
    if not isinstance(objective, str):
        return f"objective is of type {type(objective).__name__}, not 'latency' or maximize('a metric')"
    try:
        wanted = read_objective(objective)
    except UsageError as error:
        return f"{error.message}: give 'latency', maximize('a metric') or minimize('a metric')"
    if name_figure(wanted) in (LATENCY, ENERGY, *metrics):
        return ""
    return f"objective names the metric {name_figure(wanted)!r}, which metrics= lacks {listed(metrics)}"


def _find_default_fault(default: Any, space: Space) -> str:
    if default is None:
        return ""
    if fault := find_mapping_fault(default, "default"):
        return fault
    knobs = space.knobs
    for knob in () if knobs is None else default:
        if knob not in (knobs or ()):
            return f"default has no knob {knob!r} to set {listed(knobs or (), near=knob)}"
    missing = [knob for knob in knobs or () if knob not in default]
    if missing:
        return f"default must be a full config; it lacks {', '.join(missing)}"
    return "" if space.fault else _find_outside_fault(default, space)


def _find_outside_fault(default: Mapping[str, Any], space: Space) -> str:
    """Return why a declared space does not hold a default; a callable's configs are left for the worker to walk."""
    if isinstance(space, CartesianSpace):
        for knob, values in space.axes.items():
            if not is_among(default[knob], values):
                return f"default is outside the space: {knob}={default[knob]!r} is not a value of the knob {knob}"
    if isinstance(space, ListSpace):
        wanted = canonical(default)
        if all(canonical(config) != wanted for config in space.configs):
            return f"default is outside the space: its list has no {spell_values(default)}"
    return ""


def find_problems_fault(problems: tuple[Any, ...], specialize: tuple[str, ...] | None, bucketed: Iterable[str]) -> str:
    """Return the error in a list of problems."""
    if len(problems) > MAX_PROBLEMS:
        return f"problems has more than {MAX_PROBLEMS} entries, each with a job; lookups may ask for other problems"
    seen: dict[str, int] = {}
    for position, problem in enumerate(problems):
        if fault := find_mapping_fault(problem, f"problem {position}"):
            return fault
        text = canonical(problem)
        if text in seen:
            return f"problem {position} repeats problem {seen[text]}: {spell_values(problem)}"
        seen[text] = position
        for argument, keys in (("specialize", specialize or ()), ("bucket", bucketed)):
            for key in keys:
                if key not in problem:
                    there = listed(problem, near=key)
                    return f"{argument} names {key!r}, which problem {position} does not have {there}"
    return ""


def _find_number_fault(declared: Any) -> str:
    if declared.timing not in TIMINGS:
        return f"there is no timing {declared.timing!r} {listed(TIMINGS, near=str(declared.timing))}"
    for name in ("rtol", "atol"):
        if not _is_number(getattr(declared, name)) or getattr(declared, name) < 0:
            return f"{name}={getattr(declared, name)!r} is not a number >= 0"
    ratio = declared.max_mismatched_ratio
    return "" if _is_number(ratio) and 0 <= ratio <= 1 else f"max_mismatched_ratio={ratio!r} is not between 0 and 1"


def _find_plan_fault(plan: Any) -> str:
    if plan.until not in UNTIL:
        return f"until={plan.until!r} is none of {', '.join(map(repr, UNTIL))}"
    if not isinstance(plan.strategy, str):
        return f"strategy={plan.strategy!r} is not a name"
    if plan.preset not in PRESETS:
        return f"there is no preset {plan.preset!r} {listed(PRESETS, near=str(plan.preset))}"
    if type(plan.seed) is not int:
        return f"seed={plan.seed!r} is not an int"
    if type(plan.trials) is not int or plan.trials < 1:
        return f"trials={plan.trials!r} is not an int >= 1"
    if plan.time_limit_s is not None and not (_is_number(plan.time_limit_s) and plan.time_limit_s > 0):
        return f"time_limit_s={plan.time_limit_s!r} is not a number > 0"
    if not _is_number(plan.early_stop) or plan.early_stop <= 1:
        return f"early_stop={plan.early_stop!r} is not a number > 1"
    for phase, seconds in plan.deadlines.items():
        if phase not in DEADLINES:
            return f"deadlines: there is no phase {phase!r} {listed(DEADLINES, near=str(phase))}"
        if not _is_number(seconds) or seconds <= 0:
            return f"deadlines: {phase}={seconds!r} is not a number of seconds > 0"
    return ""


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: object) -> bool:
    # An infinite deadline or tolerance would have no effect, and JSON cannot carry it.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
