"""``ktuned export`` and ``ktuned import``: winners as files for git, one for each kernel and device model."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ktuned.cli import output, text
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import drop_missing, json_option
from ktuned.model import LATENCY, KtunedError, mention_objective
from ktuned.report import c_file, vllm_files
from ktuned_client import Client, DaemonError, winners

_PART = 200
"""Winners in one request: the daemon's limit."""

_DEADLINE_S = 60.0


FORMATS = ("git", "vllm", "c")
"""Forms of exported winners, the default first."""

DEFAULT_SIZE = "M"
"""The size that vLLM's configs are listed by."""

_UNKNOWN = "unknown"
"""Status of a winner whose kernel is unknown here."""


class CannotShare(KtunedError):
    """A file of winners, or an artifact, cannot be read or written."""

    code = "usage"


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default="winners")
@click.option("--all", "everything", is_flag=True, help="All projects' winners, not this project's alone.")
@click.option("--kernel", help="Only this kernel's winners.")
@click.option("--device", help="Only those on this device model.")
@click.option(
    "--with-artifacts",
    "artifacts",
    type=click.Path(file_okay=False, path_type=Path),
    help="Copy the winners' artifacts there, for machines without a daemon or compiler.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="For whom the files are.",
)
@click.option("--by", help=f"With --format vllm: the size that configs are listed by. Default: {DEFAULT_SIZE}.")
@json_option
def export(
    directory: Path,
    everything: bool,
    kernel: str | None,
    device: str | None,
    artifacts: Path | None,
    form: str,
    by: str | None,
    as_json: bool,
) -> int:
    """Write winners into a directory, as files for git.

    They are those of the project in whose directory this is typed. Each kernel and device model has one file in
    DIRECTORY (default: winners).

    Equal winners give equal files, sorted, with one winner per line, so that git shows the changes. The formats vllm
    (JSON by one size) and c (a header that finds the nearest problem) are for programs without ktuned.
    """
    if artifacts is not None and form != FORMATS[0]:
        raise click.UsageError(f"--with-artifacts does not go with --format {form}", click.get_current_context())
    if by is not None and form != "vllm":
        raise click.UsageError("--by goes with --format vllm", click.get_current_context())
    written = []
    with Client() as client:
        shared = client.call("export", deadline_s=_DEADLINE_S, **drop_missing(kernel=kernel, device=device))["shared"]
        if kernel is not None and not shared:
            # One that is not known is refused, with the name that is near.
            client.call("kernels", kernel=kernel)
        if kernel is None and not everything:
            project = _project_here(client)
            shared = [entry for entry in shared if entry["kernel"].partition(":")[0] == project]
        for entry in shared:
            answer = client.call("export", deadline_s=_DEADLINE_S, kernel=entry["kernel"], device=entry["device"])
            document = answer["document"]
            try:
                if artifacts is not None:
                    _copy_artifacts(answer["artifacts"], artifacts)
                    document["artifacts"] = os.path.relpath(artifacts.resolve(), directory.resolve())
                for name, content in _exported_files(document, form, by or DEFAULT_SIZE).items():
                    path = directory / name
                    changed = _write_atomically(path, content)
                    count = sum(map(len, document.get("objectives", {}).values())) + len(document["winners"])
                    written.append({**entry, "winners": count, "path": str(path), "changed": changed})
                    if not as_json:
                        output.emit_line(f"{path}  {text.count_of(count, 'winner')}{'' if changed else ', unchanged'}")
            except OSError as error:
                raise CannotShare(f"{error.filename or directory} cannot be written: {error.strerror}") from error
    if as_json:
        output.emit_json({"files": written})
    elif not written:
        more = "" if everything or kernel else ", --all has those of all projects"
        of = "" if kernel is None else f" of a kernel {kernel!r}"
        output.print_error(f"there are no winners{of} to export", f"`ktuned tune PATH` finds some{more}")
    return Exit.DONE if written else Exit.NOT_REACHED


def _project_here(client: Client) -> str:
    """Return the name of the innermost watched project that holds the working directory.

    Raises:
        CannotShare: none does.
    """
    here = f"{os.getcwd()}/"
    roots = client.call("kernels")["roots"]
    holders = [root for root in roots if here.startswith(f"{root['path'].rstrip('/')}/")]
    if not holders:
        raise CannotShare(
            f"{os.getcwd()} is in no project that is watched",
            hint="go to the project's directory, or name a kernel with --kernel, or export --all",
        )
    return str(max(holders, key=lambda root: len(root["path"]))["name"])


