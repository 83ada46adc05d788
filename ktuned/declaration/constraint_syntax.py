"""The syntax of constraints: what a function ``(p, c)`` says, read from its source.

There are two uses. A search splits a constraint by the knobs of its conditions (:mod:`ktuned.search.conjuncts`). The
daemon, which runs no user code, gets a constraint as text if it is arithmetic over knobs, problem keys and constants
(:func:`write_constraint`). So it can check a config for a problem that is new, without a worker.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import linecache
import math
from collections.abc import Collection, Iterator
from types import FunctionType

from ktuned.declaration.bound_space import Conditional, Where
from ktuned.model import Expression, UsageError

MAX_NODES = 5_000
"""Most syntax nodes of a constraint. Assignments are inlined, so that a long function could grow without end."""


class Unsplittable(Exception):
    """The code cannot be split or written as text: only the function itself can decide."""


def parse_function(function: FunctionType) -> ast.Lambda | ast.FunctionDef:
    """Return the syntax tree of a constraint, found by its place in its file.

    Raises:
        Unsplittable: it takes other arguments than ``(p, c)``, or its source cannot be found.
        SyntaxError: its file has changed.
    """
    code = function.__code__
    has_defaults = function.__defaults__ or function.__kwdefaults__
    if has_defaults or code.co_argcount != 2 or code.co_flags & _OTHER_FUNCTIONS:
        raise Unsplittable
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
    raise Unsplittable


_OTHER_FUNCTIONS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR


def write_constraint(where: Where, knobs: Collection[str]) -> str | None:
    """Return the text of an equal :class:`~ktuned.model.Expression`; ``None`` where only the code can decide."""
    if isinstance(where, Expression):
        return where.text
    if isinstance(where, Conditional):
        condition = write_constraint(where.when, knobs)
        return None if condition is None else f"({condition}) or {where.knob} == {where.first!r}"
    if not isinstance(where, FunctionType):
        return None
    try:
        node = parse_function(where)
        writer = _ConstraintWriter(where, node, knobs)
        text = " and ".join(f"({ast.unparse(writer.visit(condition))})" for condition in split_function(node))
        return Expression(text).text
    except (Unsplittable, UsageError, SyntaxError, ValueError, RecursionError):
        return None


class _ConstraintWriter(ast.NodeTransformer):
    """Replaces ``p.M`` and ``c.BM`` by plain names, and the function's other names by their values."""

    def __init__(self, function: FunctionType, node: ast.Lambda | ast.FunctionDef, knobs: Collection[str]) -> None:
        self._problem, self._config = (argument.arg for argument in node.args.posonlyargs + node.args.args)
        self._knobs = knobs
        self._values = {**vars(builtins), **function.__globals__, **inspect.getclosurevars(function).nonlocals}

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._write_key(node.value, node.attr)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant):
            return self._write_key(node.value, node.slice.value)
        raise Unsplittable

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in (self._problem, self._config):
            raise Unsplittable
        # This raises if the value's text is no literal, as for inf.
        text = repr(self._values.get(node.id, Unsplittable))
        ast.literal_eval(text)
        return ast.parse(text, mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Keep a call of one of Python's own functions, by name. The expression later checks whether it is allowed."""
        match node.func:
            case ast.Name(name) if self._values.get(name) is getattr(builtins, name, Unsplittable):
                pass
            case ast.Attribute(ast.Name(module), name) if self._values.get(module) is math:
                pass
            case _:
                raise Unsplittable
        if node.keywords:
            raise Unsplittable
        return ast.Call(ast.Name(name, ast.Load()), [self.visit(argument) for argument in node.args], [])

    def _write_key(self, values: ast.expr, key: object) -> ast.expr:
        """Return a knob or a problem key as a name. In an expression, a knob hides a problem key with the same name."""
        source = values.id if isinstance(values, ast.Name) else None
        if source not in (self._problem, self._config) or not isinstance(key, str) or not key.isidentifier():
            raise Unsplittable
        if (source == self._config) is not (key in self._knobs):
            raise Unsplittable
        return ast.Name(key, ast.Load())


def split_function(node: ast.Lambda | ast.FunctionDef) -> Iterator[ast.expr]:
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
                raise Unsplittable
            assigned[statement.targets[0].id] = _inline_assignments(statement.value, assigned)
        elif isinstance(statement, ast.If) and _returns_false(statement):
            yield from _split_condition(ast.UnaryOp(ast.Not(), _inline_assignments(statement.test, assigned)))
        else:
            raise Unsplittable
    raise Unsplittable


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
        # A name inside may mean something else than outside.
        raise Unsplittable
    inlined: ast.expr = _Inline(assigned).visit(copy.deepcopy(value))
    if sum(1 for _ in ast.walk(inlined)) > MAX_NODES:
        raise Unsplittable
    return inlined
