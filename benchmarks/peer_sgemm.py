"""ktuned beside Kernel Tuner: a CUDA SGEMM with some 250 configs, compiled by NVRTC on both sides."""

import argparse
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.direct import Space
from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.sides import ROOT, Comparison, Side, Unavailable, in_turns, timed_process

COLD_GOAL, WARM_GOAL = 1 / 4, 1 / 6

_KERNEL_FILE = ROOT / "benchmarks/tune_peer_sgemm.py"
_SOURCE = ROOT / "benchmarks/sgemm.cu"
_PEER = ROOT / "benchmarks/peer_kernel_tuner.py"
_SIZE = "PEER_SGEMM_SIZE"
_ROUNDS = 15


def compare(options: argparse.Namespace) -> Comparison:
    """Tune the SGEMM with Kernel Tuner, and with ktuned, cold and warm; time both winners.

    Raises:
        Unavailable: Kernel Tuner is not installed.
    """
    if importlib.util.find_spec("kernel_tuner") is None:
        raise Unavailable("Kernel Tuner is not installed (pip install kernel_tuner)")
    os.environ[_SIZE] = str(options.sgemm_size)
    with private_home() as home:
        project = home / "sgemm"
        project.mkdir()
        for file in (_KERNEL_FILE, _SOURCE):
            shutil.copy(file, project)
        cache = {"CUPY_CACHE_DIR": str(home / "cupy")}
        theirs_s, theirs = timed_process(_PEER, str(options.sgemm_size), options.lang, environment=cache)
        began = perf_counter()
        with serving(home) as daemon:
            _tune(daemon, project)
            cold_s = perf_counter() - began
            source = project / _SOURCE.name
            # Other bytes, so that all is compiled and measured again, by workers that run.
            text = source.read_text()
            source.write_text(text.replace("extern", f"__device__ int another = {len(text)};\nextern", 1))
            began = perf_counter()
            job, winner = _tune(daemon, project)
            warm_s = perf_counter() - began
        latencies_us = _timed([theirs["config"], winner])
    return Comparison(
        what=f"CUDA SGEMM {options.sgemm_size}",
        ours=Side("ktuned", cold_s, warm_s, winner, job["done"]),
        theirs=Side(
            f"Kernel Tuner ({options.lang})", theirs_s, theirs["tuning_s"], theirs["config"], theirs["configs"]
        ),
        ours_us=latencies_us[1],
        theirs_us=latencies_us[0],
        cold_goal=COLD_GOAL,
        warm_goal=WARM_GOAL,
        notes={name: job["cost"][name] for name in ("compile_s", "lane_s") if name in job["cost"]},
    )


def _tune(daemon: PrivateDaemon, project: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tune the project's kernel; return the job, and the config that won."""
    with daemon.client() as client:
        with client.tune(path=project) as tuning:
            for _ in tuning:
                pass
        if tuning.errors or not tuning.jobs or tuning.jobs[0]["state"] != "done":
            raise RuntimeError(f"the SGEMM is not tuned: {tuning.errors or tuning.jobs}")
        (job,) = tuning.jobs
        return job, dict(client.lookup("sgemm", job["problem"]).config or {})


def _timed(configs: list[dict[str, Any]]) -> list[float]:
    """Return the latencies of configs in µs, timed in turns."""
    from ktuned.backends import Absent, Registry
    from ktuned.worker.problem import ProblemData

    space = Space.of(_KERNEL_FILE)
    backend = Registry().load(space.backend)
    found = backend.devices()
    assert not isinstance(found, Absent)
    device = found[0]
    units = space.units(device.target)
    chosen = [units[space.configs.index(config)] for config in configs]
    data = ProblemData(space.kernel, space.kernel.problem_list()[0], device)
    launches = []
    for unit in chosen:
        with tempfile.TemporaryDirectory() as scratch:
            artifact = Path(scratch, unit.key)
            artifact.mkdir()
            (compiled,) = backend.compile([unit], Path(scratch))
            if compiled.outcome is not None:
                raise RuntimeError(compiled.message)
            launches.append(backend.load(artifact, unit, device).bind(data.tensors))
    return in_turns(launches, device.name, _ROUNDS)
