"""One worker process: spawned as a group of its own, served over a private pipe pair, SIGKILLed as a whole.

The worker runs user code, so nothing that it does may block or mislead the daemon:

- *It has one request at a time*, and each phase of the request has a deadline (:mod:`~ktuned.fleet.phases`). After a
  missed deadline, or when the calling task is cancelled, the worker is killed: its state cannot be inspected, and
  nothing is lost with it. Only a worker that replies, if only with an error, stays alive.
- *Descriptors never block.* A request is written as fast as the pipe takes it. The worker's output is read at once and
  only its tail is kept, so a flood of output blocks nobody. Answers are read until :data:`_INBOX_LIMIT` of them wait
  for the caller.
- *Answers are checked.* User code may write into the pipe; a message that is no answer to the present request ends the
  worker.
- *Its end* is seen whatever happens to the pipes (:mod:`~ktuned.fleet.process_group`). Then the remaining answers are
  read, so that items which came before the death count.
- *Processes that left the group* (by ``setsid``) bear the worker's mark in their environment, and are found and killed
  by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import structlog

from ktuned import observer
from ktuned.fleet import memory, warden
from ktuned.fleet.executor import Environment, I, R, Worker
from ktuned.fleet.failures import DeadlineExpired, JournalFailed, Output, RequestFailed, WorkerDied
from ktuned.fleet.phases import Phases
from ktuned.fleet.process_group import Process, ProcessGroup
from ktuned.ipc import (
    JOURNAL_VARIABLE,
    InvalidMessage,
    Journal,
    Places,
    frames,
    replies,
    requests,
)
from ktuned.model import Phase, Role, WorkerError

_log = structlog.get_logger()

_NO_ANSWERS = "the worker sent an invalid answer: its code writes to files that it did not open"

_HINTS = {
    errno.EMFILE: "raise the daemon's limit of open files (`ulimit -Hn`, or LimitNOFILE= of its unit)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.EAGAIN: "raise the limit of processes (`ulimit -u`, or TasksMax= of its unit), or end some",
    errno.ENOMEM: "end programs that use much memory",
}

_READ_BYTES = 1 << 16
_INBOX_LIMIT = 256


StartProcess = Callable[..., Process]
"""Starts a process from its command and the options of :class:`subprocess.Popen`."""


class WorkerProcess(Worker):
    """A worker on this machine; made by :func:`spawn_worker`."""

    def __init__(
        self,
        role: Role,
        environment: Environment,
        process: Process,
        *,
        mark: str,
        scratch: Path,
        read_fd: int,
        write_fd: int,
        journal: Journal,
    ) -> None:
        super().__init__(role, environment, process.pid)
        self._group = ProcessGroup(process, self._on_exit)
        self._mark = mark
        self._scratch = scratch
        self._loop = asyncio.get_running_loop()
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._decoder = frames.Decoder()
        self._inbox: deque[replies.Item | replies.Done | replies.Failed] = deque()
        self._answer_types: tuple[type[Any], type[Any] | None] | None = (replies.Ready, None)
        self._on_computed: Callable[[], None] | None = None
        self._answer_arrived: asyncio.Future[None] | None = None
        self._phases = Phases(
            self._loop, journal, on_expired=self._on_deadline, before_look=self._read_arrived_messages
        )
        self._item_count = 0
        self._is_reading = True
        self._kill_reason = ""
        for descriptor in (read_fd, write_fd):
            os.set_blocking(descriptor, False)
        self._loop.add_reader(read_fd, self._on_message)

    @property
    def is_alive(self) -> bool:
        """True until the process has ended."""
        return self._group.returncode is None

    async def send_request(
        self,
        request: requests.Request[R, I],
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[I], None] | None = None,
        on_computed: Callable[[], None] | None = None,
    ) -> tuple[R, Output]:
        """Send a request; return its reply, and what the worker's code printed meanwhile.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: as :meth:`Worker.send_request`.
        """
        self.requests += 1
        self._begin_request(self.requests, request.first_phase, deadlines)
        self._item_count = 0
        self._answer_types = requests.find_answer_types(type(request))
        self._on_computed = on_computed
        for tail in self._group.tails:
            tail.take_text()
        done = False
        try:
            await self._write_request(requests.encode(request), deadlines[request.first_phase])
            reply: R = await self._await_reply(on_item)
            done = True
            return reply, self.take_output()
        except RequestFailed:
            done = True
            raise
        finally:
            if not done:
                self.kill()

    async def await_ready(self, deadline_s: float) -> None:
        """Wait until a new worker takes requests.

        Raises:
            WorkerDied, DeadlineExpired: the worker is not ready; it is killed.
        """
        self._begin_request(0, Phase.SPAWN, {Phase.SPAWN: deadline_s})
        done = False
        try:
            await self._await_reply(None)
            done = True
        finally:
            if not done:
                self.kill()

    def _begin_request(self, number: int, phase: Phase, deadlines: Mapping[str, float]) -> None:
        try:
            self._phases.begin_request(number, phase, deadlines)
        except OSError as error:
            # For example because of a limit on file sizes that was set after this worker's start.
            self.kill()
            raise JournalFailed(error.strerror or str(error), phase) from error

    async def _write_request(self, data: bytes, deadline_s: float) -> None:
        view = memoryview(data)
        # The pipe of a worker that waits for a request is empty, and most requests fit, so most need no timer.
        if self._group.returncode is None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                view = view[os.write(self._write_fd, view) :]
        if not view:
            return
        with anyio.move_on_after(deadline_s) as scope:
            while view:
                if self._group.returncode is not None:
                    raise self._make_death_error(self._group.returncode)
                try:
                    view = view[os.write(self._write_fd, view) :]
                except BlockingIOError:
                    with contextlib.suppress(anyio.ClosedResourceError):
                        await anyio.wait_writable(self._write_fd)
                except BrokenPipeError:
                    await self.gone.wait()
        if scope.cancelled_caught:
            raise DeadlineExpired(self._phases.current, deadline_s, self.take_output())

    async def _await_reply(self, on_item: Callable[[Any], None] | None) -> Any:
        try:
            while True:
                match await self._await_answer():
                    case replies.Item(value):
                        if on_item is not None:
                            on_item(value)
                    case replies.Done(value):
                        return value
                    case replies.Failed(failure):
                        self._phases.read_journal()
                        raise RequestFailed(failure, self._phases.current, self.take_output())
        finally:
            self._phases.end_request()
            self._answer_types = None

    def _wake_caller(self) -> None:
        if self._answer_arrived is not None and not self._answer_arrived.done():
            self._answer_arrived.set_result(None)

    async def _await_answer(self) -> replies.Item | replies.Done | replies.Failed:
        while not self._inbox:
            if self._group.returncode is not None:
                raise self._make_death_error(self._group.returncode)
            if self._phases.is_over:
                raise DeadlineExpired(self._phases.current, self._phases.deadline_s, self.take_output())
            self._answer_arrived = self._loop.create_future()
            await self._answer_arrived
        answer = self._inbox.popleft()
        if not self._is_reading and self._group.returncode is None:
            self._is_reading = True
            self._loop.add_reader(self._read_fd, self._on_message)
        return answer

    def _make_death_error(self, returncode: int) -> WorkerDied:
        return WorkerDied(returncode, self._phases.current, self.take_output(), self._kill_reason, self._phases.fault)

    def take_output(self) -> Output:
        """Return the output since the last call or the request's begin, also what is still in the pipes; forget it."""
        for tail in self._group.tails:
            if self._group.returncode is None:
                tail.read_rest()
        return Output(self._group.tails[0].take_text(), self._group.tails[1].take_text())

    def _on_message(self) -> None:
        try:
            data = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return
        try:
            for message in self._decoder.feed(data):
                self._handle_message(message)
        except (frames.FrameError, InvalidMessage):
            self.kill(_NO_ANSWERS)
            data = b""
        if not data or len(self._inbox) > _INBOX_LIMIT:
            self._loop.remove_reader(self._read_fd)
            self._is_reading = False
            self._wake_caller()

    def _read_arrived_messages(self) -> None:
        """Read messages that have arrived, even if the event loop has not reported them yet."""
        if self._is_reading and self._group.returncode is None:
            self._on_message()

    def _on_deadline(self) -> None:
        """End the request under way after its deadline has passed. Items that the worker held back still count."""
        self._handle_held_items()
        self._wake_caller()

    def _handle_held_items(self) -> None:
        """Take in the items that the worker has finished in this request and not sent yet."""
        held = self._phases.held
        if self._answer_types is None or not held.frames:
            return
        # A worker that dies while it sends items has not removed them from its journal: skip those that have arrived.
        known = max(0, self._item_count - held.first)
        with contextlib.suppress(frames.FrameError, InvalidMessage):
            for message in list(frames.Decoder().feed(held.frames))[known:]:
                self._handle_message(message)

    def _handle_message(self, message: bytes) -> None:
        """Handle one message: the end of computing and a restart at once; items and replies are kept for the caller."""
        if self._answer_types is None:
            raise InvalidMessage("an answer without a request")
        answer = replies.decode(message, *self._answer_types)
        if isinstance(answer, replies.Computed):
            if self._on_computed is not None:
                self._on_computed()
            return
        if isinstance(answer, replies.Restarting):
            _log.info("worker_restarted", pid=self.pid, role=self.role, reason=answer.reason)
            return
        if isinstance(answer, replies.Item):
            self._item_count += 1
        self._inbox.append(answer)
        self._wake_caller()

    def _on_exit(self) -> None:
        while self._is_reading and self._read_rest():
            pass
        self._loop.remove_reader(self._read_fd)
        anyio.notify_closing(self._write_fd)
        for descriptor in (self._read_fd, self._write_fd):
            os.close(descriptor)
        self._phases.close()
        self._handle_held_items()
        self._wake_caller()
        self.gone.set()

    def _read_rest(self) -> bool:
        try:
            data = os.read(self._read_fd, _READ_BYTES)
            for message in self._decoder.feed(data):
                self._handle_message(message)
        except (BlockingIOError, frames.FrameError, InvalidMessage):
            return False
        return bool(data)

    def read_phase_durations(self) -> dict[str, float]:
        """Return the seconds that each phase of the last request took, until now."""
        return self._phases.read_durations()

    def measure_memory(self) -> None:
        """Set :attr:`memory_bytes` to what the process and its descendants have resident."""
        self.memory_bytes = memory.measure_tree(self.pid)

    def read_cpu_ticks(self) -> int | None:
        """Return the processor time of the process and its descendants, in clock ticks."""
        return memory.measure_cpu_ticks(self.pid)

    def kill(self, why: str = "") -> None:
        """SIGKILL the whole process group; :attr:`gone` is set when the process has ended."""
        self._kill_reason = why or self._kill_reason
        self._group.kill()

    @property
    def can_pause(self) -> bool:
        """True: its process group can be stopped."""
        return True

    @property
    def paused_s(self) -> float:
        """For how many seconds it was paused in the present request, or in the last one."""
        return self._phases.paused_s

    def pause_work(self) -> None:
        """Stop the process group; a process that has left it goes on."""
        self._phases.stop_clock()
        self._group.send_signal(signal.SIGSTOP)

    def resume_work(self) -> None:
        """Let the process group go on."""
        self._group.send_signal(signal.SIGCONT)
        self._phases.continue_clock()

    def remove_traces(self) -> None:
        """After :attr:`gone`: kill processes that left the group, and remove the scratch directory. Blocks for ms."""
        warden.kill_marked(self._mark)
        shutil.rmtree(self._scratch, ignore_errors=True)


