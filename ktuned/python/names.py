"""Names in Python syntax: the names that a statement binds, and the names that it reads from outside. No IO."""

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


def find_free_names(node: ast.AST) -> set[str]:
    """Return the names that a node reads from outside. A class body is treated as if it bound no names."""
    try:
        return _find_outer_names(symtable(ast.unparse(node), "<node>", "exec"))
    except (SyntaxError, ValueError):
        # Some f-strings cannot be unparsed; then every name that is read counts.
        return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def _find_outer_names(table: SymbolTable) -> set[str]:
    """Return the names that a scope, and the scopes inside it, load from the module."""
    if isinstance(table, Function):
        names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    else:
        names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and not symbol.is_free()}
    return names.union(*map(_find_outer_names, table.get_children()))
