"""``tune --compile-only`` with real commands and a real daemon."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import UNHURRIED, Daemon, make_kernel_text

SOURCE = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void twice(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  auto from = static_cast<const float*>(x.data_ptr());
  auto to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.numel(); i += STEP)
    for (int64_t j = i; j < i + STEP; ++j) to[j] = 2 * from[j];
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(twice, twice);
"""
KERNEL = """\
import without_torch
from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build

@kernel(
    backend="tvm_ffi", sources=["twice.cc"], problems=[dict(n=64)], preset="fast",
    space=space(STEP=[4, "no_number"]),
    inputs=lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True)),
    reference=lambda x, y: dict(y=2 * x),
)
def twice(p, c):
    return Build(function="twice", args=("x", "y"), defines=dict(STEP=c.STEP))
"""


@pytest.mark.timeout(5 * PATIENCE_S)
def test_tuning_after_compiling_compiles_nothing(tmp_path: Path) -> None:
    """Each config is listed with its figures, and the next job finds its artifact."""
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(KERNEL, "tune_twice.py")
        path.with_name("twice.cc").write_text(SOURCE)
        compiled = daemon.run_ktuned("tune", str(path), "--compile-only", "--json", timeout_s=4 * PATIENCE_S)
        assert compiled.returncode == 0, compiled.stderr
        *events, jobs = map(json.loads, compiled.stdout.splitlines())
        outcomes = {entry["config"]["STEP"]: entry["outcome"] for entry in events}
        assert outcomes == {4: None, "no_number": "compile_error"}
        artifacts = {entry["artifact"] for entry in events if entry["outcome"] is None}
        assert all(Path(artifact, "kernel.so").is_file() for artifact in artifacts)
        (job,) = jobs
        assert (job["state"], job["outcomes"]) == ("done", {"compiled": 1, "compile_error": 1})
        daemon.tune(path=path, trials=2)
        trials = daemon.client.call("results", kernel="twice")["trials"]
        measured = [trial for trial in trials if trial["outcome"] == "measured"]
        assert [trial["compile_s"] for trial in measured] == [0.0]
        places = daemon.home / "cache" / "artifacts"
        assert {str(places / trial["artifact"][:2] / trial["artifact"]) for trial in measured} == artifacts


def test_ctrl_c_cancels_the_job_and_keeps_what_was_compiled(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(
            make_kernel_text("space([dict(does='gate_compile', gate='door')])", deadlines=UNHURRIED)
        )
        command = subprocess.Popen(
            [sys.executable, "-m", "ktuned", "tune", str(path), "--compile-only"],
            env=daemon.env,
            stderr=subprocess.PIPE,
            text=True,
        )
        daemon.make_gate("door").wait_until_reached()
        daemon.wait_until(
            lambda: daemon.client.call("jobs")["jobs"][0]["waiters"] == 1, "the command to follow its job"
        )
        command.send_signal(signal.SIGINT)
        _, stderr = command.communicate(timeout=PATIENCE_S)
        watched, last = stderr.splitlines()
        assert "is watched from now on" in watched
        assert (command.returncode, last) == (130, "cancelled; compiled configs are kept")
        daemon.wait_until(lambda: not daemon.client.call("status")["jobs"]["running"], "the job to end")
        (job,) = daemon.client.call("jobs")["jobs"]
        assert job["state"] == "cancelled"
