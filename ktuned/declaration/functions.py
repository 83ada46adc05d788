"""Names of functions: a Build carries a function's name to another process, which finds the function by it."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from ktuned.declaration.loader import get_kernel_module, is_kernel_module

_REMEDY = "def it at the top level of the kernel file, or of a module that this imports"
_NAME = re.compile(r"(?:[^\W\d]\w*(?:\.[^\W\d]\w*)*:)?[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def name_function(function: Callable[..., Any] | str, definition: Callable[..., Any] | None = None) -> str:
    """Return the name by which :func:`find_function` finds a function in any process.

    It is ``f`` or ``Class.f`` if the kernel file itself defines the function, else ``package.module:f``.

    Args:
        function: the function, or its name, which is returned unchanged.
        definition: the decorated function, if ``function`` is an object that a decorator made and that has no name.

    Raises:
        ValueError: no name leads to it, as with a lambda or a function inside another; or the text is no name.
        TypeError: it is neither callable nor a string.
    """
    if isinstance(function, str):
        if not _NAME.fullmatch(function):
            raise ValueError(f"{function!r} is not the name of a function (f, Class.f or module:f)")
        return function
    if not callable(function):
        raise TypeError(f"expected a function, not a value of type {type(function).__name__}")
    if isinstance(function, functools.partial):
        raise ValueError(f"a partial has no name that another process could find it by; {_REMEDY}")
    named = function if definition is None else definition
    qualname = getattr(named, "__qualname__", None)
    module_name = getattr(named, "__module__", None)
    if not isinstance(qualname, str) or not isinstance(module_name, str):
        kind = type(function).__name__
        raise ValueError(f"an object of type {kind} has no name that another process could find it by; {_REMEDY}")
    if qualname.endswith("<lambda>"):
        raise ValueError(f"a lambda has no name that another process could find it by; {_REMEDY}")
    if "<locals>" in qualname:
        raise ValueError(f"{qualname} is inside another function, where no other process could find it; {_REMEDY}")
    try:
        found = attrgetter(qualname)(sys.modules[module_name])
    except (KeyError, AttributeError):
        found = None
    # Each look-up of a class's method makes a new object, so compare by equality, too.
    if found is not function and found != function:
        raise ValueError(f"{qualname} in {module_name} is not the function that was given; {_REMEDY}")
    return qualname if is_kernel_module(module_name) or module_name == "__main__" else f"{module_name}:{qualname}"


def find_function(name: str, kernel_file: Path) -> Callable[..., Any]:
    """Return the function of a name that :func:`name_function` gave; load the kernel file if it is not loaded.

    Raises:
        KernelFileError: the kernel file cannot be imported.
        LookupError: there is no such function.
    """
    module_name, _, qualname = name.rpartition(":")
    module = get_kernel_module(kernel_file)
    try:
        if module_name:
            module = importlib.import_module(module_name)
        function = attrgetter(qualname)(module)
    except (ImportError, AttributeError) as error:
        raise LookupError(f"{kernel_file.name}: there is no function {name!r}: {error}") from error
    if not callable(function):
        raise LookupError(f"{kernel_file.name}: {name!r} is of type {type(function).__name__}, which cannot be called")
    return function  # type: ignore[no-any-return]
