"""One worker process: spawned as a group of its own, asked over a private pipe pair, SIGKILLed as a whole.

A request has a deadline for each phase. When one passes, when the worker dies, or when the asking task is cancelled,
the worker is killed: what it was doing cannot be known any more, and nothing is lost with it.
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
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import anyio

from ktuned.fleet import memory, warden
from ktuned.fleet.expiry import Expiry
from ktuned.fleet.failures import DeadlineExpired, Output, RequestFailed, WorkerDied
from ktuned.ipc import frames
from ktuned.model import WorkerError

DAEMON_MARK = "KTUNED_DAEMON"
WORKER_MARK = "KTUNED_WORKER"

TAIL_BYTES = 16 * 1024
"""How much of a worker's output is kept: enough for a compiler's first errors or a traceback."""

_NO_ANSWERS = "the worker sent what is no answer: its code writes to files that it did not open"

_MENDS = {
    errno.EMFILE: "raise the daemon's limit of open files (`ulimit -Hn`, or LimitNOFILE= of its unit)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.EAGAIN: "raise the limit of processes (`ulimit -u`, or TasksMax= of its unit), or end some",
    errno.ENOMEM: "end what takes the machine's memory",
}

_READ_BYTES = 1 << 16
_PIPEFULS = 4
_INBOX_LIMIT = 256


@dataclass(frozen=True, slots=True)
class Environment:
    """Whose code a worker runs: the interpreter, the directory, what the environment adds."""

    python: str
    cwd: str
    env: tuple[tuple[str, str], ...] = ()


@dataclass
class _Tail:
    """The last bytes of a stream that nobody may block on, however much is written to it."""

    fd: int
    kept: bytearray = field(default_factory=bytearray)

    def read_some(self) -> bool:
        """Take what is there; return whether the stream goes on and had something."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self.kept += data
        if len(self.kept) > 2 * TAIL_BYTES:
            del self.kept[:-TAIL_BYTES]
        return bool(data)

    def read_rest(self) -> None:
        """Take what lies in the pipe; bounded, lest code that prints without end keep the daemon reading."""
        for _ in range(_PIPEFULS):
            if not self.read_some():
                break

    def take(self) -> str:
        """Return the tail as text and begin anew."""
        if not self.kept:
            return ""
        text = bytes(self.kept[-TAIL_BYTES:]).decode(errors="replace")
        self.kept.clear()
        return text


