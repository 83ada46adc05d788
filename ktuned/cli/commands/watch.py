"""``ktuned watch``: shows the tuning after each save, or checks once that no kernel became slower."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from ktuned.cli import output, regression, spawn, text
from ktuned.cli.commands.tune import announce, begun, complain_of, follow
from ktuned.cli.exit_status import Exit
from ktuned.cli.job_view import ENDED, View
from ktuned.cli.limits import limits
from ktuned.cli.options import as_path, given, json_option, no_spawn_option
from ktuned.cli.present import Presenter, choose
from ktuned.cli.progress import Event, begin, fold, remember, resync
from ktuned.model import LATENCY, Objective, Problem, metric_of
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


@click.command()
@click.argument("path", required=False)
@click.option("--once", is_flag=True, help="Tune stale kernels, compare, and exit: 1 if a winner became slower.")
@click.option(
    "--tolerance",
    metavar="SHARE",
    callback=_read_share,
    help="With --once: how much slower a winner may become, as 3% or 0.03; default 3%.",
)
@no_spawn_option
@json_option
def watch(path: str | None, once: bool, tolerance: float | None, no_spawn: bool, as_json: bool) -> int:
    """Tune the kernels that each save changes, and show them.

    PATH is a kernel file or a directory, which is watched from then on. Without it, everything that the daemon watches
    is shown: on a terminal as a screen with keys, elsewhere as lines, with --json as one event per line.
    """
    if tolerance is not None and not once:
        raise click.UsageError("--tolerance goes with --once", click.get_current_context())
    root = None if path is None else as_path(path, "a kernel's name is none; `ktuned tune KERNEL` tunes one")
    if not no_spawn:
        announce(spawn.ensure())
    with Client() as client:
        if once:
            return _check(client, root, DEFAULT_TOLERANCE if tolerance is None else tolerance, as_json)
        project = since = None
        if root is not None:
            with output.patience(f"inspecting {root}"):
                accepted = client.call("tune", deadline_s=TUNE_DEADLINE_S, path=root, stale_only=True)
            complain_of(accepted["errors"])
            since = (accepted["epoch"], accepted["seq"])
        roots = client.call("kernels")["roots"]
        if root is not None:
            project = _project_of(root, roots)
        watched = _listed([entry["path"] for entry in roots])
        try:
            if not as_json and _has_screen():
                # rich and asyncio take a moment to import, and only a screen needs them.
                from ktuned.cli.watch import live

                live.watch(root, project, since)
            else:
                output.say(f"watching {watched if root is None else root}; Ctrl-C ends the view, the daemon goes on")
                _follow(client, since, project, as_json)
        except KeyboardInterrupt:
            pass
        output.say(f"the daemon goes on watching {watched}; `ktuned unwatch PATH` ends that, `ktuned stop` the daemon")
    return Exit.DONE


def _has_screen() -> bool:
    """Return whether a screen can be drawn: on a terminal that can move its cursor."""
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:MAX_ROOTS])
    if len(paths) > MAX_ROOTS:
        return f"{shown} and {len(paths) - MAX_ROOTS} more (`ktuned status`)"
    return shown or "nothing yet (`ktuned add PATH` adds a file or a directory)"


def _check(client: Client, root: str | None, tolerance: float, as_json: bool) -> int:
    """Tune stale kernels below a path, or below all roots, and check that no winner became slower."""
    # Before any inspection: the present winners are the baseline of the comparison.
    before = [_before(client, answer) for answer in _winners(client, root)]
    roots = [root] if root is not None else [entry["path"] for entry in client.call("kernels")["roots"]]
    errors = []
    for place in roots:
        with begun(client, None, place, stale_only=True) as tuning:
            complain_of(tuning.errors)
            errors += tuning.errors
            follow(tuning, as_json)
    for kernel, problem, objective in _by_other_objectives(client, root):
        with begun(client, kernel, None, problem=problem, objective=objective, stale_only=True) as tuning:
            follow(tuning, as_json)
    found = regression.compare(before, _winners(client, root), tolerance)
    if as_json:
        output.emit_json(
            {"comparisons": [entry.to_wire() for entry in found], "tolerance": tolerance, "errors": errors}
        )
    elif found:
        columns = ["kernel", "problem", "device", "before", "now", "change", "verdict"]
        output.table(columns, map(_row, found), right=["before", "now", "change"])
    else:
        output.complain("there is no kernel to compare", "name a kernel file or a directory of them")
    regressions = [entry for entry in found if entry.is_regression]
    return Exit.NOT_REACHED if regressions or errors or not found else Exit.DONE


def _winners(client: Client, root: str | None) -> list[Mapping[str, Any]]:
    """Return the present answers for the declared problems of the kernels at a path, by each objective of a winner."""
    kernels = client.call("kernels", **given(path=root))["kernels"]
    asked: list[dict[str, Any]] = [
        {"kernel": kernel["name"], "problem": problem, "tune": False}
        for kernel in kernels
        for problem in kernel["problems"]
    ]
    asked += [
        {"kernel": kernel, "problem": problem, "tune": False, "objective": objective}
        for kernel, problem, objective in _by_other_objectives(client, root)
    ]
    answers: list[Mapping[str, Any]] = []
    for first in range(0, len(asked), LOOKUPS_AT_ONCE):
        answers += client.call("lookup_many", lookups=asked[first : first + LOOKUPS_AT_ONCE])["answers"]
    return answers


def _by_other_objectives(client: Client, root: str | None) -> list[tuple[str, Problem, Objective]]:
    """Return the declared problems that have a winner by another objective than their kernel's own."""
    found = []
    for kernel in client.call("kernels", **given(path=root), why=True)["kernels"]:
        own = (kernel.get("plan") or {}).get("objective") or LATENCY
        for problem in kernel["problems"]:
            # A winner's problem is the part that the kernel is specialised for.
            alike = [entry for entry in kernel["why"] if entry["problem"].items() <= problem.items()]
            by = {Objective(entry.get("objective") or own) for entry in alike} - {own}
            found += [(kernel["name"], problem, objective) for objective in sorted(by)]
    return found


