"""``ktuned watch``: shows the tuning after each save, or checks once that no kernel became slower."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from ktuned.cli import output, regression, spawn, text
from ktuned.cli.commands.share import read_documents
from ktuned.cli.commands.tune import begin_tuning
from ktuned.cli.exit_status import Exit
from ktuned.cli.job_view import View
from ktuned.cli.limits import load_limits
from ktuned.cli.options import SectionedCommand, as_path, drop_missing, json_option, no_spawn_option
from ktuned.cli.present import choose_presenter, follow_tuning
from ktuned.cli.progress import add_earlier_winners, begin_view, fold_event, resync_view
from ktuned.model import LATENCY, Objective, Problem, Status, figure_of, mention_objective
from ktuned.protocol import (
    JOBS,
    LOOKUP_MANY,
    TUNE,
    Answer,
    FileError,
    JobInfo,
    JobsParams,
    LookupManyParams,
    LookupParams,
    StreamGap,
    TuneParams,
    call_method,
    read_event,
)
from ktuned_client import Client
from ktuned_client.answers import TUNE_DEADLINE_S

DEFAULT_TOLERANCE = 0.03
"""Share by which a winner may be slower: three times the precision of one (docs/kernel-files.md, presets)."""

LOOKUPS_AT_ONCE = 500

MAX_ROOTS = 4
"""Roots that one line names."""


def _read_share(context: click.Context, parameter: click.Parameter, word: str | None) -> float | None:
    if word is None:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?%?", word):
        raise click.BadParameter(f"{word!r} is not a share; write 3% or 0.03")
    return float(word.removesuffix("%")) / 100 if word.endswith("%") else float(word)


@click.command(cls=SectionedCommand)
@click.argument("path", required=False)
@click.option("--once", is_flag=True, help="Tune stale kernels, compare, and exit: 1 if a winner became slower.")
@click.option(
    "--tolerance",
    metavar="SHARE",
    callback=_read_share,
    help="With --once: how much slower a winner may become, as 3% or 0.03; default 3%.",
)
@click.option(
    "--against",
    metavar="PATH",
    type=click.Path(exists=True, path_type=Path),
    help="With --once: compare with the winners of `ktuned export` there, so that slow rot is seen.",
)
@json_option
@no_spawn_option
def watch(
    path: str | None, once: bool, tolerance: float | None, against: Path | None, no_spawn: bool, as_json: bool
) -> int:
    """Tune the kernels that each save changes, and show them.

    PATH is a kernel file or a directory, which is watched from then on. Without it, everything that the daemon watches
    is shown: on a terminal as a screen with keys, elsewhere as lines, with --json as one event per line.
    """
    if tolerance is not None and not once:
        raise click.UsageError("--tolerance goes with --once", click.get_current_context())
    if against is not None and not once:
        raise click.UsageError("--against goes with --once", click.get_current_context())
    root = None if path is None else as_path(path, "a kernel's name is none; `ktuned tune KERNEL` tunes one")
    if not no_spawn:
        spawn.announce_daemon(spawn.ensure_daemon())
    with Client() as client:
        if once:
            return _check_regressions(
                client, root, DEFAULT_TOLERANCE if tolerance is None else tolerance, against, as_json
            )
        project = since = None
        if root is not None:
            with output.report_waiting(f"inspecting {root}"):
                wanted = TuneParams(path=root, stale_only=True)
                accepted = call_method(client, TUNE, wanted, deadline_s=TUNE_DEADLINE_S)
            output.complain_of(accepted.errors)
            since = (accepted.epoch, accepted.seq)
        roots = client.call("kernels")["roots"]
        if root is not None:
            project = _project_of(root, roots)
        watched = _list_paths([entry["path"] for entry in roots])
        try:
            if not as_json and _has_screen():
                # Textual takes a moment to import, and only a screen needs it.
                from ktuned.cli.watch import app

                app.show_screen(root, project, since)
            else:
                output.print_message(
                    f"watching {watched if root is None else root}; Ctrl-C ends the view, the daemon goes on"
                )
                _follow_saves(client, since, project, as_json)
        except KeyboardInterrupt:
            pass
        output.print_message(
            f"the daemon goes on watching {watched}; `ktuned remove PATH` ends that, `ktuned stop` the daemon"
        )
    return Exit.DONE


def _has_screen() -> bool:
    """Return whether a screen can be drawn: on a terminal that can move its cursor."""
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _list_paths(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:MAX_ROOTS])
    if len(paths) > MAX_ROOTS:
        return f"{shown} and {len(paths) - MAX_ROOTS} more (`ktuned status`)"
    return shown or "nothing yet (`ktuned add PATH` adds a file or a directory)"


def _check_regressions(client: Client, root: str | None, tolerance: float, against: Path | None, as_json: bool) -> int:
    """Tune stale kernels below a path, or below all roots, and check that no winner became slower.

    The winners before are those of the daemon, or the committed ones ``against`` which they are compared.
    """
    # Before any inspection: the present winners are the baseline of the comparison.
    before = {
        regression.case_of(answer): _find_earlier_figure(client, answer) for answer in _load_winners(client, root)
    }
    roots = [root] if root is not None else [entry["path"] for entry in client.call("kernels")["roots"]]
    errors = []
    for place in roots:
        with begin_tuning(client, None, place, stale_only=True) as tuning:
            output.complain_of(msgspec.convert(tuning.errors, list[FileError]))
            errors += tuning.errors
            follow_tuning(tuning, choose_presenter(as_json=as_json))
    for kernel, problem, objective in _by_other_objectives(client, root):
        with begin_tuning(client, kernel, None, problem=problem, objective=objective, stale_only=True) as tuning:
            follow_tuning(tuning, choose_presenter(as_json=as_json))
    now = _load_winners(client, root)
    if against is not None:
        before = _read_committed_figures(against, now)
    found = regression.compare_answers(before, now, tolerance)
    if as_json:
        output.emit_json(
            {"comparisons": [entry.to_wire() for entry in found], "tolerance": tolerance, "errors": errors}
        )
    elif found:
        columns = ["kernel", "problem", "device", "before", "now", "change", "verdict"]
        output.print_table(columns, map(_comparison_row, found), right=["before", "now", "change"])
    else:
        output.print_error("there is no kernel to compare", "name a kernel file or a directory of them")
    regressions = [entry for entry in found if entry.is_regression]
    return Exit.NOT_REACHED if regressions or errors or not found else Exit.DONE


def _read_committed_figures(place: Path, answers: Iterable[Answer]) -> dict[regression.Case, float | None]:
    """Return for each answer the figure of the winner in files of `ktuned export` that is of its problem and device.

    Raises:
        CannotShare: a file cannot be read.
    """
    documents = [document for _, document in read_documents([str(place)])]
    known = {(document.kernel, document.device): document.by_objective for document in documents}
    found: dict[regression.Case, float | None] = {}
    for answer in answers:
        by = known.get((answer.kernel, answer.device or ""), {}).get(answer.objective, ())
        # A winner's problem is the part that the kernel is specialised for.
        alike = [winner for winner in by if winner.problem.items() <= answer.problem.items()]
        for winner in alike[:1]:
            figure = figure_of(answer.objective, winner.latency_us, winner.metrics or {})
            found[regression.case_of(answer)] = figure
    return found


def _load_winners(client: Client, root: str | None) -> list[Answer]:
    """Return the present answers for the declared problems of the kernels at a path, by each objective of a winner."""
    kernels = client.call("kernels", **drop_missing(path=root))["kernels"]
    asked = [LookupParams(kernel["name"], problem, tune=False) for kernel in kernels for problem in kernel["problems"]]
    asked += [
        LookupParams(kernel, problem, tune=False, objective=objective)
        for kernel, problem, objective in _by_other_objectives(client, root)
    ]
    answers: list[Answer] = []
    for first in range(0, len(asked), LOOKUPS_AT_ONCE):
        params = LookupManyParams(asked[first : first + LOOKUPS_AT_ONCE])
        answers += call_method(client, LOOKUP_MANY, params).read_answers()
    return answers


def _by_other_objectives(client: Client, root: str | None) -> list[tuple[str, Problem, Objective]]:
    """Return the declared problems that have a winner by another objective than their kernel's own."""
    found = []
    for kernel in client.call("kernels", **drop_missing(path=root), why=True)["kernels"]:
        own = (kernel.get("plan") or {}).get("objective") or LATENCY
        for problem in kernel["problems"]:
            # A winner's problem is the part that the kernel is specialised for.
            alike = [entry for entry in kernel["why"] if entry["problem"].items() <= problem.items()]
            by = {Objective(entry.get("objective") or own) for entry in alike} - {own}
            found += [(kernel["name"], problem, objective) for objective in sorted(by)]
    return found


