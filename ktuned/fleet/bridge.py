"""The daemon's side of the bridge: starts its process for the first call, kills it when it hangs, starts it again.

The process (:mod:`ktuned.bridge`) is treated like a worker: it has its own session, is killed as a group, and ends with
the daemon. It runs libraries that may block, crash or hang, so its end is an ordinary event:

=========  ===================================================================================================
not there  the next call starts it; during the pause after a recent end, the call fails instead
starting   calls wait; a process that does not answer within :data:`START_S` is killed
up         calls run side by side; if a heartbeat gets no answer for :data:`SILENCE_S`, the process is killed
ended      each call under way fails with :class:`BridgeDown`, and the process's remaining descendants are killed
=========  ===================================================================================================

A call that misses its own deadline fails with :class:`BridgeSlow`, and the process stays alive: one slow service must
not end the others.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, MutableSet
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Final, Never, Self

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from ktuned.bridge import Call, Hello
from ktuned.fleet import warden
from ktuned.fleet.bridge_process import BridgeProcess
from ktuned.fleet.calls import BridgeDown, BridgeSlow, I, R
from ktuned.fleet.health import Health
from ktuned.ipc import replies

_log = structlog.get_logger()

BRIDGE_MARK: Final = "KTUNED_BRIDGE"

START_S: Final = 20.0
"""Deadline for the process's first answer: its interpreter and packages may lie on a network file system."""

BEAT_S: Final = 5.0
SILENCE_S: Final = 20.0
"""Interval of heartbeats, and how long a heartbeat may stay unanswered before the process counts as hung. Importing a
large library blocks the process for seconds."""

STABLE_AFTER_S: Final = 30.0
"""A process that lived at least this long had started well: earlier failures no longer lengthen the pause after it."""

CLOSE_S: Final = 2.5
"""When the daemon ends, services get this long to release their resources on other machines. Then the process is
killed."""

REAP_S: Final = 2.0
"""Deadline for a killed process to be gone when the daemon ends."""


