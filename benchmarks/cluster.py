"""Two nodes of a Ray cluster, each with one GPU of this host, beside one of its GPUs without Ray.

The head has no resources, as in production. ``examples/gpu_gemm`` is tuned on one GPU and on both nodes, from the same
artifacts; a kernel of the fake backend shows the cost of a remote trial. With ``--fake`` there is no GPU, and the fake
backend's kernels stand for the GEMM, too: they take their time without a core.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

from benchmarks.daemon_cost import FAKE_BACKEND
from benchmarks.peers import Stopped, stopping_after
from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.report import show
from benchmarks.sides import Goal
from ktuned.backends import Absent, cuda_devices
from ktuned_client import Client, DaemonError

ROOT = Path(__file__).parent.parent

LANES = 2
LEAST_OF_N = 0.95
MOST_MS = 3.0
MOST_CPU_MS = 0.7
"""Goals: the share of n lanes, the wall time that a remote trial costs more, the CPU time here."""

READY_S = 60.0
"""Time for the nodes: Ray starts an actor on each, and its first worker probes the backends."""

MARK_S = 0.1
"""Interval of looks at the CPU time."""

KERNEL = """
from ktuned import kernel, space
from ktuned_fake import Build


@kernel(
    backend="fake",
    space=space(index=list(range({configs}))),
    problems=[dict(n=16)],
    check=None,
    preset="fast",
    strategy="exhaustive",
    trials={configs},
    early_stop=100.0,
)
def {name}(p, c):
    return Build(us={us}, tag=str(c.index), rests=True)
"""


@dataclass(frozen=True)
class Project:
    """A directory with one kernel; one that takes long to compile is tuned twice, and measured the second time."""

    kernel: str
    directory: Path
    is_slow: bool = False


@dataclass(frozen=True)
class Tuned:
    """A finished tuning: its trials' steady wall and CPU milliseconds, lanes together."""

    trial_ms: float
    cpu_ms: float
    lanes: int

    @property
    def lane_ms(self) -> float:
        """The wall time of a trial on its lane."""
        return self.trial_ms * self.lanes


@dataclass
class Found:
    """The figures so far, by side: ``local`` is one lane of this machine, ``remote`` both nodes."""

    local: dict[str, Tuned]
    remote: dict[str, Tuned]

    def goals(self) -> Iterator[tuple[Goal, str]]:
        """Yield each goal, and words on it. Figures are such that less is better."""
        here, there = self.local.get("gemm"), self.remote.get("gemm")
        share, said = None, ""
        if here is not None and there is not None:
            share = LANES * there.trial_ms / here.trial_ms
            said = f"{LANES / share:.3f} times the trials of one lane here, of {LANES}"
        if there is not None and there.lanes != LANES:
            said += f"; {there.lanes} lanes measured"
        yield Goal("1 / share of n lanes", share, 1 / LEAST_OF_N), said
        for name, what in (("alone", "a trial that travels alone"), ("batched", "a trial in a batch")):
            first, second = self.local.get(name), self.remote.get(name)
            more = second.lane_ms - first.lane_ms if first is not None and second is not None else None
            said = f"{first.lane_ms:.2f} ms here" if first is not None else ""
            yield Goal(f"ms that a node adds to {what}", more, MOST_MS), said
        batched, local = self.remote.get("batched"), self.local.get("batched")
        cpu_ms = None if batched is None else batched.cpu_ms
        said = "" if local is None else f"{local.cpu_ms:.3f} for one here, with no cluster"
        yield Goal("CPU ms of daemon and its child for a trial in a batch", cpu_ms, MOST_CPU_MS), said

    def rows(self, ended: str) -> list[dict[str, Any]]:
        """Return a row for each goal, and the reason why some are missing."""
        rows: list[dict[str, Any]] = []
        for goal, words in self.goals():
            is_met = {None: "unfinished", True: "met", False: "NOT MET"}[goal.is_met]
            rows.append(
                {"what": goal.name, "figure": goal.figure, "at_most": goal.limit, "goal": is_met, "detail": words}
            )
        if ended:
            rows.append({**dict.fromkeys(rows[0]), "what": ended})
        return rows


