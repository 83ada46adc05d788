"""Meaning of Python code: the syntax of all that it reaches inside the project, and the plain values it captured.

Starting from a function or a value, :class:`Reach` follows module-level names, closures, defaults and imports
through the project's own files. Each thing reached becomes one *part*: a label, and a text that comments,
docstrings, formatting and line numbers do not change. Installed code counts by its distribution.

Below a whole file that is precise only where it is provable. What importing a file does besides defining names
(:mod:`ktuned.spec.python_effects`) counts for every kernel whose file imports it, and a file whose names are looked up
dynamically, imported by ``*`` or by a computed name counts as a whole.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ktuned.ipc import lexical
from ktuned.spec import distributions
from ktuned.spec.loader import module_file
from ktuned.spec.observer import OBSERVER
from ktuned.spec.origin import installed_in, is_ours
from ktuned.spec.python_effects import Effects
from ktuned.spec.python_syntax import FunctionNode, Source, free_names, meaning, parse

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_ABSENT = object()
_FOLLOWED = FunctionType, MethodType, functools.partial, type
_WRAPPED = "__wrapped__", "fn", "func", "_fn", "__func__"
"""Attributes in which wrappers of functions keep them: functools', Triton's, others'."""

_NAMING = ast.Constant, ast.Name, ast.Attribute
"""Expressions that a function is named by; the name that any other computes is not known."""

_DYNAMIC_NAMES = frozenset({"__import__", "eval", "exec", "globals", "vars"})
_DYNAMIC_ATTRIBUTES = frozenset({"__dict__", "__globals__", "__subclasses__", "getmembers", "iter_modules", "modules"})
"""Means of looking names up that no text has."""

_TEXTUAL = frozenset(
    {"__doc__", "getdoc", "getcomments", "getsource", "getsourcelines", "co_firstlineno", "co_lines", "co_positions"}
)
"""Means of reading what a file says besides what it does: comments, docstrings, the numbers of its lines."""

_PLAIN: tuple[type[Any], ...] = (bool, int, float, complex, str, bytes)


