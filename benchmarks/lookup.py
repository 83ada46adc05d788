"""Lookups beside their alternatives: ``functools.lru_cache`` in process, Redis over its socket.

Budgets: a known lookup takes at most 3 times an ``lru_cache`` hit on the same arguments; one of a problem that the
process never asked, from the table of winners, at most 5 µs, and at most 0.8 times Redis; one over the socket has a
median of at most 0.8 times that of Redis's ``GET`` (redis-py with hiredis, Unix socket) and a p99 no worse, by 1,
8 and 64 clients, at rest and while a tuning fills every core; many at once cost no more than in a Redis pipeline. With
1,000,000 trials and 10,000 winners it starts within 0.5 s, lookups take as long, to within 10 %, and an export at most
5 s (``--large``).

The two servers of a pair are asked in turns, so that other load affects both, and all clients share a turn: 8 clients
ask the same server at the same time. (If each went at its own pace, most of them would wait at the slower server.) One
client at rest is pinned to its server's core, then to another one, because the scheduler's choice is random and worth a
factor of two. Redis returns as many bytes as a lookup's answer has, which its client does not decode. Without
``redis-server`` (on Debian ``apt-get install redis-server``; no service has to run) its pairs are skipped.
"""

import argparse
import contextlib
import functools
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import traceback
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any, NoReturn

import redis

from benchmarks.pipeline import HEADER, KERNEL, SOURCE
from benchmarks.private_daemon import PATIENT_S, PrivateDaemon, forgetful, private_home, serving
from benchmarks.report import show
from benchmarks.rest import fill
from ktuned_client import Client, memo, wire
from ktuned_client.answers import Question

MEMO_BUDGET = 3.0
TABLE_BUDGET_US = 5.0
MEDIAN_BUDGET = 0.8
P99_BUDGET = 1.0
PIPELINE_BUDGET = 1.0
GROWTH_BUDGET = 1.1
START_BUDGET_S = 0.5
EXPORT_BUDGET_S = 5.0
TRIALS, WINNERS = 1_000_000, 10_000
NAME = "project:saxpy_1"
PROBLEM = {"N": 1 << 20}
SIZES = {"M": 4096, "N": 4096, "K": 4096}
"""Three sizes, for the memo: the problem of a matrix product."""

TURN = 100
"""Questions to one server in one turn, and in one pipeline."""

MEETING_S = 60.0
"""Deadline of the clients' meeting before a turn."""

Ask = Callable[[], object]


