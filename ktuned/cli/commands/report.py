"""``ktuned report``: the HTML report of the store, or of some of its kernels."""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from msgspec.structs import replace

from ktuned.cli import lines, output, text
from ktuned.cli.completion import complete_target
from ktuned.cli.options import is_path, resolve_path
from ktuned.cli.output import Exit
from ktuned.cli.progress import begin_view
from ktuned.cli.versions import read_own_version
from ktuned.model import KtunedError, UsageError, WinnerKey
from ktuned.protocol import JOBS, KERNELS, STATUS, JobsParams, JobState, KernelsParams, call_method, describe_change
from ktuned.report import (
    Document,
    DocumentCache,
    LiveServer,
    Standing,
    make_standing_key,
    render_page,
    survey_store,
)
from ktuned.store import STORE_NAME, Overview
from ktuned_client import Client, DaemonError, DaemonUnavailable

DEFAULT_OUTPUT = Path("report.html")

_DEADLINE_S = 60.0


@click.command()
@click.argument("targets", metavar="[KERNEL|PATH]...", nargs=-1, shell_complete=complete_target)
@click.option(
    "--output",
    "-o",
    "place",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_OUTPUT,
    show_default=True,
    help="The file to write.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option("--live", is_flag=True, help="Serve a page that follows running tunings instead, until Ctrl-C.")
def report(targets: tuple[str, ...], place: Path, opens: bool, live: bool) -> int:
    """Write winners and trials as an HTML file with charts.

    The file needs no network. It lists kernels, problems and devices with their gains, says which winners are stale,
    and has charts for each problem. Without KERNEL or PATH it covers the whole store.
    """
    if live and place != DEFAULT_OUTPUT:
        raise click.UsageError("--live writes no file, so --output does not go with it")
    with Client() as client:
        status = call_method(client, STATUS)
        store, artifacts = Path(status.home) / STORE_NAME, Path(status.artifacts.directory)
        kernels = _find_kernels(client, targets)
        if live:
            return _serve_report(client, store, artifacts, kernels, opens=opens)
        standings = _load_standings(client)
    with Overview(store) as overview:
        document = survey_store(overview, read_own_version(), kernels=kernels, standings=standings, artifacts=artifacts)
    if not document.sections:
        output.print_error("there are no trials to report", "`ktuned tune PATH` makes some")
        return Exit.NOT_REACHED
    page = render_page(document)
    try:
        # Atomically, so that a browser never reads half a report.
        output.write_atomically(place, page)
    except OSError as error:
        raise UsageError(f"{place} cannot be written: {error.strerror}") from error
    trials = sum(section.trials.count for section in document.sections)
    problems = text.format_count(len(document.sections), "problem")
    output.emit_line(
        f"{place}  {problems}, {text.format_count(trials, 'trial')}, {text.format_size(len(page.encode()))}"
    )
    if opens:
        _open_browser(place.resolve().as_uri(), str(place.resolve()))
    return Exit.DONE


def _serve_report(client: Client, store: Path, artifacts: Path, kernels: set[str] | None, *, opens: bool) -> int:
    """Serve the report until Ctrl-C."""

    def read() -> Document:
        try:
            standings = _load_standings(client)
        except (DaemonUnavailable, DaemonError):
            # The daemon may be restarting; everything else comes from the store.
            standings = {}
        found = survey_store(
            overview,
            read_own_version(),
            kernels=kernels,
            standings=standings,
            is_live=True,
            artifacts=artifacts,
        )
        return replace(found, progress=_running_jobs(client, kernels))

    with Overview(store) as overview, LiveServer(DocumentCache(read, overview.data_version)) as server:
        output.emit_line(server.address)
        output.print_message("it follows the store until Ctrl-C; only this machine can open it, by this address")
        with _private_redirect(server.address) as doorway:
            if opens:
                _open_browser(doorway.as_uri(), "the address")
            server.serve_forever()
    return Exit.DONE


def _running_jobs(client: Client, kernels: set[str] | None) -> list[str]:
    """Return a line for each running or waiting job of the kernels."""
    try:
        jobs = [
            job
            for state in (JobState.RUNNING, JobState.QUEUED)
            for job in call_method(client, JOBS, JobsParams(state=state)).jobs
        ]
    except (DaemonUnavailable, DaemonError):
        return []
    return lines.describe_open_jobs(begin_view(job for job in jobs if kernels is None or job.kernel in kernels))


def _open_browser(address: str, shown: str) -> None:
    """Open a browser; if there is none, print the address to open."""
    if not webbrowser.open(address):
        output.print_error("no browser could be started", f"open {shown} in a browser")


@contextmanager
def _private_redirect(address: str) -> Iterator[Path]:
    """Write a private file that redirects to the address, because all users can read a browser's command line."""
    with tempfile.NamedTemporaryFile("w", prefix="ktuned-", suffix=".html") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
        file.flush()
        yield Path(file.name)


def _find_kernels(client: Client, targets: tuple[str, ...]) -> set[str] | None:
    """Return the full names of the kernels that the targets stand for; ``None`` for all kernels."""
    if not targets:
        return None
    found: set[str] = set()
    for target in targets:
        chosen = KernelsParams(path=resolve_path(target)) if is_path(target) else KernelsParams(kernel=target)
        names = {kernel.name for kernel in call_method(client, KERNELS, chosen).kernels}
        if not names:
            raise NoKernels(f"{target} declares no known kernel", hint="`ktuned add PATH` adds a file or a directory")
        found |= names
    return found


class NoKernels(KtunedError):
    """A path declares no kernel that the daemon knows."""

    code = "no_kernels"


def _load_standings(client: Client) -> dict[WinnerKey, Standing]:
    """Return the daemon's verdict on each winner."""
    kernels = call_method(client, KERNELS, KernelsParams(why=True), deadline_s=_DEADLINE_S).kernels
    return {
        make_standing_key(kernel.name, entry.problem, entry.device, entry.objective): Standing(
            entry.status, [*map(describe_change, entry.changes), *filter(None, [entry.message])]
        )
        for kernel in kernels
        for entry in kernel.why or ()
    }
