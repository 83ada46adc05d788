"""Finds the Triton kernel that a function launches whatever its arguments are, by reading its source.

Without a GPU such a function fails with every config, and no lane is needed to find that out. A launch that a condition
may skip does not count: another config may not need it, which only running it shows.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

_GPU_DRIVERS = frozenset({"nvidia", "amd"})
"""Triton's own backends; any other, such as triton-cpu, may run a kernel without a GPU."""

MAX_CALLS_DEEP = 8
"""Most calls that are followed from a function: more than launchers have layers."""


def find_launch_without_gpu(function: Callable[..., Any]) -> str:
    """Return the name of a Triton kernel that a function launches in any case, if none can run here; else empty."""
    triton, torch = sys.modules.get("triton"), sys.modules.get("torch")
    if triton is None or torch is None or torch.cuda.is_available():
        return ""
    drivers = getattr(getattr(triton, "backends", None), "backends", {})
    return _find_launched_kernel(function, MAX_CALLS_DEEP) if drivers.keys() <= _GPU_DRIVERS else ""


def _find_launched_kernel(function: object, calls_left: int) -> str:
    if not isinstance(function, FunctionType) or not calls_left:
        return ""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return ""
    if not isinstance(tree.body[0], ast.FunctionDef):
        return ""
    for called in _walk_certain_calls(tree.body[0].body):
        is_launch = isinstance(called, ast.Subscript)
        name = called.value if isinstance(called, ast.Subscript) else called
        if not isinstance(name, ast.Name) or name.id in function.__code__.co_varnames:
            continue
        target = function.__globals__.get(name.id)
        if is_launch and type(target).__module__.startswith("triton.runtime."):
            return name.id
        if not is_launch and (found := _find_launched_kernel(target, calls_left - 1)):
            return found
    return ""


def _walk_certain_calls(body: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    """Yield what the statements call, up to the first that may end the function or skip the rest."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from _walk_certain_calls(statement.body)
        elif isinstance(statement, ast.Expr | ast.Assign | ast.Return) and isinstance(statement.value, ast.Call):
            yield statement.value.func
        if any(isinstance(node, ast.Return | ast.Raise | ast.Try) for node in ast.walk(statement)):
            return
