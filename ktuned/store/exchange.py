"""Exchange of winners: those to export, and the rule by which imported ones replace ours.

The merge rule is plain code without IO; beside it are one read by a connection of its own, and one write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ktuned.model import (
    Config,
    Context,
    DeviceModel,
    Job,
    JobState,
    KernelName,
    Outcome,
    Plan,
    Priority,
    Problem,
    TrialResult,
    Winner,
)
from ktuned.store import job_writes, rows, trial_writes
from ktuned.store.faults import database_fault
from ktuned.store.reader import Reader


@dataclass(frozen=True, slots=True)
class Offer:
    """A winner from elsewhere: its context, its figure, and when it was decided (Unix seconds)."""

    context: Context
    problem: Problem
    config: Config
    latency_us: float
    spread_us: float | None
    decided: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision about an offer, with the reason in words."""

    takes: bool
    reason: str


def judge(offer: Offer, ours: Winner | None, today: Context | None) -> Verdict:
    """Decide about one offer; ``ours`` is the incumbent, ``today`` the context of a measurement made here now.

    A winner of today's context beats one of another. In one context the faster figure wins, and ours where they are
    equal. Where neither is of today's context, figures cannot be compared, and the later decision wins.
    """
    if ours is None:
        return Verdict(True, "there was none")
    if offer.context == ours.context:
        if offer.config == ours.config:
            return Verdict(False, "it is the same")
        if offer.latency_us < ours.latency_us:
            return Verdict(True, f"faster than ours, {ours.latency_us:g} µs")
        return Verdict(False, f"ours is as fast or faster, {ours.latency_us:g} µs")
    if today is not None and ours.context == today:
        return Verdict(False, "ours was measured with the sources, toolchain and driver of today")
    if today is not None and offer.context == today:
        return Verdict(True, "ours is stale")
    if offer.decided > ours.decided:
        return Verdict(True, "decided later than ours, which is stale too")
    return Verdict(False, "ours was decided later, and both are stale")


def list_shared(path: Path) -> list[tuple[str, str, int]]:
    """Return each kernel and device model that has winners, and how many, sorted; to be called in a thread."""
    with _reader(path) as reader:
        return reader.rows(
            "SELECT kernel, device, count(*) FROM winners GROUP BY kernel, device ORDER BY kernel, device"
        )


def read_shared(path: Path, kernel: str, device: str) -> list[Winner]:
    """Return a kernel's winners on a device model, by problem; to be called in a thread."""
    select = f"{rows.SELECT_WINNERS} WHERE winners.kernel = ? AND winners.device = ? ORDER BY winners.problem"
    with _reader(path) as reader:
        return reader.values(rows.winner, select, kernel, device)


@contextmanager
def _reader(path: Path) -> Iterator[Reader]:
    try:
        reader = Reader(path)
    except sqlite3.Error as error:
        raise database_fault(error, path) from error
    with closing(reader):
        yield reader


def adopt(connection: sqlite3.Connection, kernel: str, device: str, offers: Sequence[Offer], now: float) -> int:
    """Make each offer the winner of its problem, as the measured trial of a job that is done; return the job's id."""
    job = Job(
        0,
        KernelName(kernel),
        {},
        DeviceModel(device),
        JobState.DONE,
        Priority.BACKGROUND,
        "imported",
        Plan(),
        created=now,
    )
    number = job_writes.create(connection, job)
    done = len(offers)
    ended = replace(
        job, id=number, started=now, finished=now, done=done, total=done, outcomes={Outcome.MEASURED.value: done}
    )
    job_writes.update(connection, ended)
    for offer in offers:
        (trial,) = trial_writes.begin(connection, offer.context, number, [offer.config], offer.decided)
        result = TrialResult(
            Outcome.MEASURED,
            offer.latency_us,
            offer.spread_us,
            message="imported",
            detail={"phase": "import"},
        )
        trial_writes.finish(connection, trial, result, offer.decided)
        trial_writes.decide(connection, trial, offer.decided, is_final=True)
    return number
