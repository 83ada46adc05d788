"""Finds and kills processes by a mark in their environment, so that nothing outlives what started it.

A compiler's child that calls ``setsid`` leaves the process group, but every descendant inherits the environment,
however it detaches. Run as a program (``python warden.py MARK``) this file is the *warden*. Its standard input is a
pipe from the daemon, which closes when the daemon is gone, however it went. Then the warden kills what bears the mark.
Unless the daemon had said that it ends, the warden leaves a line about how it ended.

It imports the standard library alone, and nothing of ktuned, so that it stays small and cannot fail with the daemon.
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
    """Return the ids of our processes whose environment holds ``mark`` (``NAME=value``), this one excepted."""
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
    """SIGKILL whatever bears ``mark``, again and again until nothing new appears; return how many were killed."""
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
"""First word in the account of a daemon that has not ended; its process id follows."""

ORDERLY = b"ended"
"""What a daemon that ends in order writes before it closes the pipe."""

_PIDFD_GET_INFO, _INFO_BYTES, _INFO_EXIT = 0xC040FF0B, 64, 8
_EXIT_CODE_AT = 60
_STATUS_S = 2.0
"""Time for the daemon's parent to reap it: from then on Linux 6.15 has its status for those that hold a pidfd."""


def describe_end(status: int | None) -> str:
    """Return how a process ended, from its ``waitpid`` status; ``None`` is a status that could not be read."""
    if status is None:
        how = "a signal that cannot be caught, or an exit of some library"
    elif status & 0x7F:
        number = status & 0x7F
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        how = f"{name}: a person's, or the kernel's for want of memory" if number == signal.SIGKILL else name
    else:
        how = f"an exit with status {status >> 8}"
    return f"was ended by {how}, at {time.strftime('%Y-%m-%d %H:%M:%S')}"


def _await_info(pidfd: int) -> int | None:
    """Wait a moment for the status that a pidfd has once its process is reaped; return it, or None."""
    end = time.monotonic() + _STATUS_S
    while (status := _read_info(pidfd)) is None and time.monotonic() < end:
        select.select([], [], [], 0.01)
    return status


def _read_stat(stat: int) -> int | None:
    """Return the exit code in ``/proc/PID/stat``, which a process has from the first moment of its end."""
    try:
        words = os.pread(stat, 1 << 12, 0).rpartition(b")")[2].split()
        # proc(5): field 52, and the third comes first here.
        return int(words[49]) or None
    except (OSError, IndexError, ValueError):
        return None


def _read_info(pidfd: int) -> int | None:
    """Return the exit code that a pidfd knows once the process was reaped."""
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
    """Wait for the end of standard input, then sweep ``argv[0]`` and remove the directory ``argv[1]``.

    If the daemon (``argv[4]``) did not say that it ends, a line about how it did goes into the file ``argv[5]``: as its
    pidfd and its ``/proc/PID/stat`` have it, which are open as ``argv[2]`` and ``argv[3]``.
    """
    mark, scratch, *rest = argv
    # A Ctrl-C in the daemon's terminal is for the daemon.
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
