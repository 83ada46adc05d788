"""Splits a constraint into conjuncts by the knobs that each reads.

A constraint ``lambda p, c: c.BM <= p.M and c.BM * c.BN <= 4096`` becomes two small functions, of ``BM`` and of ``BM,
BN``. A function of guards (``if …: return False``) and simple assignments is split alike. The syntax tree decides what
may be split: a constraint that uses ``c`` in any way but ``c.KNOB`` or ``c["KNOB"]`` stays whole. A conjunct that
raises proves nothing, because another may have guarded it, and the whole constraint has the last word on every config.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any

from ktuned.model import Expression, Record, Scalar, Term, record
from ktuned.spec import Conditional, Unsplittable, parse_function, split_function

MAX_CONJUNCTS = 200
"""Conjuncts of one constraint: assignments are inlined, so that a long function could grow without end."""

_PREFIX = "_knob_"


@record
class Conjunct(Record):
    """A necessary condition on a few knobs; ``test`` takes their values in the order of ``knobs``."""

    knobs: tuple[str, ...]
    test: Callable[..., object]

    def admits(self, *values: Scalar) -> bool:
        """Return False only where the condition is certainly violated."""
        try:
            return bool(self.test(*values))
        except Exception:
            # Evaluated out of its order: what stood before it may have been its guard.
            return True


def split_constraint(where: Callable[[Any, Any], object], knobs: Collection[str], p: object) -> list[Conjunct] | None:
    """Return the conjuncts of one constraint for a problem, or ``None`` where its code cannot be split.

    Their conjunction follows from the constraint. It is equivalent to it as long as no conjunct raises.
    """
    if isinstance(where, Conditional):
        return _split_conditional(where, knobs, p)
    if isinstance(where, Expression):
        return [_conjunct_from_term(condition, knobs, p) for condition in where.conditions]
    if not isinstance(where, FunctionType):
        return None
    try:
        node = parse_function(where)
        parameters = [argument.arg for argument in node.args.posonlyargs + node.args.args]
        return [_compile_conjunct(where, condition, parameters, knobs, p) for condition in split_function(node)]
    except (Unsplittable, SyntaxError, ValueError, RecursionError):
        return None


def _split_conditional(where: Conditional, knobs: Collection[str], p: object) -> list[Conjunct] | None:
    """Return the one conjunct that a knob with a condition is subject to."""
    conditions = split_constraint(where.when, knobs, p)
    if conditions is None:
        return None
    read = list(dict.fromkeys([where.knob, *(knob for condition in conditions for knob in condition.knobs)]))
    places = [[read.index(knob) for knob in condition.knobs] for condition in conditions]

    def test(*values: Scalar) -> bool:
        exists = all(
            condition.test(*[values[place] for place in found])
            for condition, found in zip(conditions, places, strict=True)
        )
        return exists or values[0] == where.first

    return [Conjunct(tuple(read), test)]


def _conjunct_from_term(condition: Term, knobs: Collection[str], p: Any) -> Conjunct:
    read = tuple(name for name in condition.names if name in knobs)
    return Conjunct(read, lambda *values: condition.value({**p, **dict(zip(read, values, strict=True))}))


class _Knobs(ast.NodeTransformer):
    """Makes ``c.BM`` and ``c["BM"]`` plain names, and collects the knobs."""

    def __init__(self, parameter: str, knobs: Collection[str]) -> None:
        self.parameter = parameter
        self.knobs = knobs
        self.read: dict[str, None] = {}

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if self._is_config(node.value):
            return self._read_knob(node.attr)
        self.generic_visit(node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if self._is_config(node.value) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return self._read_knob(node.slice.value)
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == self.parameter:
            raise Unsplittable
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        raise Unsplittable

    def _is_config(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.parameter

    def _read_knob(self, knob: str) -> ast.expr:
        if knob not in self.knobs:
            raise Unsplittable
        self.read[knob] = None
        return ast.Name(_PREFIX + knob, ast.Load())


def _compile_conjunct(
    where: FunctionType, condition: ast.expr, parameters: list[str], knobs: Collection[str], p: object
) -> Conjunct:
    """Compile one condition into a function of its knobs, with the constraint's own globals and closure."""
    problem, config = parameters
    transformer = _Knobs(config, knobs)
    body: ast.expr = transformer.visit(copy.deepcopy(condition))
    captured = dict(zip(where.__code__.co_freevars, where.__closure__ or (), strict=True))
    inner = ast.Lambda(_build_arguments([_PREFIX + knob for knob in transformer.read]), body)
    # One more function around it: its parameters are what the condition finds in no global.
    outer = ast.Expression(ast.Lambda(_build_arguments([problem, *captured]), inner))
    code = compile(ast.fix_missing_locations(outer), where.__code__.co_filename, "eval")
    make = eval(code, where.__globals__)
    return Conjunct(tuple(transformer.read), make(p, *(cell.cell_contents for cell in captured.values())))


def _build_arguments(names: list[str]) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
