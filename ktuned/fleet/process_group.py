"""A process that may have to be killed at any moment: its group, its output, its end.

A pidfd reports the end, whatever happens to the process's pipes. Then, in this order:

1. The group is killed, which ends children that are left. Once the process is reaped, the group's number may be reused.
2. The rest of the output is read, and the process is reaped.
3. ``on_exit`` is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import IO, Protocol

import msgspec

TAIL_BYTES = 16 * 1024
"""How much of a worker's output is kept, counted from its end: enough for a traceback or a compiler's errors."""

_READ_BYTES = 1 << 16
_PIPEFULS = 4


class OutputTail(msgspec.Struct):
    """The last bytes of a stream; its writer never blocks, however much it writes."""

    fd: int
    tail: bytearray = msgspec.field(default_factory=bytearray)

    def read_available(self) -> bool:
        """Read once from the stream; return False if nothing was there, or the stream has ended."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self.tail += data
        if len(self.tail) > 2 * TAIL_BYTES:
            del self.tail[:-TAIL_BYTES]
        return bool(data)

    def read_rest(self) -> None:
        """Read what is left in the pipe, but only so much, because code may print without end."""
        for _ in range(_PIPEFULS):
            if not self.read_available():
                break

    def take_text(self) -> str:
        """Return the tail as text and clear it."""
        if not self.tail:
            return ""
        text = bytes(self.tail[-TAIL_BYTES:]).decode(errors="replace")
        self.tail.clear()
        return text


class Process(Protocol):
    """A started process, with the part of the interface of :class:`subprocess.Popen` that is used here."""

    pid: int
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def wait(self) -> int:
        """Reap it and return its exit code."""


class ProcessGroup:
    """A process that leads a group of its own, with the tails of its output.

    Args:
        process: The process, with a pipe for each output that is to be read.
        on_exit: Called once the process has been reaped.

    Attributes:
        tails: The tails of its stdout and stderr.
        returncode: Its exit code; ``None`` while it is alive.
    """

    def __init__(self, process: Process, on_exit: Callable[[], None]) -> None:
        self.tails = [OutputTail(stream.fileno()) for stream in (process.stdout, process.stderr) if stream is not None]
        self.returncode: int | None = None
        self._process = process
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap_process)
        for tail in self.tails:
            os.set_blocking(tail.fd, False)
            self._loop.add_reader(tail.fd, self._read_output, tail)

    def kill(self) -> None:
        """SIGKILL the whole group, unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, unless the process has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _read_output(self, tail: OutputTail) -> None:
        if not tail.read_available():
            self._loop.remove_reader(tail.fd)

    def _reap_process(self) -> None:
        self.kill()
        for tail in self.tails:
            tail.read_rest()
        self.returncode = self._process.wait()
        for descriptor in (self._pidfd, *(tail.fd for tail in self.tails)):
            self._loop.remove_reader(descriptor)
        os.close(self._pidfd)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._on_exit()
