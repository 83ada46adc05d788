"""Safetensors by the standard library: what torch reads back is what was given."""

import hashlib
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ktuned_client import tensor_file

ENOUGH = 2**20


def taken(tensors: dict[str, Any], directory: Path) -> dict[str, torch.Tensor]:
    """Write tensors and read them by the format's own library."""
    digest, size = tensor_file.write_tensors(tensors, str(directory), ENOUGH)
    path = directory / f"{digest}.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    assert path.stat().st_size == size
    found: dict[str, torch.Tensor] = load_file(path)
    return found


DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.mark.parametrize("dtype", [*DTYPES, "float8_e4m3fn", "float8_e5m2"])
def test_tensors_of_torch(tmp_path: Path, dtype: str) -> None:
    """Every dtype, without dimensions, empty and not contiguous."""
    made = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    given = {"a": made, "t": made.t(), "none": made[:0], "one": made[1, 1]}
    found = taken(given, tmp_path)
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].float(), tensor.float())


def test_buffers_arrays_and_numbers(tmp_path: Path) -> None:
    """Whatever has the buffer protocol or ``__array__``, and numbers as tensors without dimensions."""
    numpy = torch.arange(6, dtype=torch.int16).reshape(2, 3).numpy()

    class Wrapped:
        def __array__(self) -> Any:
            return numpy[:, ::2]

    found = taken(
        {"buffer": array("f", [1, 2]), "numpy": numpy, "w": Wrapped(), "i": -3, "f": 0.5, "b": True}, tmp_path
    )
    assert found["buffer"].tolist() == [1.0, 2.0]
    assert found["numpy"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["w"].tolist() == [[0, 2], [3, 5]]
    assert [(found[name].item(), found[name].dtype) for name in "ifb"] == [
        (-3, torch.int64),
        (0.5, torch.float64),
        (True, torch.bool),
    ]


def test_the_same_tensors_are_the_same_file(tmp_path: Path) -> None:
    """The name is the content's, in whatever order the tensors come."""
    one, other = {"a": 1, "b": 2.0}, {"b": 2.0, "a": 1}
    assert tensor_file.write_tensors(one, str(tmp_path), ENOUGH) == tensor_file.write_tensors(
        other, str(tmp_path), ENOUGH
    )
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("tensors", "error", "told"),
    [
        ({}, ValueError, "no tensor"),
        ({"a": "text"}, TypeError, "a is a str"),
        ({"a": None}, TypeError, "a is a NoneType"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, TypeError, "complex64"),
        ({"a": bytes(ENOUGH + 1)}, ValueError, "may be captured"),
        ({"a": 2**70}, OverflowError, "too big"),
    ],
)
def test_what_cannot_be_captured_leaves_nothing(tmp_path: Path, tensors: Any, error: Any, told: str) -> None:
    """One line that says which tensor and why, and no file."""
    with pytest.raises(error, match=told):
        tensor_file.write_tensors(tensors, str(tmp_path), ENOUGH)
    assert list(tmp_path.iterdir()) == []


def test_the_data_is_aligned(tmp_path: Path) -> None:
    """The header ends on 8 bytes, as readers that map the file need it."""
    for name in ("a", "ab", "abc"):
        digest, _ = tensor_file.write_tensors({name: 1.0}, str(tmp_path), ENOUGH)
        data = (tmp_path / f"{digest}.safetensors").read_bytes()
        length = int.from_bytes(data[:8], "little")
        assert length % 8 == 0
        assert json.loads(data[8 : 8 + length])[name]["shape"] == []
