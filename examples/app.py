"""Application that multiplies matrices with the best known config, while ktuned looks for a better one.

Run it beside ``ktuned tune examples/cpu_gemm/tune_gemm.py``: it prints a line whenever the answer changes. It never
waits for tuning, and also runs without a daemon: then torch multiplies.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import tvm_ffi

from ktuned_client import Client, Hit

PROBLEM = {"M": 384, "N": 384, "K": 400}
RUNS_PER_LOOK = 20
PAUSE_S = 0.1
"""Interval of lookups, and the time of one run; an application that kept every core busy would disturb the
measurements."""

Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


def main(argv: Sequence[str] | None = None) -> None:
    """Look up, run, and report until the time is over or Ctrl-C."""
    parser = argparse.ArgumentParser(description="Run the tuned GEMM while it is being tuned.")
    parser.add_argument("--kernel", default="cpu_gemm:gemm", help="the kernel's name (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="stop after this long (default: on Ctrl-C)")
    options = parser.parse_args(argv)

    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    started = time.monotonic()
    a, b = torch.rand(PROBLEM["M"], PROBLEM["K"]), torch.rand(PROBLEM["K"], PROBLEM["N"])
    c = torch.empty(PROBLEM["M"], PROBLEM["N"])

    tuned = Client(deadline_s=PAUSE_S)
    shown: tuple[object, ...] = ()
    multiply: Multiply = with_torch
    loaded = ""
    while not stop.is_set():
        hit = tuned.lookup(options.kernel, PROBLEM)
        if (hit.artifact or "") != loaded:
            multiply, loaded = load(hit), hit.artifact or ""
        latency_us = run(multiply, a, b, c)
        news = (hit.config, hit.status, hit.latency_us, loaded)
        if news != shown:
            print(line(time.monotonic() - started, hit, multiply, latency_us), flush=True)
            shown = news
        if options.seconds is not None and time.monotonic() - started > options.seconds:
            break
        stop.wait(PAUSE_S)


def load(hit: Hit) -> Multiply:
    """Return the compiled winner, or torch's product if there is none."""
    library = Path(hit.artifact or "", "kernel.so")
    if not library.is_file():
        return with_torch
    multiply: Multiply = tvm_ffi.load_module(library).get_function("gemm")
    return multiply


def with_torch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """Multiply without ktuned."""
    torch.mm(a, b, out=c)


def run(multiply: Multiply, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> float:
    """Return the median latency of some runs, in us."""
    seconds = []
    for _ in range(RUNS_PER_LOOK):
        begin = time.perf_counter()
        multiply(a, b, c)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1e6


def line(elapsed_s: float, hit: Hit, multiply: Multiply, latency_us: float) -> str:
    """Return the present answer as a line: status, implementation, latency here, config."""
    what = "torch.mm" if multiply is with_torch else "kernel.so"
    knobs = " ".join(f"{knob}={value}" for knob, value in (hit.config or {}).items()) or hit.message or "no config"
    return f"{elapsed_s:6.1f} s  {hit.status:<11} {what:<9} {latency_us:7.0f} us  {knobs}"


if __name__ == "__main__":
    main()
