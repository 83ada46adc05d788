"""Splits a constraint into conjuncts, each of which reads only some of the knobs.

A constraint ``lambda p, c: c.BM <= p.M and c.BM * c.BN <= 4096`` becomes two small functions, of ``BM`` and of ``BM,
BN``. A function of guards (``if …: return False``) and simple assignments is split in the same way. The syntax tree
decides whether a constraint is split: if it uses ``c`` in any way but ``c.KNOB`` or ``c["KNOB"]``, it stays whole. A
conjunct that raises proves nothing, because another conjunct may have guarded it. In any case every config is finally
checked with the whole constraint.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

from ktuned.declaration import Conditional, Unsplittable, parse_function, split_function
from ktuned.model import Expression, FrozenStruct, Scalar, Term

_PREFIX = "_knob_"


class Conjunct(FrozenStruct):
    """A necessary condition on a few knobs; ``test`` takes their values in the order of ``places`` among all knobs."""

    places: tuple[int, ...]
    test: Callable[..., object]

    def admits(self, axes: Sequence[Sequence[Scalar]], point: Sequence[int]) -> bool:
        """Return False only if the config with these positions on the axes certainly violates the condition."""
        try:
            return bool(self.test(*[axes[place][point[place]] for place in self.places]))
        except Exception:
            # The condition is evaluated out of order: an earlier one in the constraint may have been its guard.
            return True


def split_constraint(where: Callable[[Any, Any], object], knobs: Sequence[str], p: object) -> list[Conjunct] | None:
    """Return the conjuncts of one constraint for a problem, or ``None`` if its code cannot be split.

    A config that satisfies the constraint satisfies all conjuncts. The reverse holds as long as no conjunct raises.
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


def _split_conditional(where: Conditional, knobs: Sequence[str], p: object) -> list[Conjunct] | None:
    """Return the conjunct of a conditional knob: without the condition, the knob has its first value."""
    conditions = split_constraint(where.when, knobs, p)
    if conditions is None:
        return None
    places = dict.fromkeys([knobs.index(where.knob), *(place for found in conditions for place in found.places)])

    def test_existence(*values: Scalar) -> bool:
        value_at = dict(zip(places, values, strict=True))
        exists = all(found.test(*[value_at[place] for place in found.places]) for found in conditions)
        return exists or values[0] == where.first

    return [Conjunct(tuple(places), test_existence)]


def _conjunct_from_term(condition: Term, knobs: Sequence[str], p: Any) -> Conjunct:
    read = [name for name in condition.names if name in knobs]
    return _place_conjunct(read, knobs, lambda *values: condition.value({**p, **dict(zip(read, values, strict=True))}))


def _place_conjunct(read: Iterable[str], knobs: Sequence[str], test: Callable[..., object]) -> Conjunct:
    return Conjunct(tuple(map(knobs.index, read)), test)


class _Knobs(ast.NodeTransformer):
    """Replaces ``c.BM`` and ``c["BM"]`` by plain names, and collects the knobs that are read."""

    def __init__(self, parameter: str, knobs: Sequence[str]) -> None:
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
    where: FunctionType, condition: ast.expr, parameters: list[str], knobs: Sequence[str], p: object
) -> Conjunct:
    """Compile one condition into a function of its knobs, with the constraint's own globals and closure."""
    problem, config = parameters
    transformer = _Knobs(config, knobs)
    body: ast.expr = transformer.visit(copy.deepcopy(condition))
    captured = dict(zip(where.__code__.co_freevars, where.__closure__ or (), strict=True))
    inner = ast.Lambda(_build_arguments([_PREFIX + knob for knob in transformer.read]), body)
    # An outer function supplies the names that are not globals: the problem and the closure's variables.
    outer = ast.Expression(ast.Lambda(_build_arguments([problem, *captured]), inner))
    code = compile(ast.fix_missing_locations(outer), where.__code__.co_filename, "eval")
    make = eval(code, where.__globals__)
    return _place_conjunct(transformer.read, knobs, make(p, *(cell.cell_contents for cell in captured.values())))


def _build_arguments(names: list[str]) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
