"""A Python file as syntax: the meaning of a node, the names it takes from outside, the place of a code object."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from symtable import Function, SymbolTable, symtable
from types import CodeType
from typing import Any

from ktuned.model import Record, record

PARSED_FILES_KEPT = 32
"""A file with many kernels is parsed once for all of them."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# `kind` distinguishes u"" from "", `ctx` repeats the node's place, `type_comment` is a comment.
_MEANINGLESS_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


class Syntax:
    """A file's syntax, with cached queries."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree

    @cached_property
    def definitions(self) -> dict[str, list[ast.stmt]]:
        """The module-level statements that bind each name: the whole ``if``, ``try``, ``with`` or loop around one."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            for name in dict.fromkeys(_locals_of(statement)):
                found.setdefault(name, []).append(statement)
        return found

    @cached_property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """Every import, also those inside functions."""
        return [node for node in self._nodes if isinstance(node, ast.Import | ast.ImportFrom)]

    def imports_in(self, node: ast.stmt | ast.expr) -> list[ast.Import | ast.ImportFrom]:
        """Return the imports that a node of this file is or encloses."""
        start, end = _span(node)
        return [found for found in self.imports if start <= _span(found)[0] and _span(found)[1] <= end]

    @cached_property
    def functions(self) -> dict[tuple[str, int], list[FunctionNode]]:
        """Every function and lambda, by the name and first line that its code object has."""
        found: dict[tuple[str, int], list[FunctionNode]] = {}
        for node in self._nodes:
            if isinstance(node, _SCOPES):
                found.setdefault(_start(node), []).append(node)
        return found

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return [node for node in ast.walk(self.tree) if isinstance(node, (*_SCOPES, ast.Import, ast.ImportFrom))]


@record
class Source(Record):
    """One file's syntax, and the namespace of the module that was loaded from it (empty if none was)."""

    path: Path
    syntax: Syntax
    namespace: Mapping[str, Any]

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        package = self.namespace.get("__package__")
        return package if isinstance(package, str) else str(self.namespace.get("__name__", "")).rpartition(".")[0]

    def find(self, code: CodeType) -> FunctionNode | None:
        """Return the function or lambda that a code object was compiled from."""
        nodes = self.syntax.functions.get((code.co_name, code.co_firstlineno), [])
        if len(nodes) > 1:
            nodes = [node for node in nodes if _encloses(node, code)]
        return min(nodes, key=_extent, default=None)


@lru_cache(maxsize=PARSED_FILES_KEPT)
def parse(path: Path, content: bytes) -> Syntax:
    """Parse a file's content.

    Raises:
        SyntaxError: it is not Python.
    """
    return Syntax(ast.parse(content, str(path)))


def meaning(node: ast.AST, dropped: Collection[ast.AST] = ()) -> str:
    """Return a node's syntax as text without locations, docstrings and the ``dropped`` nodes.

    Empty fields are left out, so that additions to the grammar in newer Pythons change no text.
    """
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {node.value!r}"
    fields = []
    for name, value in ast.iter_fields(node):
        if name in _MEANINGLESS_FIELDS:
            continue
        text = _field_meaning(_without_docstring(node, value) if name == "body" else value, dropped)
        if text:
            fields.append(f"{name}={text}")
    return f"{type(node).__name__}({' '.join(fields)})"


def free_names(
    node: ast.AST, bound: frozenset[str] = frozenset(), dropped: Collection[ast.AST] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the names that a node loads from outside itself, each with the attributes taken from it (``a.b.c``).

    ``bound`` names are not yielded. A class body counts as if it bound nothing.
    """
    try:
        outer = _outer_names(symtable(ast.unparse(node), "<node>", "exec"))
    except (SyntaxError, ValueError):
        # Not every f-string can be written as source again: then every name counts.
        outer = None
    for dotted in _loaded_names(node, dropped):
        # Names with two underscores are mangled inside classes, so the table has them by another name.
        is_outer = outer is None or dotted[0] in outer or dotted[0].startswith("__")
        if is_outer and dotted[0] not in bound:
            yield dotted


def _outer_names(table: SymbolTable) -> set[str]:
    """Return the names that a scope of a source, and those inside it, load from the module."""
    if isinstance(table, Function):
        names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    else:
        names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and not symbol.is_free()}
    return names.union(*map(_outer_names, table.get_children()))


def _loaded_names(node: ast.AST, dropped: Collection[ast.AST]) -> Iterator[tuple[str, ...]]:
    """Yield each dotted name that a node's syntax loads, but not those of ``dropped`` nodes."""
    if node in dropped:
        return
    if isinstance(node, ast.Attribute | ast.Name):
        dotted, base = _dotted(node)
        if base is not None:
            yield from _loaded_names(base, dropped)
        elif isinstance(node.ctx, ast.Load):
            yield dotted
        return
    for child in ast.iter_child_nodes(node):
        yield from _loaded_names(child, dropped)


def _field_meaning(value: Any, dropped: Collection[ast.AST]) -> str:
    if isinstance(value, ast.AST):
        return "" if value in dropped else meaning(value, dropped)
    if isinstance(value, list):
        items = [_field_meaning(item, dropped) for item in value if item not in dropped]
        return f"[{' '.join(items)}]" if items else ""
    return "" if value is None else repr(value)


def _without_docstring(node: ast.AST, body: Any) -> Any:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) or not body:
        return body
    value = body[0].value if isinstance(body[0], ast.Expr) else None
    is_docstring = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return body[1:] if is_docstring else body


def _dotted(node: ast.Attribute | ast.Name) -> tuple[tuple[str, ...], ast.expr | None]:
    """Return ``a.b.c`` as a tuple, or the expression that the attributes are taken from if it is no name."""
    attributes: list[str] = []
    base: ast.expr = node
    while isinstance(base, ast.Attribute):
        attributes.append(base.attr)
        base = base.value
    if isinstance(base, ast.Name):
        return (base.id, *reversed(attributes)), None
    return (), base


def _locals_of(node: ast.AST) -> Iterator[str]:
    """Yield the names that a part of a function's body binds in that function."""
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
        yield from _locals_of(child)


def _start(node: FunctionNode) -> tuple[str, int]:
    if isinstance(node, ast.Lambda):
        return "<lambda>", node.lineno
    return node.name, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _encloses(node: FunctionNode, code: CodeType) -> bool:
    """Return whether all of a code object's instructions were compiled from inside a node."""
    start, end = _span(node)
    for line, end_line, column, end_column in code.co_positions():
        # Instructions of the interpreter's own have no place, or one without width.
        if line is None or end_line is None or column is None or end_column is None or column == end_column:
            continue
        if (line, column) < start or (end_line, end_column) > end:
            return False
    return True


def _span(node: ast.stmt | ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _extent(node: FunctionNode) -> tuple[int, int]:
    return ((node.end_lineno or 0) - node.lineno, (node.end_col_offset or 0) - node.col_offset)
