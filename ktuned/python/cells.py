"""Writes the kernel file of a notebook's kernel: its cell, and the definitions that it uses from other cells. No IO.

Workers import a file, but a notebook has only cells. Running all of them in each worker would be slow and would have
side effects. So the cell that declares the kernel is taken as a whole. From the other cells come only the statements
that define names which it uses, directly or not: imports, functions, classes, assignments, and later statements that
change such a name. Other statements, such as ``torch.set_num_threads(1)``, are left out; if the kernel needs one, it
belongs in the kernel's own cell.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from symtable import Function, SymbolTable, symtable

from ktuned.model import UsageError

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


MARK = "written by ktuned.tune from the cells of a notebook; edit the notebook, because this file is written again"
"""Stands in the first line of each file that is written here; a file without it is never overwritten."""

_SHELL = "get_ipython"
"""IPython turns magics and shell commands into calls of this function, which workers do not have."""


@dataclass(frozen=True, eq=False)
class CellStatement:
    """A top-level statement of a cell that has run: the cell's number, the statement's syntax tree, and its text."""

    cell: int
    node: ast.stmt
    text: str

    @cached_property
    def binds(self) -> frozenset[str]:
        """The names to which the statement assigns a value."""
        return frozenset(find_bound_names(self.node))

    @cached_property
    def changes(self) -> frozenset[str]:
        """The names whose values it changes in place: ``x[0] = 1``, ``x.y = 1``, ``x += 1``, ``x.append(1)``."""
        if isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return frozenset()
        targets: list[ast.expr] = []
        for node in ast.walk(self.node):
            if isinstance(node, ast.AugAssign):
                targets.append(node.target)
            elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                targets.append(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                targets.append(node.value.func)
        return frozenset(filter(None, map(_find_base_name, targets)))

    @cached_property
    def uses(self) -> set[str]:
        """The names that it reads from elsewhere, including the names whose values it changes."""
        return find_free_names(self.node) | self.changes

    @property
    def is_import(self) -> bool:
        """True if the statement is an import."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)


def list_statements(cells: Sequence[str]) -> list[CellStatement]:
    """Return the statements of the cells that have run, in order, except those that need the notebook's shell.

    ``cells`` are Python texts, in which magics are calls already. A cell that cannot be parsed did not run.
    """
    found = []
    for number, text in enumerate(cells):
        try:
            body = ast.parse(text).body
        except SyntaxError:
            continue
        lines = text.splitlines()
        for node in body:
            if not any(isinstance(part, ast.Name) and part.id == _SHELL for part in ast.walk(node)):
                found.append(CellStatement(number, node, _get_source(node, body, lines)))
    return found


def write_kernel_text(cells: Sequence[str], kernel: str, names: Collection[str]) -> str:
    """Return the text of a kernel file; ``names`` are the notebook's variables that hold the kernel.

    Raises:
        UsageError: no cell declares the kernel at its top level.
    """
    # The kernel's own cell is the last one that declares it.
    statements = list_statements(cells)
    declaring = [statement.cell for statement in statements if not statement.is_import and statement.binds & set(names)]
    if not declaring:
        raise UsageError(
            f"no cell declares the kernel {kernel!r} at its top level",
            hint="declare it in a cell of its own, outside of functions and without a %%magic",
        )
    selected = [statement for statement in statements if statement.cell == declaring[-1]]
    wanted_names = list(_find_wanted_names(selected))
    # Add the definitions of the names that the cell uses, and in turn of the names that these definitions use.
    settled_names = {name for statement in selected for name in statement.binds}
    while wanted_names:
        name = wanted_names.pop()
        if name in settled_names:
            continue
        settled_names.add(name)
        for statement in _find_definitions(statements, name, declaring[-1]):
            if statement not in selected:
                selected.append(statement)
                wanted_names += statement.uses
    # Write all of them in the order in which they ran.
    order = {id(statement): place for place, statement in enumerate(statements)}
    selected.sort(key=lambda statement: order[id(statement)])
    parts: list[str] = []
    for before, statement in zip([None, *selected], selected, strict=False):
        is_apart = before is not None and not (before.is_import and statement.is_import)
        parts.append(("\n" if is_apart else "") + statement.text)
    return f'"""Kernel {kernel}: {MARK}."""\n\n' + "\n".join(parts) + "\n"


def _find_wanted_names(selected: Sequence[CellStatement]) -> Iterator[str]:
    """Yield the names that a cell uses before it binds them."""
    bound: set[str] = set()
    for statement in selected:
        yield from statement.uses - bound
        # A function's names count as bound although its body runs only later, when its whole cell has run.
        bound |= statement.binds


def _find_definitions(statements: Sequence[CellStatement], name: str, declaring: int) -> list[CellStatement]:
    """Return the statements that define a name for the kernel's cell, and those that change it afterwards."""
    binding = [place for place, statement in enumerate(statements) if name in statement.binds - statement.changes]
    if not binding:
        return []
    first = max((place for place in binding if statements[place].cell <= declaring), default=binding[0])
    return [
        statement
        for statement in statements[first:]
        if name in statement.binds or (name in statement.changes and not statements[first].is_import)
    ]


def _find_base_name(node: ast.expr) -> str:
    """Return the name whose attribute or item an expression is; empty for a plain name that is called."""
    is_part = False
    while isinstance(node, ast.Attribute | ast.Subscript):
        node, is_part = node.value, True
    return node.id if isinstance(node, ast.Name) and (is_part or isinstance(node.ctx, ast.Store)) else ""


def _get_source(node: ast.stmt, body: Sequence[ast.stmt], lines: Sequence[str]) -> str:
    """Return a statement's text with its comments; if it shares a line with another statement, unparse it instead."""
    first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
    last = node.end_lineno or node.lineno
    shared = any(
        other is not node and other.lineno <= last and (other.end_lineno or other.lineno) >= first for other in body
    )
    return ast.unparse(node) if shared else "\n".join(lines[first - 1 : last])
