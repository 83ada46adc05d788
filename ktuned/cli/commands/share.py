"""``ktuned export`` and ``ktuned import``: winners as files for git, one for each kernel and device model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from ktuned.cli import output, text
from ktuned.cli.options import json_option
from ktuned.cli.output import Exit
from ktuned.model import KtunedError, format_objective_suffix
from ktuned.protocol import (
    EXPORT,
    IMPORT,
    KERNELS,
    ExportParams,
    ImportedWinner,
    ImportParams,
    KernelsParams,
    Status,
    WinnersDocument,
    call_method,
    find_root,
)
from ktuned.report import render_vllm_files
from ktuned_client import Client, DaemonError, winners

_PART = 200
"""Most winners in one request; the daemon's limit."""

_DEADLINE_S = 60.0


FORMATS = ("git", "vllm")
"""Formats of exported winners; the first is the default."""

DEFAULT_SIZE = "M"
"""The problem key by which vLLM's configs are listed."""


class CannotShare(KtunedError):
    """A file of winners, or an artifact, cannot be read or written."""

    code = "usage"


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default="winners")
@click.option("--all", "everything", is_flag=True, help="Write the winners of all projects.")
@click.option("--kernel", metavar="KERNEL", help="Write only this kernel's winners.")
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
    help="Who reads the files.",
)
@click.option(
    "--by", metavar="KEY", help=f"With --format vllm: the size that configs are listed by. Default: {DEFAULT_SIZE}."
)
@json_option
def export(
    directory: Path,
    everything: bool,
    kernel: str | None,
    artifacts: Path | None,
    form: str,
    by: str | None,
    as_json: bool,
) -> int:
    """Write winners into a directory, as files for git.

    Without an option these are the winners of the project that contains the working directory. Each kernel and
    device model gets one file in DIRECTORY (default: winners).

    Equal winners give equal files, sorted, with one winner per line, so that git shows the changes. The format vllm
    is JSON that maps one size (--by) to a config, for programs without ktuned.
    """
    if artifacts is not None and form != FORMATS[0]:
        raise click.UsageError(f"--with-artifacts does not go with --format {form}")
    if by is not None and form != "vllm":
        raise click.UsageError("--by goes with --format vllm")
    written = []
    with Client() as client:
        listed = call_method(client, EXPORT, ExportParams(kernel), deadline_s=_DEADLINE_S)
        shared = listed.shared or ()
        if kernel is not None and not shared:
            # If the kernel is not known, the daemon refuses this request, with a similar name as a hint.
            call_method(client, KERNELS, KernelsParams(kernel))
        if kernel is None and not everything:
            project = _find_current_project(client)
            shared = [entry for entry in shared if entry.kernel.partition(":")[0] == project]
        for entry in shared:
            answer = call_method(client, EXPORT, ExportParams(entry.kernel, entry.device), deadline_s=_DEADLINE_S)
            document = answer.document
            assert document is not None
            try:
                if artifacts is not None:
                    _copy_artifacts(answer.artifacts or {}, artifacts)
                    document = replace(document, artifacts=os.path.relpath(artifacts.resolve(), directory.resolve()))
                for name, content in _exported_files(document, form, by or DEFAULT_SIZE).items():
                    path = directory / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    changed = output.write_atomically(path, content)
                    count = document.count_winners()
                    place = {"kernel": entry.kernel, "device": entry.device, "winners": count}
                    written.append({**place, "path": str(path), "changed": changed})
                    if not as_json:
                        output.emit_line(
                            f"{path}  {text.format_count(count, 'winner')}{'' if changed else ', unchanged'}"
                        )
            except OSError as error:
                raise CannotShare(f"{error.filename or directory} cannot be written: {error.strerror}") from error
    if as_json:
        output.emit_json({"files": written})
    elif not written:
        more = "" if everything or kernel else ", --all exports all projects"
        of = "" if kernel is None else f" of a kernel {kernel!r}"
        output.print_error(f"there are no winners{of} to export", f"`ktuned tune PATH` finds some{more}")
    return Exit.DONE if written else Exit.NOT_REACHED


def _find_current_project(client: Client) -> str:
    """Return the name of the innermost watched project that contains the working directory.

    Raises:
        CannotShare: no project does.
    """
    root = find_root(os.getcwd(), call_method(client, KERNELS).roots)
    if root is None:
        raise CannotShare(
            f"{os.getcwd()} is in no project that is watched",
            hint="go to the project's directory, or name a kernel with --kernel, or export --all",
        )
    return root.name


