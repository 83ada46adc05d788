"""Writes functions that no import finds (in scripts, and closures) as a module that other processes can import.

Importing a script would run it, and a closure exists only in its process. But a ``@triton.jit`` function needs only its
own source and the values that it reads: globals and captured variables. So the module holds

- in its first line, statements that bind everything that the functions read, and
- the functions' sources at the line numbers of their file, because these are part of Triton's digest.

If a value cannot be written as an expression that another process can evaluate, :class:`NotTunable` is raised.
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

from ktuned.dropin import NotTunable
from ktuned_triton.call import is_wrapper
from ktuned_triton.evaluation import find_globals_read, to_plain_code

MAIN = "__main__"
_MAINS = (MAIN, "__mp_main__")
"""Names of the script's module; it has the second name in a process that multiprocessing spawned."""

_AS_IT_IS = "_ktuned_as_it_is"
"""A decorator that changes nothing. It takes the line of the first tuning decorator, which the module leaves out."""

_LAZY = __future__.annotations.compiler_flag
_FUTURE = "from __future__ import annotations"


def is_script(function: Any) -> bool:
    """Return whether a function belongs to the script that this process runs."""
    return getattr(function, "__module__", None) in _MAINS


def is_importable(name: str) -> bool:
    """Return whether an import of ``name`` in another process finds the same module as in this process.

    It does not for a module that the program made itself, or loaded from a file or with ``runpy``.
    """
    parent = name.rpartition(".")[0]
    module = sys.modules.get(name)
    if module is None or (parent and not is_importable(parent)):
        return False
    path = getattr(sys.modules[parent], "__path__", None) if parent else None
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
    spec = next(filter(None, (finder.find_spec(name, path) for finder in finders)), None)
    file = getattr(module, "__file__", None)
    if spec is None or file is None or not spec.has_location or spec.origin is None:
        return spec is not None
    return bool(os.path.realpath(spec.origin) == os.path.realpath(file))


def write_module(function: Any) -> str:
    """Return the text of an importable module with a ``@triton.jit`` function.

    Raises:
        NotTunable: the function reads something that exists only in this process; the message says what.
    """
    return _Module(function.fn.__globals__).render_text(function)


class _Module:
    """A module that is being written: sources of functions by first line, and statements that bind what they read."""

    def __init__(self, module_globals: dict[str, Any]) -> None:
        # `sys.modules["__main__"]` would be wrong: in a debugger or a notebook, that is the tool and not the script.
        self._module_globals = module_globals
        annotations = module_globals.get("__annotations__", {})
        self._constants = {name for name, annotation in annotations.items() if "constexpr" in str(annotation)}
        self._statements: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._sources: dict[int, list[str]] = {}
        self._has_lazy_annotations = False

    def render_text(self, function: Any) -> str:
        self._bind_name(function.__name__, function)
        statements = [_FUTURE] if self._has_lazy_annotations else []
        lines = [
            "; ".join(
                [*statements, *filter(None, self._statements.values()), f"{_AS_IT_IS} = lambda function: function"]
            )
        ]
        for first, source in sorted(self._sources.items()):
            lines += [""] * (first - 1 - len(lines))
            if len(lines) != first - 1:
                raise NotTunable("it reads functions that share lines")
            lines += source
        return "\n".join(lines) + "\n"

    def _bind_name(self, name: str, value: Any) -> None:
        """Add the statement or the source that binds a name, if it is not bound yet."""
        if name in self._statements:
            if self._values[name] is not value:
                raise NotTunable(f"two of the functions that it reads use the name {name} for different things")
            return
        self._statements[name], self._values[name] = "", value
        inner = _unwrap_function(value)
        if isinstance(value, ModuleType):
            self._statements[name] = f"{name} = {_render_import(value.__name__)}"
        elif not hasattr(inner, "__qualname__"):
            # Triton reads annotated globals as constants.
            annotation = f": {_CONSTEXPR}" if name in self._constants else ""
            self._statements[name] = f"{name}{annotation} = {_render_literal(name, value)}"
        elif self._needs_source(inner):
            self._add_source(name, inner)
        else:
            self._statements[name] = f"{name} = {_render_reference(name, value, inner)}"

    def _needs_source(self, inner: Any) -> bool:
        """Return whether a function must travel as source, because no import finds it."""
        if is_script(inner) or "<locals>" in inner.__qualname__:
            return True
        return getattr(getattr(inner, "fn", inner), "__globals__", None) is self._module_globals and not is_importable(
            inner.__module__
        )

    def _add_source(self, name: str, value: Any) -> None:
        function = getattr(value, "fn", value)
        is_named = isinstance(function, FunctionType) and function.__name__ == name
        if not is_named or function.__globals__ is not self._module_globals:
            raise NotTunable(f"it reads {name}, a {type(value).__name__} that no other process can make")
        captured = inspect.getclosurevars(function).nonlocals
        lines, first, tree = _read_source(name, value, function, captured)
        self._sources[first] = _keep_last_decorator(lines, tree)
        self._has_lazy_annotations |= bool(function.__code__.co_flags & _LAZY)
        for wanted in sorted({*find_globals_read(function.__code__), *captured, *_walk_names(tree)}):
            if wanted in captured:
                self._bind_name(wanted, captured[wanted])
            elif wanted in self._module_globals:
                self._bind_name(wanted, self._module_globals[wanted])


