"""Functions that no import finds, as a module that other processes can import: those of scripts, and closures.

A script cannot be imported: it would run. A closure exists while its maker does. But a ``@triton.jit`` function needs
no more than its own source and what it reads by value: globals, and variables that it has captured. The module holds
the source at its file's line numbers, which are a part of Triton's digest, and everything else before it in one line.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import math
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from operator import attrgetter
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ktuned_triton.call import LeftAlone, is_wrapper
from ktuned_triton.evaluation import globals_read, plain_code

MAIN = "__main__"
_MAINS = (MAIN, "__mp_main__")
"""The script's names in its process: the second one in a process that multiprocessing has spawned."""

_AS_IT_IS = "_ktuned_as_it_is"
"""Stands in the first line of the decorators that tune a function, which the module leaves out."""

_LAZY = __future__.annotations.compiler_flag
_FUTURE = "from __future__ import annotations"


def is_script(function: Any) -> bool:
    """Return whether a function is one of the script that this process runs."""
    return getattr(function, "__module__", None) in _MAINS


def is_importable(name: str) -> bool:
    """Return whether an import in another process would find the module that this process has by a name.

    One that a program has made or loaded by itself, from a file or by ``runpy``, is found by no import.
    """
    parent = name.rpartition(".")[0]
    module = sys.modules.get(name)
    if module is None or (parent and not is_importable(parent)):
        return False
    path = getattr(sys.modules[parent], "__path__", None) if parent else None
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
    found = next(filter(None, (finder.find_spec(name, path) for finder in finders)), None)
    file = getattr(module, "__file__", None)
    if found is None or file is None or not found.has_location or found.origin is None:
        return found is not None
    return bool(os.path.realpath(found.origin) == os.path.realpath(file))


def module_of(function: Any) -> str:
    """Return the text of a module with a ``@triton.jit`` function that no import finds.

    Raises:
        LeftAlone: the function needs what only its own process has; says what.
    """
    return _Module(function.fn.__globals__).text(function)


class _Module:
    """The source of functions by their first lines, and the statements that bind what they read."""

    def __init__(self, home: dict[str, Any]) -> None:
        # A debugger or a notebook that runs a script is itself the module of this name.
        self._home = home
        annotations = home.get("__annotations__", {})
        self._constants = {name for name, one in annotations.items() if "constexpr" in str(one)}
        self._bound: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._sources: dict[int, list[str]] = {}
        self._has_lazy_annotations = False

    def text(self, function: Any) -> str:
        self._add(function.__name__, function)
        statements = [_FUTURE] if self._has_lazy_annotations else []
        lines = ["; ".join([*statements, *filter(None, self._bound.values()), f"{_AS_IT_IS} = lambda one: one"])]
        for first, source in sorted(self._sources.items()):
            lines += [""] * (first - 1 - len(lines))
            if len(lines) != first - 1:
                raise LeftAlone("it reads functions that share lines")
            lines += source
        return "\n".join(lines) + "\n"

    def _add(self, name: str, value: Any) -> None:
        """Bind a name that is read, unless it is bound."""
        if name in self._bound:
            if self._values[name] is not value:
                raise LeftAlone(f"two of the functions that it reads know different things as {name}")
            return
        self._bound[name], self._values[name] = "", value
        inner = _unwrapped(value)
        if isinstance(value, ModuleType):
            self._bound[name] = f"{name} = {_imported(value.__name__)}"
        elif not hasattr(inner, "__qualname__"):
            # Triton reads annotated globals as constants.
            annotation = f": {_CONSTEXPR}" if name in self._constants else ""
            self._bound[name] = f"{name}{annotation} = {_literal(name, value)}"
        elif self._is_here(inner):
            self._add_source(name, inner)
        else:
            self._bound[name] = f"{name} = {_found(name, value, inner)}"

    def _is_here(self, inner: Any) -> bool:
        """Return whether a function is to travel as its source: no import finds it."""
        if is_script(inner) or "<locals>" in inner.__qualname__:
            return True
        return getattr(getattr(inner, "fn", inner), "__globals__", None) is self._home and not is_importable(
            inner.__module__
        )

    def _add_source(self, name: str, value: Any) -> None:
        function = getattr(value, "fn", value)
        is_named = isinstance(function, FunctionType) and function.__name__ == name
        if not is_named or function.__globals__ is not self._home:
            raise LeftAlone(f"it reads {name}, a {type(value).__name__} that no other process can make")
        captured = inspect.getclosurevars(function).nonlocals
        lines, first, tree = _source(name, value, function, captured)
        self._sources[first] = _with_last_decorator(lines, tree)
        self._has_lazy_annotations |= bool(function.__code__.co_flags & _LAZY)
        for wanted in sorted({*globals_read(function.__code__), *captured, *_names(tree)}):
            if wanted in captured:
                self._add(wanted, captured[wanted])
            elif wanted in self._home:
                self._add(wanted, self._home[wanted])