@contextlib.contextmanager
def redis_serving(server: str, home: Path) -> Iterator[tuple[Path, int]]:
    """Run a private Redis that keeps nothing on disk, and yield its socket's path and its process id."""
    path = home / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", str(home)]
    with subprocess.Popen([server, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "ready to accept connections" in line.lower():
                    break
            yield path, process.pid
        finally:
            process.terminate()


def write_kernel(directory: Path, configs: int) -> None:
    """Write a kernel of ``configs`` configs, for lookups or as load."""
    directory.mkdir()
    (directory / "tune_saxpy.py").write_text(HEADER + KERNEL.format(first=1, configs=configs, preset="fast"))
    (directory / "saxpy.cc").write_text(SOURCE)


@contextlib.contextmanager
def tuning(daemon: PrivateDaemon, directory: Path) -> Iterator[None]:
    """Keep the daemon tuning an endless kernel, from its first trial to the end of the block."""
    write_kernel(directory, 10_000)
    with daemon.client() as other, other.tune(path=directory) as events:
        next(event for event in events if event["type"] == "trial_done")
        yield
        for job in events.jobs:
            other.call("cancel", job=job["id"])


@contextlib.contextmanager
def placed(servers: list[int], *, apart: bool) -> Iterator[None]:
    """Pin this process to one core, and the servers' main threads to the same one or another."""
    cores = sorted(os.sched_getaffinity(0))
    for pid in servers:
        os.sched_setaffinity(pid, {cores[-1] if apart else cores[0]})
    os.sched_setaffinity(0, {cores[0]})
    try:
        yield
    finally:
        for pid in (0, *servers):
            os.sched_setaffinity(pid, cores)


@contextlib.contextmanager
def resting(daemon: PrivateDaemon) -> Iterator[None]:
    """Keep the daemon from jobs: other cores, such as :func:`placed` gives it, are a reason to tune again."""
    with daemon.client() as client:
        client.call("pause")
        yield
        client.call("resume")


def ask_in_turns(count: int, questions: list[Ask], meet: Callable[[], object] = lambda: None) -> list[list[float]]:
    """Return the times of ``count`` questions in µs, for each kind of question; clients ``meet`` before each turn."""
    took_us: list[list[float]] = [[] for _ in questions]
    for _ in range(count // TURN):
        for question, times in zip(questions, took_us, strict=True):
            meet()
            for _ in range(TURN):
                start = perf_counter_ns()
                question()
                times.append((perf_counter_ns() - start) / 1000)
    return took_us


def ask_by_many(clients: int, count: int, connects: list[Callable[[], Ask]]) -> list[list[float]]:
    """As :func:`ask_in_turns`, by ``clients`` processes at once, which ask ``count`` questions together."""
    if clients == 1:
        return ask_in_turns(count, [connect() for connect in connects])
    together = multiprocessing.get_context("fork").Barrier(clients, timeout=MEETING_S)
    told: list[int] = []
    children = []
    for _ in range(clients):
        heard, tells = os.pipe()
        child = os.fork()
        if not child:
            _ask_and_exit([connect() for connect in connects], max(TURN, count // clients), together.wait, tells)
        children.append(child)
        told.append(heard)
        os.close(tells)
    took_us: list[list[float]] = [[] for _ in connects]
    for heard in told:
        with open(heard, "rb") as stream:
            times = array("d", stream.read()).tolist()
        share = len(times) // len(connects)
        for number, kind in enumerate(took_us):
            kind += times[number * share : (number + 1) * share]
    # Every client is awaited, even after failures.
    if sum(os.waitpid(child, 0)[1] for child in children):
        raise RuntimeError("a client failed")
    return took_us


def _ask_and_exit(questions: list[Ask], count: int, meet: Callable[[], object], tells: int) -> NoReturn:
    """Run one of many clients, in a process of its own."""
    try:
        ask_in_turns(TURN, questions, meet)
        with open(tells, "wb") as stream:
            for times in ask_in_turns(count, questions, meet):
                array("d", times).tofile(stream)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def memo_beside_cache(client: Client, count: int) -> list[dict[str, Any]]:
    """Measure known answers, in blocks, because one is shorter than a reading of the clock."""
    bound = client.bind(NAME)
    hit = client.lookup(NAME, PROBLEM)
    client._memo.keep_lasting_answer(Question("gemm", "gemm", SIZES, None, None, None), memo.pack_problem(SIZES), hit)
    # Each answer that was forgotten counts as a new one, and with too many of them all are forgotten.
    client._memo.max_answers = 10**9
    # Of this question no daemon knows: its answer is by the table's first word, which never changes.
    client._memo.answers["gemm"] = {memo.pack_problem(SIZES): (0, client._memo.words[0], float("inf"), hit)}

    @functools.lru_cache
    def cached(kernel: str, **problem: int) -> object:
        return hit

    def from_table() -> object:
        client._memo.answers.pop(NAME, None)
        return client.lookup(NAME, PROBLEM)

    def block(ask: Ask) -> Ask:
        def many() -> None:
            for _ in range(TURN):
                ask()

        return many

    kinds: dict[str, Ask] = {
        "lru_cache, 3 sizes": lambda: cached("gemm", **SIZES),
        "lookup, known, 3 sizes": lambda: client.lookup("gemm", SIZES),
        "lru_cache, 1 size": lambda: cached(NAME, **PROBLEM),
        "lookup, known, 1 size": lambda: client.lookup(NAME, PROBLEM),
        "bound lookup, known, 1 size": lambda: bound(PROBLEM),
        "lookup, from the table, 1 size": from_table,
    }
    blocks = [block(ask) for ask in kinds.values()]
    ask_in_turns(2 * TURN, blocks)
    empty = block(lambda: None)
    idle_us = statistics.median(ask_in_turns(TURN, [empty])[0])
    took = [[(us - idle_us) / TURN for us in times] for times in ask_in_turns(max(TURN, count // 10), blocks)]
    rows = [_row(name, times) for name, times in zip(kinds, took, strict=True)]
    for place, peer in ((1, 0), (3, 2), (4, 2)):
        ratio = rows[place]["median_us"] / rows[peer]["median_us"]
        rows[place]["median_ratio"], rows[place]["in_budget"] = ratio, ratio <= MEMO_BUDGET
    rows[5]["in_budget"] = rows[5]["median_us"] <= TABLE_BUDGET_US
    return rows


def socket_beside_redis(what: str, daemon: Path, cache: Path, clients: int, count: int) -> list[dict[str, Any]]:
    """Measure both over their sockets, one question at a time, by several clients at once."""

    def ours() -> Ask:
        client = forgetful(daemon)
        return lambda: client.lookup(NAME, PROBLEM)

    def theirs() -> Ask:
        peer = redis.Redis(unix_socket_path=str(cache))
        return lambda: peer.get(NAME)

    if clients == 1:
        ask_in_turns(10 * TURN, [ours(), theirs()])
    took = ask_by_many(clients, count, [ours, theirs])
    many = f"{clients} client{'s' if clients > 1 else ''}, {what}"
    rows = [_row(f"{name}, {many}", times) for name, times in zip(("lookup", "Redis GET"), took, strict=True)]
    ratios = [rows[0][column] / rows[1][column] for column in ("median_us", "p99_us")]
    rows[0]["in_budget"] = ratios[0] <= MEDIAN_BUDGET and ratios[1] <= P99_BUDGET
    rows[0]["median_ratio"], rows[0]["p99_ratio"] = ratios
    return rows


def table_beside_redis(daemon: Path, cache: Path, count: int) -> list[dict[str, Any]]:
    """Measure problems that a process never asked, from the table, beside Redis, by one client each."""
    with Client(daemon, deadline_s=PATIENT_S) as client, redis.Redis(unix_socket_path=str(cache)) as peer:
        memory = client._memo

        def ours() -> object:
            memory.answers.clear()
            return client.lookup(NAME, PROBLEM)

        took = ask_in_turns(count, [ours, lambda: peer.get(NAME)])
        if client._transport._shared is not None:
            raise RuntimeError("the table did not have the answer")
    rows = [_row(f"{name}, at rest", times) for name, times in zip(("from the table", "Redis GET"), took, strict=True)]
    rows[0]["median_ratio"], rows[0]["p99_ratio"] = (
        rows[0][column] / rows[1][column] for column in ("median_us", "p99_us")
    )
    rows[0]["in_budget"] = rows[0]["median_ratio"] <= MEDIAN_BUDGET and rows[0]["p99_ratio"] <= P99_BUDGET
    return rows


def pipelined(daemon: Path, cache: Path, count: int) -> list[dict[str, Any]]:
    """Measure many at once: per lookup, in requests of :data:`TURN`."""
    with forgetful(daemon) as client, redis.Redis(unix_socket_path=str(cache)) as peer:

        def theirs() -> object:
            pipeline = peer.pipeline(transaction=False)
            for _ in range(TURN):
                pipeline.get(NAME)
            return pipeline.execute()

        kinds: list[Ask] = [lambda: client.lookup_many([(NAME, PROBLEM)] * TURN), theirs]
        took = ask_in_turns(max(TURN, count // 20), kinds)
    names = ("lookup_many", "Redis pipeline")
    rows = [
        _row(f"{name}, each of {TURN}", [us / TURN for us in times]) for name, times in zip(names, took, strict=True)
    ]
    rows[0]["median_ratio"] = rows[0]["median_us"] / rows[1]["median_us"]
    rows[0]["p99_ratio"] = rows[0]["p99_us"] / rows[1]["p99_us"]
    rows[0]["in_budget"] = rows[0]["median_ratio"] <= PIPELINE_BUDGET
    return rows


def tuned(daemon: PrivateDaemon, project: Path) -> None:
    """Tune the kernel that is looked up."""
    write_kernel(project, 2)
    with Client(daemon.socket, deadline_s=PATIENT_S) as client, client.tune(path=project) as events:
        for _ in events:
            pass
        if events.jobs[0]["state"] != "done" or client.lookup(NAME, PROBLEM).status != "fresh":
            raise RuntimeError(f"the kernel could not be tuned: {events.jobs[0]}")


def with_a_large_store(count: int) -> list[dict[str, Any]]:
    """Measure lookups by a daemon with many trials beside one with few, in turns; and the export of all winners."""
    with private_home() as home:
        few, many = home / "few", home / "many"
        for place in (few, many):
            place.mkdir()
            with serving(place) as daemon:
                tuned(daemon, place / "project")
        (store,) = (many / "state").glob("*.sqlite")
        fill(store, TRIALS, trials_per_job=TRIALS // WINNERS, first_job=10)
        rows = []
        with serving(few) as small, serving(many) as large:
            rows.append(
                _row(f"start with {TRIALS} trials", [large.ready_s * 1e6])
                | {"in_budget": large.ready_s <= START_BUDGET_S}
            )
            with forgetful(small.socket) as one, forgetful(large.socket) as other:
                asks: list[Ask] = [lambda: one.lookup(NAME, PROBLEM), lambda: other.lookup(NAME, PROBLEM)]
                with placed([small.process.pid, large.process.pid], apart=False):
                    ask_in_turns(10 * TURN, asks)
                    took = ask_in_turns(count, asks)
                rows += [_row("lookup, few trials", took[0]), _row(f"lookup, {TRIALS} trials", took[1])]
                rows[2]["median_ratio"] = rows[2]["median_us"] / rows[1]["median_us"]
                rows[2]["p99_ratio"] = rows[2]["p99_us"] / rows[1]["p99_us"]
                rows[2]["in_budget"] = rows[2]["median_ratio"] <= GROWTH_BUDGET
            start = perf_counter()
            subprocess.run(
                [sys.executable, "-m", "ktuned", "export", "--all", str(home / "winners")],
                env={**os.environ, "KTUNED_SOCKET": str(large.socket)},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            export_s = perf_counter() - start
        rows.append(_row(f"export of {WINNERS} winners", [export_s * 1e6]) | {"in_budget": export_s <= EXPORT_BUDGET_S})
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


def measure(server: str | None, count: int, clients: list[int], *, large: bool) -> list[dict[str, Any]]:
    """Tune a small kernel with a private daemon, and look it up beside a private Redis."""
    rows = []
    with private_home() as home, contextlib.ExitStack() as stack:
        daemon = stack.enter_context(serving(home))
        tuned(daemon, home / "project")
        with Client(daemon.socket, deadline_s=PATIENT_S) as client:
            rows += memo_beside_cache(client, count)
            answer = client.call("lookup", kernel=NAME, problem=PROBLEM)
        if not server:
            sys.stderr.write("lookup: skipped beside Redis: there is no redis-server (apt-get install redis-server)\n")
        else:
            cache, redis_pid = stack.enter_context(redis_serving(server, home))
            with redis.Redis(unix_socket_path=str(cache)) as peer:
                peer.set(NAME, wire.encode_response(1, None, answer))
            with resting(daemon):
                for what, apart in (("its server's core", False), ("another core", True)):
                    with placed([daemon.process.pid, redis_pid], apart=apart):
                        rows += socket_beside_redis(f"at rest, on {what}", daemon.socket, cache, 1, count)
                for many in clients:
                    if many > 1:
                        rows += socket_beside_redis("at rest", daemon.socket, cache, many, count)
                rows += table_beside_redis(daemon.socket, cache, count)
                rows += pipelined(daemon.socket, cache, count)
            with tuning(daemon, home / "busy"):
                for many in clients:
                    # Compilers start and end every second, which changes the wait for a core.
                    rows += socket_beside_redis("while tuning", daemon.socket, cache, many, 4 * count)
    if large:
        rows += with_a_large_store(count)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=20_000, help="questions to each")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 64], help="numbers of concurrent clients")
    parser.add_argument("--large", action="store_true", help=f"also with {TRIALS} trials and {WINNERS} winners")
    parser.add_argument("--redis-server", default=shutil.which("redis-server"), help="the server's path")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    show(
        f"lookups (budgets: known ≤ {MEMO_BUDGET:g} × lru_cache; by socket ≤ {MEDIAN_BUDGET:g} × Redis's median, "
        "p99 ≤ Redis's)",
        measure(arguments.redis_server, arguments.count, arguments.clients, large=arguments.large),
        as_json=arguments.json,
    )


if __name__ == "__main__":
    main()
