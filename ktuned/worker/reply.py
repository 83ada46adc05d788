"""The worker's end of its pipe to the daemon: phases, items and answers of the request in progress.

Each message wakes the daemon, which costs more than making many of the results. Two measures avoid that:

- **Phases** go into the journal (:mod:`ktuned.ipc.journal`).
- **Items** may be held back for a while, and leave together with a later item or with the reply. A copy of each held
  frame is in the journal, so that a worker that is killed meanwhile loses no result. The journal is told when they were
  sent, so that none is counted twice.

What user code prints is flushed before the item or reply that it belongs to.

User code may fork. A child that returns into the loop would answer a second time, so each write first checks that this
process is the worker itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Mapping
from time import monotonic, perf_counter
from typing import Any, Protocol

import msgspec

from ktuned.ipc import MAX_HELD_BYTES, Journal, replies
from ktuned.model import KernelFileError, KtunedError, Phase, describe_error, escape_surrogates
from ktuned.worker.observations import SourceChanged

_TRACE_CHARS = 8_000
"""Most characters of a traceback that are sent: its last ones, which name the error."""


class Phases(Protocol):
    """Reports phases as they begin."""

    def begin_phase(self, phase: Phase) -> None:
        """Report that a phase begins."""


class TimedPhases(msgspec.Struct, eq=False):
    """Reports the phases of one config, and measures how long each takes."""

    phases: Phases
    first: Phase
    _since: float = msgspec.field(default_factory=perf_counter)
    _seconds: dict[str, float] = {}

    def begin_phase(self, phase: Phase) -> None:
        """Report that a phase begins, and end the one before."""
        self.phases.begin_phase(phase)
        self._end_phase(phase)

    def sum_phase_seconds(self) -> Mapping[str, float]:
        """Return the seconds spent in each phase so far; a phase that began several times counts once, as a sum."""
        self._end_phase(self.first)
        return {name: round(seconds, 6) for name, seconds in self._seconds.items()}

    def _end_phase(self, following: Phase) -> None:
        now = perf_counter()
        self._seconds[self.first.value] = self._seconds.get(self.first.value, 0.0) + now - self._since
        self.first, self._since = following, now


class Reply:
    """Answers one request after another through a pipe and a ``journal``."""

    def __init__(self, write_fd: int, journal: Journal) -> None:
        self._write_fd = write_fd
        self._journal = journal
        self._pid = os.getpid()
        self._phase = Phase.SPAWN
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._held_since = 0.0

    @property
    def journal_descriptor(self) -> int:
        """The file descriptor of the journal."""
        return self._journal.descriptor

    def begin_request(self, phase: Phase) -> None:
        """Start answering a request, which the daemon has already begun in the journal."""
        self._phase = phase
        self._held.clear()
        self._held_bytes = 0
        self._journal.follow_request()

    def begin_phase(self, phase: Phase) -> None:
        """Report that a phase begins: the daemon counts its deadline from now on."""
        self._exit_if_forked()
        self._phase = phase
        self._journal.enter_phase(phase)

    def send_item(self, value: Any, *, hold_s: float = 0.0) -> None:
        """Send one of several results, and begin the current phase again for the next one.

        Args:
            value: the result, as :mod:`ktuned.ipc.replies` defines it.
            hold_s: how long, in seconds, the first held item may wait for later ones.
        """
        self._exit_if_forked()
        # Begin the phase again before anything is written: a deadline that passes from now on is the next item's.
        self._journal.enter_phase(self._phase)
        frame = replies.encode(replies.Item(value))
        now = monotonic()
        if not self._held:
            self._held_since = now
        is_due = now - self._held_since >= hold_s or self._held_bytes + len(frame) > MAX_HELD_BYTES
        self._held.append(frame)
        self._held_bytes += len(frame)
        if is_due:
            flush_output()
            self.send_held_frames()
        else:
            self._journal.hold_item(frame)

    def announce_end_of_computing(self) -> None:
        """Report that the rest of the request only waits for the disk, so that other work may use the processor."""
        flush_output()
        self.send_held_frames()
        self._write_frames(replies.encode(replies.Computed()))

    def announce_restart(self, reason: str) -> None:
        """Report that this process starts again as a fresh one, and then goes on with the request."""
        self.send_held_frames()
        self._write_frames(replies.encode(replies.Restarting(reason)))

    def send_answer(self, answer: replies.Answer) -> None:
        """Write the held frames, and then the answer's. Blocks while the daemon does not read."""
        frame = replies.encode(answer)
        if self._held:
            self._held.append(frame)
            self.send_held_frames()
        else:
            self._write_frames(frame)

    def send_held_frames(self) -> None:
        """Write all held frames at once."""
        if not self._held:
            return
        self._write_frames(b"".join(self._held))
        self._journal.record_sent(len(self._held))
        self._held.clear()
        self._held_bytes = 0

    def _exit_if_forked(self) -> None:
        """Exit if this is a child that user code forked: only the worker itself may answer."""
        if os.getpid() != self._pid:
            os._exit(1)

    def _write_frames(self, frames: bytes) -> None:
        self._exit_if_forked()
        data = memoryview(frames)
        while data:
            data = data[os.write(self._write_fd, data) :]


def flush_output() -> None:
    """Flush what user code has printed, so that it arrives before the reply."""
    # User code may have replaced or closed the streams.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def describe_failure(error: BaseException) -> replies.Failure:
    """Return an exception's code, message, hint, place and traceback, each capped."""
    trace = escape_surrogates("".join(traceback.format_exception(error)))[-_TRACE_CHARS:]
    if isinstance(error, KernelFileError):
        return replies.Failure(error.code, error.message, error.hint, trace, path=error.path, line=error.line)
    if isinstance(error, SourceChanged):
        return replies.Failure(error.code, error.message, error.hint, trace, observed=error.observed)
    if isinstance(error, KtunedError):
        return replies.Failure(error.code, error.message, error.hint, trace)
    errno = error.errno if isinstance(error, OSError) else None
    return replies.Failure("raised", describe_error(error), "", trace, errno)
