"""Restart of a worker: the process executes itself again, and continues with the request that needs a fresh process.

User code may leave things in a process that cannot be removed: operators registered with torch, native modules, hooks.
The pipes and the process id stay the same, so that the daemon only sees a longer request. The request is passed in an
anonymous file in memory, whose descriptor the new process gets as an argument.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from ktuned.ipc import frames, requests
from ktuned.model import FrozenStruct


class ProcessStart(FrozenStruct):
    """The arguments, environment and directory that a process was started with."""

    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    directory: str

    @classmethod
    def read_this_process(cls) -> ProcessStart:
        """Return how this process was started, without the argument of an earlier restart."""
        arguments = [argument for argument in sys.orig_argv[1:] if not argument.startswith(_RESUMED)]
        return cls(tuple(arguments), dict(os.environ), os.getcwd())

    def restart_process(self, request: requests.Request[Any, Any], kept: tuple[int, ...]) -> NoReturn:
        """Execute the interpreter again with this request. Only the ``kept`` descriptors stay open."""
        descriptor = os.memfd_create("ktuned-request")
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(requests.encode(request))
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                os.set_inheritable(number, number <= 2 or number in (*kept, descriptor))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(self.directory)
        resumed = f"{_RESUMED}{descriptor}"
        os.execve(sys.executable, [sys.executable, *self.arguments, resumed], dict(self.environ))


_RESUMED = "--resumed="


def find_start_time(arguments: list[str]) -> float:
    """Return when this process's interpreter started, or a moment before, as a Unix time in s.

    ``arguments`` are the additional ones of a restarted worker, whose request was written just before its restart.
    """
    if arguments:
        return os.fstat(int(arguments[0].removeprefix(_RESUMED))).st_ctime
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stream:
        # The process's name, in parentheses, may hold blanks. The 22nd field counts ticks since the machine started.
        ticks = int(stream.read().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def read_resumed_request(arguments: list[str]) -> requests.Request[Any, Any] | None:
    """Return the request with which a restarted worker continues, from its additional arguments; ``None`` without."""
    if not arguments:
        return None
    descriptor = int(arguments[0].removeprefix(_RESUMED))
    with open(descriptor, "rb") as stream:
        stream.seek(0)
        (message,) = frames.Decoder().feed(stream.read())
    return requests.decode(message)
