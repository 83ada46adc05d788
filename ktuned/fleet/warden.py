"""Finds and kills processes by a mark in their environment, so that nothing outlives what started it.

A process group does not hold a compiler's child that called ``setsid``; a mark in the environment is inherited by
every descendant, however it detaches. Run as a program (``python warden.py MARK``) this file is the *warden*: it waits
until its standard input closes, which is when the daemon is gone, however it went, and kills what bears the mark.

Only the standard library is imported, and nothing of ktuned, so that the warden stays small and cannot fail with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

_QUIET_SCANS = 2
_SCANS = 50


def marked(mark: str) -> list[int]:
    """Return the ids of our processes whose environment holds ``mark`` (``NAME=value``), ourselves excepted."""
    wanted = mark.encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                environment = stream.read()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(name))
    return found


def sweep(mark: str) -> int:
    """SIGKILL whatever bears ``mark``, again and again until nothing new appears; return how many were killed."""
    killed: set[int] = set()
    quiet = 0
    for _ in range(_SCANS):
        fresh = [pid for pid in marked(mark) if pid not in killed]
        for pid in fresh:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
            killed.add(pid)
        quiet = 0 if fresh else quiet + 1
        if quiet == _QUIET_SCANS:
            break
    return len(killed)


def main(argv: list[str]) -> int:
    """Wait for the end of standard input, then sweep ``argv[0]`` and remove the directory ``argv[1]``."""
    mark, scratch = argv
    # A Ctrl-C in the daemon's terminal is for the daemon.
    os.setsid()
    while os.read(0, 1 << 12):
        pass
    sweep(mark)
    shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
