"""Finds and kills processes by a mark in their environment, so that nothing outlives what started it.

A compiler's child that calls ``setsid`` leaves the process group, but every descendant inherits the environment,
however it detaches. Run as a program (``python warden.py MARK SCRATCH``) this file is the *warden*. Its standard input
is a pipe from the daemon, which closes when the daemon ends for any reason. Then the warden kills every process that
bears the mark.

It imports only the standard library and nothing of ktuned, so that it stays small and cannot fail with the daemon.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

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


def main(argv: list[str]) -> int:
    """Wait for the end of standard input. Then kill processes marked ``argv[0]``, and remove directory ``argv[1]``."""
    mark, scratch = argv
    # A Ctrl-C in the daemon's terminal must reach only the daemon.
    os.setsid()
    while os.read(0, 1 << 12):
        pass
    kill_marked(mark)
    shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
