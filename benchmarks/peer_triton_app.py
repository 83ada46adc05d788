"""An application with the tutorial's matrix product; prints the seconds of its first call, and the config, as JSON.

``tune DIRECTORY SIZE`` calls it as it is decorated; ``plain`` launches the first config without a tuner; ``time
DIRECTORY SIZE CONFIG CONFIG`` times two configs (as JSON) in turns.
"""

import json
import sys
from functools import partial
from time import perf_counter
from typing import Any

sys.path.insert(0, sys.argv[2])

import torch
import workload
from triton import Config

ROUNDS = 15


def known(config: Any) -> dict[str, Any]:
    """Return a config's knobs."""
    return {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def launch_of(config: Any, arguments: tuple[Any, ...]) -> Any:
    """Return a launch of one config, without a tuner."""
    return partial(workload.matmul_kernel.fn[workload.grid], *arguments, **config.all_kwargs())


def main() -> None:
    """Do as the first argument says."""
    what, size = sys.argv[1], int(sys.argv[3])
    torch.manual_seed(0)
    a, b = (torch.randn(size, size, dtype=torch.float16, device="cuda") for _ in range(2))
    arguments = workload.arguments(a, b, torch.empty_like(a))
    torch.cuda.synchronize()
    if what == "time":
        from benchmarks.sides import in_turns

        given = [json.loads(text) for text in sys.argv[4:]]
        sizes = ("num_warps", "num_stages")
        configs = [
            Config({name: value for name, value in one.items() if name not in sizes}, **{n: one[n] for n in sizes})
            for one in given
        ]
        launches = [launch_of(config, arguments) for config in configs]
        for launch in launches:
            launch()
        print(json.dumps({"latencies_us": in_turns(launches, "cuda:0", ROUNDS)}))
        return
    began = perf_counter()
    if what == "plain":
        launch_of(workload.CONFIGS[0], arguments)()
    else:
        workload.matmul_kernel[workload.grid](*arguments)
    torch.cuda.synchronize()
    first_s = perf_counter() - began
    best = workload.CONFIGS[0] if what == "plain" else workload.matmul_kernel.best_config
    print(json.dumps({"first_call_s": first_s, "config": known(best), "configs": len(workload.CONFIGS)}), flush=True)


if __name__ == "__main__":
    main()
