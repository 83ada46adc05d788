"""TileLang's kernels on a GPU: each execution backend loads and times a kernel without compiling."""

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
from tests.tilelang.kernels import EXAMPLE, SIZE, make_build, make_inputs, verify_output

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu() -> Device:
    """The first GPU."""
    found = cuda_devices()
    assert not isinstance(found, Absent)
    return found[0]


@pytest.mark.parametrize("execution_backend", ["nvrtc", "tvm_ffi", "cython"])
def test_a_lane_loads_and_launches_an_artifact(execution_backend: str, gpu: Device, tmp_path: Path) -> None:
    """The launch writes into the given tensors."""
    (tmp_path / "key").mkdir()
    unit = EXAMPLE.unit("key", make_build("scale", execution_backend), gpu.target)
    (result,) = TileLang().compile([unit], tmp_path)
    assert result.outcome is None, result.message
    tensors = make_inputs("cuda:0")
    launch = TileLang().load(tmp_path / "key", unit, gpu).bind(tensors)
    assert launch() is None
    torch.cuda.synchronize()
    verify_output(tensors)


@pytest.mark.parametrize("execution_backend", ["nvrtc", "tvm_ffi", "cython"])
def test_an_application_gets_tilelangs_kernel(execution_backend: str, gpu: Device, tmp_path: Path) -> None:
    """The kernel returns its output, for any size if the shape is symbolic."""
    (tmp_path / "key").mkdir()
    unit = EXAMPLE.unit("key", make_build("scale_any", execution_backend), gpu.target)
    (result,) = TileLang().compile([unit], tmp_path)
    assert result.outcome is None, result.message
    kernel = load(tmp_path / "key")
    for size in (SIZE, 1000):
        x = torch.arange(float(size), device="cuda:0")
        assert torch.equal(kernel(x), 3 * x)


def test_cutedsl_is_compiled_ahead_of_time(gpu: Device, tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()
    unit = EXAMPLE.unit("key", make_build("scale", "cutedsl"), gpu.target)
    (result,) = TileLang().compile([unit], tmp_path)
    if result.outcome is not None and "is not available" in result.message:
        pytest.skip(result.message.splitlines()[0])
    assert result.outcome is None, result.message
    tensors = make_inputs("cuda:0")
    TileLang().load(tmp_path / "key", unit, gpu).bind(tensors)()
    torch.cuda.synchronize()
    verify_output(tensors)


def test_each_bad_config_has_its_outcome(tmp_path: Path) -> None:
    """An endless loop, an illegal address, a wrong output and compile errors have outcomes; other configs are
    measured.
    """
    arguments = 'dict(size=p.n, mode=c.mode, block=c.block), execution_backend="nvrtc"'
    check_bad_configs(tmp_path, "tilelang", Path(__file__).with_name("bad.py"), "bad", arguments)


def test_an_autotuned_function_gets_its_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting call gets it at once; in the background it replaces the first config's kernel, and results never
    change.
    """
    x = torch.arange(float(app.SIZE), device="cuda:0")
    with Daemon(tmp_path, spares=True, tensors="torch") as daemon, Client(daemon.client.socket) as client:
        monkeypatch.setenv("KTUNED_HOME", str(daemon.home))
        link = DaemonLink(client)
        monkeypatch.setattr("ktuned.dropin.keyed_call.daemon_link", lambda: link)

        def make_tuner(factor: float) -> Any:
            return AutoTuner.from_kernel(app.make_closure(factor), app.CONFIGS).set_compile_args(out_idx=[-1])

        result = make_tuner(3.0).set_profile_args(ref_prog=lambda x: 3.0 * x).run()
        assert result.config in app.CONFIGS
        assert 0 < result.latency < 10
        assert result.ref_latency > 0
        assert torch.equal(result.kernel(x), 3.0 * x)

        kernel = make_tuner(4.0).set_tuning_args(mode="background").run().kernel
        assert kernel.config == app.CONFIGS[0]
        deadline = monotonic() + 120
        while link._followed and monotonic() < deadline:
            assert torch.equal(kernel(x), 4.0 * x)
        assert not link._followed
        assert torch.equal(kernel(x), 4.0 * x)
        jobs = daemon.client.call("jobs")["jobs"]
        assert [job["outcomes"] for job in jobs] == [{"measured": 2}] * 2, jobs
