"""``ktuned report``: the HTML report of the store, or of some of its kernels."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from ktuned.cli import output, text
from ktuned.cli.completion import complete_target
from ktuned.cli.options import is_path, resolve_path
from ktuned.cli.output import Exit
from ktuned.cli.versions import read_own_version
from ktuned.model import KtunedError, UsageError, WinnerKey
from ktuned.protocol import KERNELS, STATUS, KernelsParams, call_method, describe_change
from ktuned.report import Standing, make_standing_key, render_page, survey_store
from ktuned.store import STORE_NAME, Overview
from ktuned_client import Client

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
def report(targets: tuple[str, ...], place: Path, opens: bool) -> int:
    """Write winners and trials as an HTML file with charts.

    The file needs no network. It lists kernels, problems and devices with their gains, says which winners are stale,
    and has charts for each problem. Without KERNEL or PATH it covers the whole store.
    """
    with Client() as client:
        status = call_method(client, STATUS)
        store, artifacts = Path(status.home) / STORE_NAME, Path(status.artifacts.directory)
        kernels = _find_kernels(client, targets)
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
        _open_browser(place.resolve())
    return Exit.DONE


def _open_browser(page: Path) -> None:
    """Open a page in a browser; if there is none, print the page's path."""
    if not webbrowser.open(page.as_uri()):
        output.print_error("no browser could be started", f"open {page} in a browser")


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