class Reach:
    """Collects the parts that some Python values reach.

    ``parts`` maps a label (``file:name``, relative to the kernel file) to its meaning; ``files`` are the files that
    were read for it. ``is_declaration`` recognises declarations of kernels (the decorator, the class), which are
    not part of a function's meaning.
    """

    def __init__(self, kernel_file: Path, root: Path, is_declaration: Callable[[object], bool]) -> None:
        self.parts: dict[str, str] = {}
        self.files: set[Path] = set()
        self._kernel_file = kernel_file
        self._home = kernel_file.parent
        self._root = root
        self._is_declaration = is_declaration
        self._effects = Effects(self._function_source, is_declaration)
        self._whole: set[Path] = set()
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

    def add_imports(self, modules: Mapping[str, ModuleType]) -> None:
        """Add what importing the kernel file does: its own effects, and those of all files that it imports.

        ``modules`` are the loaded ones that count by content: those that no import statement names are whole.
        """
        first = next((module for module in modules.values() if module_file(module) == self._kernel_file), None)
        queue = [self._source(self._kernel_file, {} if first is None else vars(first))]
        seen = {self._kernel_file}
        while queue:
            source = queue.pop()
            self._add_effects(source)
            taken = [item for node in source.syntax.imports for item in imported_names(node, source.package)]
            for name in dict.fromkeys([*(module for module, _ in taken), *map(".".join, taken)]):
                self._add_package(name)
                found = self._module_source(name, source)
                if found is not None and found.path not in seen:
                    seen.add(found.path)
                    queue.append(found)
        self.files |= seen
        for module in modules.values():
            path = module_file(module)
            if path is None or path in seen:
                continue
            loaded = self._loaded_source(module)
            if loaded is not None:
                self._add_whole(loaded)
            else:
                self.parts[self._label(path, module.__name__)] = OBSERVER.files.get(path, "")
        for path in OBSERVER.executed:
            # A loader's that enters none among the modules, by a path.
            if path not in self.files:
                self._add_whole(self._source(path, {}))

    def _add_effects(self, source: Source) -> None:
        """Add what importing a file does besides defining names."""
        if any(_imports_all(node) and self._is_followed(node, source) for node in source.syntax.imports):
            # Nothing in its text says which names it has.
            self._add_whole(source)
        effects = [node for node in self._effects.of(source) if source.path != self._kernel_file or _has_run(node)]
        if effects and source.path not in self._whole:
            label = f"{self._place(source)}:(module level)"
            if label not in self.parts:
                self.parts[label] = "\n".join(map(meaning, effects))
                for statement in effects:
                    self._add_reached(source, statement)

    def _is_followed(self, node: ast.Import | ast.ImportFrom, source: Source) -> bool:
        return any(self._module_source(module, source) for module, _ in imported_names(node, source.package))

    def _add_package(self, module: str) -> None:
        """Add the distribution of an installed module that the project imports."""
        found = sys.modules.get(module.partition(".")[0])
        file = None if found is None or is_ours(module) else getattr(found, "__file__", None)
        place = installed_in(file) if isinstance(file, str) and not OBSERVER.counts(file) else None
        for owner in () if place is None else distributions.owners(place):
            self.parts[f"{owner.name} (installed)"] = owner.identity()
            self.files.add(owner.record)

    def _add_function(self, label: str, function: FunctionType) -> None:
        code = function.__code__
        source = self._code_source(function)
        if source is None:
            self._add_foreign_function(label, function)
            return
        self.files.add(source.path)
        node = source.find(code)
        if node is None:
            # Code that was made while it ran.
            self.parts[label] = code_text(code)
            self._add_whole(source)
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

    def _add_foreign_function(self, label: str, function: FunctionType) -> None:
        """Add a function of other packages: its name, and the project's functions that it wraps."""
        self.parts[label] = f"{function.__module__}.{function.__qualname__}"
        if is_ours(function.__module__):
            return
        held = {"wrapped": getattr(function, "__wrapped__", None)}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):
                held[name] = cell.cell_contents
        for name, value in held.items():
            if isinstance(value, _FOLLOWED) or (value is not None and is_plain(value)):
                self.add(f"{label}<{name}>", value)

    def _code_source(self, function: FunctionType) -> Source | None:
        """Return the file that a function of the project stands in; ``None`` for other code."""
        path = Path(function.__code__.co_filename)
        if is_ours(function.__module__ or "") or not (OBSERVER.counts(str(path)) and path.is_file()):
            return None
        return self._source(lexical(path), function.__globals__)

    def _function_source(self, function: FunctionType) -> tuple[Source, FunctionNode] | None:
        source = self._code_source(function)
        node = None if source is None else source.find(function.__code__)
        return None if source is None or node is None else (source, node)

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
            self._add_fields(label, value, {**_as_plain(value), **getattr(value, "__dict__", {})})
        elif (place := self._find_name(value)) is not None:
            # Its definition says more than its text: a decorator of other packages made it of a function.
            self.parts[label] = f"{type(value).__qualname__} {place[1]}"
            self._add_name(*place)
        else:
            self.parts[label] = array_text(value) or f"{type(value).__qualname__} {_ADDRESS.sub('', repr(value))}"
            for name in _WRAPPED:
                inner = getattr(value, name, None)
                if isinstance(inner, _FOLLOWED):
                    self.add(f"{label}.{name}", inner)

    def _find_name(self, value: object) -> tuple[Source, str] | None:
        """Return the module-level name that defines an object, if a module of the project has one."""
        for module in OBSERVER.modules().values():
            for name, held in vars(module).items():
                if held is value and (source := self._loaded_source(module)) and name in source.syntax.definitions:
                    return source, name
        return None

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
        """Add a file as a whole, with all that it reaches."""
        if source.path in self._whole:
            return
        self._whole.add(source.path)
        self.files.add(source.path)
        tree = source.syntax.tree
        declared = [node for node in tree.body if self._is_declared(source, node)]
        self.parts[f"{self._place(source)}:(whole)"] = meaning(tree, declared)
        for statement in tree.body:
            if statement not in declared:
                self._add_reached(source, statement)

    def _is_declared(self, source: Source, node: ast.stmt) -> bool:
        return any(self._declares(source, item) for item in getattr(node, "decorator_list", ()))

    def _add_reached(
        self,
        source: Source,
        node: ast.stmt | ast.expr,
        bound: frozenset[str] = frozenset(),
        dropped: Sequence[ast.AST] = (),
    ) -> None:
        for dotted in free_names(node, bound, dropped):
            self._add_dotted(source, dotted)
            if dotted[0] in _DYNAMIC_NAMES or not _DYNAMIC_ATTRIBUTES.isdisjoint(dotted[1:]):
                self._add_all_within_reach(source)
            if not _TEXTUAL.isdisjoint(dotted):
                self._add_texts(source)
        self._add_named_by_text(source, node)
        for inner in source.syntax.imports_in(node):
            self._add_import(source, inner)

    def _add_named_by_text(self, source: Source, node: ast.AST) -> None:
        """Add what texts may name: a Build may hold the name of a function in place of the function."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                module, _, name = inner.value.rpartition(":")
                first = name.partition(".")[0]
                if first in source.syntax.definitions and not module:
                    self._add_name(source, first)
                elif module and first.isidentifier() and (found := self._module_source(module, source)):
                    self._add_name(found, first)
            elif isinstance(inner, ast.keyword) and inner.arg == "function" and not isinstance(inner.value, _NAMING):
                self._add_all_within_reach(source)

    def _add_all_within_reach(self, source: Source) -> None:
        """Add a file and those that it imports as a whole: its code looks names up that its text does not have."""
        self._add_whole(source)
        for found in self._imported(source):
            self._add_whole(found)

    def _imported(self, source: Source) -> Iterator[Source]:
        """Yield the project's files that a file imports itself."""
        for node in source.syntax.imports:
            for module, name in imported_names(node, source.package):
                for found in (self._module_source(module, source), self._module_source(f"{module}.{name}", source)):
                    if found is not None:
                        yield found

    def _add_texts(self, source: Source) -> None:
        """Add a file and those that it imports by their bytes: its code reads comments, docstrings or line numbers."""
        label = f"{self._place(source)}:(text)"
        if label in self.parts:
            return
        self._add_all_within_reach(source)
        for found in (source, *self._imported(source)):
            content = OBSERVER.read(found.path)
            self.parts[f"{self._place(found)}:(text)"] = hashlib.sha256(content).hexdigest()

    def _add_dotted(self, source: Source, dotted: tuple[str, ...]) -> None:
        """Add ``a.b.c``: through modules of the project only the name at the end counts."""
        value = source.namespace.get(dotted[0], _ABSENT)
        if not isinstance(value, ModuleType):
            self._add_name(source, dotted[0])
            return
        for position, attribute in enumerate(dotted[1:], start=1):
            inside = self._loaded_source(value)
            if inside is None:
                self.add(f"{self._place(source)}:{'.'.join(dotted[:position])}", value)
                return
            inner = getattr(value, attribute, _ABSENT)
            if not isinstance(inner, ModuleType):
                self._add_name(inside, attribute)
                return
            value = inner
        self.add(f"{self._place(source)}:{'.'.join(dotted)}", value)

    def _add_name(self, source: Source, name: str) -> None:
        """Add what a module-level name stands for: its plain value, or the statements that define it."""
        label = f"{self._place(source)}:{name}"
        value = source.namespace.get(name, _ABSENT)
        statements = source.syntax.definitions.get(name, ())
        if value is _ABSENT and not statements and "__getattr__" in source.syntax.definitions:
            self._add_name(source, "__getattr__")
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
                if OBSERVER.counts(str(candidate)) and candidate.is_file():
                    return self._source(candidate, {"__name__": name})
        return None

    def _loaded_source(self, module: ModuleType) -> Source | None:
        path = module_file(module)
        if path is None or path.suffix != ".py" or is_ours(module.__name__) or not OBSERVER.counts(str(path)):
            return None
        if OBSERVER.digest(path) is None and not path.is_file():
            # It lies in an archive, which counts as a whole.
            return None
        return self._source(path, vars(module))

    def _source(self, path: Path, namespace: Mapping[str, Any]) -> Source:
        return Source(path, parse(path, OBSERVER.read(path)), namespace)

    def _place(self, source: Source) -> str:
        return self._label(source.path, str(source.namespace.get("__name__", "")))

    def _label(self, path: Path, module: str) -> str:
        """Return what a file is called on any machine: outside the project, by its module."""
        if path.is_relative_to(self._root) or path == self._kernel_file or not module:
            return Path(os.path.relpath(path, self._home)).as_posix()
        return f"{module.replace('.', '/')}{path.suffix}"

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


