"""Batch invariance: rows that have equal bits, whatever the size of the batch that they were computed in. No IO.

If a kernel is batch-invariant over ``M``, its declared problems form *groups*, within which problems differ in ``M``
alone. The inputs of a group are made once, for its largest problem, and narrowed to the sizes of the others: row 3 is
the same row under every ``M``. So the digest of a config's outputs under a smaller problem can be compared with the
digest of the same rows under the largest problem, which is launched in full anyway. Two smaller problems need not be
compared with each other, because bits that equal those of the largest problem equal each other.

A *class* of the group is given by the outputs that a config leaves under the largest problem. It *spans* the group if
every other problem has a config that leaves the same rows; these may be different configs. Of the classes that span the
group, the one with the least weighted total cost wins. If none spans the group, the best attempt is the class that most
problems have, and the verdict names the problem that breaks it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ktuned.model.numerics import Bits
from ktuned.model.record import Record, record
from ktuned.model.values import Problem, canonical

MOST_PROBLEMS = 64
"""Most problems of a batch-invariant kernel: each lookup after a change reads the trials of all of them."""

MOST_NAMED = 12
"""Most values of a field that a sentence lists."""


@record
class Candidate(Record):
    """A measured config: its cost, and the bits of its outputs by input.

    For the largest problem, ``rows`` has the bits of those rows that each smaller problem has, too, by problem.
    """

    config: str
    cost: float
    bits: Bits
    rows: Mapping[str, Bits] = field(default_factory=dict)


@record
class Member(Record):
    """A problem of a group, as canonical text, with its weight and the configs that were measured for it."""

    problem: str
    weight: float
    candidates: tuple[Candidate, ...]


@record
class Verdict(Record):
    """The configs to serve for a group, or why there are none.

    Attributes:
        fields: the problem keys in which the group's problems differ.
        problems: its problems as canonical texts, the largest one last.
        configs: the configs of the chosen class, by problem; empty if none was chosen.
        total: the weighted total cost of ``configs``.
        fastest: the weighted total cost of each problem's best config.
        broken_by: the problem that breaks the best attempt.
        agreeing: how many problems the best attempt has.
        waiting: problems that have to be tuned first.
    """

    fields: tuple[str, ...]
    problems: tuple[str, ...]
    configs: Mapping[str, str] = field(default_factory=dict)
    total: float = 0.0
    fastest: float = 0.0
    broken_by: str = ""
    agreeing: int = 0
    waiting: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the verdict as a sentence."""
        group = f"{', '.join(self.fields)} = {_list_values([self._show_fields(problem) for problem in self.problems])}"
        if self.waiting:
            waiting = _list_values([self._show_fields(problem) for problem in self.waiting])
            return f"rows are compared under {group} once all are tuned; {waiting} not yet"
        if self.broken_by:
            others = f"{self.agreeing} of {len(self.problems)} problems" if self.agreeing else "no two problems"
            breaking = f"{', '.join(self.fields)} = {self._show_fields(self.broken_by)}"
            return (
                f"not batch-invariant under {group}: {breaking} breaks it, where no measured config has the bits that "
                f"{others} can agree on"
            )
        price = f"{100 * (self.total / self.fastest - 1):.2g} % more than" if self.total > self.fastest else "what"
        return f"batch-invariant under {group}; that costs {price} the best config of each does"

    def _show_fields(self, problem: str) -> str:
        values = json.loads(problem)
        return "×".join(str(values[name]) for name in self.fields)


def find_batch_fault(problems: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> str:
    """Return the error in a declaration of batch invariance over some fields, in one line; empty if there is none."""
    if not 0 < len(problems) <= MOST_PROBLEMS:
        return f"batch_invariant takes 1 to {MOST_PROBLEMS} problems, and there are {len(problems)}"
    for place, problem in enumerate(problems):
        for name in fields:
            if name not in problem:
                return f"batch_invariant names {name!r}, which problem {place} does not have"
            if type(problem[name]) is not int or problem[name] < 1:
                return f"batch_invariant names {name!r}, which is {problem[name]!r} in problem {place}, not a size >= 1"
    for group in find_groups(problems, fields):
        most = {name: max(problem[name] for problem in group) for name in fields}
        if any(group[-1][name] != most[name] for name in fields):
            words = ", ".join(f"{name}={size}" for name, size in most.items())
            return f"batch_invariant needs a problem that is the largest in all its fields: one with {words}"
    return ""


def find_groups(problems: Iterable[Problem], fields: Sequence[str]) -> list[list[Problem]]:
    """Return problems in groups that differ in the fields alone, each sorted from the smallest to the largest."""
    groups: dict[str, list[Problem]] = {}
    for problem in problems:
        rest = {name: value for name, value in problem.items() if name not in fields}
        groups.setdefault(canonical(rest), []).append(problem)
    return [sorted(group, key=lambda problem: _measure_size(problem, fields)) for group in groups.values()]


def _measure_size(problem: Problem, fields: Sequence[str]) -> tuple[int, ...]:
    sizes = [int(problem[name]) for name in fields]
    return sum(sizes), *sizes


def choose_equal_rows_class(fields: Sequence[str], members: Sequence[Member]) -> Verdict:
    """Choose the class of equal rows that is best for a group, or find the problem that breaks it.

    Args:
        fields: the problem keys in which the problems differ.
        members: the group's problems, the largest one last.
    """
    *smaller, largest = members
    found = Verdict(tuple(fields), tuple(member.problem for member in members))
    best_total: float | None = None
    most_agree, broken_by = 0, largest.problem
    # Find each class's fastest config under the largest problem; if costs are equal, always the same config.
    by_rows: dict[tuple[Bits | None, ...], Candidate] = {}
    for one in sorted(largest.candidates, key=lambda one: (one.cost, one.config)):
        by_rows.setdefault(tuple(one.rows.get(member.problem) for member in smaller), one)
    for rows, chosen in by_rows.items():
        configs, total = {largest.problem: chosen.config}, largest.weight * chosen.cost
        broken = ""
        for member, wanted in zip(smaller, rows, strict=True):
            same = [one for one in member.candidates if wanted and are_same_rows(one.bits, wanted)]
            if not same:
                broken = broken or member.problem
                continue
            cheapest = min(same, key=lambda one: (one.cost, one.config))
            configs[member.problem] = cheapest.config
            total += member.weight * cheapest.cost
        if not broken and (best_total is None or total < best_total):
            best_total = total
            found = Verdict(found.fields, found.problems, configs, total)
        if broken and len(configs) > most_agree:
            most_agree, broken_by = len(configs), broken
    if best_total is None:
        agreeing = most_agree if most_agree > 1 else 0
        return Verdict(found.fields, found.problems, broken_by=broken_by, agreeing=agreeing)
    fastest = sum(member.weight * min(one.cost for one in member.candidates) for member in members)
    return Verdict(found.fields, found.problems, found.configs, found.total, fastest)


def are_same_rows(bits: Bits, others: Bits) -> bool:
    """Return whether rows have equal bits on all inputs that both were launched on: thorough tunings use more."""
    common = min(len(bits), len(others))
    return common > 0 and bits[:common] == others[:common]


def _list_values(values: Sequence[str]) -> str:
    more = f", … ({len(values)})" if len(values) > MOST_NAMED else ""
    return ", ".join(values[:MOST_NAMED]) + more
