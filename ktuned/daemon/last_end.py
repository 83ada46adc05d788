"""Account of the last daemon's end, for the next one's ``status``: no end goes without a line.

A daemon writes into a file of the state's directory that it runs, and removes the file when it stops in order. After
any other end the file holds a line:

================================  ===================================================================================
an error ended the daemon         the daemon itself writes it
a signal, or a library's exit     the warden writes it, which outlives the daemon (:mod:`ktuned.fleet.warden`)
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
    """Return the line about the last daemon's end; leave one about this daemon if it does not stop in order.

    The caller holds the lock of the state's directory.
    """
    notice = _take_notice(state)
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
    """Have a fatal signal write all threads' stacks into a file."""
    if faulthandler.is_enabled():
        # Somebody else has asked for them elsewhere.
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


def _take_notice(state: Path) -> str:
    try:
        found = (state / END_NAME).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    word, _, rest = found.partition(" ")
    if word == RUNS:
        found = f"the last daemon (pid {rest}) ended without a word: its warden was killed, too, or the machine stopped"
    stacks, kept = state / STACKS_NAME, state / f"{STACKS_NAME}.1"
    with suppress(OSError):
        if stacks.stat().st_size:
            # Moved away: this daemon opens a new file.
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
