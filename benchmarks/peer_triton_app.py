"""An application with a Triton matrix product: does the steps that it is given, and prints a line of JSON for each.

``DIRECTORY SIZE STEP …``, where a step is ``tune:NAME`` (the first call of the function in the part NAME),
``plain:NAME`` (a launch of its first config without a tuner) or ``time:NAME:CONFIG`` (its best config and another one,
in turns).
"""

import json
import sys
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Any

sys.path.insert(0, sys.argv[1])

import torch
from triton import Config

ROUNDS = 15

_SIZES = ("num_warps", "num_stages")


def known(config: Any) -> dict[str, Any]:
    """Return a config's knobs."""
    return {**config.kwargs, **{name: getattr(config, name) for name in _SIZES}}


def config_of(knobs: dict[str, Any]) -> Any:
    """Return the config that has these knobs."""
    return Config({name: value for name, value in knobs.items() if name not in _SIZES}, **{n: knobs[n] for n in _SIZES})


def launch_of(workload: Any, config: Any, arguments: tuple[Any, ...]) -> Any:
    """Return a launch of one config, without a tuner."""
    return partial(workload.product[workload.grid], *arguments, **config.all_kwargs())


def timed(workload: Any, configs: list[Any], arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the latencies of configs, timed in turns."""
    from benchmarks.sides import in_turns

    launches = [launch_of(workload, config, arguments) for config in configs]
    for launch in launches:
        launch()
    return {"latencies_us": in_turns(launches, "cuda:0", ROUNDS)}


def called(workload: Any, call: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the seconds of a first call, and the config that it leaves."""
    began = perf_counter()
    call(*arguments)
    torch.cuda.synchronize()
    first_s = perf_counter() - began
    best = getattr(workload.matmul_kernel, "best_config", None)
    return {"first_call_s": first_s, "config": known(best) if best else None, "configs": len(workload.CONFIGS)}


def main() -> None:
    """Do the steps."""
    size = int(sys.argv[2])
    torch.manual_seed(0)
    a, b = (torch.randn(size, size, dtype=torch.float16, device="cuda") for _ in range(2))
    for step in sys.argv[3:]:
        what, name, *more = step.split(":", 2)
        workload = import_module(f"application.{name}.workload")
        arguments = workload.arguments(a, b, torch.empty_like(a))
        torch.cuda.synchronize()
        if what == "time":
            best = workload.matmul_kernel.best_config
            found = timed(workload, [best, config_of(json.loads(more[0]))], arguments)
        elif what == "plain":
            found = called(workload, launch_of(workload, workload.CONFIGS[0], ()), arguments)
        else:
            found = called(workload, workload.matmul_kernel[workload.grid], arguments)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
