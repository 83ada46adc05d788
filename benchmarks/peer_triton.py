"""ktuned's drop-in beside ``triton.autotune``: the tutorial's matrix product in float16, 72 configs."""

import argparse
import json
import os
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.sides import ROOT, Comparison, Side, timed_process

COLD_GOAL, WARM_GOAL = 1 / 4, 1 / 6

_APP = ROOT / "benchmarks/peer_triton_app.py"
_MODULE = ROOT / "benchmarks/peer_matmul.py"
_PEERS_IMPORT = "from triton import autotune\n"
_OURS = """from functools import partial

import ktuned_triton

autotune = partial(ktuned_triton.autotune, mode={mode!r})
"""


def compare(options: argparse.Namespace) -> Comparison:
    """Tune the product in an application under Triton, and under ktuned, cold and warm; time both winners."""
    with private_home() as home:
        theirs_cold_s, theirs = _tune(home, "theirs", "", options.size)
        began = perf_counter()
        with serving(home) as daemon:
            started_s = perf_counter() - began
            cold_s, cold = _tune(home, "cold", "wait", options.size, daemon)
            # Another function, so that all is compiled and measured again, by workers that run.
            _, warm = _tune(home, "warm", "wait", options.size, daemon)
            _, background = _tune(home, "background", "background", options.size, daemon)
        _, plain = timed_process(
            _APP, "plain", str(_module(home, "plain", "")), str(options.size), environment=_cache(home, "plain")
        )
        winners = [json.dumps(found["config"]) for found in (theirs, warm)]
        _, timed = timed_process(_APP, "time", str(_module(home, "time", "")), str(options.size), *winners)
    theirs_us, ours_us = timed["latencies_us"]
    return Comparison(
        what=f"Triton's tutorial matmul, fp16 {options.size}",
        ours=Side("ktuned", started_s + cold_s, warm["first_call_s"], warm["config"], cold["configs"]),
        theirs=Side("triton.autotune", theirs_cold_s, theirs["first_call_s"], theirs["config"], theirs["configs"]),
        ours_us=ours_us,
        theirs_us=theirs_us,
        cold_goal=COLD_GOAL,
        warm_goal=WARM_GOAL,
        notes={
            "first_call_background_s": background["first_call_s"],
            "first_call_one_config_s": plain["first_call_s"],
        },
    )


def _tune(
    home: Path, name: str, mode: str, size: int, daemon: PrivateDaemon | None = None
) -> tuple[float, dict[str, Any]]:
    """Run the application with an empty cache; return its seconds up to its result, and that."""
    environment = _cache(home, name)
    if daemon is not None:
        environment |= {"KTUNED_HOME": str(home / "state"), "KTUNED_SOCKET": str(daemon.socket)}
    return timed_process(_APP, "tune", str(_module(home, name, mode)), str(size), environment=environment)


def _cache(home: Path, name: str) -> dict[str, str]:
    return {"TRITON_CACHE_DIR": str(home / "caches" / name)}


def _module(home: Path, name: str, mode: str) -> Path:
    """Write the application's module under a tuner, as a function of its own, and return its directory."""
    text = _MODULE.read_text().replace("variant = 0", f"variant = {sum(name.encode())}")
    if mode:
        text = text.replace(_PEERS_IMPORT, _OURS.format(mode=mode))
    directory = home / "modules" / name
    os.makedirs(directory)
    (directory / "workload.py").write_text(text)
    return directory