class WorkerProcess:
    """A running worker; made by :func:`spawn`."""

    def __init__(
        self, process: subprocess.Popen[bytes], mark: str, scratch: Path, read_fd: int, write_fd: int, role: str
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.pid = process.pid
        self.role = role
        self.started = monotonic()
        self.requests = 0
        # The device on which it has worked, and has its context.
        self.seat = ""
        self.memory_bytes = 0
        self.settled_bytes = 0
        self.gone = anyio.Event()
        self._process = process
        self._mark = mark
        self._scratch = scratch
        self._loop = asyncio.get_running_loop()
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._pidfd = os.pidfd_open(process.pid)
        self._decoder = frames.Decoder()
        self._inbox: deque[dict[str, Any]] = deque()
        self._news: asyncio.Future[None] | None = None
        self._expiry = Expiry(self._loop, self._wake)
        self._deadlines: Mapping[str, float] = {}
        self._reading = True
        self._phase = "spawn"
        self._returncode: int | None = None
        self._stopped = ""
        self._tails = [_Tail(process.stdout.fileno()), _Tail(process.stderr.fileno())]
        for descriptor in (read_fd, write_fd, *(tail.fd for tail in self._tails)):
            os.set_blocking(descriptor, False)
        self._loop.add_reader(read_fd, self._on_message)
        self._loop.add_reader(self._pidfd, self._on_exit)
        for tail in self._tails:
            self._loop.add_reader(tail.fd, self._on_output, tail)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended yet."""
        return self._returncode is None

    async def call(
        self,
        request: Mapping[str, Any],
        deadlines: Mapping[str, float],
        *,
        first_phase: str,
        on_item: Callable[[dict[str, Any]], None] | None = None,
    ) -> tuple[dict[str, Any], Output]:
        """Ask the worker something; return its answer, and what its code printed meanwhile.

        ``deadlines`` gives each phase's seconds; ``first_phase`` runs until the worker names another.

        Raises:
            WorkerDied: it ended meanwhile.
            DeadlineExpired: a phase took too long; the worker is killed.
            RequestFailed: it answered that it cannot.
        """
        self.requests += 1
        self._phase = first_phase
        self._deadlines = deadlines
        for tail in self._tails:
            tail.take()
        done = False
        try:
            await self._send(frames.encode(dict(request)), deadlines[first_phase])
            answer = await self._answer(on_item)
            done = True
            return answer, self._output()
        except RequestFailed:
            done = True
            raise
        finally:
            if not done:
                self.kill()

    async def ready(self, deadline_s: float) -> None:
        """Wait until a new worker says that it can be asked.

        Raises:
            WorkerDied, DeadlineExpired: it never does; it is killed.
        """
        self._deadlines = {"spawn": deadline_s}
        done = False
        try:
            await self._answer(None)
            done = True
        finally:
            if not done:
                self.kill()

    async def _send(self, data: bytes, deadline_s: float) -> None:
        view = memoryview(data)
        # The pipe of a worker that waits for a request is empty, and most requests fit: no deadline need be watched.
        if self._returncode is None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                view = view[os.write(self._write_fd, view) :]
        if not view:
            return
        with anyio.move_on_after(deadline_s) as scope:
            while view:
                if self._returncode is not None:
                    raise WorkerDied(self._returncode, self._phase, self._output(), self._stopped)
                try:
                    view = view[os.write(self._write_fd, view) :]
                except BlockingIOError:
                    with contextlib.suppress(anyio.ClosedResourceError):
                        await anyio.wait_writable(self._write_fd)
                except BrokenPipeError:
                    await self.gone.wait()
        if scope.cancelled_caught:
            raise DeadlineExpired(self._phase, deadline_s, self._output())

    async def _answer(self, on_item: Callable[[dict[str, Any]], None] | None) -> dict[str, Any]:
        self._expiry.begin(self._deadlines[self._phase])
        try:
            while True:
                message = await self._receive()
                if "item" in message:
                    if on_item is not None:
                        on_item(message["item"])
                elif "done" in message:
                    answer: dict[str, Any] = message["done"]
                    return answer
                else:
                    raise RequestFailed(message["failed"], self._phase, self._output())
        finally:
            self._expiry.end()
            self._deadlines = {}

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _receive(self) -> dict[str, Any]:
        while not self._inbox:
            if self._returncode is not None:
                raise WorkerDied(self._returncode, self._phase, self._output(), self._stopped)
            if self._expiry.is_over:
                raise DeadlineExpired(self._phase, self._expiry.deadline_s, self._output())
            self._news = self._loop.create_future()
            await self._news
        message = self._inbox.popleft()
        if not self._reading and self._returncode is None:
            self._reading = True
            self._loop.add_reader(self._read_fd, self._on_message)
        return message

    def _output(self) -> Output:
        """Return what was printed since the request began, what still lies in the pipes included."""
        for tail in self._tails:
            if self._returncode is None:
                tail.read_rest()
        return Output(self._tails[0].take(), self._tails[1].take())

    def _on_message(self) -> None:
        try:
            data = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return
        try:
            for message in self._decoder.feed(data):
                self._take_in(message)
        except frames.FrameError:
            self.stop(_NO_ANSWERS)
            data = b""
        if not data or len(self._inbox) > _INBOX_LIMIT:
            self._loop.remove_reader(self._read_fd)
            self._reading = False
            self._wake()

    def _take_in(self, message: dict[str, Any]) -> None:
        """Follow a phase at once, without waking who waits for the answer; keep anything else for them.

        After an item its phase begins anew: what comes next has the whole deadline.
        """
        if not frames.is_answer(message):
            raise frames.FrameError("a message that is no answer")
        phase = message.get("phase", self._phase)
        if "phase" in message or "item" in message:
            if phase not in self._deadlines:
                raise frames.FrameError(f"a phase {phase!r} that has no deadline")
            self._phase = phase
            self._expiry.begin(self._deadlines[phase])
        if "phase" not in message:
            self._inbox.append(message)
            self._wake()

    def _on_output(self, tail: _Tail) -> None:
        if not tail.read_some():
            self._loop.remove_reader(tail.fd)

    def _on_exit(self) -> None:
        self.kill()  # Its children, while its process group is still its own.
        while self._reading and self._decode_rest():
            pass
        for tail in self._tails:
            tail.read_rest()
        self._returncode = self._process.wait()
        for descriptor in (self._read_fd, self._pidfd, *(tail.fd for tail in self._tails)):
            self._loop.remove_reader(descriptor)
        anyio.notify_closing(self._write_fd)
        for descriptor in (self._read_fd, self._write_fd, self._pidfd):
            os.close(descriptor)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()
        self._expiry.close()
        self._wake()
        self.gone.set()

    def _decode_rest(self) -> bool:
        try:
            data = os.read(self._read_fd, _READ_BYTES)
            for message in self._decoder.feed(data):
                self._take_in(message)
        except (BlockingIOError, frames.FrameError):
            return False
        return bool(data)

    def settle(self) -> None:
        """Take what it uses now for what it needs; what it uses beyond that later on is growth."""
        self.memory_bytes = self.settled_bytes = memory.tree_bytes(self.pid)

    def kill(self) -> None:
        """SIGKILL the whole process group; :attr:`gone` is set when the kernel has let go of the worker."""
        if self._returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def stop(self, why: str) -> None:
        """Kill the worker for what it does; ``why`` is what who asked it something is told."""
        self._stopped = why
        self.kill()

    def bury(self) -> None:
        """After :attr:`gone`: kill what left the group, remove the scratch directory. Blocks for some ms."""
        warden.sweep(self._mark)
        shutil.rmtree(self._scratch, ignore_errors=True)


def spawn(
    environment: Environment, *, role: str, base_env: Mapping[str, str], worker_id: str, scratch: Path
) -> WorkerProcess:
    """Start a worker process; await :meth:`WorkerProcess.ready` before asking it anything.

    Raises:
        WorkerError: the interpreter cannot be started.
    """
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        child_read, write_fd = os.pipe()
    except OSError as error:
        raise WorkerError(
            f"cannot start a worker: {scratch}: {error.strerror}",
            hint=_MENDS.get(error.errno or 0, "free disk space, or make it writable"),
        ) from error
    try:
        read_fd, child_write = os.pipe()
    except OSError as error:
        os.close(child_read)
        os.close(write_fd)
        raise WorkerError(f"cannot start a worker: {error.strerror}", hint=_MENDS.get(error.errno or 0, "")) from error
    env = {**base_env, **dict(environment.env), WORKER_MARK: worker_id, "TMPDIR": str(scratch)}
    try:
        # -P: a module in the worker's directory must not shadow the ones that the worker itself is made of.
        process = subprocess.Popen(
            [environment.python, "-P", "-m", "ktuned.worker", str(child_read), str(child_write), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(child_read, child_write),
            start_new_session=True,
            cwd=environment.cwd,
            env=env,
        )
    except OSError as error:
        os.close(write_fd)
        os.close(read_fd)
        interpreter = "set this root's `python` in config.toml to an interpreter that has ktuned installed"
        raise WorkerError(
            f"cannot start a worker with {environment.python} in {environment.cwd}: {error.strerror}",
            hint=_MENDS.get(error.errno or 0, interpreter),
        ) from error
    finally:
        os.close(child_read)
        os.close(child_write)
    return WorkerProcess(process, f"{WORKER_MARK}={worker_id}", scratch, read_fd, write_fd, role)