def _exported_files(document: WinnersDocument, form: str, by: str) -> dict[str, str]:
    """Return the texts of the files that an export writes for one document, by the files' names."""
    if form == "vllm":
        return render_vllm_files(document, by)
    return {
        winners.make_file_name(document.kernel, document.device): winners.render_document(msgspec.to_builtins(document))
    }


@click.command("import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--dry-run", is_flag=True, help="Only print the decisions.")
@json_option
def import_(paths: tuple[str, ...], dry_run: bool, as_json: bool) -> int:
    """Import winners from files that `ktuned export` wrote.

    PATHS are files or directories of them. A winner is fresh if sources, toolchain and driver are the same here. If
    only files differ, ktuned compiles the winner: it is fresh if the machine code and the inputs are equal. Every other
    winner is stale. A winner that does not fit the kernel is refused.
    """
    decisions: list[tuple[str, WinnersDocument, ImportedWinner]] = []
    documents = read_documents(paths)
    with Client() as client:
        for path, document in documents:
            for part in _split_document(document):
                kernel, found = _import_document(client, part, dry_run)
                decisions += [(path, replace(part, kernel=kernel), winner) for winner in found]
    if as_json:
        entries = [
            {"path": path, "kernel": document.kernel, "device": document.device, **msgspec.to_builtins(winner)}
            for path, document, winner in decisions
        ]
        output.emit_json({"winners": entries})
    else:
        if decisions:
            columns = ["kernel", "problem", "device", "taken", "reason"]
            output.print_table(columns, [_winner_row(document, winner, dry_run) for _, document, winner in decisions])
        taken = sum(winner.taken for _, _, winner in decisions)
        output.print_message(
            f"{taken} {'would be imported' if dry_run else 'imported'}, {len(decisions) - taken} left out"
        )
    is_unknown = decisions and all(winner.status is Status.UNKNOWN for _, _, winner in decisions)
    return Exit.NOT_REACHED if is_unknown else Exit.DONE


def read_documents(paths: Iterable[str]) -> list[tuple[str, WinnersDocument]]:
    """Read files of winners, or directories of such files; return each document with its path.

    Raises:
        CannotShare: a file cannot be read, or is invalid.
    """
    found = []
    try:
        for path in (path for given_path in paths for path in winners.list_files(given_path)):
            content = winners.read_file(path)
            try:
                found.append((path, WinnersDocument.read(content)))
            except ValueError as error:
                raise CannotShare(f"{path} {error}") from error
    except winners.WinnersError as error:
        raise CannotShare(str(error)) from error
    return found


def _import_document(client: Client, document: WinnersDocument, dry_run: bool) -> tuple[str, Sequence[ImportedWinner]]:
    """Import a document's winners, and return the kernel that gets them, and the decisions.

    A kernel that is unknown here does not stop the import of other files.
    """
    try:
        answer = call_method(client, IMPORT, ImportParams(document, dry_run, os.getcwd()), deadline_s=_DEADLINE_S)
        return answer.kernel, answer.winners
    except DaemonError as error:
        if error.code not in ("not_found", "ambiguous"):
            raise
        reason = f"refused: {error.message}; {error.hint}"
        return document.kernel, [
            ImportedWinner(winner.problem, winner.config, objective, status=Status.UNKNOWN, reason=reason)
            for objective, offered in document.by_objective.items()
            for winner in offered
        ]


def _winner_row(document: WinnersDocument, winner: ImportedWinner, dry_run: bool) -> list[str]:
    verb = ("would be imported" if dry_run else "imported") if winner.taken else "left out"
    status = f", {winner.status}" if winner.taken else ""
    problem = text.format_values(winner.problem) + format_objective_suffix(winner.objective)
    return [document.kernel, problem, document.device, f"{verb}{status}", winner.reason]


def _split_document(document: WinnersDocument) -> Iterator[WinnersDocument]:
    """Yield documents that are small enough for a request."""
    for start in range(0, len(document.winners), _PART):
        yield replace(document, winners=document.winners[start : start + _PART], objectives={})
    for objective, won in document.objectives.items():
        for start in range(0, len(won), _PART):
            yield replace(document, winners=(), objectives={objective: won[start : start + _PART]})


def _copy_artifacts(places: Mapping[str, str], directory: Path) -> None:
    """Copy intact artifacts, each into a directory named by its key."""
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