def _exported_files(document: Mapping[str, Any], form: str, by: str) -> dict[str, str]:
    """Return the files that an export writes for one kernel's winners on one device model, by their names."""
    if form == "vllm":
        return vllm_files(document, by)
    if form == "c":
        return dict([c_file(document)])
    return {winners.file_name(document["kernel"], document["device"]): winners.render(document)}


@click.command("import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--dry-run", is_flag=True, help="Only print the decisions.")
@json_option
def import_(paths: tuple[str, ...], dry_run: bool, as_json: bool) -> int:
    """Take winners from files of `ktuned export`.

    PATHS are files or directories of them. A winner that was measured with other sources, another toolchain or driver
    is served as stale; one that does not fit the kernel is refused. `docs/sharing.md` has the rules.
    """
    counts: Counter[str] = Counter()
    told = []
    try:
        documents = [(path, winners.read_file(path)) for given_path in paths for path in winners.paths_of(given_path)]
    except winners.WinnersError as error:
        raise CannotShare(str(error)) from error
    with Client() as client:
        for path, document in documents:
            for part in _split_document(document):
                whose = {"path": path, "kernel": part["kernel"], "device": part["device"]}
                for winner in _import_document(client, part, dry_run):
                    told.append({**whose, **winner})
                    counts["taken" if winner["taken"] else "left"] += 1
    if as_json:
        output.emit_json({"winners": told})
    else:
        if told:
            columns = ["kernel", "problem", "device", "import", "because"]
            output.print_table(columns, [_winner_row(winner, dry_run) for winner in told])
        output.print_message(f"{counts['taken']} {'would be taken' if dry_run else 'taken'}, {counts['left']} left")
    return Exit.NOT_REACHED if told and all(winner["status"] == _UNKNOWN for winner in told) else Exit.DONE


def _import_document(client: Client, document: Mapping[str, Any], dry_run: bool) -> list[dict[str, Any]]:
    """Import a document's winners; a kernel that is unknown here does not stop other files."""
    try:
        answer = client.call("import", deadline_s=_DEADLINE_S, document=document, dry_run=dry_run)
    except DaemonError as error:
        if error.code not in ("not_found", "ambiguous"):
            raise
        verdict = {"taken": False, "status": _UNKNOWN, "reason": f"refused: {error.message}; {error.hint}"}
        offered = [*document["winners"], *(won for part in document.get("objectives", {}).values() for won in part)]
        return [{"problem": found["problem"], "config": found["config"], **verdict} for found in offered]
    judged: list[dict[str, Any]] = answer["winners"]
    return judged


def _winner_row(winner: Mapping[str, Any], dry_run: bool) -> list[str]:
    verb = ("would be taken" if dry_run else "taken") if winner["taken"] else "left"
    status = f", {winner['status']}" if winner["taken"] else ""
    objective = winner.get("objective", LATENCY)
    problem = text.format_values(winner["problem"]) + mention_objective(objective)
    return [winner["kernel"], problem, winner["device"], f"{verb}{status}", winner["reason"]]


def _split_document(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    found = document["winners"]
    rest = {name: value for name, value in document.items() if name != "objectives"}
    for start in range(0, len(found), _PART):
        yield {**rest, "winners": found[start : start + _PART]}
    for objective, won in document.get("objectives", {}).items():
        for start in range(0, len(won), _PART):
            yield {**rest, "winners": [], "objectives": {objective: won[start : start + _PART]}}


def _write_atomically(path: Path, content: str) -> bool:
    """Write a file atomically; return whether it changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.read_text(encoding="utf-8") == content:
        return False
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_text(content, encoding="utf-8")
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    return True


def _copy_artifacts(places: Mapping[str, str], directory: Path) -> None:
    """Copy intact artifacts, each into a directory of its key."""
    from ktuned.ipc import manifest

    for key, place in sorted(places.items()):
        target = directory / key
        if target.is_dir():
            continue
        try:
            manifest.verify(Path(place), required=())
        except manifest.DamagedArtifact as error:
            output.print_message(f"artifact {key} is left out: {error}")
            continue
        staged = directory / f".{key}.{os.getpid()}"
        try:
            shutil.copytree(place, staged)
            staged.rename(target)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
