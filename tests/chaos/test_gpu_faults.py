"""Everything that a CUDA kernel can do to its device: outcomes are right, and others keep their speed."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from ktuned_client import Job
from tests.chaos.conftest import TableRow
from tests.e2e.harness import Daemon

pytestmark = pytest.mark.gpu

SOURCE = """
enum Fault { NONE, ENDLESS, ILLEGAL, MISALIGNED, ASSERTION, STICKY };

extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);

__device__ volatile int forever = 1;
__device__ unsigned launches;
#if HOARDED
__device__ char hoard[1ull << 40];
#endif

template <int FAULT, int REPEAT>
__global__ void twice(const float* x, volatile float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (FAULT == ENDLESS)
    while (forever) {}
  if (FAULT == ILLEGAL || (FAULT == STICKY && i == 0 && ++launches > 2)) *reinterpret_cast<volatile float*>(16) = 1;
  if (FAULT == MISALIGNED) *reinterpret_cast<volatile double*>(reinterpret_cast<volatile char*>(y) + 4) = 1;
  if (FAULT == ASSERTION) __assertfail("x is y", "faults.cu", __LINE__, "twice", 1);
#if HOARDED
  hoard[i] = 1;
#endif
  for (int turn = 0; i < n && turn < REPEAT; ++turn) y[i] = 2 * x[i];
}
"""

KERNEL = """
from ktuned import kernel, space, tensor
from ktuned_nvrtc import Build