def measure(options: argparse.Namespace, found: Found) -> None:
    """Tune on one lane here and then on both nodes, and fill in what is found."""
    with private_home() as home:
        projects = _projects(home, options)
        _configure(home, projects, ["cuda:0"] if options.fake else ["cuda:0", "cpu:0"], fake=options.fake)
        with serving(home) as daemon:
            for project in projects:
                found.local[project.kernel] = _tuned(daemon, project, f"here: {project.kernel}")
        with _cluster(options) as address:
            nodes = [f"n{number}" for number in range(1, LANES + 1)]
            _configure(home, projects, nodes, address, fake=options.fake)
            with serving(home) as daemon:
                _wait_for_nodes(daemon)
                for project in projects:
                    found.remote[project.kernel] = _tuned(daemon, project, f"on nodes: {project.kernel}")


def _projects(home: Path, options: argparse.Namespace) -> list[Project]:
    """Write the kernels: the GEMM; one of short trials, which travel in batches; one whose trials travel alone."""
    gemm = Project("gemm", home / "gemm", is_slow=True)
    fakes = {"batched": (options.trials, "200.0"), "alone": (max(12, options.trials // 20), "12_000.0")}
    if options.fake:
        # Apart by more than the clocks of a busy machine.
        fakes = {"gemm": (max(12, options.trials // 5), "1000.0 + 10.0 * c.index"), **fakes}
    else:
        shutil.copytree(ROOT / "examples/gpu_gemm", gemm.directory)
    projects = [] if options.fake else [gemm]
    for name, (configs, us) in fakes.items():
        directory = home / name
        directory.mkdir()
        (directory / "tune_it.py").write_text(KERNEL.format(name=name, configs=configs, us=us))
        projects.append(Project(name, directory, is_slow=name == "gemm"))
    return projects


def _configure(
    home: Path, projects: Sequence[Project], devices: Sequence[str], address: str = "", *, fake: bool = False
) -> None:
    lines = ["contention = false", f"devices = {json.dumps(devices)}"]
    env = f'PYTHONPATH = "{_search_path()}"'
    if fake:
        # A GPU's lane goes on while a result is recorded.
        env += ', FAKE_DEVICES = "cuda:0"'
    for project in projects:
        lines += ["[[roots]]", f'path = "{project.directory}"', f"env = {{ {env} }}"]
    if address:
        lines += ["[cluster]", f'ray = "{address}"']
    (home / "state").mkdir(exist_ok=True)
    (home / "state" / "config.toml").write_text("\n".join(lines) + "\n")


def _search_path() -> str:
    return os.pathsep.join(filter(None, [str(FAKE_BACKEND), os.environ.get("PYTHONPATH", "")]))


@contextmanager
def _cluster(options: argparse.Namespace) -> Iterator[str]:
    """Run the head and the nodes; yield the address."""
    # A socket's path must be short.
    directory = tempfile.mkdtemp(prefix="kt-ray-")
    command = [sys.executable, str(ROOT / "tests/ray/cluster_process.py"), str(1 + LANES), directory, "--bare-head"]
    process = subprocess.Popen(
        [*command, "--gpus"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": _search_path()},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with _timed("the cluster's start"):
            line = process.stdout.readline()
        if not line:
            raise RuntimeError("the Ray cluster did not start")
        yield json.loads(line)["address"]
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
        for child in psutil.wait_procs(children, timeout=5)[1]:
            child.kill()
        shutil.rmtree(directory, ignore_errors=True)


def _wait_for_nodes(daemon: PrivateDaemon) -> None:
    deadline = perf_counter() + READY_S
    with _timed("the nodes"), daemon.client() as client:
        while True:
            status = client.call("status")
            states = {host["name"]: host["state"] for host in (status["cluster"] or {"hosts": ()})["hosts"]}
            if [states.get(f"n{number}") for number in range(1, LANES + 1)] == ["ready"] * LANES:
                return
            if perf_counter() > deadline:
                raise RuntimeError(f"the nodes are not ready: {states}; {status['notices']}")
            threading.Event().wait(0.05)


def _tuned(daemon: PrivateDaemon, project: Project, what: str) -> Tuned:
    """Tune a project's kernel, as if it had never been measured."""
    with _timed(what):
        for _ in range(1 + project.is_slow):
            with daemon.client() as client, suppress(DaemonError):
                # Unknown at first.
                client.call("forget", kernel=project.kernel)
            tuned = _tune(daemon, project)
    return tuned


def _tune(daemon: PrivateDaemon, project: Project) -> Tuned:
    told: list[tuple[float, float]] = []
    marked_at = 0.0
    with daemon.client() as client, Client(daemon.socket, deadline_s=READY_S) as asking:
        before = _busy_s(asking)
        with client.tune(path=project.directory, strategy="exhaustive") as tuning:
            for event in tuning:
                if event["type"] == "trial_done":
                    now = perf_counter()
                    is_due = now >= marked_at + MARK_S
                    marked_at = now if is_due else marked_at
                    told.append((now, _cpu_s(daemon) if is_due else 0.0))
        if tuning.errors or not tuning.jobs:
            raise RuntimeError(f"{project.kernel} is not tuned: {tuning.errors}")
        (job,) = tuning.jobs
        # Not those that an earlier job opened on devices of another kind.
        lanes = sum(busy_s > before.get(device, 0.0) for device, busy_s in _busy_s(asking).items())
    if job["state"] != "done":
        raise RuntimeError(f"the job is {job['state']}: {job['message']}")
    return Tuned(*_steady(told), lanes)


def _busy_s(client: Client) -> dict[str, float]:
    """Return the seconds that each lane was held so far."""
    return {lane["device"]: lane["busy_s"] for lane in client.call("status")["lanes"]}


def _steady(told: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a trial's wall and CPU milliseconds, without the first tenth and the last few."""
    marks = [place for place in range(len(told)) if told[place][1]]
    first = len(told) // 10
    begun = min((place for place in marks if place >= first), default=0)
    ended = marks[-1]
    count = ended - begun
    last = len(told) - 1
    wall_ms = 1000 * (told[last][0] - told[first][0]) / max(1, last - first)
    return wall_ms, 1000 * (told[ended][1] - told[begun][1]) / max(1, count)


def _cpu_s(daemon: PrivateDaemon) -> float:
    """Return the CPU seconds of the daemon, and of its process that has joined the cluster, all threads."""
    process = psutil.Process(daemon.process.pid)
    members = [child for child in process.children() if "ktuned_ray" in child.cmdline()]
    return float(sum(sum(one.cpu_times()[:2]) for one in (process, *members)))


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = perf_counter()
    try:
        yield
    finally:
        print(f"{what}: {perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print, whatever there is when the limit is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--fake", action="store_true", help="fake kernels instead of a GPU's")
    parser.add_argument("--trials", type=int, default=600, help="configs of the fake kernel (default: %(default)s)")
    parser.add_argument(
        "--limit", type=float, default=0.0, metavar="SECONDS", help="end after so long (default: never)"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    devices = cuda_devices()
    found, ended = Found({}, {}), ""
    if not options.fake and (isinstance(devices, Absent) or len(devices) < LANES):
        reason = devices.message if isinstance(devices, Absent) else f"there are not {LANES} GPUs"
        ended = f"skipped: {reason}; --fake needs none"
    else:
        try:
            with stopping_after(options.limit):
                measure(options, found)
        except Stopped as reason:
            ended = f"stopped: {reason}"
        except Exception as error:
            traceback.print_exc()
            ended = f"failed: {type(error).__name__}: {error}"
    show(f"a cluster of {LANES} nodes on this host", found.rows(ended), as_json=options.json)


if __name__ == "__main__":
    main()
