"""Digest of the code that only the application runs: the functions that prune configs and compute constants.

Their results decide what a tuning measures, and no other process can repeat them, so they are part of the kernel's
identity. The digest covers three things: their code, the plain values that they read, and the functions of their own
package that they call. Code is described without line numbers, so that moving a function changes nothing; the
description of a value is the same in every process.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ktuned.dropin import digest_content
from ktuned_triton.call import list_heuristics

MAX_FUNCTIONS = 200
"""Most functions that are followed, starting from one function."""

MAX_ITEMS = 1000
"""Most items of a container that is part of the digest; a larger container is data, not a setting."""

_SCALARS = (type(None), bool, int, float, str, bytes)


def digest_evaluation(tuner: Any) -> str:
    """Return the digest of the code that prunes configs and computes constants; empty if there is none."""
    evaluated = [tuner.early_config_prune, tuner.perf_model]
    evaluated += [item for heuristic in list_heuristics(tuner.fn) for item in heuristic]
    texts = [_describe_code(item) for item in evaluated if item is not None]
    return digest_content(repr(texts)) if texts else ""


def list_constants_read(function: Any) -> tuple[str, ...]:
    """Return the globals, as ``name=value``, that a function is compiled with and that Triton's digest leaves out.

    These are the globals that are annotated as constants. Values of ``constexpr`` objects are in Triton's digest.
    """
    # Triton collects them while it computes its digest.
    _ = function.cache_key
    used_globals: Mapping[Any, Any] = getattr(function, "used_global_vals", {})
    named = {name: value for (name, _), (value, _) in used_globals.items() if type(value).__name__ != "constexpr"}
    return tuple(f"{name}={_render_plain(value)}" for name, value in sorted(named.items()))


def to_plain_code(part: Any) -> Any:
    """Return code as plain data, without line numbers."""
    if isinstance(part, CodeType):
        return [part.co_code, part.co_names, part.co_varnames, part.co_freevars, [*map(to_plain_code, part.co_consts)]]
    if isinstance(part, frozenset):
        # Its order differs between processes, because the hashes of strings differ.
        return sorted(map(repr, part))
    return [*map(to_plain_code, part)] if isinstance(part, tuple) else part


def find_globals_read(code: CodeType) -> Iterator[str]:
    """Yield the names of globals that a function's code reads, including the functions inside it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from find_globals_read(constant)


def _describe_code(item: Any) -> str:
    """Return a text of what a function or callable object does; a string is returned unchanged."""
    if isinstance(item, str):
        return item
    # The arguments that a functools.partial has bound.
    bound = [*getattr(item, "args", ()), *getattr(item, "keywords", {}).items()]
    function = inspect.unwrap(getattr(item, "func", item))
    inner = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(inner, "__code__", None)
    if code is None:
        return str(getattr(function, "__qualname__", type(function).__qualname__))
    owner = getattr(function, "__self__", function)
    state = {} if isinstance(owner, type | FunctionType) else vars(owner) if hasattr(owner, "__dict__") else {}
    more = [*_describe_values(dict(enumerate(bound))), *_describe_values(state), *_describe_reads(inner, set())]
    return f"{to_plain_code(code)!r} {more}" if more else repr(to_plain_code(code))


def _describe_reads(function: Any, seen: set[int]) -> list[Any]:
    """Return everything besides code and arguments that a function's results depend on; ``seen`` breaks cycles."""
    if id(function) in seen or len(seen) == MAX_FUNCTIONS:
        return []
    seen.add(id(function))
    code = function.__code__
    variables = inspect.getclosurevars(function).nonlocals
    read = {name: function.__globals__[name] for name in find_globals_read(code) if name in function.__globals__}
    attributes = {
        f"{module}.{name}": getattr(value, name)
        for module, value in read.items()
        if isinstance(value, ModuleType)
        for name in _collect_names(code)
        if name in vars(value)
    }
    defaults = [*map(_render_plain, function.__defaults__ or ()), _render_plain(function.__kwdefaults__ or {})]
    found: list[Any] = [text for text in defaults if text not in (None, "{}")]
    found += _describe_values({**variables, **read, **attributes})
    for name, value in sorted({**variables, **read, **attributes}.items()):
        if isinstance(value, FunctionType) and _find_package(value) == _find_package(function):
            found.append([name, to_plain_code(value.__code__), _describe_reads(value, seen)])
    return found


def _describe_values(values: Mapping[Any, Any]) -> list[str]:
    texts = ((name, _render_plain(value)) for name, value in sorted(values.items()))
    return [f"{name}={text}" for name, text in texts if text is not None]


def _collect_names(code: CodeType) -> set[str]:
    inner = (_collect_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _find_package(function: Any) -> str:
    return str(function.__module__).partition(".")[0]


def _render_plain(value: Any) -> str | None:
    """Return the text of a plain value, the same in each process; ``None`` if the value is not plain."""
    if type(value) in _SCALARS:
        return repr(value)
    if type(value).__name__ in ("constexpr", "dtype"):
        return str(value)
    if type(value) is dict and len(value) <= MAX_ITEMS:
        texts = [_render_plain(item) for pair in value.items() for item in pair]
    elif type(value) in (tuple, list, set, frozenset) and len(value) <= MAX_ITEMS:
        texts = [_render_plain(item) for item in value]
    else:
        return None
    if None in texts:
        return None
    kept = [text for text in texts if text is not None]
    if type(value) in (set, frozenset):
        kept.sort()
    return f"{{{', '.join(kept)}}}" if type(value) is dict else f"{type(value).__name__}({', '.join(kept)})"
