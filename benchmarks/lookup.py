"""Lookups over the socket beside Redis's GET, in one run: redis-py with hiredis, both over Unix sockets.

Budgets: a median of at most 0.8 times Redis's and a p99 no worse than Redis's, at rest and while a tuning fills every
core. The two are asked in turns, so that whatever disturbs the machine disturbs both. Redis is asked for as
many bytes as a lookup's answer has, and does not decode them.

Needs ``redis-server``: on Debian, ``apt-get install redis-server`` (no service has to run).
"""

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import redis

from benchmarks.pipeline import KERNEL, SOURCE
from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.report import show
from ktuned_client import Client, wire

MEDIAN_BUDGET = 0.8
P99_BUDGET = 1.0
PROBLEM = {"N": 1 << 20}
TURN = 100
"""Questions to one before it is the other's turn."""

PATIENT_S = 5.0
"""No deadline cuts the slow ones off: they are what the p99 is about."""


@contextlib.contextmanager
def redis_serving(server: str, home: Path) -> Iterator[redis.Redis]:
    """Run a private Redis that keeps nothing on disk, and yield a client of it."""
    path = home / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", str(home)]
    with subprocess.Popen([server, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "ready to accept connections" in line.lower():
                    break
            with redis.Redis(unix_socket_path=str(path)) as client:
                client.ping()
                yield client
        finally:
            process.terminate()


def write_kernel(directory: Path, configs: int) -> None:
    """Write a kernel of ``configs`` configs, to look up or to fill the machine with."""
    directory.mkdir()
    (directory / "tune_saxpy.py").write_text(KERNEL.format(configs=configs, preset="fast"))
    (directory / "saxpy.cc").write_text(SOURCE)


@contextlib.contextmanager
def tuning(daemon: PrivateDaemon, directory: Path, client: Client) -> Iterator[None]:
    """Have the daemon tune a kernel that it will not finish, from its first trial to the end of the block."""
    write_kernel(directory, 10_000)
    with daemon.client() as other, other.tune(path=directory) as events:
        next(event for event in events if event["type"] == "trial_done")
        yield
        for job in events.jobs:
            client.call("cancel", job=job["id"])


def ask_in_turns(count: int, questions: list[Callable[[], object]]) -> list[list[float]]:
    """Return what each of ``count`` questions took in µs, for each kind of question."""
    took_us: list[list[float]] = [[] for _ in questions]
    for _ in range(count // TURN):
        for question, times in zip(questions, took_us, strict=True):
            for _ in range(TURN):
                start = perf_counter_ns()
                question()
                times.append((perf_counter_ns() - start) / 1000)
    return took_us


def compare(what: str, client: Client, cache: redis.Redis, count: int) -> list[dict[str, Any]]:
    """Measure both and return a row for each."""
    if (hit := client.lookup("project:saxpy", PROBLEM)).status != "fresh":
        raise RuntimeError(f"the lookup's status is {hit.status}, not fresh: {hit.message}")
    answer = client.call("lookup", kernel="project:saxpy", problem=PROBLEM)
    cache.set("project:saxpy", wire.encode_response(1, None, answer))
    questions: list[Callable[[], object]] = [
        lambda: client.lookup("project:saxpy", PROBLEM),
        lambda: cache.get("project:saxpy"),
    ]
    ask_in_turns(10 * TURN, questions)
    ours, theirs = ask_in_turns(count, questions)
    if (hit := client.lookup("project:saxpy", PROBLEM)).status != "fresh":
        raise RuntimeError(f"the lookup's status became {hit.status}: {hit.message}")
    rows = [_row(f"{name}, {what}", times) for name, times in (("ktuned lookup", ours), ("Redis GET", theirs))]
    ratios = [rows[0][column] / rows[1][column] for column in ("median_us", "p99_us")]
    rows[0]["in_budget"] = ratios[0] <= MEDIAN_BUDGET and ratios[1] <= P99_BUDGET
    rows[0]["median_ratio"], rows[0]["p99_ratio"] = ratios
    return rows


def _row(what: str, times_us: list[float]) -> dict[str, Any]:
    ordered = sorted(times_us)
    return {
        "what": what,
        "count": len(ordered),
        "median_us": statistics.median(ordered),
        "p99_us": ordered[len(ordered) * 99 // 100],
        "worst_us": ordered[-1],
        "median_ratio": None,
        "p99_ratio": None,
        "in_budget": None,
    }


def measure(server: str, count: int) -> list[dict[str, Any]]:
    """Tune a small kernel by a daemon of our own, and look it up beside a Redis of our own."""
    with private_home() as home, redis_serving(server, home) as cache:
        write_kernel(home / "project", 2)
        with serving(home) as daemon, Client(daemon.socket, deadline_s=PATIENT_S) as client:
            with client.tune(path=home / "project") as events:
                for _ in events:
                    pass
            if events.jobs[0]["state"] != "done":
                raise RuntimeError(f"the kernel could not be tuned: {events.jobs[0]}")
            rows = compare("at rest", client, cache, count)
            with tuning(daemon, home / "busy", client):
                rows += compare("while tuning", client, cache, count)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=20_000, help="questions to each")
    parser.add_argument("--redis-server", default=shutil.which("redis-server"), help="the server's path")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.redis_server is None:
        sys.exit("lookup: there is no redis-server to measure beside. Install it: apt-get install redis-server")
    show(
        f"lookups over the socket (budget: median ≤ {MEDIAN_BUDGET:g} × Redis's, p99 ≤ Redis's)",
        measure(arguments.redis_server, arguments.count),
        as_json=arguments.json,
    )


if __name__ == "__main__":
    main()
