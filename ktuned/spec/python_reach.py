"""Meaning of Python code: the syntax of all that it reaches inside the project, and the plain values it captured.

Starting from a function or a value, :class:`Reach` follows module-level names, closures, defaults and imports
through the project's own files. Each thing reached becomes one *part*: a label, and a text that comments,
docstrings, formatting and line numbers do not change. Code outside the project counts by its name; its version
is the toolchain fingerprint's business.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ktuned.ipc import lexical
from ktuned.spec.loader import is_local, is_ours, module_file
from ktuned.spec.python_source import Source, free_names, meaning, parse

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_ABSENT = object()


class Reach:
    """Collects the parts that some Python values reach.

    ``parts`` maps a label (``file:name``, relative to ``home``) to its meaning; ``files`` are the project's files
    that were read for it. ``is_declaration`` recognises declarations of kernels (the decorator, the class), which are
    not part of a function's meaning.
    """

    def __init__(self, home: Path, root: Path, is_declaration: Callable[[object], bool]) -> None:
        self.parts: dict[str, str] = {}
        self.files: set[Path] = set()
        self._home = home
        self._root = root
        self._is_declaration = is_declaration
        # By identity, so that what refers to itself ends; with the value, so that no identity is used again.
        self._seen: dict[int, tuple[str, object]] = {}

    def add(self, label: str, value: object) -> None:
        """Add a value under a label of the caller's, with all that it reaches."""
        if label in self.parts:
            return
        if is_plain(value):
            self.parts[label] = plain_text(value)
            return
        if id(value) in self._seen:
            self.parts[label] = f"the same as {self._seen[id(value)][0]}"
            return
        self._seen[id(value)] = (label, value)
        match value:
            case FunctionType():
                self._add_function(label, value)
            case MethodType():
                self._add_fields(label, value, {"function": value.__func__, "self": value.__self__})
            case functools.partial():
                self._add_fields(label, value, {"function": value.func, "args": value.args, "keywords": value.keywords})
            case ModuleType():
                self._add_module(label, value)
            case type():
                self._add_class(label, value)
            case list() | tuple():
                self._add_fields(label, value, {str(position): item for position, item in enumerate(value)})
            case dict():
                self._add_fields(label, value, {str(key): item for key, item in value.items()})
            case _:
                self._add_instance(label, value)

    def add_imports(self, path: Path, namespace: Mapping[str, Any]) -> None:
        """Record every file of the project that the one at ``path`` imports, directly or not."""
        queue = [self._source(path, namespace)]
        seen = {path}
        while queue:
            source = queue.pop()
            taken = [item for node in source.syntax.imports for item in imported_names(node, source.package)]
            for module in dict.fromkeys([*(module for module, _ in taken), *map(".".join, taken)]):
                found = self._module_source(module, source)
                if found is not None and found.path not in seen:
                    seen.add(found.path)
                    queue.append(found)
        self.files |= seen

    def _add_function(self, label: str, function: FunctionType) -> None:
        code = function.__code__
        path = lexical(Path(code.co_filename))
        if is_ours(function.__module__) or not (path.is_file() and is_local(path, self._root)):
            self.parts[label] = f"{function.__module__}.{function.__qualname__}"
            return
        self.files.add(path)
        source = self._source(path, function.__globals__)
        node = source.find(code)
        if node is None:
            # The file is newer than the code that was loaded from it: its new content is inspected next.
            self.parts[label] = code_text(code)
            return
        dropped = [item for item in getattr(node, "decorator_list", ()) if self._declares(source, item)]
        self.parts[label] = meaning(node, dropped)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for name, cell in cells.items():
            try:
                self.add(f"{label}<{name}>", cell.cell_contents)
            except ValueError:
                self.parts[f"{label}<{name}>"] = "not yet set"
        for position, value in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
            self.add(f"{label}<default {position}>", value)
        self._add_reached(source, node, frozenset(cells), dropped)

    def _add_class(self, label: str, kind: type) -> None:
        self.parts[label] = f"{kind.__module__}.{kind.__qualname__}"
        source = self._class_source(kind)
        if source is not None:
            self.parts[label] = kind.__qualname__
            self._add_name(source, kind.__qualname__.partition(".")[0])

    def _class_source(self, kind: type) -> Source | None:
        module = sys.modules.get(kind.__module__)
        return self._loaded_source(module) if module else None

    def _add_instance(self, label: str, value: object) -> None:
        function = self._declared_function(value)
        if function is not None:
            self.add(label, function)
        elif dataclasses.is_dataclass(value):
            self._add_fields(
                label, value, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            )
        elif self._class_source(type(value)) is not None:
            self._add_fields(label, value, getattr(value, "__dict__", {}))
        else:
            self.parts[label] = f"{type(value).__qualname__} {_ADDRESS.sub('', repr(value))}"

    def _add_fields(self, label: str, value: object, fields: Mapping[str, object]) -> None:
        self.parts[label] = f"{type(value).__qualname__}({', '.join(fields)})"
        self.add(f"{label}<class>", type(value))
        for name, item in fields.items():
            self.add(f"{label}.{name}", item)

    def _add_module(self, label: str, module: ModuleType) -> None:
        source = self._loaded_source(module)
        self.parts[label] = "module" if source else f"module {module.__name__}"
        if source:
            self._add_whole(source)

    def _add_whole(self, source: Source) -> None:
        self.files.add(source.path)
        for name in source.syntax.definitions:
            self._add_name(source, name)

    def _add_reached(
        self,
        source: Source,
        node: ast.stmt | ast.expr,
        bound: frozenset[str] = frozenset(),
        dropped: Sequence[ast.AST] = (),
    ) -> None:
        for dotted in free_names(node, bound, dropped):
            self._add_dotted(source, dotted)
        for inner in source.syntax.imports_in(node):
            self._add_import(source, inner)

    def _add_dotted(self, source: Source, dotted: tuple[str, ...]) -> None:
        """Add ``a.b.c``: through modules of the project only the name at the end counts."""
        value = source.namespace.get(dotted[0], _ABSENT)
        if not isinstance(value, ModuleType):
            self._add_name(source, dotted[0])
            return
        for position, attribute in enumerate(dotted[1:], start=1):
            inside = self._loaded_source(value)
            if inside is None:
                self.add(f"{self._relative(source.path)}:{'.'.join(dotted[:position])}", value)
                return
            inner = getattr(value, attribute, _ABSENT)
            if not isinstance(inner, ModuleType):
                self._add_name(inside, attribute)
                return
            value = inner
        self.add(f"{self._relative(source.path)}:{'.'.join(dotted)}", value)

    def _add_name(self, source: Source, name: str) -> None:
        """Add what a module-level name stands for: its plain value, or the statements that define it."""
        label = f"{self._relative(source.path)}:{name}"
        value = source.namespace.get(name, _ABSENT)
        statements = source.syntax.definitions.get(name, ())
        if label in self.parts or (value is _ABSENT and not statements):
            return
        self.files.add(source.path)
        speaks_for_itself = is_plain(value) or isinstance(value, ModuleType) or self._declared_function(value)
        if value is not _ABSENT and (speaks_for_itself or not statements):
            self.add(label, value)
            return
        # Another name on the same import line does not change this one.
        imports = [statement for statement in statements if isinstance(statement, ast.Import | ast.ImportFrom)]
        others = [statement for statement in statements if statement not in imports]
        targets = [".".join(target) for node in imports for target in imported_names(node, source.package, name)]
        self.parts[label] = "\n".join([*targets, *map(meaning, others)])
        for node in imports:
            self._add_import(source, node, name)
        for statement in others:
            self._add_reached(source, statement)

    def _add_import(self, source: Source, node: ast.Import | ast.ImportFrom, only: str = "") -> None:
        """Follow an import of the project's own: the names that it takes, or whole modules."""
        for module, name in imported_names(node, source.package, only):
            found = self._module_source(module, source)
            if found is not None and name in found.syntax.definitions:
                self._add_name(found, name)
                continue
            whole = self._module_source(f"{module}.{name}", source) if name not in ("", "*") else found
            if whole is not None:
                self._add_whole(whole)

    def _module_source(self, name: str, importer: Source) -> Source | None:
        """Find a module of the project: as it is loaded, or else as a file that a later import would load."""
        if is_ours(name):
            return None
        module = sys.modules.get(name)
        if module is not None:
            return self._loaded_source(module)
        for directory in dict.fromkeys([importer.path.parent, self._home]):
            base = directory.joinpath(*name.split("."))
            for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                if candidate.is_file() and is_local(candidate, self._root):
                    return self._source(candidate, {"__name__": name})
        return None

    def _loaded_source(self, module: ModuleType) -> Source | None:
        path = module_file(module)
        if path is None or path.suffix != ".py" or is_ours(module.__name__) or not is_local(path, self._root):
            return None
        return self._source(path, vars(module))

    def _source(self, path: Path, namespace: Mapping[str, Any]) -> Source:
        return Source(path, parse(path, path.read_bytes()), namespace)

    def _relative(self, path: Path) -> str:
        return Path(os.path.relpath(path, self._home)).as_posix()

    def _declares(self, source: Source, decorator: ast.expr) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name, *attributes = next(free_names(called), ("",))
        value = source.namespace.get(name)
        for attribute in attributes:
            value = getattr(value, attribute, None)
        return self._is_declaration(value)

    def _declared_function(self, value: object) -> FunctionType | None:
        function = getattr(value, "function", None) if self._is_declaration(type(value)) else None
        return function if isinstance(function, FunctionType) else None


