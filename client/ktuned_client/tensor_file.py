"""Writes safetensors files (https://github.com/huggingface/safetensors#format) with the standard library alone.

A file is an 8-byte little-endian length, a JSON header of that length, and the tensors' bytes. Its name is the SHA-256
of its content, so equal tensors are one file.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

SUFFIX: Final = ".safetensors"

_TORCH_DTYPES: Final = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}

_KINDS: Final = {
    "e": "F",
    "f": "F",
    "d": "F",
    "?": "BOOL",
    **dict.fromkeys("bhilqn", "I"),
    **dict.fromkeys("BHILQN", "U"),
}
"""Kinds of dtypes by the buffer protocol's format; the item's size gives the width."""


class _Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    owner: object  # keeps the data alive


def write_tensors(tensors: Mapping[str, Any], directory: str, max_bytes: int) -> tuple[str, int]:
    """Write tensors to a file in a directory and sync it; return the file's digest and its size in bytes.

    Args:
        tensors: each is a tensor of torch (on any device), an object with the buffer protocol or ``__array__``, or a
            number, which becomes a tensor without dimensions.
        directory: where the file goes.
        max_bytes: limit for all tensors together.

    Raises:
        TypeError: a value is neither a tensor nor a number.
        ValueError: the tensors exceed ``max_bytes``, or there are none.
        OSError: the file cannot be written.
    """
    if not tensors:
        raise ValueError("there is no tensor to capture")
    views = {name: _view_value(name, tensors[name]) for name in sorted(tensors)}
    size = sum(tensor.data.nbytes for tensor in views.values())
    if size > max_bytes:
        raise ValueError(f"the tensors have {size} bytes, and {max_bytes} may be captured")
    header = _encode_header(views)
    staged = os.path.join(directory, f".{os.getpid()}-{os.urandom(6).hex()}")
    digest = hashlib.sha256(header)
    try:
        with open(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(header)
            for tensor in views.values():
                digest.update(tensor.data)
                stream.write(tensor.data)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(staged, os.path.join(directory, digest.hexdigest() + SUFFIX))
    except BaseException:
        if os.path.exists(staged):
            os.unlink(staged)
        raise
    return digest.hexdigest(), size + len(header)


def _encode_header(tensors: Mapping[str, _Tensor]) -> bytes:
    entries: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.data.nbytes
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the data to 8 bytes
    return len(text).to_bytes(8, "little") + text


def _view_value(name: str, value: Any) -> _Tensor:
    if isinstance(value, bool):
        return _view_scalar("BOOL", bytes((value,)))
    if isinstance(value, int):
        return _view_scalar("I64", value.to_bytes(8, "little", signed=True))
    if isinstance(value, float):
        return _view_scalar("F64", bytes(ctypes.c_double(value)))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _view_torch_tensor(name, value)
    try:
        view = memoryview(value)
    except TypeError:
        if not hasattr(value, "__array__"):
            raise TypeError(f"{name} is a {type(value).__name__}, neither a tensor nor a number") from None
        value = value.__array__()
        view = memoryview(value)
    kind = _KINDS.get(view.format.lstrip("@=<"))
    if kind is None:
        raise TypeError(f"{name} has items of the format {view.format!r}, which safetensors does not hold")
    dtype = kind if kind == "BOOL" else f"{kind}{8 * view.itemsize}"
    data = view if view.c_contiguous else memoryview(view.tobytes())
    return _Tensor(dtype, view.shape or (), data.cast("B") if data.nbytes else memoryview(b""), value)


def _view_scalar(dtype: str, data: bytes) -> _Tensor:
    return _Tensor(dtype, (), memoryview(data), data)


def _view_torch_tensor(name: str, tensor: Any) -> _Tensor:
    dtype = _TORCH_DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise TypeError(f"{name} is of {tensor.dtype}, which safetensors does not hold")
    on_cpu = tensor.detach().cpu().contiguous()
    shape = tuple(on_cpu.shape)
    size = math.prod(shape) * on_cpu.element_size()
    # `numpy()` is not used, because it lacks bfloat16 and may not be installed.
    data = memoryview((ctypes.c_char * size).from_address(on_cpu.data_ptr())).cast("B") if size else memoryview(b"")
    return _Tensor(dtype, shape, data, on_cpu)
