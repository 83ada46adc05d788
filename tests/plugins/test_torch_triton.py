"""Functions over tensors that launch a Triton kernel, on a machine without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from ktuned.backends import cpu
from ktuned.backends.contract import Unit
from ktuned.model.values import Outcome
from ktuned_torch import Build, Torch
from ktuned_torch.triton_launches import find_launch_without_gpu

pytest.importorskip("triton", reason="pip install triton")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs Triton's kernels")

SOURCE = """
import torch, triton

@triton.jit
def add(x):
    pass

def straight(x, block):
    add[(1,)](x, BLOCK=block)

def in_a_context(x):
    y = torch.empty_like(x)
    with torch.no_grad():
        add[(1,)](y)

def by_another(x):
    return straight(x, 64)

def if_wanted(x, by_triton):
    if by_triton:
        return straight(x, 64)
    x.add_(1)

def perhaps_not(x, by_triton):
    if not by_triton:
        return x.add_(1)
    straight(x, 64)

def guarded(x):
    try:
        straight(x, 64)
    except RuntimeError:
        x.add_(1)

def given(x, add):
    add[(1,)](x)

def without(x):
    x.add_(1)
"""


@pytest.fixture
def launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """A module of launchers."""
    (tmp_path / "launchers.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield import_module("launchers")
    del sys.modules["launchers"]


@pytest.mark.parametrize("name", ["straight", "in_a_context", "by_another"])
def test_a_certain_launch_is_seen_in_the_source(launchers: Any, name: str) -> None:
    """Whatever the arguments are, these functions launch the kernel."""
    assert find_launch_without_gpu(getattr(launchers, name)) == "add"


@pytest.mark.parametrize("name", ["if_wanted", "perhaps_not", "guarded", "given", "without"])
def test_a_function_with_a_conditional_launch_is_run(launchers: Any, name: str) -> None:
    """Another config may take the way that needs no GPU, which only running it shows."""
    function: Callable[..., Any] = getattr(launchers, name)
    assert find_launch_without_gpu(function) == ""


def test_configs_with_a_certain_launch_take_no_lane(launchers: Any, tmp_path: Path) -> None:
    """Each is unsupported before it is measured, in one line that names the kernel."""
    (tmp_path / "unit").mkdir()
    unit = Unit("unit", Build("straight", ("x", 64)), (), Path(launchers.__file__), "straight", cpu.target())
    (compiled,) = Torch().compile([unit], tmp_path)
    assert (compiled.outcome, compiled.message) == (
        Outcome.UNSUPPORTED,
        "the Triton kernel 'add' runs only on GPUs, and this machine has none",
    )
