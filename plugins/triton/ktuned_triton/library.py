"""Finds functions of an application's library only by name, in any process and without importing a kernel file.

Builds of the drop-in name a ``library``. One front end imports the library for all its functions. The library found
here may differ from the application's (edited, or another version). So each Build has Triton's digest of the
application's function, and a function with another digest is refused (:func:`find_difference`).

A name may lead to a wrapper instead of the ``@triton.jit`` function: an autotuner, heuristics, or an object that a
library's own decorator made. :func:`unwrap_function` follows wrappers until it finds the function with the digest.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from ktuned.declaration import functions
from ktuned_triton.build import Build

_WRAPPED_ATTRIBUTES = ("fn", "jit_function", "__wrapped__", "func")
"""Attributes in which wrappers keep what they wrap: Triton's, FlagGems', and those of :mod:`functools`."""

_MAX_WRAPPERS = 20
"""Most objects between a name and its function; no library nests its decorators that deep."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def find_function(name: str, build: Build, kernel_file: Path) -> Callable[..., Any]:
    """Return a function that a Build names: its own function, or a function among its constants.

    Raises:
        KernelFileError: the kernel file cannot be imported.
        LookupError: there is no such function.
    """
    if build.library is None:
        return functions.find_function(name, kernel_file)
    module_name, _, qualname = name.rpartition(":")
    try:
        named = attrgetter(qualname)(importlib.import_module(module_name))
        function: Callable[..., Any] = unwrap_function(named, build.cache_key if name == build.function else "")
    except (ImportError, AttributeError, ValueError) as error:
        raise LookupError(f"the function {name!r} no longer exists: {error}") from error
    return function


def unwrap_function(named: Any, cache_key: str = "") -> Any:
    """Return the ``@triton.jit`` function that an object is or wraps.

    Args:
        named: the object that a function's name leads to.
        cache_key: Triton's digest of the function to look for. If no function has it, the first function is returned.

    Raises:
        AttributeError: it wraps no such function.
    """
    found = list(_walk_jit_functions(named))
    if not found:
        raise AttributeError(f"a {type(named).__name__} wraps no @triton.jit function")
    if not cache_key:
        return found[0]
    return next((function for function in found if function.cache_key == cache_key), found[0])


def _walk_jit_functions(named: Any) -> Iterator[Any]:
    pending, seen = [named], [named]
    while pending:
        item = pending.pop(0)
        if hasattr(item, "params"):
            yield item
            continue
        wrapped = [getattr(item, name) for name in _WRAPPED_ATTRIBUTES if hasattr(item, name)]
        new = [value for value in wrapped if not any(value is known for known in seen)]
        pending += new
        seen += new
        if len(seen) > _MAX_WRAPPERS:
            return


def find_difference(function: Any, build: Build) -> str:
    """Return how the function found here differs from the application's; empty if it does not."""
    if not build.cache_key:
        return ""
    if function.cache_key != build.cache_key:
        return (
            f"{build.function} is not the application's function: it changed after the application started, or the "
            "application runs in another environment"
        )
    if (constants := list_constants_read(function)) != build.globals_read:
        return f"{build.function} reads other globals than in the application: {', '.join(constants) or 'none'}"
    return ""


def list_constants_read(function: Any) -> tuple[str, ...]:
    """Return the globals, as ``name=value``, that a function is compiled with and that Triton's digest leaves out.

    These are the globals that are annotated as constants. Values of ``constexpr`` objects are in Triton's digest.
    """
    # Triton collects them while it computes its digest.
    _ = function.cache_key
    used_globals: Mapping[Any, Any] = getattr(function, "used_global_vals", {})
    named = {name: value for (name, _), (value, _) in used_globals.items() if type(value).__name__ != "constexpr"}
    # An object's address differs between processes.
    return tuple(f"{name}={_ADDRESS.sub('', repr(value))}" for name, value in sorted(named.items()))
