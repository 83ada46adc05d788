"""The meaning of a Python file for results: its whole syntax tree, and nothing finer.

The tree has no comments and no layout, but it has docstrings and the order of statements. The code is not analysed: a
definition that no kernel uses counts like any other. That only costs compiles, because a measurement of equal machine
code, arguments and data is taken over (:mod:`ktuned.tuning.measure_stage`).

A file whose text is read counts by its bytes. Most code opens it by its name, which the observer sees
(:mod:`ktuned.dependencies.accesses`). Python can also give code its own text or line numbers without opening the file
again. Code that asks for these must mention one of :data:`_SOURCE_TEXT_NAMES`; then all files count by their bytes.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from ktuned.dependencies.code_observer import ImportEnd

FILES_KEPT = 256
"""Most files whose digests are kept: enough for a project, whose files are all looked at whenever one is saved."""

_SOURCE_TEXT_NAMES = frozenset(
    {"getcomments", "getsource", "getsourcelines", "findsource", "linecache", "get_source"}
    | {"co_firstlineno", "co_lines", "co_positions", "f_lineno", "tb_lineno", "lineno", "currentframe", "_getframe"}
)
"""Names by which code can get the text, or the line numbers, of imported files."""

# `kind` distinguishes u"" from "", `ctx` repeats the node's place, `type_comment` is a comment.
_MEANINGLESS_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


@lru_cache(maxsize=FILES_KEPT)
def digest_meaning(path: Path, content: bytes, end: ImportEnd | None = None) -> str:
    """Return the digest of a Python file's syntax tree, up to where its import ended, if it did before the file's end.

    It is empty for any other file, and for a file that cannot be parsed: these count by their bytes.
    """
    tree = _parse_file(path, content)
    if tree is not None and end is not None:
        tree = ast.Module([statement for statement in tree.body if not end.is_before(statement)], [])
    try:
        return "" if tree is None else hashlib.sha256(_describe_node(tree).encode("utf-8", "surrogatepass")).hexdigest()
    except RecursionError:
        return ""


@lru_cache(maxsize=FILES_KEPT)
def mentions_any(path: Path, content: bytes, names: frozenset[str]) -> bool:
    """Return whether a file's code mentions one of these names, also as text."""
    tree = _parse_file(path, content)
    return tree is not None and not names.isdisjoint(_find_names(tree))


def mentions_source_text(path: Path, content: bytes) -> bool:
    """Return whether a file's code mentions a way to the text of imported files."""
    return mentions_any(path, content, _SOURCE_TEXT_NAMES)


def _parse_file(path: Path, content: bytes) -> ast.Module | None:
    if path.suffix != ".py":
        return None
    try:
        return ast.parse(content, str(path))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _find_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Constant(value=str(name)):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (part for alias in aliases for part in alias.name.split("."))


def _describe_node(node: Any) -> str:
    """Return a node's syntax as text without places.

    Empty fields are left out, so that newer Pythons, which add fields to the grammar, give the same text.
    """
    if isinstance(node, list):
        return "[" + " ".join(map(_describe_node, node)) + "]" if node else ""
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {node.value!r}"
    if not isinstance(node, ast.AST):
        return "" if node is None else repr(node)
    fields = ((name, _describe_node(value)) for name, value in ast.iter_fields(node) if name not in _MEANINGLESS_FIELDS)
    return f"{type(node).__name__}({' '.join(f'{name}={text}' for name, text in fields if text)})"
