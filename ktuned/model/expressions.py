"""Constraints as text, such as ``"block_size_x * block_size_y <= 1024"``.

The text is a Python expression over knobs and problem keys. Its syntax tree is compiled to closures, one for each node.
Allowed are arithmetic, comparisons, ``and``, ``or``, ``not``, ``in``, ``… if … else …`` and a few functions. Nothing
reaches ``eval``, because such texts also come in files from other people.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ktuned.model.errors import UsageError, listed
from ktuned.model.frozen_struct import FrozenStruct
from ktuned.model.values import Scalar

MAX_CHARS = 4_000
"""Longest text of a constraint; the longest in public tuning spaces have some 300 characters."""

MAX_NODES = 1_000
"""Most syntax nodes of a constraint: more could nest deeper than Python's stack."""

MAX_BITS = 4_096
"""Most bits of an intermediate integer: ``9**9**9`` would take the machine's memory."""

_Evaluator = Callable[[Mapping[str, Any]], Any]

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}


def _is_collection(arguments: tuple[Any, ...]) -> bool:
    """Return whether the first argument is a list. Unlike Python's, ``max(3)`` is 3 here."""
    return bool(arguments) and isinstance(arguments[0], tuple | list)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "bool": bool,
    "ceil": math.ceil,
    "float": float,
    "floor": math.floor,
    "int": int,
    "log2": math.log2,
    "max": lambda *several: max(*several) if len(several) > 1 or _is_collection(several) else several[0],
    "min": lambda *several: min(*several) if len(several) > 1 or _is_collection(several) else several[0],
    "round": round,
    "sqrt": math.sqrt,
}


@dataclass(frozen=True)
class Expression:
    """A constraint ``(p, c)`` that was parsed from text. A name in it is a knob, or else a problem key.

    Raises:
        UsageError: the text is not such an expression; the message names the part that is not allowed.
    """

    text: str

    def __post_init__(self) -> None:
        terms = tuple(_compile_term(self.text, part) for part in _split_conjuncts(_parse_expression(self.text)))
        object.__setattr__(self, "_conditions", terms)

    def __call__(self, p: Mapping[str, Scalar], c: Mapping[str, Scalar]) -> bool:
        """Return whether a config is valid for a problem.

        Raises:
            UsageError: a name has no value.
            ArithmeticError: a division by zero, or an integer that is too large.
            TypeError: an operator does not fit its operands.
        """
        values = {**p, **c}
        return all(condition.value(values) for condition in self.conditions)

    @property
    def conditions(self) -> tuple[Term, ...]:
        """The conditions that the expression joins by ``and``."""
        found: tuple[Term, ...] = vars(self)["_conditions"]
        return found


class Term(FrozenStruct):
    """A part of an expression: the names that it reads, and a function from their values to its own."""

    names: tuple[str, ...]
    value: _Evaluator


def _parse_expression(text: str) -> ast.expr:
    if len(text) > MAX_CHARS:
        raise UsageError(f"the expression has {len(text)} characters, and {MAX_CHARS} are allowed")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{text!r} is not an expression: {getattr(error, 'msg', error)}") from None
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise UsageError(f"the expression {text[:60]!r}… has more than {MAX_NODES} parts")
    return tree


def _compile_term(text: str, tree: ast.expr) -> Term:
    return Term(tuple(dict.fromkeys(_find_names(tree))), _compile_node(text, tree))


def _split_conjuncts(tree: ast.expr) -> Iterator[ast.expr]:
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        for part in tree.values:
            yield from _split_conjuncts(part)
    else:
        yield tree


def _find_names(tree: ast.expr) -> Iterator[str]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in called:
            yield node.id