class Bridge:
    """A bridge. No process runs before the first call.

    Args:
        python: The interpreter of the process; a change takes effect at the next start.
        directory: The working directory of the process.
        base_env: The environment of the process.
        mark: ``NAME=value``, which is added to the environment so that the daemon's warden finds the process.
        known_children: Ids of children of the daemon that are no orphans. The bridge adds its process while it lives.
        hint: A hint for the user when the interpreter cannot be started.
        health: Counts the ends of the process, and has the pauses after them.
        beat_s: Interval of heartbeats, in seconds.
        silence_s: Seconds that a heartbeat may stay unanswered before the process is killed.
    """

    def __init__(
        self,
        *,
        python: str,
        directory: Path,
        base_env: Mapping[str, str],
        mark: str,
        known_children: MutableSet[int],
        hint: str = "give it an interpreter that has ktuned installed",
        health: Health | None = None,
        beat_s: float = BEAT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.python = python
        self._directory = directory
        name, _, self._id = mark.partition("=")
        self._env = {**base_env, name: self._id}
        # A daemon may have several bridges.
        self._bridge_id = secrets.token_hex(4)
        self._known_children = known_children
        self._hint = hint
        self._health = health or Health()
        self._beat_s = beat_s
        self._silence_s = silence_s
        self._process: BridgeProcess | None = None
        self._starting = anyio.Lock()
        self._starts = 0
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def accept_calls(self) -> AsyncIterator[Self]:
        """Allow calls to start the process during the block; on leaving, the process has ended or is killed."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                yield self
            finally:
                self._tasks = None
                tasks.cancel_scope.cancel()
                process = self._process
                if process is not None:
                    with anyio.CancelScope(shield=True):
                        process.request_end()
                        with anyio.move_on_after(CLOSE_S):
                            await process.gone.wait()
                        process.kill()
                        with anyio.move_on_after(REAP_S):
                            await process.gone.wait()
                            await anyio.to_thread.run_sync(warden.kill_marked, process.mark)

    @property
    def pid(self) -> int | None:
        """The id of the process; None if there is none."""
        return None if self._process is None else self._process.pid

    @property
    def pause_s(self) -> float:
        """Seconds until a call may start the process again; 0 if a call may do so now, or if the process is up."""
        return 0.0 if self._process is not None else self._health.pause_s

    @property
    def notices(self) -> list[str]:
        """One line about why the bridge is down; empty if it is not."""
        if self._process is not None or not self._health.is_sick:
            return []
        pause_s = self._health.pause_s
        when = f"in {pause_s:.0f} s" if pause_s else "when it is next needed"
        return [f"ktuned-bridge ended: {self._health.reason}; it is started again {when}"]

    def kill(self, why: str) -> None:
        """Kill the process; ``why`` says what it did wrong, and is the error of all calls under way."""
        if self._process is not None:
            self._process.kill(why)

    async def call_service(
        self, call: Call[R, I], deadline_s: float, *, on_item: Callable[[I], None] | None = None
    ) -> R:
        """Call a service and wait for its reply.

        Args:
            call: The call; its type says which service it is for.
            deadline_s: Seconds until the reply must come; counted anew from each item. With ``math.inf`` the call waits
                as long as the process lives.
            on_item: Called with each item that comes before the reply.

        Raises:
            BridgeDown: the process cannot be started, may not be started again yet, or ended during the call.
            BridgeSlow: the deadline passed.
            CallFailed: the service reports an error.
        """
        process = await self._get_process()
        return await process.calls.send_call(call, deadline_s, on_item)

    async def post_call(self, call: Call[replies.Empty, Never], deadline_s: float) -> None:
        """Send a call that has no answers; return as soon as it is sent.

        Raises:
            BridgeDown: as :meth:`call_service`.
            BridgeSlow: the call cannot be sent within the deadline.
        """
        process = await self._get_process()
        await process.calls.post_call(call, deadline_s)

    async def _get_process(self) -> BridgeProcess:
        """Return the process; start it if there is none."""
        async with self._starting:
            if self._process is not None:
                return self._process
            if self._tasks is None:
                raise BridgeDown("ktuned-bridge cannot be called: the daemon is ending")
            if self._health.pause_s:
                raise BridgeDown(
                    f"ktuned-bridge ended: {self._health.reason}; it is started again in {self._health.pause_s:.0f} s"
                )
            process = await self._start_process()
            self._tasks.start_soon(self._watch_process, process)
            try:
                hello = await process.calls.send_call(Hello(), START_S)
            except BaseException as error:
                process.kill("" if isinstance(error, BridgeDown) else "it did not answer")
                raise
            _log.info("bridge_started", pid=hello.pid, python=hello.python, executable=hello.executable)
            return process

    async def _start_process(self) -> BridgeProcess:
        self._starts += 1
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                popen, mark = self._spawn_process(theirs.fileno())
            except OSError as error:
                ours.close()
                reason = f"{self.python} cannot be started: {error.strerror}"
                self._health.record_failure(reason)
                raise BridgeDown(
                    f"ktuned-bridge: {reason}",
                    hint=self._hint,
                ) from error
        self._known_children.add(popen.pid)
        process = self._process = BridgeProcess(popen, mark, self._on_process_end)
        await asyncio.get_running_loop().create_connection(lambda: process, sock=ours)
        return process

    def _spawn_process(self, descriptor: int) -> tuple[subprocess.Popen[bytes], str]:
        """Start a process; return it and its mark."""
        name = f"{self._id}.{self._bridge_id}.{self._starts}"
        # -P: a module in the working directory must not shadow a module that the bridge itself needs.
        popen = subprocess.Popen(
            [self.python, "-P", "-m", "ktuned.bridge", str(descriptor), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(descriptor,),
            start_new_session=True,
            cwd=self._directory,
            env={**self._env, BRIDGE_MARK: name},
        )
        return popen, f"{BRIDGE_MARK}={name}"

    def _on_process_end(self, process: BridgeProcess) -> None:
        self._known_children.discard(process.pid)
        self._process = None
        if self._tasks is None:
            return
        if monotonic() - process.started >= STABLE_AFTER_S:
            self._health.record_success()
        self._health.record_failure(process.end)
        _log.warning("bridge_ended", pid=process.pid, reason=process.end)

    async def _watch_process(self, process: BridgeProcess) -> None:
        """Send heartbeats to the process until it is gone, then kill its remaining descendants."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_heartbeats, process)
            await process.gone.wait()
            tasks.cancel_scope.cancel()
        await anyio.to_thread.run_sync(warden.kill_marked, process.mark)

    async def _send_heartbeats(self, process: BridgeProcess) -> None:
        while True:
            await anyio.sleep(self._beat_s)
            try:
                await process.calls.send_call(Hello(), self._silence_s)
            except BridgeSlow:
                process.kill(f"it gave no sign of life for {self._silence_s:.0f} s")
            except BridgeDown:
                return
