"""ktuned beside TileLang's autotuner: a matrix product in bfloat16, 72 of the 288 configs of TileLang's example."""

import argparse
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter

from benchmarks.private_daemon import private_home, serving
from benchmarks.sides import ROOT, Comparison, Goal, Side, Unavailable, result_of

COLD_GOAL = 1 / 2
GUIDED_GOAL = 1.02
MOST_PROCESSES = 16

_APP = ROOT / "benchmarks/peer_tilelang_app.py"
_EXAMPLE = ROOT / "examples/tilelang_gemm"
_PROGRAM = "    @T.prim_func\n"
_SIZE, _EXECUTION_BACKEND = "4096", '"nvrtc"'


def compare(options: argparse.Namespace) -> Iterator[Comparison]:
    """Tune the product with TileLang's pipelined tuner, and with ktuned, cold, warm and guided; time both winners.

    ktuned tunes the kernel file, whose function, configs, tolerances and execution backend are TileLang's. It is warm
    after an edit of the function, after which all is compiled and measured again by the processes that run.

    Raises:
        Unavailable: TileLang is not installed.
    """
    if importlib.util.find_spec("tilelang") is None or importlib.util.find_spec("ktuned_tilelang") is None:
        raise Unavailable("TileLang or ktuned-tilelang is not installed")
    backend, size = options.execution_backend, str(options.size)
    ours, theirs = Side("ktuned"), Side(f"TileLang ({backend}, pipelined)")
    yield (found := Comparison(f"TileLang GEMM, bf16 {size}", ours, theirs, COLD_GOAL))
    with private_home() as home:
        project, application = (_copy(home, name, size, backend) for name in ("project", "application"))
        with found.step("imports, once"):
            _, listed = result_of(_APP, "configs", str(project))
        configs = home / "configs.json"
        configs.write_text(json.dumps(listed["configs"]))
        ours.configs = theirs.configs = len(listed["configs"])
        with found.step("TileLang's tuner"):
            theirs.cold_s, tuned = result_of(
                _APP, "theirs", str(project), size, backend, str(configs), environment=_caches(home)
            )
        theirs.warm_s, theirs.winner = tuned["tuning_s"], tuned["config"]
        began = perf_counter()
        with serving(home) as daemon:
            with found.step("ktuned from nothing"):
                _, ours.winner = daemon.tuned(project, strategy="exhaustive", preset="fast")
            ours.cold_s = perf_counter() - began
            _edit(project, "warm")
            began = perf_counter()
            with found.step("ktuned, workers warm"):
                _, ours.winner = daemon.tuned(project, strategy="exhaustive", preset="fast")
            ours.warm_s = perf_counter() - began
            _edit(project, "guided")
            began = perf_counter()
            with found.step("guided, a quarter of the configs"):
                quarter = ours.configs // 4
                _, chosen = daemon.tuned(project, strategy="guided", preset="fast", trials=quarter)
            guided_s = perf_counter() - began
        processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
        with found.step(f"{processes} processes compile"):
            _, compiled = result_of(_APP, "processes", str(project), str(processes), environment=_caches(home))
        limit_s = 1.10 * compiled["seconds"] + 1.0
        found.goals += [Goal("warm s", ours.warm_s, limit_s), Goal("guided s", guided_s, limit_s / 3)]
        with found.step("winners by one timer"):
            winners = [json.dumps(dict(config)) for config in (theirs.winner, ours.winner, chosen)]
            _, timed = result_of(_APP, "time", str(project), *winners)
        theirs.winner_us, ours.winner_us, guided_us = timed["latencies_us"]
        found.goals.append(Goal("guided winner", guided_us / min(theirs.winner_us, ours.winner_us), GUIDED_GOAL))
        began = perf_counter()
        with serving(home) as daemon, found.step("drop-in from nothing"):
            arguments = ("ours", str(application), size, backend, str(configs))
            result_of(_APP, *arguments, environment={**_caches(home), **daemon.environment})
            found.goals.append(Goal("application s", perf_counter() - began, COLD_GOAL * theirs.cold_s))


def _caches(home: Path) -> Mapping[str, str]:
    """Return the environment in which TileLang finds nothing that was compiled before."""
    return {"TILELANG_CACHE_DIR": str(home / "tilelang")}


def _copy(home: Path, name: str, size: str, backend: str) -> Path:
    """Copy the example, its function as one of its own, and its problem and execution backend as asked for."""
    directory = home / name
    directory.mkdir()
    declared = (_EXAMPLE / "tune_gemm.py").read_text()
    assert _EXECUTION_BACKEND in declared
    declared = declared.replace(_SIZE, size).replace(_EXECUTION_BACKEND, f'"{backend}"')
    (directory / "tune_gemm.py").write_text(declared)
    _edit(directory, name)
    return directory


def _edit(directory: Path, name: str) -> None:
    """Make a copy's function one of its own, for which nothing was compiled before."""
    program = (_EXAMPLE / "gemm.py").read_text()
    assert _PROGRAM in program
    variant = f"    variant = {sum(name.encode())}\n\n"
    (directory / "gemm.py").write_text(program.replace(_PROGRAM, variant + _PROGRAM))