def _imports_all(node: ast.Import | ast.ImportFrom) -> bool:
    return any(alias.name == "*" for alias in node.names)


def is_plain(value: object) -> bool:
    """Return whether a value is data all through, so that its text is its meaning."""
    if value is None or isinstance(value, range) or type(value) in _PLAIN:
        return True
    if isinstance(value, (enum.Enum, *_PLAIN)):
        # Of a class that the project defines, the methods count, too.
        module = sys.modules.get(type(value).__module__)
        return not OBSERVER.counts(str(getattr(module, "__file__", None)))
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    return type(value) in (list, tuple, set, frozenset) and all(map(is_plain, value))  # type: ignore[call-overload]


def _as_plain(value: Any) -> dict[str, object]:
    """Return the number or text that an object is, besides what its class makes of it."""
    return next(({kind.__name__: kind(value)} for kind in _PLAIN if isinstance(value, kind)), {})


def plain_text(value: Any) -> str:
    """Return one text for a plain value, with its types and in its order; a set has none, and is sorted."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return f"{kind}{{" + ",".join(f"{plain_text(key)}:{plain_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, set | frozenset):
        return f"{kind}{{" + ",".join(sorted(map(plain_text, value))) + "}"
    if isinstance(value, list | tuple):
        return f"{kind}[" + ",".join(map(plain_text, value)) + "]"
    return f"{kind} {value!r}"


def array_text(value: Any) -> str:
    """Return the type, shape and content of an array, whose own text is abridged; nothing for anything else."""
    if type(value).__module__.partition(".")[0] not in ("numpy", "torch") or not hasattr(value, "__array__"):
        return ""
    try:
        array = value.__array__()
        return f"{type(value).__qualname__} {array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    except (TypeError, ValueError, RuntimeError):
        # One on a device, or of a type that NumPy does not have.
        return ""


def code_text(code: CodeType) -> str:
    """Return the instructions of a code object without a source, less its line numbers."""
    constants = [code_text(item) if isinstance(item, CodeType) else repr(item) for item in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _has_run(statement: ast.stmt) -> bool:
    """Return whether a statement of the kernel file has run: an import may end at a call of ``ktuned.tune``.

    That call does nothing in a worker; but a function that makes it may have done more before.
    """
    end = OBSERVER.import_end
    if end is None:
        return True
    return (statement.end_lineno or 0) < end.line if end.is_direct else statement.lineno <= end.line