def imported_names(node: ast.Import | ast.ImportFrom, package: str, only: str = "") -> list[tuple[str, str]]:
    """Return the names that an import statement takes, as (full module name, name in it or ``""``).

    With ``only``, just what is bound to that name.
    """
    if isinstance(node, ast.Import):
        return [(alias.name, "") for alias in node.names if only in ("", alias.asname or alias.name.partition(".")[0])]
    module = node.module or ""
    if node.level:
        try:
            module = importlib.util.resolve_name("." * node.level + module, package)
        except ImportError:
            return []
    return [(module, alias.name) for alias in node.names if only in ("", alias.asname or alias.name)]


def is_plain(value: object) -> bool:
    """Return whether a value is data all through, so that its text is its meaning."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | range | enum.Enum):
        return True
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    return type(value) in (list, tuple, set, frozenset) and all(map(is_plain, value))  # type: ignore[call-overload]


def plain_text(value: Any) -> str:
    """Return one text for a plain value, with sets and maps in sorted order."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{plain_text(key)}:{plain_text(item)}" for key, item in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(map(plain_text, value))) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(plain_text, value)) + "]"
    return repr(value)


def code_text(code: CodeType) -> str:
    """Return the instructions of a code object without a source, less its line numbers."""
    constants = [code_text(item) if isinstance(item, CodeType) else repr(item) for item in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"
