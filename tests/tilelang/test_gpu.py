"""TileLang's kernels on a GPU: each execution backend loads, computes and is timed without compiling."""

from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch

from ktuned.backends import Absent, cuda_devices
from ktuned.dropin import DaemonLink
from ktuned.model import Device
from ktuned_client import Client
from ktuned_tilelang import AutoTuner, TileLang, load
from tests.bad_configs import check_bad_configs
from tests.e2e.harness import Daemon
from tests.tilelang import app
from tests.tilelang.kernels import EXAMPLE, SIZE, build, inputs, verify

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu() -> Device:
    """Return the first GPU."""
    found = cuda_devices()
    assert not isinstance(found, Absent)
    return found[0]


@pytest.mark.parametrize("execution_backend", ["nvrtc", "tvm_ffi", "cython"])
def test_a_lane_loads_and_launches_it(execution_backend: str, gpu: Device, tmp_path: Path) -> None:
    """It writes into the tensors that it is given."""
    (tmp_path / "key").mkdir()
    unit = EXAMPLE.unit("key", build("scale", execution_backend), gpu.target)
    (result,) = TileLang().compile([unit], tmp_path)
    assert result.outcome is None, result.message
    tensors = inputs("cuda:0")
    launch = TileLang().load(tmp_path / "key", unit, gpu).bind(tensors)
    assert launch() is None
    torch.cuda.synchronize()
    verify(tensors)


@pytest.mark.parametrize("execution_backend", ["nvrtc", "tvm_ffi", "cython"])
def test_an_application_gets_tilelangs_kernel(execution_backend: str, gpu: Device, tmp_path: Path) -> None:
    """With its output index, for any size where the shape is symbolic."""
    (tmp_path / "key").mkdir()
    unit = EXAMPLE.unit("key", build("scale_any", execution_backend), gpu.target)
    (result,) = TileLang().compile([unit], tmp_path)
    assert result.outcome is None, result.message
    kernel = load(tmp_path / "key")
    for size in (SIZE, 1000):
        x = torch.arange(float(size), device="cuda:0")
        assert torch.equal(kernel(x), 3 * x)


def test_cutedsl_is_compiled_ahead_of_time(gpu: Device, tmp_path: Path) -> None:
    """Its cubin is in the artifact."""
    (tmp_path / "key").mkdir()
    unit = EXAMPLE.unit("key", build("scale", "cutedsl"), gpu.target)
    (result,) = TileLang().compile([unit], tmp_path)
    if result.outcome is not None and "is not available" in result.message:
        pytest.skip(result.message.splitlines()[0])
    assert result.outcome is None, result.message
    tensors = inputs("cuda:0")
    TileLang().load(tmp_path / "key", unit, gpu).bind(tensors)()
    torch.cuda.synchronize()
    verify(tensors)


def test_each_bad_config_has_its_outcome(tmp_path: Path) -> None:
    """One that never ends, an illegal address, a wrong output and what the compiler sees; the rest is measured."""
    arguments = 'dict(size=p.n, mode=c.mode, block=c.block), execution_backend="nvrtc"'
    check_bad_configs(tmp_path, "tilelang", Path(__file__).with_name("bad.py"), "bad", arguments)


def test_an_autotuned_function_gets_its_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once where it waits, else in the place of the first config's kernel; the numbers are the same throughout."""
    x = torch.arange(float(app.SIZE), device="cuda:0")
    with Daemon(tmp_path, spares=True, tensors="torch") as daemon, Client(daemon.client.socket) as client:
        monkeypatch.setenv("KTUNED_HOME", str(daemon.home))
        link = DaemonLink(client)
        monkeypatch.setattr("ktuned.dropin.keyed_call.daemon_link", lambda: link)

        def tuner(factor: float) -> Any:
            return AutoTuner.from_kernel(app.closure(factor), app.CONFIGS).set_compile_args(out_idx=[-1])

        found = tuner(3.0).set_profile_args(ref_prog=lambda x: 3.0 * x).run()
        assert found.config in app.CONFIGS
        assert 0 < found.latency < 10
        assert found.ref_latency > 0
        assert torch.equal(found.kernel(x), 3.0 * x)

        kernel = tuner(4.0).set_tuning_args(mode="background").run().kernel
        assert kernel.config == app.CONFIGS[0]
        until = monotonic() + 120
        while link._followed and monotonic() < until:
            assert torch.equal(kernel(x), 4.0 * x)
        assert not link._followed
        assert torch.equal(kernel(x), 4.0 * x)
        jobs = daemon.client.call("jobs")["jobs"]
        assert [job["outcomes"] for job in jobs] == [{"measured": 2}] * 2, jobs
