"""Measurement of a device's limits with torch, by copies of a large tensor and products of large matrices.

The best of several runs counts, because a limit is the highest rate that was ever reached. If other programs use the
device meanwhile, the limits are in doubt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter, time
from typing import Any

from ktuned.measuring.contention import watch_device
from ktuned.model import FLOAT32, Device, Peaks, Phase, UsageError

RUNS = 12
WARM_RUNS = 3

GPU_COPY_BYTES = 1 << 30
CPU_COPY_BYTES = 1 << 28
"""Sizes of a copied tensor: several times the caches, and little enough to be free."""

GPU_SIZE = 8192
CPU_SIZE = 1536
"""Rows of square matrices: a product takes 1 to 20 ms on a GPU, and some tenths of a second on one core of a CPU."""

_CPU = (FLOAT32, "float64")
_GPU = (FLOAT32, "float64", "tf32", "float16", "bfloat16", "float8", "int8")


def measure_peaks(
    device: Device,
    *,
    on_phase: Callable[[Phase], None] = lambda phase: None,
    copy_bytes: int | None = None,
    size: int | None = None,
) -> Peaks:
    """Measure a device's bandwidth and arithmetic. A figure that cannot be measured is absent, with the reason.

    Args:
        device: the device.
        on_phase: called when measuring begins.
        copy_bytes: size of the copied tensor; by default one that suits the device.
        size: rows of the matrices; by default a number that suits the device.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise UsageError(f"torch is not installed: {sys.executable} -m pip install torch") from error
    on_phase(Phase.TIMING)
    figures: dict[str, float] = {}
    absent: dict[str, str] = {}
    is_gpu = device.kind == "cuda"
    copy_bytes = copy_bytes or (GPU_COPY_BYTES if is_gpu else CPU_COPY_BYTES)
    size = size or (GPU_SIZE if is_gpu else CPU_SIZE)
    if is_gpu:
        torch.cuda.set_device(torch.device(device.name))
    kinds = {
        "memory": partial(_prepare_copy, copy_bytes),
        **{kind: partial(_prepare_product, kind, size) for kind in (_GPU if is_gpu else _CPU)},
    }
    watch = watch_device(device)
    for kind, prepare in kinds.items():
        try:
            with torch.no_grad():
                run, amount = prepare(torch, device)
                figures[kind] = amount / _time_best_run_s(torch, device, run)
        except Exception as error:
            absent[kind] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    memory = figures.pop("memory", None)
    return Peaks(
        device.model,
        gbps=None if memory is None else memory / 1e9,
        tflops={kind: figure / 1e12 for kind, figure in figures.items()},
        absent=absent,
        measured=time(),
        doubt=f"other programs used {device.name} meanwhile" if watch.is_used_by_others() else "",
    )


Prepared = tuple[Callable[[], object], float]
"""A function to time, and how many bytes or operations it takes."""


def _prepare_copy(count: int, torch: Any, device: Device) -> Prepared:
    place = device.kind if device.kind == "cpu" else device.name
    source = torch.ones(count // 4, dtype=torch.float32, device=place)
    target = torch.empty_like(source)
    # Each byte is read and written.
    return lambda: target.copy_(source), 2.0 * count


def _prepare_product(kind: str, size: int, torch: Any, device: Device) -> Prepared:
    place = device.kind if device.kind == "cpu" else device.name
    operations = 2.0 * size**3
    if kind == "int8":
        whole = torch.ones(size, size, dtype=torch.int8, device=place)
        # Tensor cores want the second factor in columns.
        return lambda: torch._int_mm(whole, whole.t()), operations
    if kind == "float8":
        eighth = torch.ones(size, size, device=place).to(torch.float8_e4m3fn)
        one = torch.ones((), device=place)
        return lambda: torch._scaled_mm(eighth, eighth.t(), one, one, out_dtype=torch.bfloat16), operations
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    factor = torch.randn(size, size, device=place).to(getattr(torch, FLOAT32 if kind == "tf32" else kind))
    product = torch.empty_like(factor)
    return lambda: torch.mm(factor, factor, out=product), operations


def _time_best_run_s(torch: Any, device: Device, run: Callable[[], object]) -> float:
    for _ in range(WARM_RUNS):
        run()
    best = float("inf")
    for _ in range(RUNS):
        if device.kind == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1e3)
        else:
            began = perf_counter()
            run()
            best = min(best, perf_counter() - began)
    return best
