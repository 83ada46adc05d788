"""The one thread that writes: waiting writes are committed as one group, and published after the commit.

A commit waits for the disk, and one wait serves a whole group. Within its group each write has a savepoint, so that a
failing write fails alone. If the whole group fails (SQLite rolls all of it back when the disk is full), each write is
tried again alone. So a write must depend only on the connection, and may be called twice.

A connection that cannot even roll back is in an unknown state, and is replaced before anything else is written. Only a
write that was alone fails then; those of a group are tried again on the new connection.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import structlog

from ktuned.model import FrozenStruct, StoreError
from ktuned.protocol import ChannelInfo

_log = structlog.get_logger()

T = TypeVar("T")

MAX_PENDING_WRITES = 1024
"""Writes that may wait for the disk. Beyond this, :meth:`Writer.write` waits, which slows its callers down."""


class _Write(FrozenStruct):
    operation: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any]


class Writer:
    """Owns the writing connection from :meth:`start_thread` to :meth:`stop`; ``reopen`` opens a replacement for it.

    The owner closes the present ``connection`` after :meth:`stop`.
    """

    def __init__(self, connection: sqlite3.Connection, reopen: Callable[[], sqlite3.Connection]) -> None:
        self.connection = connection
        self._reopen = reopen
        self._is_broken = False
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._slots = anyio.Semaphore(MAX_PENDING_WRITES, fast_acquire=True)
        self._lock = threading.Lock()
        self._is_open = True
        self._writes = 0
        self._groups = 0
        # A daemon thread: a process that ends without closing loses nothing that was published, so it need not wait.
        self._thread = threading.Thread(target=self._run_thread, name="ktuned-store", daemon=True)

    def start_thread(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def write(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``operation`` on the connection, within a transaction; return its result once it is on the disk.

        If the caller is cancelled while the write waits, it is dropped; if later, it is still committed.

        Raises:
            StoreError: the store is closed.
            sqlite3.Error: the write failed; nothing of it was stored.
        """
        async with self._slots:
            return await self.submit_write(operation)

    def submit_write(self, operation: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Queue a write without waiting; the returned future of the running loop is settled after the commit.

        Raises:
            StoreError: the store is closed.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            if not self._is_open:
                raise StoreError("the store is closed")
            self._queue.put(_Write(operation, future))
        return future

    def stop(self) -> None:
        """Commit waiting writes and end the thread; may be called again."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._queue.put(None)
        self._thread.join()

    def describe_queue(self) -> ChannelInfo:
        """Return how many writes wait, and how many writes and commits there were."""
        return ChannelInfo(self._queue.qsize(), writes=self._writes, commits=self._groups)

    def _run_thread(self) -> None:
        is_stopping = False
        while not is_stopping:
            entries = [self._queue.get()]
            while not self._queue.empty():
                entries.append(self._queue.get())
            is_stopping = None in entries
            group = [entry for entry in entries if entry and not entry.future.cancelled()]
            if group:
                self._commit_group(group)

    def _commit_group(self, group: list[_Write]) -> None:
        try:
            self._reopen_if_broken()
            self.connection.execute("BEGIN IMMEDIATE")
        except Exception as error:
            # Any error is passed on: if this thread ended, later writes would wait forever.
            for write in group:
                _notify_waiter(write, None, error)
            return
        try:
            results = self._attempt_group(group)
            self.connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if len(group) == 1:
                _notify_waiter(group[0], None, error)
                return
            for write in group:
                self._commit_group([write])
            return
        self._groups += 1
        self._writes += len(group)
        for write, (result, failure) in zip(group, results, strict=True):
            _notify_waiter(write, result, failure)

    def _roll_back(self) -> None:
        """Roll a failed transaction back, unless SQLite has; a connection that cannot do so is not used again."""
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except Exception as error:
            _log.error("rollback_failed", reason=str(error))
            self._is_broken = True

    def _reopen_if_broken(self) -> None:
        """Replace a broken connection; SQLite's recovery then drops the transaction that was not committed.

        Raises:
            Exception: no connection can be opened now; the next write tries again.
        """
        if not self._is_broken:
            return
        with suppress(sqlite3.Error):
            self.connection.close()
        self.connection = self._reopen()
        self._is_broken = False
        _log.warning("store_reopened")

    def _attempt_group(self, group: list[_Write]) -> list[tuple[Any, Exception | None]]:
        """Run each write so that it can fail alone; a single write in its transaction needs no savepoint."""
        if len(group) == 1:
            return [(group[0].operation(self.connection), None)]
        return [self._attempt_write(write) for write in group]

    def _attempt_write(self, write: _Write) -> tuple[Any, Exception | None]:
        """Run one write in its savepoint; raise only if SQLite has rolled back the whole transaction."""
        self.connection.execute("SAVEPOINT one")
        try:
            result = write.operation(self.connection)
        except Exception as failure:
            if not self.connection.in_transaction:
                raise
            self.connection.execute("ROLLBACK TO one")
            self.connection.execute("RELEASE one")
            return None, failure
        self.connection.execute("RELEASE one")
        return result, None


def _notify_waiter(write: _Write, result: Any, failure: Exception | None) -> None:
    """Settle a future on its own event loop, unless that loop is closed."""
    with suppress(RuntimeError):
        write.future.get_loop().call_soon_threadsafe(_settle_future, write.future, result, failure)


def _settle_future(future: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if future.cancelled():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
