"""The pipeline: the wall time of jobs beside the time of their compiles or their measurements alone.

The bound is max(Σ compile seconds / compile slots, Σ lane seconds / lanes), lane seconds with those in which finalists
are checked. Their rounds follow, in a window in which nothing compiles, so they are reported separately.

One job of many configs is followed by a queue of small jobs with the same configs in all: the next ones compile while
one is measured, so that the queue takes about as long.
"""

import argparse
import os
from typing import Any

from benchmarks.private_daemon import private_home, serving
from benchmarks.report import show

BUDGET_RATIO = 1.10
BUDGET_OF_QUEUE = 1.10
"""Of a queue's time to that of one job with the same configs."""

HEADER = """
from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build
"""

KERNEL = """
@kernel(
    backend="tvm_ffi",
    sources=["saxpy.cc"],
    space=space(STEP=list(range({first}, {first} + {configs}))),
    problems=[dict(N=1 << 20)],
    inputs=lambda p: dict(x=tensor((p.N,)), y=tensor((p.N,), output=True)),
    reference=lambda x, y: dict(y=2 * x),
    default=dict(STEP={first}),
    preset="{preset}",
    strategy="exhaustive",
)
def saxpy_{first}(p, c):
    return Build(function="saxpy", args=("x", "y"), defines=dict(STEP=c.STEP))
"""

SOURCE = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void saxpy(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const float* in = static_cast<const float*>(x.data_ptr());
  float* out = static_cast<float*>(y.data_ptr());
  const int64_t n = x.numel(), whole = n - n % STEP;
  for (int64_t i = 0; i < whole; i += STEP)
    for (int64_t j = 0; j < STEP; ++j) out[i + j] = 2 * in[i + j];
  for (int64_t i = whole; i < n; ++i) out[i] = 2 * in[i];
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(saxpy, saxpy);
"""


def measure(configs: int, preset: str, jobs: int = 1) -> dict[str, Any]:
    """Tune ``configs`` configs in so many jobs, each config another binary, with a private daemon."""
    each = configs // jobs
    kernels = [KERNEL.format(first=1 + each * number, configs=each, preset=preset) for number in range(jobs)]
    with private_home() as home:
        project = home / "project"
        project.mkdir()
        (project / "tune_saxpy.py").write_text("\n".join([HEADER, *kernels]))
        (project / "saxpy.cc").write_text(SOURCE)
        with serving(home) as daemon, daemon.client() as client:
            with client.tune(path=project) as tuning:
                for _ in tuning:
                    pass
            ended = tuning.jobs
            status = client.call("status")
    for job in ended:
        if job["state"] != "done" or job["outcomes"].get("measured", 0) + job["outcomes"].get("slower", 0) != each:
            raise RuntimeError(f"the job is {job['state']} ({job['message']}): {job['outcomes']}")
    spent = {
        name: sum(job["cost"].get(name, 0.0) for job in ended)
        for name in ("compile_s", "lane_s", "finalists_s", "quiet_s")
    }
    slots, lanes = status["compile_slots"], len(status["lanes"])
    wall_s = max(job["finished"] or 0.0 for job in ended) - min(job["started"] or 0.0 for job in ended)
    trying_s = wall_s - spent["quiet_s"]
    on_lanes_s = spent["lane_s"] + spent["finalists_s"] - spent["quiet_s"]
    bound_s = max(spent["compile_s"] / slots, on_lanes_s / lanes)
    return {
        "jobs": jobs,
        "configs": configs,
        "cores": os.cpu_count(),
        "compile_s": spent["compile_s"],
        "slots": slots,
        "lane_s": on_lanes_s,
        "lanes": lanes,
        "bound_s": bound_s,
        "trying_s": trying_s,
        "ratio": trying_s / bound_s,
        "quiet_s": spent["quiet_s"],
        "wall_s": wall_s,
        "in_budget": trying_s <= BUDGET_RATIO * bound_s,
        "to_one_job": None,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--configs", type=int, nargs="*", default=[40])
    parser.add_argument("--queue", type=int, default=10, help="small jobs, of three configs each")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(configs, arguments.preset) for configs in arguments.configs]
    if arguments.queue:
        one, queue = (measure(3 * arguments.queue, arguments.preset, jobs) for jobs in (1, arguments.queue))
        queue["to_one_job"] = queue["trying_s"] / one["trying_s"]
        rows += [one, queue]
    title = f"pipeline (budgets: {BUDGET_RATIO:g} times the bound, a queue {BUDGET_OF_QUEUE:g} times one job)"
    show(title, rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
