"""An application that runs while its kernels are tuned never runs out of memory because of the tuning."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copy

import pytest

from ktuned_client.answers import ENDED_STATES
from tests.e2e.harness import Daemon

pytestmark = pytest.mark.gpu(alone=True)
"""The test takes most of the GPU's memory."""

DIRECTORY = Path(__file__).parent

KERNEL = """\
from ktuned import kernel, space, tensor
from ktuned_nvrtc import Build

N = 1 << 28

@kernel(
    backend="nvrtc",
    sources=["scale.cu"],
    space=space(BLOCK=[128, 256]),
    problems=[dict(n=N)],
    inputs=lambda p: dict(x=tensor(p.n), y=tensor(p.n, output=True)),
    reference=lambda x: dict(y=3 * x),
    preset="fast",
)
def scale(p, c):
    return Build("scale<float, 2>", ("x", "y", 3.0, p.n), (-(-p.n // (2 * c.BLOCK)),), (c.BLOCK,))
"""
"""The kernel's tensors have 1 GiB each."""

APPLICATION = """\
import os, sys, time
import torch
from ktuned_client import Client

free, _ = torch.cuda.mem_get_info()
hoard = torch.empty(free - (3 << 30), dtype=torch.uint8, device="cuda")
with Client() as client, client.tune(path=sys.argv[1], beside=os.getpid()) as tuning:
    print(tuning.jobs[0]["id"], flush=True)
until = time.monotonic() + 15
while time.monotonic() < until:
    # All that was free when it began, but for the context of the lane's worker (0.51 GiB on an H200) and fragments.
    torch.empty(9 << 28, dtype=torch.uint8, device="cuda").fill_(1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
print("went on", flush=True)
input()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that keeps warm spares where there is room."""
    with Daemon(tmp_path, spares=True, tensors="torch") as daemon:
        yield daemon


def test_a_job_too_large_for_the_rest_of_the_gpu_waits_for_the_application(daemon: Daemon, tmp_path: Path) -> None:
    """A problem of 4 GiB waits while an application leaves 3 GiB; the lane says why."""
    project = tmp_path / "project"
    project.mkdir()
    copy(DIRECTORY / "scale.cu", project)
    copy(DIRECTORY / "scale.cuh", project)
    (project / "tune_scale.py").write_text(KERNEL)
    environment = {**daemon.env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", APPLICATION, str(project / "tune_scale.py")]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as application:
        assert application.stdout is not None
        job = int(application.stdout.readline())
        assert application.stdout.readline() == "went on\n"
        (state,) = daemon.client.call("jobs", ids=[job])["jobs"]
        assert state["state"] not in ENDED_STATES, state
        reasons = [lane["reason"] for lane in daemon.client.call("status")["lanes"]]
        assert any("an application leaves" in reason for reason in reasons), reasons
    daemon.wait_until(
        lambda: daemon.client.call("jobs", ids=[job])["jobs"][0]["state"] == "done", "the job to end without it"
    )