def _unwrap_function(value: Any) -> Any:
    """Return the function that autotuners and heuristics wrap."""
    while is_wrapper(value):
        value = value.fn
    return value


def _read_source(
    name: str, value: Any, function: FunctionType, captured: Mapping[str, Any]
) -> tuple[list[str], int, ast.FunctionDef]:
    """Return a function's lines when it was defined, the number of the first, and the syntax tree."""
    is_jitted = value is not function
    try:
        # Triton keeps the source that it read; the file may have been edited since.
        known = (value.raw_src, value.starting_line_number) if is_jitted else inspect.getsourcelines(function)
        lines, first = textwrap.dedent("".join(known[0])).splitlines(keepends=True), known[1]
        (tree,) = ast.parse("".join(lines)).body
    except (OSError, SyntaxError, ValueError, AttributeError):
        tree = ast.Pass()
    # A plain function must be exactly its source: a decorator or captured variables could have changed it.
    if (
        isinstance(tree, ast.FunctionDef)
        and first > 1
        and (is_jitted or (not captured and _is_code_of(tree, function)))
    ):
        return lines, first, tree
    raise NotTunable(f"it reads {name}, a function whose source does not stand alone")


def _is_code_of(tree: ast.FunctionDef, function: FunctionType) -> bool:
    """Return whether a definition compiles to a function's code; it does not if the file was edited since."""
    if tree.decorator_list:
        return False
    # Python emits different instructions for calls through an imported module, so the imports must be there.
    modules = sorted({name for name in function.__code__.co_names if name in function.__globals__})
    imports = ast.parse("\n".join(f"import {name}" for name in modules)).body
    compiled_constants = compile(ast.Module([*imports, tree], []), "", "exec", dont_inherit=True).co_consts
    return any(
        isinstance(constant, CodeType) and to_plain_code(constant) == to_plain_code(function.__code__)
        for constant in compiled_constants
    )


def _keep_last_decorator(lines: list[str], tree: ast.FunctionDef) -> list[str]:
    """Return a function's lines with only the last decorator, which is ``@triton.jit``."""
    kept = [line.rstrip("\n") for line in lines]
    if len(tree.decorator_list) < 2:
        return kept
    last = tree.decorator_list[-1].lineno - 1
    return [f"@{_AS_IT_IS}", *[""] * (last - 1), *kept[last:]]


def _walk_names(tree: ast.FunctionDef) -> Iterator[str]:
    """Yield the names that a definition reads: in its last decorator, its defaults and its annotations."""
    arguments = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    parts: list[ast.AST | None] = [*tree.decorator_list[-1:], *tree.args.defaults, *tree.args.kw_defaults, tree.returns]
    for part in filter(None, [*parts, *(argument.annotation for argument in arguments)]):
        yield from (node.id for node in ast.walk(part) if isinstance(node, ast.Name))


def _render_import(module: str) -> str:
    if module in _MAINS:
        raise NotTunable("it reads its own module as an object")
    return f"__import__('importlib').import_module({module!r})"


_CONSTEXPR = f"{_render_import('triton.language')}.constexpr"


def _render_reference(name: str, value: Any, inner: Any) -> str:
    """Return the expression that imports an object of another module."""
    module, qualname = str(inner.__module__), inner.__qualname__
    try:
        is_there = attrgetter(qualname)(importlib.import_module(module)) is value
    except (ImportError, AttributeError, ValueError):
        is_there = False
    if not is_there:
        raise NotTunable(f"it reads {name}, which is not the object that {module}.{qualname} names")
    return f"{_render_import(module)}.{qualname}"


def _render_literal(name: str, value: Any) -> str:
    """Return the expression that makes a plain value, or a ``constexpr`` of one."""
    if type(value).__name__ == "constexpr":
        return f"{_CONSTEXPR}({_render_literal(name, value.value)})"
    if type(value).__name__ == "dtype" and repr(value).startswith("triton.language."):
        return f"{_render_import('triton.language')}.{repr(value).rpartition('.')[2]}"
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return repr(value)
    if type(value) is float:
        return f"float({str(value)!r})"
    if type(value) is tuple:
        return f"({''.join(_render_literal(name, item) + ', ' for item in value)})"
    raise NotTunable(f"it reads {name}, a {type(value).__name__} of its own module")