def _before(client: Client, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a case's answer from before its tuning.

    A running job may have published winners already. An edit that takes the winner's config out of the space leaves
    no answer with a figure; the best figure of the kernel's last measured state then counts.
    """
    if answer["status"] == "stale":
        return answer
    kernel, problem = answer["kernel"], answer["problem"]
    digest = ""
    if answer["status"] == "fresh":
        open_jobs = [job for job in client.call("jobs", kernel=kernel)["jobs"] if job["state"] not in ENDED]
        if not any(job["problem"] == problem for job in open_jobs):
            return answer
        (known,) = client.call("kernels", kernel=kernel)["kernels"]
        digest = known["digest"]
    trials = client.call("results", kernel=kernel, problem=problem, outcome="measured", order="newest", limit=2000)
    objective = regression.objective_of(answer)
    figure = regression.previous(trials["trials"], digest, answer["device"], objective)
    metrics = {**(answer.get("metrics") or {}), metric_of(objective): figure}
    latency_us = figure if objective == LATENCY else answer["latency_us"]
    return {**answer, "status": "stale" if figure else "default", "latency_us": latency_us, "metrics": metrics}


def _row(entry: regression.Comparison) -> list[str]:
    by = "" if entry.objective == LATENCY else f" by {entry.objective}"
    return [
        entry.kernel,
        text.flat(entry.problem) + by,
        entry.device,
        text.by_objective(entry.objective, entry.before),
        text.by_objective(entry.objective, entry.now),
        text.times(entry.gain),
        entry.verdict,
    ]


def _follow(client: Client, since: tuple[int, int] | None, project: str | None, as_json: bool) -> None:
    with client.events(since=since) as events, choose(as_json) as presenter:
        view = _catch_up(client, project)
        presenter.show(None, view, ())
        for event in events:
            if concerns(event, project):
                view = _take(client, view, event, project, presenter)


def _take(client: Client, view: View, event: Event, project: str | None, presenter: Presenter) -> View:
    if event.get("fresh"):
        view, news = resync(view, _jobs_of(client, project))
    else:
        view, news = fold(view, event)
    presenter.show(event, view, news)
    return view.without_ended()


def _catch_up(client: Client, project: str | None) -> View:
    known = _jobs_of(client, project)
    view = begin((job for job in known if job["state"] not in ENDED), limits(client))
    return remember(view, (job for job in known if job["state"] in ENDED))


def _jobs_of(client: Client, project: str | None) -> list[Mapping[str, Any]]:
    return [job for job in client.call("jobs")["jobs"] if concerns(job, project)]


def concerns(subject: Mapping[str, Any], project: str | None) -> bool:
    """Return whether an event or a job belongs to the project, or to no project in particular."""
    kernel = subject.get("kernel")
    return project is None or not kernel or str(kernel).startswith(f"{project}:")


def _project_of(path: str, roots: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the name of the innermost root that holds ``path``."""
    holding = [root for root in roots if f"{path}/".startswith(f"{root['path'].rstrip('/')}/")]
    return max(holding, key=lambda root: len(root["path"]))["name"] if holding else None