def _find_earlier_figure(client: Client, answer: Answer) -> float | None:
    """Return a case's figure from before its tuning, by the answer that is given now; None if there was none.

    A running job may have published winners already. An edit that takes the winner's config out of the space leaves
    no answer with a figure; the best figure of the kernel's last measured state then counts.
    """
    if answer.status is Status.STALE:
        return answer.figure
    kernel, problem = answer.kernel, answer.problem
    digest = ""
    if answer.status is Status.FRESH:
        jobs = call_method(client, JOBS, JobsParams(kernel=kernel)).jobs
        if not any(job.problem == problem and not job.is_ended for job in jobs):
            return answer.figure
        (known,) = client.call("kernels", kernel=kernel)["kernels"]
        digest = known["digest"]
    trials = client.call("results", kernel=kernel, problem=problem, outcome="measured", order="newest", limit=2000)
    return regression.find_previous_best(trials["trials"], digest, answer.device, answer.objective)


def _comparison_row(entry: regression.Comparison) -> list[str]:
    answer = entry.answer
    return [
        answer.kernel,
        text.format_values(answer.problem) + mention_objective(answer.objective),
        answer.device or "",
        text.by_objective(answer.objective, entry.before),
        text.by_objective(answer.objective, entry.now),
        text.format_factor(entry.gain),
        f"{entry.verdict}, noisy" if entry.is_noisy else entry.verdict,
    ]


