"""Calls of the drop-in for ``triton.autotune``: a stand-in for the daemon, a spool, launches that launch nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner

from ktuned.dropin import CallRecord, account, spool_directory
from ktuned.model.values import canonical
from ktuned.spool import RECORD_SUFFIX, read_file
from ktuned_triton import autotune, autotuner
from ktuned_triton.call import find_jit_function
from tests.fake_daemon_link import FakeDaemonLink
from tests.plugins.triton_app import kernels

SIZE = 1 << 12

Launches = list[dict[str, Any]]
"""The options of each launch."""


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch, spool: Path) -> FakeDaemonLink:
    """Return the daemon's stand-in."""
    fake = FakeDaemonLink()
    monkeypatch.setattr(autotuner, "daemon_link", lambda: fake)
    monkeypatch.setattr("ktuned.dropin.keyed_call.daemon_link", lambda: fake)
    return fake


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the application's spool, in a home of the test's."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "home"))
    return spool_directory(tmp_path / "home")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Return the launches of the functions here, which launch nothing and are ready at once."""
    found: Launches = []

    def run(*args: Any, **kwargs: Any) -> None:
        if not kwargs["warmup"]:
            found.append(kwargs)

    for function in (kernels.scale, kernels.plain_x, kernels.gather, kernels.benched, kernels.plain, kernels.zeroed):
        monkeypatch.setattr(find_jit_function(function), "run", run)
    return found


@pytest.fixture
def left_to_triton(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the configs that Triton's own autotuner measures, each as fast as the others."""
    found: list[Any] = []

    def bench(self: Any, *args: Any, config: Any, **kwargs: Any) -> list[float]:
        found.append(config)
        return [1.0, 1.0, 1.0]

    bench.__module__ = Autotuner.__module__
    autotuner.adopt_class(Autotuner)
    monkeypatch.setattr(Autotuner, "_bench", autotuner._wrap_bench(bench))
    return found


@pytest.fixture(autouse=True)
def clean_account() -> Iterator[None]:
    """Begin and end without what other tests have noted."""
    for part in (account.adopted, account.left_alone, account.keys, account.notes):
        part.clear()
    yield
    for part in (account.adopted, account.left_alone, account.keys, account.notes):
        part.clear()


def records(spool: Path) -> list[CallRecord]:
    """Return what the application has left, the oldest first."""
    files = sorted(spool.glob(f"*{RECORD_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
    return [CallRecord.from_bytes(read_file(path)) for path in files]


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
