"""The values that a kernel file declares, as text for its digest: with their types, in their order, in full.

A function's code is covered by the digest of its file, so that its text only contains the code if there is no file. But
the same code may give different values: a closure or a partial has other contents, or a function reads a variable that
was set elsewhere. So the text contains these contents and variables.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ktuned.declaration.loader import is_kernel_module
from ktuned.dependencies import OBSERVER, is_ours
from ktuned.ipc import normalize_path

_NUMBER_TYPES: tuple[type[Any], ...] = int, float, complex, str, bytes
_PLAIN_TYPES = bool, int, float, complex, str, bytes, range, type(None), type(...)


def describe_value(value: object) -> str:
    """Return a text that two values share only if they hold the same.

    A set is sorted. An object of an installed package is described by its type, and by its content if it is an array.
    """
    return _Describer({}).describe(value)


class _Describer:
    """Describes one value with all its content; ``seen`` numbers the objects on the way, so that circles end."""

    def __init__(self, seen: dict[int, tuple[int, object]]) -> None:
        self._seen = seen

    def describe(self, value: object) -> str:
        kind = type(value)
        if kind in _PLAIN_TYPES:
            return f"{kind.__name__} {_describe_place(value) if kind is str else value!r}"
        if kind is CodeType:
            return self._describe_code(value)  # type: ignore[arg-type]
        if id(value) in self._seen:
            return f"the same as {self._seen[id(value)][0]}"
        # Keep the value, so that no later object gets the same identity.
        self._seen[id(value)] = len(self._seen), value
        match value:
            case type():
                return f"class {_name_module(value)}.{value.__qualname__}"
            case ModuleType() | os._Environ():
                # The observer sees the reads of such objects.
                return f"{kind.__name__} {getattr(value, '__name__', '')}"
            case enum.Enum():
                return f"{kind.__qualname__}.{value.name} {self.describe(value.value)}"
            case FunctionType():
                return self._describe_function(value)
            case MethodType():
                return f"method {self._describe_items((value.__func__, value.__self__))}"
            case functools.partial():
                return f"partial {self._describe_items((value.func, value.args, value.keywords))}"
        return self._describe_content(value) or self._describe_object(value)

    def _describe_items(self, values: Iterable[object]) -> str:
        return "[" + ",".join(map(self.describe, values)) + "]"

    def _describe_pairs(self, values: Mapping[Any, object]) -> str:
        return "{" + ",".join(f"{self.describe(name)}:{self.describe(item)}" for name, item in values.items()) + "}"

    def _describe_content(self, value: object) -> str:
        """Return the text of a container or an array; empty for anything else."""
        kind = type(value)
        name = kind.__qualname__
        if isinstance(value, dict):
            return f"{name}{self._describe_pairs(value)}{self._describe_fields(value)}"
        if isinstance(value, list | tuple):
            return f"{name}{self._describe_items(value)}{self._describe_fields(value)}"
        if isinstance(value, set | frozenset):
            # Describe each element alone: objects that were seen before must not change its text.
            return f"{name}{{{','.join(sorted(map(describe_value, value)))}}}"
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return f"{name} {_describe_tensor(value)}"
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            content = (
                self._describe_items(value.ravel().tolist())
                if value.dtype.hasobject
                else _digest_bytes(value.tobytes())
            )
            return f"{name} {value.dtype.descr} {value.shape} {content}"
        try:
            return f"{name} {_digest_bytes(memoryview(value).tobytes())}"  # type: ignore[arg-type]
        except TypeError:
            return ""

    def _describe_object(self, value: object) -> str:
        kind = type(value)
        number = next((repr(base(value)) for base in _NUMBER_TYPES if isinstance(value, base)), "")
        module = sys.modules.get(kind.__module__)
        is_known = is_ours(kind.__module__) or OBSERVER.counts_by_content(str(getattr(module, "__file__", None)))
        if is_known or dataclasses.is_dataclass(value):
            return f"{kind.__qualname__} {number}{self._describe_fields(value)}"
        inner = getattr(value, "__wrapped__", None)
        if isinstance(inner, FunctionType):
            return f"{kind.__qualname__} of {self.describe(inner)}"
        place = _describe_place(value) if isinstance(value, Path) else ""
        return f"{_name_module(kind)}.{kind.__qualname__} {number}{place}"

    def _describe_fields(self, value: object) -> str:
        slots = [name for base in type(value).__mro__ for name in _list_slots(base) if hasattr(value, name)]
        fields = {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}
        return self._describe_pairs(fields) if fields else ""

    def _describe_function(self, function: FunctionType) -> str:
        code = function.__code__
        held: dict[str, object] = {"defaults": function.__defaults__, "keywords": function.__kwdefaults__}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                held[name] = cell.cell_contents
            except ValueError:
                held[name] = "not yet set"
        path = normalize_path(Path(code.co_filename))
        is_counted = OBSERVER.find_digest(path) is not None
        text = f"function {_name_module(function)}.{function.__qualname__}"
        if is_ours(function.__module__ or ""):
            return f"{text} {self._describe_pairs(held)}"
        if not is_counted and not Path(code.co_filename).is_absolute():
            text += self._describe_code(code)
        if is_counted:
            names = {name: function.__globals__[name] for name in _find_names(code) if name in function.__globals__}
            held |= {f"global {name}": value for name, value in names.items() if not _is_kernel(value)}
        return f"{text} {self._describe_pairs({name: value for name, value in held.items() if value is not None})}"

    def _describe_code(self, code: CodeType) -> str:
        """Return the instructions of code, without its line numbers."""
        names = code.co_names, code.co_varnames, code.co_freevars
        return f"code {code.co_code.hex()} {names} {self._describe_items(code.co_consts)}"


def _name_module(value: object) -> str:
    """Return the name of the module that defines a function or a class; empty for a kernel file, whose name varies."""
    name = str(getattr(value, "__module__", ""))
    return "" if is_kernel_module(name) else name


def _describe_place(value: object) -> str:
    """Return a text or a path with a placeholder for the project's directory, which may lie elsewhere."""
    text, root = str(value), OBSERVER.root
    if root and f"{text}/" == root:
        return "{project}"
    return repr(text.replace(root, "{project}/") if root else text)


def _is_kernel(value: object) -> bool:
    """Return whether a value is a declared kernel, which has a description of its own."""
    return type(value).__module__ == "ktuned.declaration.declared_kernel"


def _find_names(code: CodeType) -> list[str]:
    """Return the names that a function's code, or a function inside it, mentions."""
    inner = [name for item in code.co_consts if isinstance(item, CodeType) for name in _find_names(item)]
    return list(dict.fromkeys((*code.co_names, *inner)))


def _list_slots(kind: type) -> Iterable[str]:
    slots = kind.__dict__.get("__slots__", ())
    return (name for name in ((slots,) if isinstance(slots, str) else slots) if not name.startswith("__"))


def _describe_tensor(tensor: Any) -> str:
    """Return the type, shape and content of a torch tensor, whatever its dtype, layout and device."""
    about = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout} {tensor.device.type} {tensor.requires_grad}"
    if tensor.is_meta:
        return about
    import torch

    dense = tensor.detach()
    if dense.is_quantized:
        dense = dense.int_repr()
        about += f" {tensor.qscheme()}"
    if dense.layout is not torch.strided:
        dense = dense.to_dense()
    flat = dense.resolve_conj().resolve_neg().cpu().contiguous().flatten()
    return f"{about} {_digest_bytes(flat.view(torch.uint8).numpy().tobytes())}"


def _digest_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
