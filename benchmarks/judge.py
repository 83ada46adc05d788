"""Latency of an honest kernel under ``judge`` beside that under ``tune``, in turns in one daemon, on the CPU or a GPU.

A figure of ``judge`` comes from another process, another clock and other inputs than one of ``tune``, and must not
punish an honest kernel for that. Goal: the ratio of the medians is within 3 %. A kernel reads and writes N floats.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.report import show

GOAL = 0.03
SIZES = {"cpu": (12, 14, 17, 20), "cuda": (12, 20, 22, 24, 26)}
"""Sizes as powers of two, by the kind of device."""

HEADER = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
using tvm::ffi::TensorView;
"""

SOURCES = {
    "scale.cc": """
void scale(TensorView x, TensorView y) {
  auto a = static_cast<const float*>(x.data_ptr());
  auto b = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) b[i] = 3 * a[i] + 1;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale);
""",
    "scale.cu": """
#include <tvm/ffi/extra/c_env_api.h>
__global__ void work(const float* x, float* y, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x)
    y[i] = 3 * x[i] + 1;
}
void scale(TensorView x, TensorView y) {
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  work<<<(x.numel() + 1023) / 1024, 256, 0, stream>>>(static_cast<float*>(x.data_ptr()),
      static_cast<float*>(y.data_ptr()), x.numel());
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale);
""",
}

KERNEL = """
from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build


@kernel(
    backend="tvm_ffi",
    sources=[{source!r}],
    space=space(only=[1]),
    problems=[dict(N=1 << {power})],
    inputs=lambda p: dict(x=tensor(p.N), y=tensor(p.N, output=True)),
    reference=lambda x: dict(y=3 * x + 1),
)
def scale_{power}(p, c):
    return Build(function="scale", args=("x", "y"))
"""


def write_kernels(project: Path, kind: str) -> dict[int, Path]:
    """Write a kernel file for each size; return them by the power of two."""
    source = "scale.cu" if kind == "cuda" else "scale.cc"
    project.mkdir()
    (project / source).write_text(HEADER + SOURCES[source])
    files = {power: project / f"tune_{power}.py" for power in SIZES[kind]}
    for power, file in files.items():
        file.write_text(KERNEL.format(source=source, power=power))
    return files


def measure_once(daemon: PrivateDaemon, file: Path) -> tuple[float, float]:
    """Return the latency in µs under ``tune`` and under ``judge``.

    Raises:
        RuntimeError: the kernel is not tuned, or not judged right.
    """
    tuned, _ = daemon.tuned(file, again=True)
    with daemon.client() as client:
        (candidate,) = client.judge(path=file)["candidates"]
    (problem,) = candidate["problems"]
    judged_us = problem["latency_us"]
    if judged_us is None or tuned["best_us"] is None:
        raise RuntimeError(f"{file.name} is {candidate['verdict']}: {candidate['reason']}")
    return tuned["best_us"], judged_us


def measure(kind: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each size."""
    with private_home() as home:
        files = write_kernels(home / "project", kind)
        with serving(home) as daemon:
            for power, file in files.items():
                pairs = [measure_once(daemon, file) for _ in range(rounds)]
                ratios = sorted(judged / tuned for tuned, judged in pairs)
                yield {
                    "what": f"2^{power} floats",
                    "tune µs": statistics.median(tuned for tuned, _ in pairs),
                    "judge µs": statistics.median(judged for _, judged in pairs),
                    "ratio": statistics.median(ratios),
                    "from": ratios[0],
                    "to": ratios[-1],
                    "within 3 %": abs(statistics.median(ratios) - 1) <= GOAL,
                }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("device", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rows = []
    for row in measure(chosen.device, chosen.rounds):
        print(row, flush=True)
        rows.append(row)
    show("judge / tune", rows, as_json=chosen.json)


if __name__ == "__main__":
    main()
