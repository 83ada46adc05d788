"""One daemon with many lanes and slots: trials a second, its own CPU a trial, lookups meanwhile, and memory.

Lanes and slots are entries in one other process, over one connection, as those of a cluster are (``fake_lanes.py``).
All else is real: strategy, pipeline, scheduling, store, events to a client that follows. Saturated is a daemon that
does fewer trials than its lanes could.

Budget: with 64 lanes a lookup's p99 is at most twice that at rest. Lookups are measured in three ways: as applications
make them, by a client that keeps answers as long as the daemon's table of winners confirms them; all of them read from
that table, as those of problems are that a process never asked; and all of them asked of the daemon. Beside them two
processes that have nothing to do with ktuned exchange as many bytes: their p99 is what the machine adds where its cores
are all in use.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from socket import socketpair
from time import perf_counter, perf_counter_ns
from typing import Any

from benchmarks.daemon_cost import FAKE_BACKEND, KERNEL
from benchmarks.fake_lanes import FakeExecutor
from benchmarks.private_daemon import PrivateDaemon, forgetful, private_home, serving
from benchmarks.report import show
from ktuned.daemon import load_settings, logs, run
from ktuned.daemon.assembly import Replacements
from ktuned_client import Client

P99_BUDGET = 2.0
NAME = "project:nothing"
PROBLEM = {"n": 16}
PATIENT_S = 60.0
PAUSE_S = 0.002
"""Time between two lookups, so that they sample the daemon and do not load it."""

AT_REST_S = 3.0
"""Time of the lookups at rest, some thousand."""

QUESTION, ANSWER = bytes(50), bytes(300)
"""As many bytes as a lookup and its answer take."""

_MIB = 1024**2


def measure(lanes: int, slots: int, *, trials: int, trial_s: float, compile_s: float) -> dict[str, Any]:
    """Tune a kernel of ``trials`` configs by a private daemon with so many lanes and slots."""
    with private_home() as home:
        project = home / "project"
        project.mkdir()
        (project / "tune_nothing.py").write_text(KERNEL.format(trials=trials))
        devices = " ".join(f"cuda:{lane}" for lane in range(lanes))
        (home / "state").mkdir()
        (home / "state" / "config.toml").write_text(
            f'contention = false\ncompile_slots = {slots}\n[[roots]]\npath = "{project}"\n'
            f'env = {{ PYTHONPATH = "{FAKE_BACKEND}", FAKE_DEVICES = "{devices}" }}\n'
        )
        command = ("benchmarks.scale", "--serve", str(trial_s), str(compile_s))
        with serving(home, command) as daemon, daemon.client() as client:
            # Its first configs make the answer that is looked up from then on.
            client.call("kernels")
            return _tuned(daemon, client, project, lanes, slots, trials, trial_s)


def _tuned(
    daemon: PrivateDaemon, client: Client, project: Path, lanes: int, slots: int, trials: int, trial_s: float
) -> dict[str, Any]:
    with client.tune(path=project, trials=max(1, trials // 50)) as first:
        for _ in first:
            pass
    with _lookups(daemon) as at_rest:
        threading.Event().wait(AT_REST_S)
    before, began, last = client.call("status"), perf_counter(), perf_counter()
    with client.tune(path=project) as tuning, _lookups(daemon) as meanwhile:
        done = 0
        after = before
        for event in tuning:
            if event["type"] == "trial_done":
                done += 1
                last = perf_counter()
                if done == trials:
                    after = client.call("status")
    ended = client.call("status")
    (job,) = tuning.jobs
    if job["state"] != "done":
        raise RuntimeError(f"the job is {job['state']}: {job['message']}")
    counted = trials - max(1, trials // 50)
    rate = counted / (last - began)
    p99_us = {
        f"{kind}{when}_p99_us": _p99(times[kind])
        for kind in ASKERS
        for when, times in (("_rest", at_rest), ("", meanwhile))
    }
    return {
        "lanes": lanes,
        "slots": slots,
        "trials_per_s": rate,
        "offered_per_s": lanes / trial_s,
        "cpu_ms_per_trial": 1000 * (after["cpu_s"] - before["cpu_s"]) / counted,
        "cpu_share": (after["cpu_s"] - before["cpu_s"]) / (last - began),
        "rss_mib": ended["rss_bytes"] / _MIB,
        "lookups": len(meanwhile["lookup"]),
        **p99_us,
        "in_budget": all(
            p99_us[f"{kind}_p99_us"] <= P99_BUDGET * p99_us[f"{kind}_rest_p99_us"] for kind in ("lookup", "table")
        ),
    }


@contextmanager
def _lookups(daemon: PrivateDaemon) -> Iterator[dict[str, array[float]]]:
    """Ask all the while in processes of their own, as applications do, each once at least; the times in µs of each
    kind are there after the block.
    """
    command = [sys.executable, "-m", "benchmarks.scale", "--socket", str(daemon.socket), "--ask"]
    took_us = {kind: array("d") for kind in ASKERS}
    processes = {
        kind: subprocess.Popen([*command, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for kind in ASKERS
    }
    for process in processes.values():
        assert process.stdout is not None
        process.stdout.readline()
    try:
        yield took_us
    finally:
        # They end when their standard inputs do.
        for kind, process in processes.items():
            times, _ = process.communicate(timeout=PATIENT_S)
            took_us[kind].frombytes(times)


@contextmanager
def _known(socket: str) -> Iterator[Callable[[], object]]:
    with Client(socket, deadline_s=PATIENT_S) as client:
        yield lambda: client.lookup(NAME, PROBLEM)


@contextmanager
def _read(socket: str) -> Iterator[Callable[[], object]]:
    with Client(socket, deadline_s=PATIENT_S) as client:

        def look_up() -> object:
            client._memo.answers.clear()
            return client.lookup(NAME, PROBLEM)

        yield look_up


@contextmanager
def _asked(socket: str) -> Iterator[Callable[[], object]]:
    with forgetful(Path(socket)) as client:
        yield lambda: client.lookup(NAME, PROBLEM)


@contextmanager
def _bystander(_: str) -> Iterator[Callable[[], object]]:
    ours, theirs = socketpair()
    peer = os.fork()
    if not peer:
        ours.close()
        while theirs.recv(len(QUESTION)):
            theirs.sendall(ANSWER)
        os._exit(0)
    theirs.close()

    def ask() -> bytes:
        ours.sendall(QUESTION)
        return ours.recv(len(ANSWER))

    with ours:
        yield ask
    os.waitpid(peer, 0)


ASKERS: Mapping[str, Callable[[str], AbstractContextManager[Callable[[], object]]]] = {
    "lookup": _known,
    "table": _read,
    "asked": _asked,
    "bystander": _bystander,
}
"""Kinds of what is asked all the while."""


def ask(kind: str, socket: str) -> int:
    """Ask until standard input ends; write a line after the first answer, and in the end the times in µs as doubles."""
    stop, took_us = threading.Event(), array("d")

    def await_end() -> None:
        sys.stdin.buffer.read()
        stop.set()

    with ASKERS[kind](socket) as once:
        threading.Thread(target=await_end, daemon=True).start()
        while not stop.wait(PAUSE_S):
            start = perf_counter_ns()
            once()
            took_us.append((perf_counter_ns() - start) / 1000)
            if len(took_us) == 1:
                sys.stdout.buffer.write(b"\n")
                sys.stdout.buffer.flush()
    sys.stdout.buffer.write(took_us.tobytes())
    return 0


def _p99(times_us: Sequence[float]) -> float:
    ordered = sorted(times_us)
    return ordered[len(ordered) * 99 // 100]


def serve(trial_s: float, compile_s: float) -> int:
    """Be the daemon, whose lanes and slots are in the farm; it logs as ``ktuned start --foreground`` does."""
    logs.configure_logging("info", logs.LogFormat.LOGFMT)
    settings = load_settings()
    farm = Replacements(executor=lambda real: FakeExecutor(real, trial_s=trial_s, compile_s=compile_s))
    return run(settings, replacements=farm)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 8, 64, 256], help="numbers of lanes")
    parser.add_argument("--slots", type=int, help="compile slots (default: eight for each lane, at most 2,000)")
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--trial-ms", type=float, default=50.0, help="time of a trial on its lane")
    parser.add_argument("--compile-ms", type=float, default=200.0, help="time of a compile in its slot")
    parser.add_argument("--serve", type=float, nargs=2, metavar="S", help=argparse.SUPPRESS)
    parser.add_argument("--ask", choices=ASKERS, help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.ask:
        sys.exit(ask(arguments.ask, arguments.socket))
    if arguments.serve:
        sys.exit(serve(*arguments.serve))
    rows = [
        measure(
            lanes,
            arguments.slots or min(2000, 8 * lanes),
            trials=arguments.trials,
            trial_s=arguments.trial_ms / 1000,
            compile_s=arguments.compile_ms / 1000,
        )
        for lanes in arguments.lanes
    ]
    title = f"one daemon with many lanes (budget: a lookup's p99 within {P99_BUDGET:g} × that at rest)"
    show(title, rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
