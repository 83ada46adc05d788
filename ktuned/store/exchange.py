"""Exchange of winners: reads the winners to export, and has the rule by which imported winners replace present ones.

The rule does no IO. The reads use connections of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec.structs import replace

from ktuned.model import (
    DeviceModel,
    FailureFacts,
    FrozenStruct,
    KernelName,
    Outcome,
    Plan,
    TrialDetail,
    TrialResult,
    convert_to_cost,
    is_latency,
    name_unit,
)
from ktuned.protocol import Job, JobState, Priority
from ktuned.store import writes
from ktuned.store.contexts import Context
from ktuned.store.faults import explain_database_error
from ktuned.store.queries import Queries
from ktuned.store.reader import Reader
from ktuned.store.winners import Winner

IMPORTED = "import"
"""The ``phase`` of a trial that was not measured here."""


class Decision(FrozenStruct):
    """A decision about an offered winner, with the reason in words."""

    takes: bool
    reason: str


def judge_offer(offer: Winner, ours: Winner | None, today: Context | None) -> Decision:
    """Decide about a winner from elsewhere; ``ours`` is the incumbent, ``today`` the context of measurements made now.

    A winner of today's context beats one of another context. In the same context the better figure wins, and ours if
    they are equal. If neither is of today's context, figures cannot be compared, and the later decision wins.
    """
    if ours is None:
        return Decision(True, "there was none")
    if offer.context == ours.context:
        if offer.config == ours.config:
            return Decision(False, "it is the same")
        theirs, figure = convert_to_cost(offer.objective, offer.figure), convert_to_cost(ours.objective, ours.figure)
        word = "faster" if is_latency(ours.objective) else "better"
        better = f"{word} than the winner here, {ours.figure or 0:g} {name_unit(ours.objective)}"
        if figure is None or (theirs is not None and theirs < figure):
            return Decision(True, better)
        return Decision(False, f"it is not {better}")
    if today is not None and ours.context == today:
        return Decision(False, "the winner here was measured with the present sources, toolchain and driver")
    if today is not None and offer.context == today:
        return Decision(True, "the winner here is stale")
    if offer.decided > ours.decided:
        return Decision(True, "decided later than the winner here, which is stale, too")
    return Decision(False, "the winner here was decided later, and both are stale")


def list_exports(path: Path) -> list[tuple[str, str, int]]:
    """Return each kernel and device model with winners, and their number; call this in a thread."""
    with _open_reader(path) as reader:
        return reader.fetch_rows(
            "SELECT kernel, device, count(*) FROM winners GROUP BY kernel, device ORDER BY kernel, device"
        )


def load_exported_winners(path: Path, kernel: str, device: str) -> list[Winner]:
    """Return a kernel's winners on a device model, sorted by problem and objective; call this in a thread."""
    with _open_reader(path) as reader:
        return Queries(reader).list_winners(kernel, device)


@contextmanager
def _open_reader(path: Path) -> Iterator[Reader]:
    try:
        reader = Reader(path)
    except sqlite3.Error as error:
        raise explain_database_error(error, path) from error
    with closing(reader):
        yield reader


def adopt_winners(
    connection: sqlite3.Connection, kernel: str, device: str, offers: Sequence[Winner], now: float
) -> int:
    """Make each offer the winner of its problem, as a measured trial of one ended job; return the job's id."""
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
    number = writes.create_job(connection, job)
    done = len(offers)
    ended = replace(
        job, id=number, started=now, finished=now, done=done, total=done, outcomes={Outcome.MEASURED.value: done}
    )
    writes.update_job(connection, ended)
    for offer in offers:
        (trial,) = writes.begin_trials(connection, offer.context, number, [offer.config], offer.decided)
        result = TrialResult(
            Outcome.MEASURED,
            offer.latency_us,
            offer.spread_us,
            message="imported",
            detail=TrialDetail(FailureFacts(IMPORTED)),
            metrics=offer.metrics,
        )
        writes.finish_trial(connection, trial, result, offer.decided, objective=offer.objective)
        writes.make_winner(connection, trial, offer.decided, objective=offer.objective, is_final=True)
    return number
