"""Records how a daemon ended, for the next one's ``status``; every unusual end is reported.

A daemon writes into a file in the state directory that it runs, and removes the file when it stops in order. After any
other end, the file has a line about it:

================================  ===================================================================================
an error ended the daemon         the daemon itself writes the line
a signal, or a library's exit     the warden, which outlives the daemon, writes the line (:mod:`ktuned.fleet.warden`)
neither, as when power was lost   the file still says that the daemon runs, though no process holds the lock
================================  ===================================================================================

At a fatal signal the interpreter writes the stacks of all threads into a second file beside it.
"""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ktuned.fleet import RUNS
from ktuned.model import find_first_error

END_NAME = "last-end"
STACKS_NAME = "last-stacks"

_MOST_CHARS = 500


@contextmanager
def record_end(state: Path) -> Iterator[str]:
    """Yield the line about the last daemon's end; write one about this daemon if it does not stop in order.

    The caller holds the lock of the state directory.
    """
    notice = _read_last_end(state)
    place = state / END_NAME
    _write_line(place, f"{RUNS} {os.getpid()}")
    with _dump_stacks_on_signal(state / STACKS_NAME):
        try:
            yield notice
        except BaseException as error:
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            what = f"the last daemon (pid {os.getpid()}) was ended by an error, at {when}: {_describe_error(error)}"
            _write_line(place, what)
            raise
    with suppress(OSError):
        place.unlink()


@contextmanager
def _dump_stacks_on_signal(place: Path) -> Iterator[None]:
    """Have the stacks of all threads written into a file at a fatal signal."""
    if faulthandler.is_enabled():
        # The user has enabled it already, with another destination.
        yield
        return
    try:
        stream = place.open("w", encoding="utf-8")
    except OSError:
        yield
        return
    with stream:
        faulthandler.enable(stream, all_threads=True)
        try:
            yield
        finally:
            faulthandler.disable()


def _read_last_end(state: Path) -> str:
    try:
        found = (state / END_NAME).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    word, _, rest = found.partition(" ")
    if word == RUNS:
        found = f"the last daemon (pid {rest}) left no reason: its warden was killed, too, or the machine stopped"
    stacks, kept = state / STACKS_NAME, state / f"{STACKS_NAME}.1"
    with suppress(OSError):
        if stacks.stat().st_size:
            # Move the file away, because this daemon will open a new one.
            stacks.replace(kept)
            found = f"{found}; its stacks are in {kept}"
    return found[:_MOST_CHARS]


def _write_line(place: Path, line: str) -> None:
    with suppress(OSError):
        place.write_text(f"{line}\n", encoding="utf-8")


def _describe_error(error: BaseException) -> str:
    error = find_first_error(error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_MOST_CHARS]