def _compile_node(text: str, node: ast.expr) -> _Evaluator:
    """Return a function from the names' values to a node's value."""

    def compile_part(part: ast.expr) -> _Evaluator:
        return _compile_node(text, part)

    match node:
        case ast.Constant(value) if type(value) in (bool, int, float, str):
            return lambda values: value
        case ast.Name(name):
            return lambda values: _look_up_name(name, values)
        case ast.Tuple(elts) | ast.List(elts) | ast.Set(elts):
            items = [compile_part(item) for item in elts]
            return lambda values: tuple(item(values) for item in items)
        case ast.UnaryOp(op, operand):
            apply, inner = _UNARY[type(op)], compile_part(operand)
            return lambda values: apply(inner(values))
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _compile_arithmetic(op, compile_part(left), compile_part(right))
        case ast.BoolOp(op, operands):
            parts = [compile_part(operand) for operand in operands]
            return _compile_and(parts) if isinstance(op, ast.And) else _compile_or(parts)
        case ast.Compare(left, ops, comparators) if all(type(op) in _COMPARISONS for op in ops):
            return _compile_comparisons(
                compile_part(left), [_COMPARISONS[type(op)] for op in ops], [compile_part(one) for one in comparators]
            )
        case ast.IfExp(test, body, orelse):
            condition, chosen, other = compile_part(test), compile_part(body), compile_part(orelse)
            return lambda values: chosen(values) if condition(values) else other(values)
        case ast.Call(ast.Name(name), arguments, []) if name in _FUNCTIONS:
            function, given = _FUNCTIONS[name], [compile_part(argument) for argument in arguments]
            return lambda values: function(*(argument(values) for argument in given))
        case ast.Call(ast.Name(name)):
            raise UsageError(f"the expression {text!r} calls {name} {listed(sorted(_FUNCTIONS), near=name)}")
    part = ast.get_source_segment(text.strip(), node) or type(node).__name__
    raise UsageError(
        f"the expression {text!r} holds {part!r}, which is not allowed",
        hint="use knobs, problem keys, numbers, arithmetic, comparisons, and, or, not, in, or a function (p, c)",
    )


def _look_up_name(name: str, values: Mapping[str, Any]) -> Any:
    try:
        return values[name]
    except KeyError:
        raise UsageError(f"{name!r} is neither a knob nor a problem key {listed(values, near=name)}") from None


def _compile_arithmetic(op: ast.operator, left: _Evaluator, right: _Evaluator) -> _Evaluator:
    apply = _BINARY[type(op)]

    def compute_operation(values: Mapping[str, Any]) -> Any:
        one, other = left(values), right(values)
        if isinstance(one, str | tuple) or isinstance(other, str | tuple):
            raise TypeError("arithmetic takes numbers")
        if isinstance(op, ast.Pow | ast.LShift) and isinstance(one, int) and isinstance(other, int):
            bits = abs(other) * (max(1, abs(one).bit_length()) if isinstance(op, ast.Pow) else 1)
            if bits > MAX_BITS:
                raise OverflowError(f"an integer of more than {MAX_BITS} bits")
        result = apply(one, other)
        if isinstance(result, int) and result.bit_length() > 2 * MAX_BITS:
            raise OverflowError(f"an integer of more than {MAX_BITS} bits")
        return result

    return compute_operation


def _compile_and(parts: list[_Evaluator]) -> _Evaluator:
    """Return the first false operand, or else the last one, as Python does: it may be used in arithmetic."""
    return lambda values: _evaluate_until(parts, values, stops_at=False)


def _compile_or(parts: list[_Evaluator]) -> _Evaluator:
    return lambda values: _evaluate_until(parts, values, stops_at=True)


def _evaluate_until(parts: list[_Evaluator], values: Mapping[str, Any], *, stops_at: bool) -> Any:
    value: Any = None
    for part in parts:
        value = part(values)
        if bool(value) is stops_at:
            break
    return value


def _compile_comparisons(
    first: _Evaluator, tests: list[Callable[[Any, Any], bool]], others: list[_Evaluator]
) -> _Evaluator:
    def compare_chain(values: Mapping[str, Any]) -> bool:
        left = first(values)
        for test, other in zip(tests, others, strict=True):
            right = other(values)
            if not test(left, right):
                return False
            left = right
        return True

    return compare_chain
