"""The pipeline: a job's wall time beside the time of its compiles or its measurements alone.

The bound is max(Σ compile seconds / compile slots, Σ lane seconds / lanes); the budget is 1.15 times that. The
finalists' rounds follow, in a window without compiles, so they are reported separately.
"""

import argparse
import os
from typing import Any

from benchmarks.private_daemon import private_home, serving
from benchmarks.report import show

BUDGET_RATIO = 1.15

KERNEL = """
from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build


@kernel(
    backend="tvm_ffi",
    sources=["saxpy.cc"],
    space=space(STEP=list(range(1, {configs} + 1))),
    problems=[dict(N=1 << 20)],
    inputs=lambda p: dict(x=tensor((p.N,)), y=tensor((p.N,), output=True)),
    reference=lambda x, y: dict(y=2 * x),
    default=dict(STEP=1),
    preset="{preset}",
    strategy="exhaustive",
)
def saxpy(p, c):
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


def measure(configs: int, preset: str) -> dict[str, Any]:
    """Tune a kernel of ``configs`` configs, each of which compiles to another binary, with a private daemon."""
    with private_home() as home:
        project = home / "project"
        project.mkdir()
        (project / "tune_saxpy.py").write_text(KERNEL.format(configs=configs, preset=preset))
        (project / "saxpy.cc").write_text(SOURCE)
        with serving(home) as daemon, daemon.client() as client:
            with client.tune(path=project) as tuning:
                for _ in tuning:
                    pass
            (job,) = tuning.jobs
            status = client.call("status")
    if job["state"] != "done" or job["outcomes"].get("measured", 0) + job["outcomes"].get("slower", 0) != configs:
        raise RuntimeError(f"the job is {job['state']} ({job['message']}): {job['outcomes']}")
    cost = job["cost"]
    slots, lanes = status["compile_slots"], len(status["lanes"])
    trying_s = cost["wall_s"] - cost.get("finalists_s", 0.0)
    bound_s = max(cost["compile_s"] / slots, cost["lane_s"] / lanes)
    return {
        "configs": configs,
        "cores": os.cpu_count(),
        "compile_s": cost["compile_s"],
        "slots": slots,
        "lane_s": cost["lane_s"],
        "lanes": lanes,
        "bound_s": bound_s,
        "trying_s": trying_s,
        "ratio": trying_s / bound_s,
        "finalists_s": cost.get("finalists_s", 0.0),
        "wall_s": cost["wall_s"],
        "in_budget": trying_s <= BUDGET_RATIO * bound_s,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--configs", type=int, nargs="*", default=[40])
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(configs, arguments.preset) for configs in arguments.configs]
    show(f"pipeline (budget: {BUDGET_RATIO:g} times the bound)", rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
