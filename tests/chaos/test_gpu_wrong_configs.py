"""A hundred configs on a GPU; sixty are wrong in ways that one launch on one set of inputs does not show."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from tests.chaos.conftest import TableRow
from tests.e2e.harness import Daemon

pytestmark = pytest.mark.gpu

SOURCE = """
enum Kind { RIGHT, OUTSIDE, DIRTY, SEED };

template <int KIND, int OFFSET, int REPEAT>
__global__ void twice(const float* x, volatile float* y, int* count, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float factor = 2;
  if (KIND == SEED && __float_as_int(x[0]) != KNOWN) factor = 3;
  if (KIND == DIRTY) {
    // All blocks but the last see what the launch before has left.
    if (*const_cast<volatile int*>(count) >= n) factor = 3;
    if (i < n) atomicAdd(count, 1);
  }
  if (KIND == OUTSIDE && i == 0) y[OFFSET] = TAG;
  if (n < 0) y[0] = TAG;  // never, but no two configs have equal bytes: each is measured
  for (int turn = 0; i < n && turn < REPEAT; ++turn) y[i] = factor * x[i];
}
"""

N = 1 << 24
"""Elements: enough for the launches to differ by their work and not by noise, so that each wrong one is a finalist."""

KERNEL = """
import functools
from ktuned import kernel, space, tensor
from ktuned.declaration import materialise
from ktuned_nvrtc import Build

N = {n}
X = tensor((N,), seed=7)

@functools.cache
def known():
    import torch
    return int(materialise(X, "x", "", "cpu")[:1].view(torch.int32))

@kernel(
    backend="nvrtc",
    sources=["wrong.cu"],
    space=space({configs}),
    problems=[dict(n=N)],
    inputs=lambda p: dict(x=X, y=tensor((N,), output=True), count=tensor((1,), "int32", "zeros")),
    reference=lambda x: dict(y=2 * x),
    strategy="random",
    preset="fast",
    trials=200,
    early_stop=100.0,
    seed=3,
)
def it(p, c):
    return Build(
        entry=f"twice<{{c.kind}}, {{c.offset}}, {{c.repeat}}>",
        args=("x", "y", "count", p.n),
        grid=(-(-p.n // 256),),
        block=(256,),
        defines=dict(KNOWN=known(), TAG=c.tag),
    )
"""

OFFSETS = [sign * 4**power for power in range(9) for sign in (1, -1)] + [8, -8]
"""Elements outside of y, on both sides: 4 bytes to 256 KiB."""


def make_configs() -> list[dict[str, Any]]:
    outside = [dict(kind="OUTSIDE", offset=N + at - 1 if at > 0 else at, repeat=2) for at in OFFSETS]
    dirty = [dict(kind="DIRTY", offset=0, repeat=2) for _ in range(20)]
    # The fastest: each of them would win.
    seed = [dict(kind="SEED", offset=0, repeat=1) for _ in range(20)]
    right = [dict(kind="RIGHT", offset=0, repeat=8) for _ in range(40)]
    return [dict(config, tag=tag) for tag, config in enumerate([*outside, *dirty, *seed, *right], 1)]


def describe_offset(offset: int) -> str:
    return f"{4 * (offset - N)} bytes after y" if offset > 0 else f"{-4 * offset} bytes before y"


@pytest.mark.timeout(600)
def test_wrong_configs_on_a_gpu_are_caught_and_right_ones_measured(tmp_path: Path, table_row: TableRow) -> None:
    """Each mismatch has its reason."""
    with Daemon(tmp_path, spares=True, tensors="torch") as daemon:
        path = daemon.write_kernel(KERNEL.format(n=N, configs=make_configs()))
        (path.parent / "wrong.cu").write_text(SOURCE)
        began = perf_counter()
        job = daemon.tune_one(path=path)
        table_row["job (s)"] = round(perf_counter() - began, 1)
        trials = [daemon.fetch_trial(trial["id"]) for trial in daemon.fetch_trials().values()]
        kinds: dict[str, list[dict[str, Any]]] = {}
        for trial in trials:
            kinds.setdefault(trial["config"]["kind"], []).append(trial)
        for kind, found in kinds.items():
            table_row[kind] = f"{len(found)}: {found[0]['outcome']}: {found[0]['message'][:90]}"
        table_row["retried in a new worker"] = sum(
            "worker_damaged" in (trial["detail"].get("failure", {}).get("story") or ()) for trial in trials
        )
        assert {kind: len(found) for kind, found in kinds.items()} == dict(OUTSIDE=20, DIRTY=20, SEED=20, RIGHT=40)
        assert {trial["outcome"] for trial in kinds["RIGHT"]} == {"measured"}, [
            trial["message"] for trial in kinds["RIGHT"] if trial["outcome"] != "measured"
        ]
        for trial in kinds["OUTSIDE"]:
            reason = f"wrote outside its tensors: {describe_offset(trial['config']['offset'])}"
            assert (trial["outcome"], trial["message"]) == ("mismatch", reason)
        for kind, words in (("DIRTY", "the first launch was right"), ("SEED", "right on its first inputs")):
            assert {trial["outcome"] for trial in kinds[kind]} == {"mismatch"}
            assert all(trial["message"].startswith(words) for trial in kinds[kind])
        assert job["outcomes"] == {"measured": 40, "mismatch": 60}
        hit = daemon.client.lookup("it", dict(n=N))
        assert hit.config is not None
        assert hit.config["kind"] == "RIGHT"
        done = daemon.run_ktuned("check", "it", "--sanitize", "--json", timeout_s=300.0)
        (checked,) = json.loads(done.stdout)["winners"]
        table_row["check --sanitize"] = f"{checked['verdict']}: {checked['message']}"
        assert checked["verdict"] == "right" or "not installed" in checked["message"], done.stdout + done.stderr
        lane_s = statistics.median(trial["lane_s"] for trial in kinds["RIGHT"])
    guards_s = measure_guards()
    table_row["lane (ms)"], table_row["guards (ms)"] = round(lane_s * 1e3, 2), round(guards_s * 1e3, 3)


def measure_guards() -> float:
    """Return the time in s of one check of all guards, after a trial's last launch."""
    import torch

    from ktuned.checking.guards import Guards

    guards = Guards()
    tensors = {name: torch.ones(N, device="cuda:0") for name in "xy"} | {"count": torch.zeros(1, device="cuda:0")}
    for name, tensor in tensors.items():
        if name != "y":
            guards.keep_copy(name, tensor)
    guards.place_tensors(tensors, guards.find_spans(tensors))
    guards.keep_copy("expected", tensors["y"])
    guards.seal_copies()
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        began = perf_counter()
        assert guards.find_damage() is None
        times.append(perf_counter() - began)
    return statistics.median(times)
