"""``ktuned watch``: see each save being tuned again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click

from ktuned.cli import Exit, output, spawn
from ktuned.cli.commands.tune import announce, complain_of
from ktuned.cli.options import as_path, json_option, no_spawn_option
from ktuned.cli.present import Presenter, choose
from ktuned.cli.progress import ENDED, Event, View, begin, fold, remember, resync
from ktuned_client import Client
from ktuned_client.answers import TUNE_DEADLINE_S


@click.command()
@click.argument("path", required=False)
@no_spawn_option
@json_option
def watch(path: str | None, no_spawn: bool, as_json: bool) -> int:
    """Tune what each save changes, and show it.

    PATH is a kernel file or a directory, which is watched from then on. Without it, all that the daemon watches
    is shown.
    """
    root = None if path is None else as_path(path)
    if not no_spawn:
        announce(spawn.ensure())
    with Client() as client:
        project = since = None
        if root is not None:
            accepted = client.call("tune", deadline_s=TUNE_DEADLINE_S, path=root)
            complain_of(accepted["errors"])
            since = (accepted["epoch"], accepted["seq"])
            project = _project_of(root, client.call("kernels")["roots"])
            output.say(f"watching {root}; Ctrl-C ends the view, the daemon goes on")
        try:
            _follow(client, since, project, as_json)
        except KeyboardInterrupt:
            output.say("the daemon goes on watching; `ktuned jobs` shows its jobs, `ktuned stop` ends it")
    return Exit.DONE


def _follow(client: Client, since: tuple[int, int] | None, project: str | None, as_json: bool) -> None:
    with client.events(since=since) as events, choose(as_json) as presenter:
        view = _catch_up(client, project)
        presenter.show(None, view, ())
        for event in events:
            if concerns(event, project):
                view = _take(client, view, event, project, presenter)


def _take(client: Client, view: View, event: Event, project: str | None, presenter: Presenter) -> View:
    if event.get("fresh"):
        view, news = resync(view, _jobs_of(client, project), time.time())
    else:
        view, news = fold(view, event, time.time())
    presenter.show(event, view, news)
    return view.without_ended()


def _catch_up(client: Client, project: str | None) -> View:
    known = _jobs_of(client, project)
    view = begin((job for job in known if job["state"] not in ENDED), time.time())
    return remember(view, (job for job in known if job["state"] in ENDED))


def _jobs_of(client: Client, project: str | None) -> list[Mapping[str, Any]]:
    return [job for job in client.call("jobs")["jobs"] if concerns(job, project)]


def concerns(subject: Mapping[str, Any], project: str | None) -> bool:
    """Tell whether an event or a job is the project's, or nobody's in particular."""
    kernel = subject.get("kernel")
    return project is None or not kernel or str(kernel).startswith(f"{project}:")


def _project_of(path: str, roots: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the name of the innermost root that holds ``path``."""
    holding = [root for root in roots if f"{path}/".startswith(f"{root['path'].rstrip('/')}/")]
    return max(holding, key=lambda root: len(root["path"]))["name"] if holding else None
