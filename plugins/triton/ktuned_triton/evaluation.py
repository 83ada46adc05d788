"""Digest of what an application alone evaluates: the functions that prune configs and compute constants.

Their results decide what a tuning measures, and no other process runs them. What they do follows from their code, from
the plain values that they read, and from the functions of their own package that they call.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ktuned.dropin import digest_of

MAX_FUNCTIONS = 200
"""Functions that are followed from one; a package calls itself in circles."""

MAX_ITEMS = 1000
"""Items of a container that is read; larger ones are data."""

_SCALARS = (type(None), bool, int, float, str, bytes)


def evaluation_digest(tuner: Any) -> str:
    """Return the digest of the code that prunes configs and computes constants; ``""`` where there is none.

    It runs in the application alone, and a measurement with its results holds for no other.
    """
    found = [tuner.early_config_prune, tuner.perf_model]
    inner = tuner.fn
    while not hasattr(inner, "params"):
        found += [item for name, heuristic in getattr(inner, "values", {}).items() for item in (name, heuristic)]
        inner = inner.fn
    texts = [_code_text(item) for item in found if item is not None]
    return digest_of(repr(texts)) if texts else ""


def constants_read(function: Any) -> tuple[str, ...]:
    """Return the globals that a ``@triton.jit`` function is compiled with and Triton's digest of it leaves out.

    These are globals that are annotated as constants; of those that are a ``constexpr`` the digest has the values.
    """
    # Triton finds them with its digest.
    _ = function.cache_key
    known: Mapping[Any, Any] = getattr(function, "used_global_vals", {})
    named = {name: value for (name, _), (value, _) in known.items() if type(value).__name__ != "constexpr"}
    return tuple(f"{name}={_plain(value)}" for name, value in sorted(named.items()))


def plain_code(part: Any) -> Any:
    """Return a part of a function's code as plain data, without its places in the source."""
    if isinstance(part, CodeType):
        return [part.co_code, part.co_names, part.co_varnames, part.co_freevars, [*map(plain_code, part.co_consts)]]
    if isinstance(part, frozenset):
        # Strings hash differently in each process.
        return sorted(map(repr, part))
    return [*map(plain_code, part)] if isinstance(part, tuple) else part


def globals_read(code: CodeType) -> Iterator[str]:
    """Yield the names of globals that a function's code reads, that of functions inside it included."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from globals_read(constant)


def _code_text(item: Any) -> str:
    """Return what a function does, without its places in the source, and the same in each process."""
    if isinstance(item, str):
        return item
    # Of a functools.partial.
    given = [*getattr(item, "args", ()), *getattr(item, "keywords", {}).items()]
    function = inspect.unwrap(getattr(item, "func", item))
    inner = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(inner, "__code__", None)
    if code is None:
        return str(getattr(function, "__qualname__", type(function).__qualname__))
    owner = getattr(function, "__self__", function)
    state = {} if isinstance(owner, type | FunctionType) else vars(owner) if hasattr(owner, "__dict__") else {}
    more = [*_read(dict(enumerate(given))), *_read(state), *_read_by(inner, set())]
    return f"{plain_code(code)!r} {more}" if more else repr(plain_code(code))


def _read_by(function: Any, seen: set[int]) -> list[Any]:
    """Return what a function's results follow from besides its code and its arguments."""
    if id(function) in seen or len(seen) == MAX_FUNCTIONS:
        return []
    seen.add(id(function))
    code = function.__code__
    variables = inspect.getclosurevars(function).nonlocals
    read = {name: function.__globals__[name] for name in globals_read(code) if name in function.__globals__}
    attributes = {
        f"{module}.{name}": getattr(value, name)
        for module, value in read.items()
        if isinstance(value, ModuleType)
        for name in _names(code)
        if name in vars(value)
    }
    defaults = [*map(_plain, function.__defaults__ or ()), _plain(function.__kwdefaults__ or {})]
    found: list[Any] = [text for text in defaults if text not in (None, "{}")]
    found += _read({**variables, **read, **attributes})
    for name, value in sorted({**variables, **read, **attributes}.items()):
        if isinstance(value, FunctionType) and _package(value) == _package(function):
            found.append([name, plain_code(value.__code__), _read_by(value, seen)])
    return found


def _read(values: Mapping[Any, Any]) -> list[str]:
    texts = ((name, _plain(value)) for name, value in sorted(values.items()))
    return [f"{name}={text}" for name, text in texts if text is not None]


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _package(function: Any) -> str:
    return str(function.__module__).partition(".")[0]


def _plain(value: Any) -> str | None:
    """Return the text of a plain value, the same in each process; ``None`` for others."""
    if type(value) in _SCALARS:
        return repr(value)
    if type(value).__name__ in ("constexpr", "dtype"):
        return str(value)
    if type(value) is dict and len(value) <= MAX_ITEMS:
        texts = [_plain(item) for pair in value.items() for item in pair]
    elif type(value) in (tuple, list, set, frozenset) and len(value) <= MAX_ITEMS:
        texts = [_plain(item) for item in value]
    else:
        return None
    if None in texts:
        return None
    kept = [text for text in texts if text is not None]
    if type(value) in (set, frozenset):
        kept.sort()
    return f"{{{', '.join(kept)}}}" if type(value) is dict else f"{type(value).__name__}({', '.join(kept)})"