def _unwrapped(value: Any) -> Any:
    """Return the function below autotuners and heuristics."""
    while is_wrapper(value):
        value = value.fn
    return value


def _source(
    name: str, value: Any, function: FunctionType, captured: Mapping[str, Any]
) -> tuple[list[str], int, ast.FunctionDef]:
    """Return a function's lines, the number of the first, and its definition: as it was when it was defined."""
    is_jitted = value is not function
    try:
        # Triton has kept what it has read: the file may have been edited since.
        known = (value.raw_src, value.starting_line_number) if is_jitted else inspect.getsourcelines(function)
        lines, first = textwrap.dedent("".join(known[0])).splitlines(keepends=True), known[1]
        (tree,) = ast.parse("".join(lines)).body
    except (OSError, SyntaxError, ValueError, AttributeError):
        tree = ast.Pass()
    # What a decorator has made of a function that is not Triton's is not in its source.
    if (
        isinstance(tree, ast.FunctionDef)
        and first > 1
        and (is_jitted or (not captured and _is_code_of(tree, function)))
    ):
        return lines, first, tree
    raise LeftAlone(f"it reads {name}, a function whose source does not stand alone")


def _is_code_of(tree: ast.FunctionDef, function: FunctionType) -> bool:
    """Return whether a definition alone makes a function's code: its file may have been edited since."""
    if tree.decorator_list:
        return False
    # Calls of what a module imports have instructions of their own.
    modules = sorted({name for name in function.__code__.co_names if name in function.__globals__})
    imports = ast.parse("\n".join(f"import {name}" for name in modules)).body
    made = compile(ast.Module([*imports, tree], []), "", "exec", dont_inherit=True).co_consts
    return any(isinstance(one, CodeType) and plain_code(one) == plain_code(function.__code__) for one in made)


def _with_last_decorator(lines: list[str], tree: ast.FunctionDef) -> list[str]:
    """Return a function's lines without the decorators above the last one, which makes it a function of Triton's."""
    kept = [line.rstrip("\n") for line in lines]
    if len(tree.decorator_list) < 2:
        return kept
    last = tree.decorator_list[-1].lineno - 1
    return [f"@{_AS_IT_IS}", *[""] * (last - 1), *kept[last:]]


def _names(tree: ast.FunctionDef) -> Iterator[str]:
    """Yield the names that a definition itself reads: its last decorator's, its defaults' and its annotations'."""
    arguments = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    parts: list[ast.AST | None] = [*tree.decorator_list[-1:], *tree.args.defaults, *tree.args.kw_defaults, tree.returns]
    for part in filter(None, [*parts, *(argument.annotation for argument in arguments)]):
        yield from (node.id for node in ast.walk(part) if isinstance(node, ast.Name))


def _imported(module: str) -> str:
    if module in _MAINS:
        raise LeftAlone("it reads its own module")
    return f"__import__('importlib').import_module({module!r})"


_CONSTEXPR = f"{_imported('triton.language')}.constexpr"


def _found(name: str, value: Any, inner: Any) -> str:
    """Return the expression by which another process finds an object of another module's."""
    module, qualname = str(inner.__module__), inner.__qualname__
    try:
        is_there = attrgetter(qualname)(importlib.import_module(module)) is value
    except (ImportError, AttributeError, ValueError):
        is_there = False
    if not is_there:
        raise LeftAlone(f"it reads {name}, which is not what {module}.{qualname} is")
    return f"{_imported(module)}.{qualname}"


def _literal(name: str, value: Any) -> str:
    """Return the expression of a plain value, or of a ``constexpr`` of one."""
    if type(value).__name__ == "constexpr":
        return f"{_CONSTEXPR}({_literal(name, value.value)})"
    if type(value).__name__ == "dtype" and repr(value).startswith("triton.language."):
        return f"{_imported('triton.language')}.{repr(value).rpartition('.')[2]}"
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return repr(value)
    if type(value) is float:
        return f"float({str(value)!r})"
    if type(value) is tuple:
        return f"({''.join(_literal(name, item) + ', ' for item in value)})"
    raise LeftAlone(f"it reads {name}, a {type(value).__name__} of its own module")
