"""``ktuned watch``: shows the tuning after each save, or checks once that no kernel became slower."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ktuned.cli import output, spawn
from ktuned.cli.commands.regressions import check_regressions
from ktuned.cli.options import SectionedCommand, json_option, read_share, resolve_path
from ktuned.cli.output import Exit
from ktuned.cli.present import choose_presenter, request_tuning
from ktuned.cli.progress import View, add_earlier_winners, begin_view, concerns_project, fold_event, resync_view
from ktuned.protocol import (
    JOBS,
    KERNELS,
    PEAKS,
    TUNE,
    JobInfo,
    StreamGap,
    TuneParams,
    call_method,
    find_root,
    read_event,
)
from ktuned_client import Client

DEFAULT_TOLERANCE = 0.03
"""Fraction by which a winner may be slower: three times the precision of a winner (docs/reference/kernel-files.md)."""

MAX_ROOTS = 4
"""Most roots that one line names."""


@click.command(cls=SectionedCommand)
@click.argument("path", required=False)
@click.option(
    "--once", is_flag=True, help="Tune stale kernels, compare, and exit; with 1 if a kernel is slower or fails."
)
@click.option(
    "--tolerance",
    metavar="SHARE",
    callback=read_share,
    help="With --once: how much slower a winner may become, as 3% or 0.03; default 3%.",
)
@click.option(
    "--against",
    metavar="PATH",
    type=click.Path(exists=True, path_type=Path),
    help="With --once: compare with the winners that `ktuned export` wrote there, to find slow drift.",
)
@json_option
def watch(path: str | None, once: bool, tolerance: float | None, against: Path | None, as_json: bool) -> int:
    """Show kernels, and tune each one again when you save its files.

    PATH is a kernel file or a directory. The daemon tunes the stale kernels there, and watches the project from then
    on. Without PATH, the command shows everything that the daemon watches. On a terminal it shows a screen with keys.
    Elsewhere it prints lines, or with --json one event per line.
    """
    if tolerance is not None and not once:
        raise click.UsageError("--tolerance goes with --once")
    if against is not None and not once:
        raise click.UsageError("--against goes with --once")
    root = None if path is None else resolve_path(path, "`watch` takes a path; `ktuned tune KERNEL` tunes a kernel")
    with spawn.open_client() as client:
        if once:
            allowed = DEFAULT_TOLERANCE if tolerance is None else tolerance
            return check_regressions(client, root, allowed, against, as_json)
        since = None
        if root is not None:
            accepted = request_tuning(client, TUNE, TuneParams(path=root, stale_only=True))
            since = (accepted.epoch, accepted.seq)
        roots = call_method(client, KERNELS).roots
        holder = None if root is None else find_root(root, roots)
        project = None if holder is None else holder.name
        watched = _list_paths([known.path for known in roots])
        try:
            if not as_json and _has_screen():
                # Imported here, because importing Textual takes a moment and only a screen needs it.
                from ktuned.cli.watch import app

                app.show_screen(root, project, since)
            else:
                output.print_message(
                    f"watching {watched if root is None else root}; Ctrl-C ends the view, and the daemon continues"
                )
                _follow_saves(client, since, project, as_json)
        except KeyboardInterrupt:
            pass
        output.print_message(
            f"the daemon continues to watch {watched}; `ktuned remove PATH` ends that, `ktuned stop` the daemon"
        )
    return Exit.DONE


def _has_screen() -> bool:
    """Return whether a screen can be drawn, which needs a terminal that can move its cursor."""
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _list_paths(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:MAX_ROOTS])
    if len(paths) > MAX_ROOTS:
        return f"{shown} and {len(paths) - MAX_ROOTS} more (`ktuned status`)"
    return shown or "nothing yet (`ktuned add PATH` adds a file or a directory)"


def _follow_saves(client: Client, since: tuple[int, int] | None, project: str | None, as_json: bool) -> None:
    with client.events(since=since) as events, choose_presenter(as_json=as_json) as presenter:
        view = _catch_up(client, project)
        presenter.show_event(None, view, ())
        for received in events:
            if not concerns_project(received.get("kernel"), project):
                continue
            event = read_event(received)
            if isinstance(event, StreamGap):
                view, news = resync_view(view, _load_jobs(client, project))
            else:
                view, news = fold_event(view, event)
            presenter.show_event(received, view, news)
            view = view.without_ended()


def _catch_up(client: Client, project: str | None) -> View:
    known = _load_jobs(client, project)
    view = begin_view((job for job in known if not job.is_ended), call_method(client, PEAKS).by_device)
    return add_earlier_winners(view, (job for job in known if job.is_ended))


def _load_jobs(client: Client, project: str | None) -> list[JobInfo]:
    return [job for job in call_method(client, JOBS).jobs if concerns_project(job.kernel, project)]
