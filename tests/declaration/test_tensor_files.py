"""Tensors loaded from a file, by torch or NumPy, and one line for each fault of the file."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ktuned import load_tensors
from ktuned.declaration import load_tensors_to
from ktuned.model import UsageError


def load_from_directory(directory: Path, path: str) -> dict[str, Any]:
    """Call ``load_tensors`` as a kernel file in this directory does."""
    code = compile(f"loaded = load_tensors({path!r})", str(directory / "tune_it.py"), "exec")
    names = SimpleNamespace(load_tensors=load_tensors).__dict__
    exec(code, names)
    return dict(names["loaded"])


def test_a_relative_path_starts_at_the_calling_file(tmp_path: Path) -> None:
    """Every dtype and shape survives, also bfloat16 and tensors without elements."""
    tensors = {
        "x": torch.arange(6).reshape(2, 3),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.empty(0, 2),
    }
    (tmp_path / "data").mkdir()
    save_file(tensors, tmp_path / "data/x.safetensors")
    loaded = load_from_directory(tmp_path, "data/x.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(
        torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    assert load_from_directory(Path("/"), str(tmp_path / "data/x.safetensors")).keys() == tensors.keys()


def test_tensors_go_to_the_device_that_is_measured(tmp_path: Path) -> None:
    """After the block, tensors are loaded to the CPU again."""
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    with load_tensors_to("meta"):
        assert load_from_directory(tmp_path, "x.safetensors")["x"].device.type == "meta"
    assert load_from_directory(tmp_path, "x.safetensors")["x"].device.type == "cpu"


def test_without_torch_tensors_are_numpy_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy loads the same numbers; a dtype that NumPy lacks is an error of one line."""
    save_file({"x": torch.arange(4.0)}, tmp_path / "x.safetensors")
    save_file({"x": torch.ones(4, dtype=torch.float8_e4m3fn)}, tmp_path / "narrow.safetensors")
    monkeypatch.setitem(sys.modules, "torch", None)
    loaded = load_from_directory(tmp_path, "x.safetensors")["x"]
    assert (type(loaded).__module__, loaded.tolist()) == ("numpy", [0.0, 1.0, 2.0, 3.0])
    with pytest.raises(UsageError, match=r"load_tensors cannot use .*narrow\.safetensors: "):
        load_from_directory(tmp_path, "narrow.safetensors")


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"{}"])
def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=r"^load_tensors cannot use .*x\.safetensors: .*$"):
        load_from_directory(tmp_path, "x.safetensors")


def test_a_missing_file_or_package_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*gone\.safetensors: No such file or directory$"):
        load_from_directory(tmp_path, "gone.safetensors")
    save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(UsageError, match="needs the package safetensors in this interpreter"):
        load_from_directory(tmp_path, "x.safetensors")
