"""Names in Python syntax: those that a statement binds, and those that it takes from outside. No IO."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from symtable import Function, SymbolTable, symtable

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def find_bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds in its own scope."""
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        if node.name:
            yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
    if isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
        return
    for child in ast.iter_child_nodes(node):
        yield from find_bound_names(child)


def find_free_names(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield the names that a node loads from outside, each with the attributes taken from it (``a.b.c``).

    A class body counts as if it bound nothing.
    """
    try:
        outer = _find_outer_names(symtable(ast.unparse(node), "<node>", "exec"))
    except (SyntaxError, ValueError):
        # Some f-strings cannot be unparsed. Then every name counts.
        outer = None
    for dotted in _find_loaded_names(node):
        # Inside classes, names with two underscores are mangled: the table has them under other names.
        is_outer = outer is None or dotted[0] in outer or dotted[0].startswith("__")
        if is_outer:
            yield dotted


def _find_outer_names(table: SymbolTable) -> set[str]:
    """Return the names that a scope, and the scopes inside it, load from the module."""
    if isinstance(table, Function):
        names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    else:
        names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and not symbol.is_free()}
    return names.union(*map(_find_outer_names, table.get_children()))


def _find_loaded_names(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield each dotted name that a node's syntax loads."""
    if isinstance(node, ast.Attribute | ast.Name):
        dotted, base = _split_dotted_name(node)
        if base is not None:
            yield from _find_loaded_names(base)
        elif isinstance(node.ctx, ast.Load):
            yield dotted
        return
    for child in ast.iter_child_nodes(node):
        yield from _find_loaded_names(child)


def _split_dotted_name(node: ast.Attribute | ast.Name) -> tuple[tuple[str, ...], ast.expr | None]:
    """Return ``a.b.c`` as a tuple; if the attributes are not taken from a name, the expression instead."""
    attributes: list[str] = []
    base: ast.expr = node
    while isinstance(base, ast.Attribute):
        attributes.append(base.attr)
        base = base.value
    if isinstance(base, ast.Name):
        return (base.id, *reversed(attributes)), None
    return (), base
