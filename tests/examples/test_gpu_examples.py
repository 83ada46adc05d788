"""Every GPU example: tuned by a daemon, served again without work, launched by an application."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Daemon

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples"

LIBRARY_APPLICATION = """
import json, sys
from pathlib import Path
import torch, tvm_ffi
from ktuned_client import Client
hit = Client(deadline_s=1.0).lookup("cuda_softmax:softmax", {"M": 16384, "N": 4096})
assert hit.artifact is not None, hit
artifact = Path(hit.artifact)
function = json.loads((artifact / "manifest.json").read_text())["facts"]["function"]
softmax = tvm_ffi.load_module(str(artifact / "kernel.so")).get_function(function)
x = torch.randn(16384, 4096, device="cuda").half()
y = torch.empty_like(x)
softmax(x, y)
torch.testing.assert_close(y.float(), x.float().softmax(dim=1), rtol=2e-3, atol=1e-6)
print(hit.status, hit.config)
"""

TRITON_APPLICATION = """
import sys
from pathlib import Path
import torch, triton
from ktuned_client import Client
from ktuned_triton import Triton, install, load
from ktuned.declaration.loader import get_kernel_module
hit = Client(deadline_s=1.0).lookup("triton_matmul:triton_matmul", {"M": 4096, "N": 4096, "K": 4096})
assert hit.artifact is not None, hit
a, b = (torch.randn(4096, 4096, device="cuda").half() for _ in "ab")
loaded, called = torch.empty_like(a), torch.empty_like(a)
load(hit.artifact, Triton().devices()[0]).bind({"a": a, "b": b, "c": loaded})()
install(hit.artifact)
from triton.backends.nvidia.compiler import CUDABackend
del CUDABackend.make_cubin  # compiling would now fail
config = dict(hit.config)
sizes = {"num_warps": config.pop("WARPS"), "num_stages": config.pop("STAGES")}
grid = (triton.cdiv(4096, config["BLOCK_M"]) * triton.cdiv(4096, config["BLOCK_N"]),)
matmul = get_kernel_module(Path(sys.argv[1])).matmul_kernel
matmul[grid](a, b, called, 4096, 4096, 4096, 4096, 1, 4096, 1, 4096, 1, **config, **sizes)
torch.testing.assert_close(loaded, a @ b, rtol=1e-2, atol=0.2)
assert torch.equal(called, loaded)
print(hit.status, hit.config)
"""


@pytest.mark.parametrize(
    "name", ["gpu_gemm", "cuda_softmax", "cutedsl_rmsnorm", "attention_choice", "triton_softmax", "triton_matmul"]
)
def test_an_example_is_tuned_and_then_served(name: str, tmp_path: Path) -> None:
    """A second daemon compiles and measures nothing; the winner beats the default."""
    if name == "cutedsl_rmsnorm":
        pytest.importorskip("cutlass")
    # `fast` leaves a compile that takes much longer than the others, as torch.compile's do, to the next job.
    preset = "default" if name == "attention_choice" else "fast"
    with Daemon(tmp_path, tensors="torch", spares=True) as daemon:
        _, jobs = daemon.tune(path=EXAMPLES / name, preset=preset, trials=60)
        assert jobs, daemon.log.read_text()
        for job in jobs:
            assert job["state"] == "done", describe_job(daemon, job)
            assert job["best_us"] is not None, describe_job(daemon, job)
            assert job["default_us"] is not None, describe_job(daemon, job)
            assert job["best_us"] < job["default_us"], describe_job(daemon, job)
            assert not set(job["outcomes"]) & {"mismatch", "hung", "crashed"}, describe_job(daemon, job)
        hit = daemon.client.lookup(jobs[0]["kernel"], jobs[0]["problem"])
        first = [describe_job(daemon, job) for job in jobs]
    with Daemon(tmp_path, tensors="torch", spares=True) as daemon:
        _, again = daemon.tune(path=EXAMPLES / name, preset=preset, trials=60)
        for job in again:
            assert job["state"] == "done", describe_job(daemon, job)
            spent = {what: job["cost"].get(what, 0.0) for what in ("compile_s", "lane_s", "open_s", "finalists_s")}
            assert not any(spent.values()), "\n".join([*first, describe_job(daemon, job)])
        served = daemon.client.lookup(jobs[0]["kernel"], jobs[0]["problem"])
        assert hit.status == "fresh", hit
        assert (served.status, served.config) == ("fresh", hit.config), served
        run_application(name, daemon.env)


def describe_job(daemon: Daemon, job: Mapping[str, Any]) -> str:
    """Describe a job: its figures, its failures, and the last lines of the daemon's log."""
    trials = daemon.client.call("results", kernel=job["kernel"], limit=2000)["trials"]
    lines = [f"job {job['id']}: {job['state']} {job['message']} {job['outcomes']} {job['cost']}"]
    lines.append(f"best {job['best_us']} us, default {job['default_us']} us, reference {job['reference_us']} us")
    for trial in trials:
        figures = f"job {trial['job']} {trial['outcome']} {trial['latency_us']} us, lane {trial['lane_s']} s"
        is_told = trial["outcome"] not in ("measured", "slower") or trial["job"] == job["id"] != trials[-1]["job"]
        if is_told:
            lines.append(f"{figures}: {trial['config']} {trial['message'][:300]}")
    return "\n".join([*lines, daemon.log.read_text()[-4000:]])


def run_application(name: str, environment: dict[str, str]) -> None:
    """Run the application of an example, if it has one."""
    command = {
        "gpu_gemm": [sys.executable, str(EXAMPLES / "gpu_app.py")],
        "cuda_softmax": [sys.executable, "-c", LIBRARY_APPLICATION],
        "triton_matmul": [sys.executable, "-c", TRITON_APPLICATION, str(EXAMPLES / "triton_matmul/tune_matmul.py")],
    }.get(name)
    if command is not None:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr + done.stdout
        assert done.stdout.startswith("fresh"), done.stdout