def _follow_saves(client: Client, since: tuple[int, int] | None, project: str | None, as_json: bool) -> None:
    with client.events(since=since) as events, choose_presenter(as_json=as_json) as presenter:
        view = _catch_up(client, project)
        presenter.show(None, view, ())
        for received in events:
            if not concerns_project(received.get("kernel"), project):
                continue
            event = read_event(received)
            if isinstance(event, StreamGap):
                view, news = resync_view(view, _load_jobs(client, project))
            else:
                view, news = fold_event(view, event)
            presenter.show(received, view, news)
            view = view.without_ended()


def _catch_up(client: Client, project: str | None) -> View:
    known = _load_jobs(client, project)
    view = begin_view((job for job in known if not job.is_ended), load_limits(client))
    return add_earlier_winners(view, (job for job in known if job.is_ended))


def _load_jobs(client: Client, project: str | None) -> list[JobInfo]:
    return [job for job in call_method(client, JOBS).jobs if concerns_project(job.kernel, project)]


def concerns_project(kernel: str | None, project: str | None) -> bool:
    """Return whether what concerns a kernel, or none in particular, concerns the project."""
    return project is None or not kernel or kernel.startswith(f"{project}:")


def _project_of(path: str, roots: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the name of the innermost root that holds ``path``."""
    holding = [root for root in roots if f"{path}/".startswith(f"{root['path'].rstrip('/')}/")]
    return max(holding, key=lambda root: len(root["path"]))["name"] if holding else None
