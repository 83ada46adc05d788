"""Calls of the drop-in for ``triton.autotune``: a stand-in for the daemon, and launches that launch nothing."""

from typing import Any

import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner

from ktuned.model.values import canonical
from ktuned_triton import autotune, autotuner
from ktuned_triton.adoption import Request
from ktuned_triton.call import evaluate, jitted, key_of
from tests.fake_tunings import FakeTunings
from tests.plugins.triton_app import kernels

SIZE = 1 << 12


@pytest.fixture
def tunings(monkeypatch: pytest.MonkeyPatch) -> FakeTunings:
    """Return the daemon's stand-in."""
    fake = FakeTunings()
    monkeypatch.setattr(autotuner, "shared", lambda pin: fake)
    return fake


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the launches of the functions here, which launch nothing."""
    found: list[dict[str, Any]] = []
    for function in (kernels.scale, kernels.hooked):
        monkeypatch.setattr(jitted(function), "run", lambda *args, **kwargs: found.append(kwargs))
    return found


@pytest.fixture
def left_to_triton(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the calls that Triton's own autotuner got, which does nothing with them."""
    found: list[Any] = []
    monkeypatch.setattr(Autotuner, "run", lambda self, *args, **kwargs: found.append(self))
    return found


def scale(**options: Any) -> Any:
    """Return the application's function as if it had just been decorated, with options of the drop-in."""
    return autotune(
        kernels.CONFIGS,
        key=["size"],
        prune_configs_by={"early_config_prune": kernels.at_least_128},
        restore_value=["y"],
        **options,
    )(kernels.scale.fn)


def grid(meta: dict[str, Any]) -> tuple[int, ...]:
    """Return one program for each block."""
    return (triton.cdiv(SIZE, meta["BLOCK"]),)


def call(function: Any, size: int = SIZE) -> None:
    """Call a function on tensors of the CPU."""
    x = torch.ones(SIZE)
    function[grid](x, torch.empty_like(x), size, 2.0)


def text(block: int, warps: int) -> str:
    """Return a config as the daemon names it."""
    config = {"BLOCK": block, "THROUGH": "~None", "num_warps": warps, "num_ctas": 1, "num_stages": 3}
    return canonical(config)


def request_of(function: Any, x: torch.Tensor, y: torch.Tensor) -> Request:
    """Return what the daemon is asked for a call."""
    args, kwargs = (x, y, SIZE, 2.0), {"grid": grid, "warmup": False}
    pruned = function._pruned(args, kwargs)
    evaluated = evaluate(function, pruned, args, kwargs)
    problem = key_of(function, args, kwargs)
    return Request(function._adopted(evaluated, tuple(problem)), problem, evaluated)
