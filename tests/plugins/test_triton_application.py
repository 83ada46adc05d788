"""An application with the drop-in beside a real daemon, to the winner: the CPU stands in for a GPU."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ktuned.dropin import Tunings
from ktuned_client import Client
from ktuned_triton import autotuner
from ktuned_triton.call import jitted
from tests.e2e.harness import Daemon
from tests.plugins.triton_app import kernels
from tests.plugins.triton_calls import SIZE, call, scale

STAND_IN = Path(__file__).parent / "triton_stand_in"
DEADLINE_S = 120.0


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Run a daemon whose triton backend is the stand-in, with the application's home below the test's."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "application"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), *filter(None, sys.path)]))
    with Daemon(tmp_path, tensors="torch") as daemon:
        yield daemon


@pytest.fixture
def tunings(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tunings]:
    """Return the application's connection to the daemon."""
    with Client(daemon.client.socket) as client:
        made = Tunings(client)
        monkeypatch.setattr(autotuner, "shared", lambda pin: made)
        monkeypatch.setattr(autotuner, "install", lambda artifact: None)
        yield made
        thread = made._thread
        if thread is not None:
            thread.join(DEADLINE_S)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the blocks that are launched."""
    blocks: list[int] = []
    monkeypatch.setattr(jitted(kernels.scale), "run", lambda *args, **kwargs: blocks.append(kwargs["BLOCK"]))
    return blocks


def test_a_busy_application_gets_the_winner_and_the_next_one_has_it_at_once(
    daemon: Daemon, tunings: Tunings, launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop never stops; results are shared, and what is tuned is not tuned again."""
    prepared = threading.Event()

    def prepare(tuner: Any, request: Any, text: str, artifact: str | None, device: int) -> None:
        assert artifact is not None
        assert (Path(artifact) / "kernel.cubin").is_file()
        prepared.set()

    monkeypatch.setattr(autotuner, "_prepare", prepare)
    function = scale()
    call(function)
    assert launched == [128]
    until = time.monotonic() + DEADLINE_S
    while launched[-1] == 128 and time.monotonic() < until:
        call(function)
        del launched[:-1]
    assert prepared.is_set()
    assert launched == [256]
    assert function.best_config.kwargs["BLOCK"] == 256
    (job,) = daemon.client.call("jobs")["jobs"]
    assert (job["state"], job["problem"]["size"]) == ("done", SIZE)
    assert job["outcomes"].get("mismatch", 0) == 0

    launched.clear()
    call(scale())
    assert launched == [256]
    assert len(daemon.client.call("jobs")["jobs"]) == 1


def test_waiting_launches_the_winner_first(daemon: Daemon, tunings: Tunings, launched: list[int]) -> None:
    """As Triton does; another size is tuned by a job of its own."""
    call(scale(mode="wait"))
    call(scale(mode="wait"), SIZE // 2)
    assert launched == [256, 256]
    sizes = {job["problem"]["size"] for job in daemon.client.call("jobs")["jobs"]}
    assert sizes == {SIZE, SIZE // 2}
    # Without a client: the winners in Triton's own cache, but for those whose values JSON does not have.
    cache = daemon.directory / "cache"
    command = [sys.executable, "-m", "ktuned", "export", str(cache), "--format", "triton"]
    done = subprocess.run(command, env=daemon.env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    left_out = done.stderr.count("the winner has values that JSON does not have")
    assert len(done.stdout.splitlines()) + left_out == 2, done.stderr
    assert len(list(cache.rglob("scale.autotune.json"))) == len(done.stdout.splitlines())