@kernel(
    backend="nvrtc",
    sources=["faults.cu"],
    space=space({configs}),
    problems=[dict(n=1 << 24)],
    inputs=lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True)),
    reference=lambda x: dict(y=2 * x),
    deadlines=dict(first_launch=2.0),
    early_stop=100.0,
    seed=3,
)
def {name}(p, c):
    entry = f"twice<{{c.fault}}, {{c.repeat}}>"
    # Each kernel's own artifacts: those that are there already would be measured before all others.
    defines = dict(HOARDED=c.hoard, OF_{name}=1)
    return Build(entry=entry, args=("x", "y", p.n), grid=(-(-p.n // 256),), block=(256,), defines=defines)
"""

HEALTHY = [{"tag": f"x{repeat}", "fault": "NONE", "repeat": repeat, "hoard": 0} for repeat in (1, 2, 4, 6, 8, 12)]
BAD = {
    "ENDLESS": ("hung", "first_launch timed out"),
    "ILLEGAL": ("launch_error", "illegal"),
    "MISALIGNED": ("launch_error", "misaligned"),
    "ASSERTION": ("launch_error", "assert"),
    "STICKY": ("launch_error", "illegal"),
    "HOARD": ("launch_error", "memory"),
}
"""How each kind ends, and a word of its message."""

NOISE = 0.05
TAKE_OVER_S = 2.0
"""Shorter than a new worker's import of torch: within it, a spare took over. How long it really took is in the row."""

IN_A_ROW = 3
"""Kills in a row after each of which the lane is back that soon: what comes after them may wait for an import of torch,
which is no spare's but a new worker's.
"""

WARM_REQUESTS = 2
"""Requests to a spare that is warm: to import, and to work on its GPU."""


def make_configs() -> list[dict[str, Any]]:
    hoard = {"tag": "HOARD", "fault": "NONE", "repeat": 1, "hoard": 1}
    bad = [{"tag": tag, "fault": tag, "repeat": 1, "hoard": 0} for tag in BAD if tag != "HOARD"]
    return [*HEALTHY, *bad, hoard]


def tune_configs(daemon: Daemon, name: str, configs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Job]:
    """Tune configs as a kernel of their own; return the trials with their details, and the job."""
    path = daemon.write_kernel(KERNEL.format(name=name, configs=configs), f"tune_{name}.py")
    (path.parent / "faults.cu").write_text(SOURCE)
    job = daemon.tune_one(path=path)
    return [daemon.fetch_trial(trial["id"]) for trial in daemon.fetch_trials(name).values()], job


def measure_deviations(trials: list[dict[str, Any]], clean_us: dict[str, float]) -> dict[str, float]:
    """Return the relative deviation of each healthy config's latency from that of a clean run.

    A deviation within the latency's interval, which is wide after few samples, counts as 0.
    """
    details = {trial["config"]["tag"]: trial["detail"]["timing"] for trial in trials if trial["latency_us"]}
    ends = {tag: (details[tag]["low_us"], details[tag]["high_us"]) for tag in clean_us if tag in details}
    return {tag: min(max(clean_us[tag], low), high) / clean_us[tag] - 1 for tag, (low, high) in ends.items()}


def _has_warm_spares(daemon: Daemon) -> bool:
    workers = daemon.client.call("status")["workers"]
    spares = [worker for worker in workers if (worker["role"], worker["state"]) == ("bench", "idle")]
    return [one["requests"] for one in spares].count(WARM_REQUESTS) >= IN_A_ROW


def find_lane(daemon: Daemon) -> tuple[str, str]:
    """Return the state of the GPU's lane, and the reason for it."""
    (lane,) = [lane for lane in daemon.client.call("status")["lanes"] if lane["device"] == "cuda:0"]
    return lane["state"], lane["reason"]


def find_lane_time(trial: dict[str, Any]) -> float:
    """Return when a trial was last taken to its lane, in s since the epoch, or 0."""
    return max(
        (at for kind, _, at in trial["detail"].get("profile", {}).get("spans", ()) if kind == "lane"), default=0.0
    )


@pytest.mark.timeout(300)
def test_each_gpu_fault_has_its_outcome_and_spares_the_device(tmp_path: Path, table_row: TableRow) -> None:
    """Each fault costs its lane little, and later configs are as fast as before."""
    with Daemon(tmp_path, spares=True, tensors="torch") as daemon:
        trials, job = tune_configs(daemon, "calm", HEALTHY)
        assert job["outcomes"] == {"measured": len(HEALTHY)}, [trial["message"] for trial in trials]
        clean_us = {trial["config"]["tag"]: trial["latency_us"] for trial in trials}
        winner = daemon.client.lookup("calm", dict(n=1 << 24)).config
        daemon.wait_until(lambda: _has_warm_spares(daemon), "three spares that have worked on the GPU")

        trials, job = tune_configs(daemon, "faulty", make_configs())
        by_tag = {trial["config"]["tag"]: trial for trial in trials}
        beside, afterwards = (
            measure_deviations(trials, clean_us),
            measure_deviations(tune_configs(daemon, "after", HEALTHY)[0], clean_us),
        )
        on_lane = sorted((trial for trial in trials if find_lane_time(trial)), key=find_lane_time)
        back_s = {
            trial["config"]["tag"]: round(after["detail"].get("profile", {}).get("open_s", 0.0), 2)
            for trial, after in itertools.pairwise(on_lane)
            if trial["config"]["tag"] in BAD
        }
        table_row |= {tag: f"{by_tag[tag]['outcome']}: {by_tag[tag]['message'][:90]}" for tag in BAD}
        table_row |= {
            "on the lane": " ".join(trial["config"]["tag"] for trial in on_lane),
            "lane back after (s)": back_s,
            "neighbours against a clean run": {tag: f"{100 * part:+.1f} %" for tag, part in beside.items()},
            "the same after all faults": {tag: f"{100 * part:+.1f} %" for tag, part in afterwards.items()},
        }
        assert job["state"] == "done"
        assert {tag: by_tag[tag]["outcome"] for tag in BAD} == {tag: outcome for tag, (outcome, _) in BAD.items()}
        for tag, (_, word) in BAD.items():
            assert word in by_tag[tag]["message"].lower(), by_tag[tag]["message"]
        assert by_tag["STICKY"]["detail"]["failure"]["phase"] in ("timing", "check")
        assert daemon.client.lookup("faulty", dict(n=1 << 24)).config == winner
        assert len(beside) == len(afterwards) == len(HEALTHY)
        assert max(map(abs, [*beside.values(), *afterwards.values()])) <= NOISE
        # The lane is busy while a spare worker makes its context.
        daemon.wait_until(lambda: find_lane(daemon) == ("ready", ""), "the lane to be ready")
        hung = by_tag["ENDLESS"]
        assert max(list(back_s.values())[:IN_A_ROW]) <= TAKE_OVER_S
        assert hung["lane_s"] <= hung["detail"]["failure"]["after_s"] + TAKE_OVER_S
        assert daemon.stop() == os.EX_OK
