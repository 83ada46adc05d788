"""Finds and kills processes by a mark in their environment, so that nothing outlives what started it.

A compiler's child that calls ``setsid`` leaves the process group, but every descendant inherits the environment,
however it detaches. Run as a program (``python warden.py MARK SCRATCH``) this file is the *warden*. Its standard input
is a pipe from the daemon, which closes when the daemon ends for any reason. Then the warden kills every process that
bears the mark. If the daemon did not announce its end, the warden writes down how the daemon ended.

It imports only the standard library and nothing of ktuned, so that it stays small and cannot fail with the daemon.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import sys
import time

_QUIET_SCANS = 2
_SCANS = 50


def list_marked_pids(mark: str) -> list[int]:
    """Return the ids of the user's processes with ``mark`` (``NAME=value``) in their environment, except this one."""
    entry = mark.encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                environment = stream.read()
        except OSError:
            continue
        if entry in environment.split(b"\0"):
            found.append(int(name))
    return found


def kill_marked(mark: str) -> int:
    """SIGKILL every process that bears ``mark``, repeatedly until no new one appears; return how many were killed."""
    killed: set[int] = set()
    quiet = 0
    for _ in range(_SCANS):
        new_pids = [pid for pid in list_marked_pids(mark) if pid not in killed]
        for pid in new_pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
            killed.add(pid)
        quiet = 0 if new_pids else quiet + 1
        if quiet == _QUIET_SCANS:
            break
    return len(killed)


RUNS = "runs"
"""First word in the account file of a daemon that has not ended; its process id follows."""

ORDERLY = b"ended"
"""A daemon that ends in order writes this before it closes the pipe."""

_PIDFD_GET_INFO, _INFO_BYTES, _INFO_EXIT = 0xC040FF0B, 64, 8
_EXIT_CODE_AT = 60
_STATUS_S = 2.0
"""Time that the daemon's parent gets to reap the daemon. From then on Linux 6.15 reports the daemon's status by a
pidfd."""


def describe_end(status: int | None) -> str:
    """Return how a process ended, from its ``waitpid`` status; ``None`` is a status that could not be read."""
    if status is None:
        how = "a signal that cannot be caught, or an exit of some library"
    elif status & 0x7F:
        number = status & 0x7F
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        how = f"{name}, from a person, or from the kernel for lack of memory" if number == signal.SIGKILL else name
    else:
        how = f"an exit with status {status >> 8}"
    return f"was ended by {how}, at {time.strftime('%Y-%m-%d %H:%M:%S')}"


def _await_info(pidfd: int) -> int | None:
    """Wait up to :data:`_STATUS_S` until a pidfd's process is reaped; return its status, or None if unknown."""
    end = time.monotonic() + _STATUS_S
    while (status := _read_info(pidfd)) is None and time.monotonic() < end:
        select.select([], [], [], 0.01)
    return status


def _read_stat(stat: int) -> int | None:
    """Return the exit code in ``/proc/PID/stat``, which is there as soon as the process begins to end."""
    try:
        words = os.pread(stat, 1 << 12, 0).rpartition(b")")[2].split()
        # Field 52 in proc(5), which counts from 1; the words here begin with its field 3.
        return int(words[49]) or None
    except (OSError, IndexError, ValueError):
        return None


def _read_info(pidfd: int) -> int | None:
    """Return the exit code that a pidfd reports once the process was reaped; None before."""
    request = bytearray(_INFO_BYTES)
    request[:8] = _INFO_EXIT.to_bytes(8, sys.byteorder)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request)
    except OSError:
        return None
    if not int.from_bytes(request[:8], sys.byteorder) & _INFO_EXIT:
        return None
    return int.from_bytes(request[_EXIT_CODE_AT:], sys.byteorder, signed=True)


def main(argv: list[str]) -> int:
    """Wait for the end of standard input, then kill the processes marked ``argv[0]`` and remove directory ``argv[1]``.

    If the daemon (process id ``argv[4]``) did not announce its end, write a line about how it ended into the file
    ``argv[5]``. The status comes from the daemon's pidfd (descriptor ``argv[2]``) or its ``/proc/PID/stat`` (descriptor
    ``argv[3]``).
    """
    mark, scratch, *rest = argv
    # A Ctrl-C in the daemon's terminal must reach only the daemon.
    os.setsid()
    last_words = b""
    while data := os.read(0, 1 << 12):
        last_words = data
    is_orderly = not rest or last_words.endswith(ORDERLY)
    status = None if is_orderly else _read_stat(int(rest[1]))
    if status is not None:
        _write_line(rest[3], rest[2], describe_end(status))
    kill_marked(mark)
    shutil.rmtree(scratch, ignore_errors=True)
    if status is None and not is_orderly:
        _write_line(rest[3], rest[2], describe_end(_await_info(int(rest[0]))))
    return 0


def _write_line(account: str, pid: str, line: str) -> None:
    """Replace the daemon's line in its account, unless the next daemon has written its own by now."""
    with contextlib.suppress(OSError), open(account, "r+", encoding="utf-8") as stream:
        if stream.read().strip() != f"{RUNS} {pid}":
            return
        stream.seek(0)
        stream.truncate()
        stream.write(f"the last daemon (pid {pid}) {line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
