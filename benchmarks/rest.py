"""The daemon at rest: memory, start-up, CPU; with an empty store and with many trials in it.

It watches a project of some hundred directories, none of which changes. Budgets: at most 64 MiB resident, the socket
answers within 0.5 s of the start, 0.2 % of a core; with 1,000,000 trials, or 1,000 kernel files (``--files``), too.
"""

import argparse
import sqlite3
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.private_daemon import private_home, serving
from benchmarks.report import show
from ktuned.model.plan import Plan
from ktuned.model.values import Outcome, canonical
from ktuned.protocol.jobs import JobState
from ktuned.store.contexts import MEASURING_VERSION
from ktuned_client import Client

RSS_BUDGET_MIB = 64.0
READY_BUDGET_S = 0.5
CPU_BUDGET_PERCENT = 0.2
PATIENCE_S = 120.0
SETTLE_S = 3.0
"""After the project has been inspected: what the daemon started for that ends."""

FILES = 10
DIRECTORIES = 200
KERNEL = """
from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build


@kernel(
    backend="tvm_ffi",
    space=space(STEP=[1, 2]),
    problems=[dict(N=64)],
    inputs=lambda p: dict(x=tensor((p.N,)), y=tensor((p.N,), output=True)),
    check=None,
)
def k{number}(p, c):
    return Build(function="f", args=("x", "y"), defines=dict(STEP=c.STEP))
"""
TRIALS_PER_JOB = 100
_MIB = 1024**2


def fill(path: Path, trials: int, *, trials_per_job: int = TRIALS_PER_JOB, first_job: int = 1) -> None:
    """Add ``trials`` measured trials to a store that has no jobs from ``first_job`` on; each job has its winner."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        for job in range(first_job, first_job + trials // trials_per_job):
            _add_job(connection, job, trials_per_job)
    connection.close()


def _add_job(connection: sqlite3.Connection, job: int, trials: int) -> None:
    kernel, problem, device, now = f"bench:kernel{job % 50}", canonical({"M": job, "N": 4096}), "a device", time.time()
    plan = msgspec.json.encode(Plan()).decode()
    connection.execute(
        "INSERT INTO jobs (id, kernel, problem, key_problem, device, state, priority, reason, plan, created, done,"
        " total) VALUES (?, ?, ?, ?, ?, ?, 100, 'benchmark', ?, ?, ?, ?)",
        (
            job,
            kernel,
            problem,
            problem,
            device,
            JobState.DONE,
            plan,
            now,
            trials,
            trials,
        ),
    )
    connection.execute(
        "INSERT INTO contexts (id, kernel, problem, device, digest, toolchain, device_fingerprint, measuring_version)"
        " VALUES (?, ?, ?, ?, 'digest', 'toolchain', 'driver', ?)",
        (job, kernel, problem, device, MEASURING_VERSION),
    )
    first = job * trials + 1
    connection.executemany(
        "INSERT INTO trials (id, context_id, job_id, config, outcome, latency_us, spread_us, compile_s, lane_s, detail,"
        " updated) VALUES (?, ?, ?, ?, ?, ?, 1.0, 1.0, 0.2, ?, ?)",
        (
            (
                first + number,
                job,
                job,
                canonical({"BM": number % 10, "BN": number // 10 % 10, "BK": number // 100}),
                Outcome.MEASURED,
                100.0 + number,
                '{"phase":"timing","count":100,"samples":[100.0,101.0,102.0]}',
                now,
            )
            for number in range(trials)
        ),
    )
    connection.execute(
        "INSERT INTO winners (kernel, problem, device, objective, trial_id, decided) VALUES (?, ?, ?, 'latency', ?, ?)",
        (kernel, problem, device, first, now),
    )


def write_files(project: Path, files: int) -> None:
    """Write kernel files with one kernel each, in some hundred directories."""
    for number in range(DIRECTORIES):
        (project / f"d{number}").mkdir(parents=True)
    for number in range(files):
        (project / f"d{number % DIRECTORIES}" / f"tune_k{number}.py").write_text(KERNEL.format(number=number))


def make_project(home: Path, files: int) -> None:
    """Make a project, and settings that have it watched."""
    project = home / "project"
    write_files(project, files)
    (home / "state").mkdir()
    (home / "state" / "config.toml").write_text(f'contention = false\n[[roots]]\npath = "{project}"\n')


def _settle(client: Client, process: psutil.Process, files: int) -> None:
    """Wait until a daemon has inspected the project, and knows its backends."""
    end = time.monotonic() + PATIENCE_S
    while len(client.call("kernels")["kernels"]) < files or not client.call("status")["environments"]:
        if time.monotonic() > end:
            raise RuntimeError("the project was not inspected")
        _stay_quiet(process, 0.1)
    _stay_quiet(process, SETTLE_S)


def measure(trials: int, *, files: int, starts: int, rest_s: float) -> dict[str, Any]:
    """Start a daemon ``starts`` times on one store, then let the last one rest for ``rest_s`` seconds."""
    with private_home() as home:
        make_project(home, files)
        # The first start, which makes the store, is not measured.
        with serving(home):
            pass
        (store,) = (home / "state").glob("*.sqlite")
        fill(store, trials)
        ready = []
        for _ in range(starts - 1):
            with serving(home) as daemon:
                ready.append(daemon.ready_s)
        with serving(home) as daemon, daemon.client() as client:
            ready.append(daemon.ready_s)
            held = client.call("status")["store"]["trials"]
            if held != trials:
                raise RuntimeError(f"the store holds {held} trials, not {trials}")
            process = psutil.Process(daemon.process.pid)
            _settle(client, process, files)
            before = process.cpu_times()
            # The daemon must not wait for us: the passing of time is measured.
            _stay_quiet(process, rest_s)
            after = process.cpu_times()
            cpu_s = max(0.0, after.user - before.user) + max(0.0, after.system - before.system)
            rss_mib = process.memory_info().rss / _MIB
            own_mib = process.memory_full_info().uss / _MIB
            others = [round(child.memory_info().rss / _MIB, 1) for child in process.children(recursive=True)]
    return {
        "trials": trials,
        "files": files,
        "rss_mib": rss_mib,
        "unshared_mib": own_mib,
        "ready_s": statistics.median(ready),
        "ready_worst_s": max(ready),
        "cpu_percent": 100 * cpu_s / rest_s,
        "children": len(others),
        "children_mib": sum(others),
        "in_budget": rss_mib <= RSS_BUDGET_MIB
        and statistics.median(ready) <= READY_BUDGET_S
        and 100 * cpu_s / rest_s <= CPU_BUDGET_PERCENT,
    }


def _stay_quiet(process: psutil.Process, seconds: float) -> None:
    try:
        process.wait(seconds)
    except psutil.TimeoutExpired:
        return
    raise RuntimeError("the daemon ended while it rested")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, nargs="*", default=[0, 1_000_000], help="store sizes; multiples of 1000")
    parser.add_argument("--files", type=int, default=FILES, help=f"kernel files of the project (default: {FILES})")
    parser.add_argument("--starts", type=int, default=5, help="starts per store, of which the median is printed")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of rest")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [
        measure(trials, files=arguments.files, starts=arguments.starts, rest_s=arguments.seconds)
        for trials in arguments.trials
    ]
    title = (
        f"daemon at rest (budget: {RSS_BUDGET_MIB:g} MiB, ready in {READY_BUDGET_S:g} s, {CPU_BUDGET_PERCENT:g} % CPU)"
    )
    show(title, rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
