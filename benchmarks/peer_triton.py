"""ktuned's drop-in beside ``triton.autotune``: the tutorial's matrix product in float16, 72 configs."""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter

from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.sides import ROOT, Comparison, Goal, Script, Side, read_ahead, result_of

COLD_GOAL, WARM_GOAL = 1 / 4, 1 / 6

_APP = ROOT / "benchmarks/peer_triton_app.py"
_WORKLOAD = ROOT / "benchmarks/peer_matmul.py"
_KERNEL = ROOT / "examples/triton_matmul/matmul.py"
_KERNELS_PACKAGE = "triton_matmul"
_PACKAGE = "application"
_BEGINNING = "    program = tl.program_id(0)\n"
_PEERS_IMPORT = "from triton import autotune\n"
_OURS = """from functools import partial

import ktuned_triton

autotune = partial(ktuned_triton.autotune, mode={mode!r})
"""


def compare(options: argparse.Namespace) -> Iterator[Comparison]:
    """Tune the product in an application under Triton, and under ktuned, cold and warm; time both winners.

    Raises:
        Unavailable: a library is not installed.
    """
    ours, theirs = Side("ktuned"), Side("triton.autotune")
    what = f"Triton's tutorial matmul, fp16 {options.size}"
    yield (found := Comparison(what, ours, theirs, COLD_GOAL, WARM_GOAL))
    size = str(options.size)
    with private_home() as home:
        for name, mode in {"theirs": "", "plain": "", "cold": "wait", "warm": "wait", "back": "background"}.items():
            _write_package(home, name, mode)
        with found.step("imports, once"):
            read_ahead("torch", "triton", "ktuned_triton", "benchmarks.sides")
        with found.step("Triton's autotune"):
            theirs.cold_s, tuned = result_of(_APP, str(home), size, "tune:theirs", environment=_cache(home, "theirs"))
        theirs.warm_s, theirs.winner, theirs.configs = tuned["first_call_s"], tuned["config"], tuned["configs"]
        began = perf_counter()
        with serving(home) as daemon:
            started_s = perf_counter() - began
            with found.step("ktuned from nothing"):
                took_s, tuned = result_of(_APP, str(home), size, "tune:cold", environment=_beside(daemon, "cold"))
            ours.cold_s, ours.winner, ours.configs = started_s + took_s, tuned["config"], tuned["configs"]
            # Another function of the package, so that all is compiled and measured again, by workers that run.
            steps = ("tune:warm", f"time:warm:{json.dumps(theirs.winner)}", "plain:plain", "tune:back")
            with Script(_APP, str(home), size, *steps, environment=_beside(daemon, "warm")) as application:
                with found.step("ktuned, workers warm"):
                    _, tuned = application.result()
                ours.warm_s, ours.winner = tuned["first_call_s"], tuned["config"]
                with found.step("winners by one timer"):
                    _, timed = application.result()
                ours.winner_us, theirs.winner_us = timed["latencies_us"]
                with found.step("first calls"):
                    (_, alone), (_, behind) = application.result(), application.result()
                # Two figures of one kind, from one process each, differ by as much.
                found.goals.append(Goal("first call s", behind["first_call_s"], 1.1 * alone["first_call_s"]))


def _cache(home: Path, name: str) -> Mapping[str, str]:
    """Return the environment of an application whose cache is empty."""
    return {"TRITON_CACHE_DIR": str(home / "caches" / name)}


def _beside(daemon: PrivateDaemon, name: str) -> Mapping[str, str]:
    """Return the environment of an application that finds the daemon."""
    return {**_cache(daemon.home, name), **daemon.environment}


def _write_package(home: Path, name: str, mode: str) -> None:
    """Write a part of the application: its module under a tuner, and a kernel that is a function of its own."""
    package = home / _PACKAGE / name
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    kernel = _KERNEL.read_text()
    assert _BEGINNING in kernel
    variant = f"    variant = {sum(name.encode())}\n"
    (package / "matmul.py").write_text(kernel.replace(_BEGINNING, variant + _BEGINNING))
    text = _WORKLOAD.read_text().replace(f"from {_KERNELS_PACKAGE}.", f"from {_PACKAGE}.{name}.")
    if mode:
        text = text.replace(_PEERS_IMPORT, _OURS.format(mode=mode))
    (package / "workload.py").write_text(text)