def spawn_worker(
    environment: Environment,
    *,
    role: Role,
    base_env: Mapping[str, str],
    places: Places,
    worker_id: str,
    scratch: Path,
    start_process: StartProcess = subprocess.Popen,
) -> WorkerProcess:
    """Start a worker process; await :meth:`WorkerProcess.await_ready` before the first request.

    Raises:
        WorkerError: the interpreter cannot be started.
    """
    try:
        scratch.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkerError(
            f"cannot start a worker: {scratch}: {error.strerror}",
            hint=_HINTS.get(error.errno or 0, "free disk space, or make it writable"),
        ) from error
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as childs:
        try:
            child_read, write_fd = _make_pipe(childs, ours)
            read_fd, child_write = _make_pipe(ours, childs)
            journal = ours.enter_context(contextlib.closing(Journal.create()))
        except OSError as error:
            hint = _HINTS.get(error.errno or 0, "")
            raise WorkerError(f"cannot start a worker: {error.strerror}", hint=hint) from error
        env = {
            **base_env,
            **dict(environment.env),
            observer.WORKER_MARK: worker_id,
            "TMPDIR": str(scratch),
            JOURNAL_VARIABLE: str(journal.descriptor),
        }
        env |= observer.make_worker_variables(scratch, env, places.trusted)
        arguments = (role, str(child_read), str(child_write), str(os.getpid()), places.to_argument())
        try:
            # -P: a module in the worker's directory must not shadow a module that the worker itself needs.
            process = start_process(
                [environment.python, "-P", "-m", "ktuned.worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(child_read, child_write, journal.descriptor),
                start_new_session=True,
                cwd=environment.cwd,
                env=env,
            )
        except OSError as error:
            interpreter = "set this root's `python` in config.toml to an interpreter that has ktuned installed"
            raise WorkerError(
                f"cannot start a worker with {environment.python} in {environment.cwd}: {error.strerror}",
                hint=_HINTS.get(error.errno or 0, interpreter),
            ) from error
        # From now on the WorkerProcess closes these descriptors.
        ours.pop_all()
    mark = f"{observer.WORKER_MARK}={worker_id}"
    return WorkerProcess(
        role, environment, process, mark=mark, scratch=scratch, read_fd=read_fd, write_fd=write_fd, journal=journal
    )


def _make_pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    """Make a pipe; ``reading`` closes its reading end, ``writing`` its writing end."""
    read_fd, write_fd = os.pipe()
    reading.callback(os.close, read_fd)
    writing.callback(os.close, write_fd)
    return read_fd, write_fd
