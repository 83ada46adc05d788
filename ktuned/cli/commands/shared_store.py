"""``ktuned share``: shows the shared store, and exchanges winners with it at once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from ktuned.cli import output, spawn, text
from ktuned.cli.options import SectionedCommand, json_option
from ktuned.cli.output import Exit
from ktuned.cli.present import choose_presenter, follow_tuning
from ktuned.protocol import SHARE, SHARE_PULL, SHARE_PUSH, ShareAnswer, SharePullParams, call_method

_EXCHANGE_S = 600.0
"""Deadline of an exchange: enough for thousands of winners over a slow link; each winner has its own deadline, too."""


@click.group()
def share() -> None:
    """Exchange winners with other daemons through a shared store.

    `[share] url = …` in config.toml says where: a directory, object storage or Redis.
    """


@share.command(cls=SectionedCommand)
@json_option
def status(as_json: bool) -> int:
    """Show the store, what is shared, and what keeps it from being shared."""
    with spawn.open_client() as client:
        state = call_method(client, SHARE)
    output.emit_answer(state, as_json, *_list_state_lines(state))
    return Exit.NOT_REACHED if state.fault else Exit.DONE


def _list_state_lines(state: ShareAnswer) -> Iterator[str]:
    if state.url is None:
        yield "there is no shared store; set `url` of [share] in config.toml"
        return
    yield f"{state.url}{', only read' if state.read_only else ''}"
    if state.looked is None:
        yield "not looked up yet"
    else:
        found = text.format_count(state.found or 0, "problem")
        age = text.format_duration(max(0.0, time.time() - state.looked))
        yield f"winners for {found} of this machine, {state.fresh} of them fresh here; last looked up {age} ago"
    yield from state.notices


@share.command(cls=SectionedCommand)
@json_option
def push(as_json: bool) -> int:
    """Publish winners now, and wait until they are there.

    Use it at the end of a CI job on an ephemeral runner. Exits with 1 if the store cannot be reached or refuses.
    """
    with spawn.open_client() as client, output.report_waiting("publishing winners"):
        done = call_method(client, SHARE_PUSH, deadline_s=_EXCHANGE_S)
    output.emit_answer(done, as_json, f"{done.url} has all our winners; {done.sent} sent now")
    return Exit.DONE


@share.command(cls=SectionedCommand)
@click.argument("kernel", required=False)
@json_option
def pull(kernel: str | None, as_json: bool) -> int:
    """Take others' winners for the declared problems of KERNEL, or of all kernels.

    Each is compiled, checked and timed here. It is served without a search if it is as fast here as it was there; else
    the search begins with it.
    """
    with spawn.open_client() as client:
        with output.report_waiting("reading others' winners"):
            accepted = call_method(client, SHARE_PULL, SharePullParams(kernel), deadline_s=_EXCHANGE_S)
        for notice in accepted.notices:
            output.print_message(notice)
        view = follow_tuning(client, accepted, choose_presenter(as_json=as_json))
    jobs = [known.job for known in view.jobs.values()]
    if as_json:
        output.emit_json({"url": accepted.url, "found": accepted.found, "fresh": accepted.fresh, "jobs": jobs})
    else:
        output.emit_line(
            f"{accepted.url} has winners for {text.format_count(accepted.found, 'problem')} of this machine; "
            f"{accepted.fresh} known here, {len(jobs)} tried now"
        )
        for job in jobs:
            output.emit_line(
                f"{job.kernel} {text.format_values(job.problem)}: {job.state}; {text.first_line(job.message)}"
            )
    return Exit.DONE if all(job.has_winner for job in jobs) else Exit.NOT_REACHED
