"""Many readers of the table of winners, and a daemon that publishes, grows the file and is killed at any moment."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from ktuned.lookup.winner_table import WinnerTable
from ktuned_client.answers import Question
from ktuned_client.memo import Memo, pack_problem
from ktuned_client.table import TABLE_NAME, USES_NAME, make_kernel_key, make_winner_prefix
from tests.chaos.conftest import TableRow

READERS = 8
READS = 1_000_000
KILLS = 100
KERNELS = 12
SIZES = 400
"""Problems of a kernel: together they need a file that has grown."""

DEADLINE_S = 600.0


class LowestVersions:
    """The lowest version of each kernel that a reader may get, in memory that all processes share.

    A version is entered when all earlier ones have ended: a later read must not be older.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 8 * (KERNELS + 2))
        self.versions = memoryview(self._map).cast("Q")

    @property
    def is_over(self) -> bool:
        return bool(self.versions[KERNELS])

    def end_reading(self) -> None:
        self.versions[KERNELS] = 1


class HesitantMemory:
    """Memory whose writer sometimes pauses after a store, or within a long one, where a kill would leave it."""

    def __init__(self, view: memoryview, chance: random.Random) -> None:
        self._view = view
        self._chance = chance
        self.release = view.release

    def __getitem__(self, index: Any) -> Any:
        return self._view[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            middle = len(value) // 2
            self._view[index.start : index.start + middle] = value[:middle]
            self._pause_sometimes()
            self._view[index.start + middle : index.start + len(value)] = value[middle:]
        else:
            self._view[index] = value
        self._pause_sometimes()

    def _pause_sometimes(self) -> None:
        if self._chance.random() < 0.03:
            time.sleep(0.0003)  # noqa: TID251 - the pause is what is tested


class HesitantTable(WinnerTable):
    """A daemon's table on :class:`HesitantMemory` memory."""

    def __init__(self, directory: str, seed: int) -> None:
        self._chance = random.Random(seed)
        super().__init__(directory, epoch=seed)

    def _open_views(self) -> None:
        super()._open_views()
        self._words = HesitantMemory(self._words, self._chance)  # type: ignore[assignment]
        self._bytes = HesitantMemory(self._bytes, self._chance)  # type: ignore[assignment]


def make_config(kernel: int, size: int, version: int) -> dict[str, Any]:
    """Return the published config of a version: its length varies, and its figures agree only if it is complete."""
    check = (kernel * 7919 + size * 104729 + version * 1299709) % 2**31
    return {
        "kernel": kernel,
        "size": size,
        "version": version,
        "check": check,
        "pad": f"{version:x}" * (check % 300 // 8),
    }


def write_until_killed(directory: str, truth: LowestVersions, seed: int) -> str:
    """Publish as a daemon does: end the old version, enter the new one in the truth, publish it."""
    chance = random.Random(seed)
    table = HesitantTable(directory, seed)
    versions = HesitantMemory(truth.versions, chance)
    for kernel in range(KERNELS):
        publish_rules(table, kernel)
    while True:
        kernel = chance.randrange(KERNELS)
        name = f"p:kernel{kernel}"
        version = versions[kernel] + 1
        table.bump_generation(name)
        versions[kernel] = version
        publish_rules(table, kernel)
        for size in [*chance.sample(range(SIZES), 10), *range(4)]:
            payload = [make_config(kernel, size, version), "fresh", "", 1.0, None, 1.0, True, None, None]
            key = make_winner_prefix(name, "cpu", "latency") + msgpack.packb({"size": size})
            table.publish_entry(name, key, msgpack.packb(payload))
        table.confirm_watch()


def publish_rules(table: WinnerTable, kernel: int) -> None:
    """Publish the rules of a kernel's keys."""
    name = f"p:kernel{kernel}"
    rules = [name, "/tune.py", "latency", {"": "cpu"}, None, None, {}]
    table.publish_entry(name, make_kernel_key(name, None), msgpack.packb(rules))


def read_until_over(directory: str, truth: LowestVersions, reads: int, seed: int) -> str:
    """Read at random and return a complaint, or nothing. Every third answer is kept and read again."""
    chance = random.Random(seed)
    memo = Memo(directory)
    hits = 0
    deadline = time.monotonic() + DEADLINE_S
    while not any(truth.versions[:KERNELS]):
        # On a busy machine all reads would be over before the writer has begun.
        time.sleep(0.001)  # noqa: TID251 - memory reports it, no event
        if time.monotonic() > deadline:
            return "no writer began"
    # On a busy machine the first reads may all be over before anything is published.
    for number in itertools.count():
        if number >= reads and hits:
            break
        if time.monotonic() > deadline:
            return "no read found anything"
        # Half of the reads are of the few entries that every turn of the writer writes again.
        kernel, size = chance.randrange(KERNELS), chance.randrange(SIZES if number % 2 else 4)
        name, problem = f"p:kernel{kernel}", {"size": size}
        key = pack_problem(problem)
        least = truth.versions[kernel]
        if number % 3 == 0:
            memo.answers.pop(name, None)
        question = Question(name, name, problem, None, None, None)
        if number % 5 == 0:
            # What a client gives when no daemon answers may be old, but it is whole, and says so.
            hit = memo.find_last_answer(question, key, "no daemon answers")
        else:
            hit, _ = memo.find_hit(question, key)
        if hit is None:
            continue
        hits += 1
        config = dict(hit.config or {})
        version = config.get("version", -1)
        if config != make_config(kernel, size, version) or hit.problem != problem:
            return f"torn: {hit}"
        if hit.status == "fresh" and version < least:
            return f"version {version} of {name} is fresh, and {least} was entered before"
    memo.close()
    return ""


def fork_child(work: Callable[[], str]) -> int:
    """Run ``work`` in a child process, whose exit status is 0 if it returns nothing."""
    child = os.fork()
    if child:
        return child
    try:
        wrong = work()
    except BaseException as error:  # a child must not return into pytest
        wrong = repr(error)
    if wrong:
        os.write(2, f"{wrong}\n".encode())
    os._exit(bool(wrong))


def test_reads_beside_a_killed_writer_are_whole_and_current(tmp_path: Path, seed: int, table_row: TableRow) -> None:
    """No reader crashes."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    truth = LowestVersions()
    reads = READS // READERS
    start = time.monotonic()
    chance = random.Random(seed)
    readers = {
        fork_child(lambda number=number: read_until_over(str(directory), truth, reads, number))  # type: ignore[misc]
        for number in range(READERS)
    }
    statuses = []
    killed = 0
    largest = 0
    try:
        while readers or killed < KILLS:
            assert time.monotonic() < start + DEADLINE_S
            writer = fork_child(lambda seed=killed: write_until_killed(str(directory), truth, seed))  # type: ignore[misc]
            time.sleep(chance.uniform(0.0, 0.3))  # noqa: TID251 - the moment of the kill is the test
            os.kill(writer, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == -signal.SIGKILL
            killed += 1
            if (directory / TABLE_NAME).exists():
                largest = max(largest, (directory / TABLE_NAME).stat().st_size)
            for reader in list(readers):
                pid, status = os.waitpid(reader, os.WNOHANG)
                if pid:
                    statuses.append(os.waitstatus_to_exitcode(status))
                    readers.remove(reader)
    finally:
        for reader in readers:
            os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)
    table_row.update(
        reads=reads * READERS, kills=killed, largest_file_kib=largest // 1024, versions=sum(truth.versions)
    )
    assert statuses == [0] * READERS
    assert largest > 2**19, f"the file never grew, on {sys.platform}"
    # What the last one was at when it was killed is cleared away by the next.
    WinnerTable(str(directory), epoch=killed).close()
    assert {path.name for path in directory.iterdir()} == {TABLE_NAME, USES_NAME}
