"""Tensors of a file, by either library, and one line for whatever is wrong with it."""

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


def _call_from(directory: Path, path: str) -> dict[str, Any]:
    """Call ``load_tensors`` as a kernel file in this directory does."""
    code = compile(f"found = load_tensors({path!r})", str(directory / "tune_it.py"), "exec")
    names = SimpleNamespace(load_tensors=load_tensors).__dict__
    exec(code, names)
    return dict(names["found"])


def test_a_relative_path_starts_at_the_calling_file(tmp_path: Path) -> None:
    """Every dtype and shape comes back by its name, bfloat16 and tensors without elements too."""
    given = {"x": torch.arange(6).reshape(2, 3), "half": torch.ones(3, dtype=torch.bfloat16), "none": torch.empty(0, 2)}
    (tmp_path / "data").mkdir()
    save_file(given, tmp_path / "data/x.safetensors")
    found = _call_from(tmp_path, "data/x.safetensors")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in given.items())
    assert _call_from(Path("/"), str(tmp_path / "data/x.safetensors")).keys() == given.keys()


def test_tensors_go_to_the_device_that_is_measured(tmp_path: Path) -> None:
    """Also if that is no CPU; afterwards tensors are the CPU's again."""
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    with load_tensors_to("meta"):
        assert _call_from(tmp_path, "x.safetensors")["x"].device.type == "meta"
    assert _call_from(tmp_path, "x.safetensors")["x"].device.type == "cpu"


def test_without_torch_they_are_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy has the same numbers; a dtype that it lacks is one line."""
    save_file({"x": torch.arange(4.0)}, tmp_path / "x.safetensors")
    save_file({"x": torch.ones(4, dtype=torch.float8_e4m3fn)}, tmp_path / "narrow.safetensors")
    monkeypatch.setitem(sys.modules, "torch", None)
    found = _call_from(tmp_path, "x.safetensors")["x"]
    assert (type(found).__module__, found.tolist()) == ("numpy", [0.0, 1.0, 2.0, 3.0])
    with pytest.raises(UsageError, match=r"load_tensors cannot use .*narrow\.safetensors: "):
        _call_from(tmp_path, "narrow.safetensors")


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"{}"])
def test_a_damaged_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    """With its name."""
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=r"^load_tensors cannot use .*x\.safetensors: .*$"):
        _call_from(tmp_path, "x.safetensors")


def test_a_missing_file_or_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do about it."""
    with pytest.raises(UsageError, match=r"cannot read .*gone\.safetensors: No such file or directory$"):
        _call_from(tmp_path, "gone.safetensors")
    save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(UsageError, match="needs the package safetensors in this interpreter"):
        _call_from(tmp_path, "x.safetensors")
