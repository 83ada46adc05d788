"""Shared part of the programs of ``libraries.py``: steps of a library's functions, timed and compared with torch's.

A program makes its :class:`Workload` and gives it to :func:`run_program`. It knows nothing of ktuned. Its result is a
sequence of JSON lines, each printed as soon as it is known: a program that is stopped has reported its first step.
"""

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple

import torch

WARM_UP_STEPS = 10
WHILE_WAITING_S = 0.05
"""Pause between the steps of a program that waits until its functions are tuned: it leaves the GPU to the tuning."""


class Workload(NamedTuple):
    """Steps of a library's functions.

    Attributes:
        step: makes one step, and returns its outputs, gradients included.
        expect: returns what torch gives for the same outputs, in float32.
    """

    step: Callable[[], Sequence[torch.Tensor]]
    expect: Callable[[], Sequence[torch.Tensor]]


def run_program(make: Callable[[], Workload]) -> None:
    """Run a program: its first step, its steady step, and again once its functions are tuned, if that is asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100, help="steps of which the steady one is the median")
    parser.add_argument("--first-config", action="store_true", help="cut the list of each autotuner to its first")
    parser.add_argument("--until-tuned", type=Path, metavar="FILE", help="then step until FILE exists, and time again")
    parser.add_argument("--patience", type=float, default=300.0, help="longest wait for that file, in seconds")
    options = parser.parse_args()
    if options.first_config:
        cut_lists_to_first_config()
    began = perf_counter()
    workload = make()
    torch.cuda.synchronize()
    report(import_s=perf_counter() - began)
    began = perf_counter()
    outputs = workload.step()
    torch.cuda.synchronize()
    report(first_step_s=perf_counter() - began)
    expected = list(workload.expect())
    report(first_difference=largest_difference(outputs, expected), keys=count_keys())
    report(steady_ms=time_steps(workload, options.steps), **describe_state(workload, expected))
    if options.until_tuned is not None:
        report(was_tuned=step_until_exists(workload, options.until_tuned, options.patience))
        report(tuned_steady_ms=time_steps(workload, options.steps), **describe_state(workload, expected))


def report(**fields: Any) -> None:
    """Print a part of the result."""
    print(json.dumps(fields), flush=True)


def describe_state(workload: Workload, expected: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return the difference of another step, the configs that it launched, and the most memory until now."""
    return {
        "difference": largest_difference(workload.step(), expected),
        "winners": describe_winners(),
        "peak_mib": torch.cuda.max_memory_allocated() / (1 << 20),
    }


def time_steps(workload: Workload, steps: int) -> float:
    """Return the median of a step in ms, from its first launch to the end of its last."""
    for _ in range(WARM_UP_STEPS):
        workload.step()
    taken = []
    for _ in range(steps):
        torch.cuda.synchronize()
        began = perf_counter()
        workload.step()
        torch.cuda.synchronize()
        taken.append(1e3 * (perf_counter() - began))
    return statistics.median(taken)


def step_until_exists(workload: Workload, file: Path, patience_s: float) -> bool:
    """Make a step now and then until a file exists; return whether it does in time."""
    end = perf_counter() + patience_s
    while not file.exists():
        if perf_counter() > end:
            return False
        workload.step()
        torch.cuda.synchronize()
        Event().wait(WHILE_WAITING_S)
    return True


def largest_difference(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Return the largest difference of outputs from what is expected, relative to the largest value expected."""
    differences = [
        float((output.float() - value).abs().max() / value.abs().max().clamp_min(1e-30))
        for output, value in zip(outputs, expected, strict=True)
    ]
    # max() would pass over one that is not a number.
    return max(differences, key=lambda difference: (difference != difference, difference))


def gradients(outputs: torch.Tensor, inputs: Sequence[torch.Tensor], upstream: torch.Tensor) -> list[torch.Tensor]:
    """Return an output, and the gradients of its inputs."""
    return [outputs.detach(), *torch.autograd.grad(outputs, inputs, upstream)]


def cut_lists_to_first_config() -> None:
    """Have each autotuner that is made from now on know the first of its configs alone: nothing is left to tune."""
    from triton.runtime.autotuner import Autotuner

    make = Autotuner.__init__

    def make_with_first(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.configs = self.configs[:1]

    Autotuner.__init__ = make_with_first


def count_keys() -> int:
    """Return the number of tuning keys that Triton itself has decided."""
    # FlagGems' cache is a database without a length.
    return sum(len(tuner.cache) if hasattr(tuner.cache, "__len__") else 1 for tuner in called_tuners())


def describe_winners() -> dict[str, str]:
    """Return the config that each autotuned function launched last."""
    return {
        f"{tuner.base_fn.__module__}.{tuner.base_fn.__qualname__}": str(tuner.best_config) for tuner in called_tuners()
    }


def called_tuners() -> Iterable[Any]:
    """Yield this process's autotuned functions that have been called, Triton's tuning or not."""
    from triton.runtime.autotuner import Autotuner

    for thing in gc.get_objects():
        if issubclass(type(thing), Autotuner) and hasattr(thing, "best_config"):
            yield thing


def need_gpu() -> None:
    """End the program, with the reason, where there is no GPU."""
    if not torch.cuda.is_available():
        sys.exit("no GPU: torch.cuda.is_available() is False")
