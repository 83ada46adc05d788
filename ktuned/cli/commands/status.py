"""``ktuned status``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import click
import msgspec

from ktuned.cli import output, text
from ktuned.cli.options import json_option
from ktuned.cli.output import Exit
from ktuned.protocol import STATUS, JobCounts, StatusAnswer
from ktuned_client import Client

NOTICE_CHARS = 1000
"""Longest notice; long, because a notice ends with the remedy, which must not be cut off."""


@click.command()
@json_option
def status(as_json: bool) -> int:
    """Show the daemon's state."""
    with Client() as client:
        answer = client.call(STATUS.name)
    if as_json:
        output.emit_json(answer)
        return Exit.DONE
    found = STATUS.read_answer(answer)
    for line in _list_summary_lines(found):
        output.emit_line(line)
    for title, columns, rows in _list_tables(found):
        if rows:
            output.emit_line()
            output.emit_line(title)
            output.print_table(columns, rows)
    for notice in found.notices:
        output.print_message(f"notice: {text.first_line(notice, NOTICE_CHARS)}")
    return Exit.DONE


def _list_summary_lines(found: StatusAnswer) -> Iterator[str]:
    yield (
        f"ktuned {found.version}, pid {found.pid}, up {text.format_duration(found.uptime_s)}, "
        f"{text.format_size(found.rss_bytes)} resident"
    )
    yield f"socket     {found.socket}"
    yield f"home       {found.home}"
    yield f"jobs       {_describe_jobs(found.jobs, found.policy)}"
    if found.paused:
        names = ", ".join(name or "all tuning" for name in found.paused)
        yield f"paused     {names}; `ktuned jobs --resume` ends it"
    store, artifacts = found.store, found.artifacts
    yield (
        f"store      {text.format_count(store.trials, 'trial')}, {text.format_count(store.winners, 'winner')}, "
        f"{text.format_count(store.jobs, 'job')}, {text.format_size(store.bytes)}"
    )
    yield f"artifacts  {text.format_size(artifacts.bytes)} of at most {text.format_size(artifacts.cap_bytes)}"
    if (share := found.share) is not None:
        when = "not yet" if share.exchanged is None else f"{text.format_duration(time.time() - share.exchanged)} ago"
        access = ", only read" if share.read_only else f", {share.sent} sent"
        yield f"share      {share.url}: {text.format_count(share.taken, 'winner')} taken{access}; last exchange {when}"


def _describe_jobs(jobs: JobCounts, policy: str) -> str:
    """Return the numbers of jobs, and the reasons why some wait although their device may be free."""
    counts = [f"{jobs.running} running", f"{jobs.queued} queued"]
    counts += [f"{jobs.paused} paused"] if jobs.paused else []
    waits = [f"{count} because {reason}" for reason, count in jobs.waits.items()]
    suffix = "" if policy == "always" else f"; policy {policy}"
    return ", ".join(counts) + (f"; waiting: {', '.join(waits)}" if waits else "") + suffix


def _list_tables(found: StatusAnswer) -> Iterator[tuple[str, list[str], list[output.Row]]]:
    """Yield each table's title, its columns and its rows."""
    lanes: list[output.Row] = [
        [lane.device, lane.model, lane.state, lane.job, lane.worker_pid, text.first_line(lane.reason) or None]
        for lane in found.lanes
    ]
    yield "lanes", ["device", "model", "state", "job", "worker", "reason"], lanes
    hosts: list[output.Row] = [
        [host.name, host.state, host.cpus, host.gpus, text.first_line(host.reason) or None]
        for host in (() if found.cluster is None else found.cluster.hosts)
    ]
    yield "hosts", ["host", "state", "CPUs", "GPUs", "reason"], hosts
    workers: list[output.Row] = [
        [
            f"{worker.host}/{worker.pid}" if worker.host else worker.pid,
            worker.role,
            worker.state,
            text.format_duration(worker.age_s),
            worker.requests,
        ]
        for worker in found.workers
    ]
    yield "workers", ["pid", "role", "state", "age", "requests"], workers
    channels: list[output.Row] = [
        [name, text.format_values(msgspec.to_builtins(channel))] for name, channel in found.channels.items()
    ]
    yield "channels", ["channel", "state"], channels
    roots: list[output.Row] = [[_describe_place(root.path), root.name, root.python] for root in found.roots]
    yield "roots", ["path", "project", "python"], roots


def _describe_place(path: str) -> str:
    return path if os.path.isdir(path) else f"{path} (gone)"
