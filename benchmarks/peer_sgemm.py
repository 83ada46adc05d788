"""ktuned beside Kernel Tuner: a CUDA SGEMM with some 250 configs, compiled by NVRTC on both sides."""

import argparse
import importlib.util
import os
import shutil
from collections.abc import Iterator
from time import perf_counter

from benchmarks.private_daemon import private_home, serving
from benchmarks.sides import ROOT, Comparison, Goal, Side, Unavailable, latencies_us, read_ahead, result_of

COLD_GOAL, WARM_GOAL = 1 / 4, 1 / 6
LANE_GOAL_S = 2.4
"""Of the lane for all configs at 2048: fifteen launches of each."""

_KERNEL_FILE = ROOT / "benchmarks/tune_peer_sgemm.py"
_SOURCE = ROOT / "benchmarks/sgemm.cu"
_PEER = ROOT / "benchmarks/peer_kernel_tuner.py"
_SIZE = "PEER_SGEMM_SIZE"
_ROUNDS = 15


def compare(options: argparse.Namespace) -> Iterator[Comparison]:
    """Tune the SGEMM with Kernel Tuner, and with ktuned, cold and warm; time both winners.

    Raises:
        Unavailable: Kernel Tuner is not installed.
    """
    if importlib.util.find_spec("kernel_tuner") is None:
        raise Unavailable("Kernel Tuner is not installed (pip install kernel_tuner)")
    ours, theirs = Side("ktuned"), Side(f"Kernel Tuner ({options.lang})")
    yield (found := Comparison(f"CUDA SGEMM {options.sgemm_size}", ours, theirs, COLD_GOAL, WARM_GOAL))
    os.environ[_SIZE] = str(options.sgemm_size)
    with private_home() as home:
        project = home / "sgemm"
        project.mkdir()
        for file in (_KERNEL_FILE, _SOURCE):
            shutil.copy(file, project)
        with found.step("imports, once"):
            read_ahead("torch", "kernel_tuner", "ktuned_nvrtc")
        cache = {"CUPY_CACHE_DIR": str(home / "cupy")}
        with found.step("Kernel Tuner"):
            theirs.cold_s, tuned = result_of(_PEER, str(options.sgemm_size), options.lang, environment=cache)
        theirs.warm_s, theirs.winner, theirs.configs = tuned["tuning_s"], tuned["config"], tuned["configs"]
        began = perf_counter()
        with serving(home) as daemon:
            with found.step("ktuned from nothing"):
                job, ours.winner = daemon.tuned(project)
            ours.cold_s, ours.configs = perf_counter() - began, job["done"]
            source = project / _SOURCE.name
            # Other bytes, so that all is compiled and measured again, by workers that run.
            text = source.read_text()
            source.write_text(text.replace("extern", f"__device__ int another = {len(text)};\nextern", 1))
            began = perf_counter()
            with found.step("ktuned, workers warm"):
                job, ours.winner = daemon.tuned(project)
            ours.warm_s = perf_counter() - began
            found.goals.append(Goal("lane s", job["cost"]["lane_s"], LANE_GOAL_S))
        with found.step("winners by one timer"):
            ours.winner_us, theirs.winner_us = latencies_us(_KERNEL_FILE, [ours.winner, tuned["config"]], _ROUNDS)
