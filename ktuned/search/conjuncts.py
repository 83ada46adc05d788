"""Splits a constraint into conjuncts by the knobs that each reads.

A constraint ``lambda p, c: c.BM <= p.M and c.BM * c.BN <= 4096`` becomes two small functions, of ``BM`` and of ``BM,
BN``. A function of guards (``if …: return False``) and simple assignments is split alike. The syntax tree decides what
may be split: a constraint that uses ``c`` in any way but ``c.KNOB`` or ``c["KNOB"]`` stays whole. A conjunct that
raises proves nothing, because another may have guarded it, and the whole constraint has the last word on every config.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from ktuned.model import Record, Scalar, record
from ktuned.spec import Conditional, Expression, Term

MAX_NODES = 5_000
"""Syntax nodes of one condition: assignments are inlined, so that a long function could grow without end."""

_PREFIX = "_knob_"


@record
class Conjunct(Record):
    """A necessary condition on a few knobs; ``test`` takes their values in the order of ``places`` among all knobs."""

    places: tuple[int, ...]
    test: Callable[..., object]

    def admits(self, axes: Sequence[Sequence[Scalar]], code: Sequence[int]) -> bool:
        """Return False only where the config at some positions of the axes certainly violates the condition."""
        try:
            return bool(self.test(*[axes[place][code[place]] for place in self.places]))
        except Exception:
            # Evaluated out of its order: what stood before it may have been its guard.
            return True


def split_constraint(where: Callable[[Any, Any], object], knobs: Sequence[str], p: object) -> list[Conjunct] | None:
    """Return the conjuncts of one constraint for a problem, or ``None`` where its code cannot be split.

    Their conjunction follows from the constraint. It is equivalent to it as long as no conjunct raises.
    """
    if isinstance(where, Conditional):
        return _split_conditional(where, knobs, p)
    if isinstance(where, Expression):
        return [_conjunct_from_term(condition, knobs, p) for condition in where.conditions]
    if not isinstance(where, FunctionType) or where.__defaults__ or where.__kwdefaults__:
        return None
    code = where.__code__
    if code.co_argcount != 2 or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR):
        return None
    try:
        node = _find_syntax_tree(code)
        if node is None:
            return None
        parameters = [argument.arg for argument in node.args.posonlyargs + node.args.args]
        conditions = list(_split_function(node))
        return [_compile_conjunct(where, condition, parameters, knobs, p) for condition in conditions]
    except (_Unsplittable, SyntaxError, ValueError, RecursionError):
        return None


def _split_conditional(where: Conditional, knobs: Sequence[str], p: object) -> list[Conjunct] | None:
    """Return the one conjunct that a knob with a condition is subject to."""
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


class _Unsplittable(Exception):
    """The code does something that only the whole constraint can do."""


def _find_syntax_tree(code: CodeType) -> ast.Lambda | ast.FunctionDef | None:
    """Return the syntax tree of a function, by its place in its file."""
    linecache.checkcache(code.co_filename)
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    spans = set(code.co_positions())
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and code.co_name == "<lambda>":
            body = node.body
            if (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset) in spans:
                return node
        elif isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
            if first == code.co_firstlineno:
                return node
    return None


def _split_function(node: ast.Lambda | ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield expressions that are all truthy exactly where the function returns something truthy."""
    if isinstance(node, ast.Lambda):
        yield from _split_condition(node.body)
        return
    assigned: dict[str, ast.expr] = {}
    for number, statement in enumerate(node.body):
        if number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, ast.Return) and statement.value is not None:
            yield from _split_condition(_inline_assignments(statement.value, assigned))
            return
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            if len(statement.targets) > 1:
                raise _Unsplittable
            assigned[statement.targets[0].id] = _inline_assignments(statement.value, assigned)
        elif isinstance(statement, ast.If) and _returns_false(statement):
            yield from _split_condition(ast.UnaryOp(ast.Not(), _inline_assignments(statement.test, assigned)))
        else:
            raise _Unsplittable
    raise _Unsplittable


def _returns_false(statement: ast.If) -> bool:
    if statement.orelse or len(statement.body) != 1:
        return False
    (only,) = statement.body
    return isinstance(only, ast.Return) and isinstance(only.value, ast.Constant) and not only.value.value


def _split_condition(condition: ast.expr) -> Iterator[ast.expr]:
    """Yield the conjuncts of an expression, through ``and``, ``not (… or …)`` and ``bool(…)``."""
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And):
        for value in condition.values:
            yield from _split_condition(value)
    elif isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        yield from _split_negation(condition.operand)
    elif (
        isinstance(condition, ast.Call)
        and isinstance(condition.func, ast.Name)
        and condition.func.id == "bool"
        and len(condition.args) == 1
    ):
        yield from _split_condition(condition.args[0])
    else:
        yield condition


def _split_negation(condition: ast.expr) -> Iterator[ast.expr]:
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.Or):
        for value in condition.values:
            yield from _split_negation(value)
    elif isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        yield from _split_condition(condition.operand)
    else:
        yield ast.UnaryOp(ast.Not(), condition)


class _Inline(ast.NodeTransformer):
    def __init__(self, assigned: dict[str, ast.expr]) -> None:
        self.assigned = assigned

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.assigned[node.id]) if node.id in self.assigned else node


def _inline_assignments(value: ast.expr, assigned: dict[str, ast.expr]) -> ast.expr:
    if any(isinstance(node, ast.Lambda | ast.NamedExpr | ast.comprehension) for node in ast.walk(value)):
        # Names inside may be others than those outside.
        raise _Unsplittable
    inlined: ast.expr = _Inline(assigned).visit(copy.deepcopy(value))
    if sum(1 for _ in ast.walk(inlined)) > MAX_NODES:
        raise _Unsplittable
    return inlined


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
            raise _Unsplittable
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        raise _Unsplittable

    def _is_config(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.parameter

    def _read_knob(self, knob: str) -> ast.expr:
        if knob not in self.knobs:
            raise _Unsplittable
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
    # One more function around it: its parameters are what the condition finds in no global.
    outer = ast.Expression(ast.Lambda(_build_arguments([problem, *captured]), inner))
    code = compile(ast.fix_missing_locations(outer), where.__code__.co_filename, "eval")
    make = eval(code, where.__globals__)
    return _place_conjunct(transformer.read, knobs, make(p, *(cell.cell_contents for cell in captured.values())))


def _build_arguments(names: list[str]) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
