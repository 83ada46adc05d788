"""The writes that concern jobs, as functions of the writer's connection, each within its transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection

from ktuned.model import Job, NotFound, canonical


def create_job(connection: sqlite3.Connection, job: Job) -> int:
    """Enter a job, and return its id."""
    plan = canonical(job.plan.to_wire())
    number = connection.execute(
        """INSERT INTO jobs (kernel, problem, key_problem, device, state, priority, reason, plan, created)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            job.kernel,
            canonical(job.problem),
            job.key_problem,
            job.device,
            job.state,
            job.priority,
            job.reason,
            plan,
            job.created,
        ),
    ).lastrowid
    return number or 0


def update_job(connection: sqlite3.Connection, job: Job) -> None:
    """Store all of a job but what it was created with (kernel, problem, device, created).

    Raises:
        NotFound: there is no such job.
    """
    changed = connection.execute(
        """UPDATE jobs SET state = ?, priority = ?, reason = ?, plan = ?, started = ?, finished = ?, done = ?,
        total = ?, best_us = ?, best_spread_us = ?, default_us = ?, default_spread_us = ?, reference_us = ?,
        reference_spread_us = ?, best_figure = ?, default_figure = ?, outcomes = ?, message = ?, cost = ?
        WHERE id = ?""",
        (
            job.state,
            job.priority,
            job.reason,
            canonical(job.plan.to_wire()),
            job.started,
            job.finished,
            job.done,
            job.total,
            job.best_us,
            job.best_spread_us,
            job.default_us,
            job.default_spread_us,
            job.reference_us,
            job.reference_spread_us,
            job.best_figure,
            job.default_figure,
            json.dumps(dict(job.outcomes)),
            job.message,
            json.dumps(dict(job.cost)),
            job.id,
        ),
    ).rowcount
    if not changed:
        raise NotFound(f"there is no job {job.id}")


def save_pauses(connection: sqlite3.Connection, devices: Collection[str]) -> None:
    """Remember which device models are paused, and no others."""
    connection.execute("DELETE FROM pauses")
    connection.executemany("INSERT INTO pauses (device) VALUES (?)", [(device,) for device in devices])
