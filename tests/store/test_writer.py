"""The writing thread: groups, savepoints, order, closing."""

import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from ktuned.model.errors import StoreError
from ktuned.protocol import ChannelInfo
from ktuned.store.writer import MAX_PENDING_WRITES, Writer

pytestmark = pytest.mark.anyio


def make_insert(value: int) -> Callable[[sqlite3.Connection], int]:
    """Return a write that inserts a value and returns the number of values."""

    def operation(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO things VALUES (?)", (value,))
        (count,) = connection.execute("SELECT count(*) FROM things").fetchone()
        return int(count)

    return operation


@pytest.fixture
def connection() -> Generator[sqlite3.Connection]:
    """Open a database with one table of unique values."""
    opened = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    opened.execute("CREATE TABLE things (value INTEGER UNIQUE)")
    yield opened
    opened.close()


@pytest.fixture
def writer(connection: sqlite3.Connection) -> Generator[Writer]:
    started = Writer(connection, lambda: connection)
    started.start_thread()
    yield started
    started.stop()


class BlockingWrite:
    """A write that keeps the thread busy until a test sets ``go``."""

    def __init__(self, writer: Writer) -> None:
        self.go = threading.Event()
        self._arrived = threading.Event()
        self.future = writer.submit_write(self._block)
        assert self._arrived.wait(60)

    def _block(self, connection: sqlite3.Connection) -> None:
        self._arrived.set()
        assert self.go.wait(60)


def list_values(connection: sqlite3.Connection) -> list[int]:
    """Return the stored values in the order of storing."""
    return [value for (value,) in connection.execute("SELECT value FROM things ORDER BY rowid")]


async def test_waiting_writes_are_committed_as_one_group(writer: Writer, connection: sqlite3.Connection) -> None:
    """In the order of their submission."""
    blocking = BlockingWrite(writer)
    futures = [writer.submit_write(make_insert(value)) for value in range(100)]
    assert writer.describe_queue().used == 100
    blocking.go.set()
    assert [await future for future in futures] == list(range(1, 101))
    assert writer.describe_queue() == ChannelInfo(0, writes=101, commits=2)
    assert list_values(connection) == list(range(100))


async def test_a_failed_write_is_undone_alone(writer: Writer, connection: sqlite3.Connection) -> None:
    """The others of its group are committed."""

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO things VALUES (77)")
        raise LookupError("on purpose")

    blocking = BlockingWrite(writer)
    good, bad, twice, last = (
        writer.submit_write(write) for write in (make_insert(1), fail, make_insert(1), make_insert(2))
    )
    blocking.go.set()
    assert (await good, await last) == (1, 2)
    with pytest.raises(LookupError):
        await bad
    with pytest.raises(sqlite3.IntegrityError):
        await twice
    assert list_values(connection) == [1, 2]


async def test_a_group_that_sqlite_undoes_is_retried_one_by_one(writer: Writer, connection: sqlite3.Connection) -> None:
    """One write costs the whole transaction; the others are committed nevertheless."""

    def undo_all(connection: sqlite3.Connection) -> None:
        # What SQLite itself does when it meets a full disk.
        connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")

    blocking = BlockingWrite(writer)
    first, bad, second = (writer.submit_write(write) for write in (make_insert(1), undo_all, make_insert(2)))
    blocking.go.set()
    assert (await first, await second) == (1, 2)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        await bad
    assert list_values(connection) == [1, 2]


async def test_a_write_cancelled_while_it_waits_is_dropped(writer: Writer, connection: sqlite3.Connection) -> None:
    blocking = BlockingWrite(writer)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await writer.write(make_insert(1))
    blocking.go.set()
    assert await writer.write(make_insert(2)) == 1
    assert list_values(connection) == [2]


async def test_stopping_commits_waiting_writes(writer: Writer, connection: sqlite3.Connection) -> None:
    """Later writes are refused."""
    blocking = BlockingWrite(writer)
    futures = [writer.submit_write(make_insert(value)) for value in range(5)]
    blocking.go.set()
    writer.stop()
    writer.stop()
    assert [await future for future in futures] == [1, 2, 3, 4, 5]
    with pytest.raises(StoreError, match="closed"):
        await writer.write(make_insert(6))
    assert list_values(connection) == list(range(5))


async def test_producers_wait_while_the_queue_is_full(writer: Writer, connection: sqlite3.Connection) -> None:
    """All writes are executed in the end."""
    blocking = BlockingWrite(writer)
    async with anyio.create_task_group() as tasks:
        for value in range(MAX_PENDING_WRITES + 50):
            tasks.start_soon(writer.write, make_insert(value))
        await anyio.wait_all_tasks_blocked()
        assert writer.describe_queue().used == MAX_PENDING_WRITES
        blocking.go.set()
    assert list_values(connection) == list(range(MAX_PENDING_WRITES + 50))


class FailingConnection(sqlite3.Connection):
    """A connection that can neither commit nor roll back, as on a failing disk."""

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        """Refuse the ends of transactions."""
        if statement in ("COMMIT", "ROLLBACK"):
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, values)


async def test_after_a_failed_rollback_the_connection_is_replaced(tmp_path: Path) -> None:
    """Writes fail until a new connection can be opened."""
    path = tmp_path / "things.sqlite"

    def connect(kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=kind, timeout=0.1)

    def reopen() -> sqlite3.Connection:
        for fault in faults:
            raise fault
        return connect()

    faults = iter([sqlite3.OperationalError("unable to open database file"), OSError("stale file handle")])
    with closing(connect()) as made:
        made.execute("CREATE TABLE things (value INTEGER UNIQUE)")
    writer = Writer(connect(FailingConnection), reopen)
    writer.start_thread()
    with anyio.fail_after(60):
        with pytest.raises(sqlite3.OperationalError, match="disk I/O"):
            await writer.write(make_insert(1))
        with pytest.raises(sqlite3.OperationalError, match="unable to open"):
            await writer.write(make_insert(2))
        with pytest.raises(OSError, match="stale"):
            await writer.write(make_insert(2))
        assert await writer.write(make_insert(3)) == 1
    writer.stop()
    assert list_values(writer.connection) == [3]
    writer.connection.close()
