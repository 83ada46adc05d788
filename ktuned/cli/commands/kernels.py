"""``ktuned kernels``, ``add`` and ``remove``: the watched directories, and the kernels that they declare."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime

import click
import msgspec

from ktuned.cli import lines, output, spawn, text
from ktuned.cli.completion import complete_target
from ktuned.cli.options import SectionedCommand, is_path, json_option, resolve_path
from ktuned.cli.output import Exit
from ktuned.model import SpaceInfo
from ktuned.protocol import (
    ADD,
    KERNELS,
    LOOKUP_MANY,
    UNWATCH,
    AddAnswer,
    AddParams,
    Answer,
    KernelEntry,
    KernelsAnswer,
    KernelsParams,
    LookupManyParams,
    LookupParams,
    RootInfo,
    Status,
    UnwatchParams,
    call_method,
    describe_change,
    find_root,
)
from ktuned_client import Client
from ktuned_client.answers import TUNE_DEADLINE_S

MAX_LOOKUPS = 500
"""Most lookups in one request."""


@click.command()
@click.argument("target", metavar="[NAME|PATH]", required=False, shell_complete=complete_target)
@json_option
def kernels(target: str | None, as_json: bool) -> int:
    """List kernels, or show one kernel and its winners.

    With a NAME the command shows the kernel's full name, its file, interpreter and environment, and what has changed
    since each winner was measured. Errors in kernel files are listed, too.
    """
    is_one = target is not None and not is_path(target)
    chosen = KernelsParams()
    if target is not None:
        chosen = KernelsParams(kernel=target, why=True) if is_one else KernelsParams(path=resolve_path(target))
    with Client() as client:
        answer = call_method(client, KERNELS, chosen)
        untuned = [] if as_json or not is_one else [found for one in answer.kernels for found in _ask_why(client, one)]
    if as_json and is_one:
        root = find_root(answer.kernels[0].file, answer.roots)
        output.emit_json(msgspec.structs.asdict(answer) | {"root": root or {}})
    elif as_json:
        output.emit_json(answer)
    elif is_one:
        (kernel,) = answer.kernels
        _describe_kernel(kernel, find_root(kernel.file, answer.roots))
        _explain_winners(kernel, untuned)
        _print_faults(answer)
    elif target is None or answer.kernels or answer.errors:
        print_kernels(answer)
    if target is not None and not answer.kernels and not answer.errors:
        meant = "" if "/" in target else f"; for a kernel of that name write PROJECT:{target}"
        output.print_error(
            f"no known kernel is declared at {target}",
            f"`ktuned add PATH` adds a file or a directory, `ktuned tune PATH` also tunes it{meant}",
        )
        return Exit.NOT_REACHED
    return Exit.NOT_REACHED if answer.errors and target is not None else Exit.DONE


def _describe_kernel(kernel: KernelEntry, root: RootInfo | None) -> None:
    output.emit_line(kernel.name)
    facts = {
        "file": f"{kernel.file}:{kernel.line}",
        "backend": kernel.backend,
        "space": _describe_space(kernel.space),
        "problems": "; ".join(map(text.format_values, kernel.problems)) or text.ABSENT,
        "default": text.format_values(kernel.default),
        "root": text.ABSENT if root is None else root.path,
        "python": text.ABSENT if root is None else root.python,
        "made again": kernel.repeated or text.ABSENT,
        "environment": text.format_values(None if root is None else root.env),
    }
    for name, value in facts.items():
        output.emit_line(f"  {name:<12} {value}")


def print_kernels(answer: KernelsAnswer | AddAnswer) -> None:
    """Print a table of kernels, and the errors of their files."""
    if answer.kernels:
        rows = (
            [
                kernel.name,
                kernel.backend,
                f"{kernel.file}:{kernel.line}",
                _describe_space(kernel.space),
                "; ".join(map(text.format_values, kernel.problems)) or text.ABSENT,
                text.format_values(kernel.default),
            ]
            for kernel in answer.kernels
        )
        output.print_table(["kernel", "backend", "file", "space", "problems", "default"], rows)
    elif not answer.errors:
        output.print_message(
            "no kernels are known; `ktuned add PATH` adds a file or a directory, `ktuned tune PATH` also tunes it"
        )
    _print_faults(answer)


def _print_faults(answer: KernelsAnswer | AddAnswer) -> None:
    for error in answer.errors:
        what = lines.format_file_error(error)
        output.emit_line(f"{what}; {error.hint}" if error.hint else what)
        for line in lines.format_excerpt(error):
            output.emit_line(line)


def _ask_why(client: Client, kernel: KernelEntry) -> list[Answer]:
    """Return the answers for the declared problems that no winner covers; their messages say why there is none."""
    won = [standing.problem.items() for standing in kernel.why or ()]
    problems = [problem for problem in kernel.problems if not any(one <= problem.items() for one in won)]
    questions = [LookupParams(kernel.name, problem, tune=False) for problem in problems[:MAX_LOOKUPS]]
    return call_method(client, LOOKUP_MANY, LookupManyParams(questions)).read_answers() if questions else []


def _explain_winners(kernel: KernelEntry, untuned: Sequence[Answer]) -> None:
    for notice in kernel.quarantined:
        output.emit_line(f"notice: {notice}")
    if not kernel.why and not untuned:
        output.emit_line(f"{kernel.name}: not tuned yet")
    for answer in untuned:
        where = f" on {answer.device}" if answer.device else ""
        output.emit_line(f"{kernel.name} {text.format_values(answer.problem)}{where}: {answer.message}")
    for standing in kernel.why or ():
        place = f"{kernel.name} {text.format_values(standing.problem)} on {standing.device}"
        day = datetime.fromtimestamp(standing.decided).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        if standing.status is Status.FRESH:
            output.emit_line(f"{place}: fresh; nothing changed since {day} (trial {standing.trial})")
        else:
            output.emit_line(f"{place}: {standing.status}; changed since {day} (trial {standing.trial}):")
            for change in standing.changes:
                output.emit_line(f"  {describe_change(change)}")
            if standing.message:
                output.emit_line(f"  the newest job: {standing.message}")
        for notice in standing.notices:
            output.emit_line(f"  notice: {notice}")


def _describe_space(space: SpaceInfo) -> str:
    size = "configs from a callable" if space.size is None else f"{space.size} configs"
    axes = f" of {' '.join(space.axes)}" if space.axes else ""
    return size + axes + (", constrained" if space.constrained else "")


@click.command(cls=SectionedCommand)
@click.argument("path")
@json_option
def add(path: str, as_json: bool) -> int:
    """Watch the project of a kernel file or directory, without tuning it.

    Its kernels can be looked up, imported and tuned by name from then on. Exits with 1 if a kernel file has an error.
    """
    place = resolve_path(path, "`add` takes a path, not a kernel's name")
    with spawn.open_client() as client, output.report_waiting(f"inspecting {place}"):
        # The same deadline as a tuning, because every kernel file below the path is inspected.
        added = call_method(client, ADD, AddParams(place), deadline_s=TUNE_DEADLINE_S)
    if as_json:
        output.emit_json(added)
    else:
        for notice in added.notices:
            output.print_message(notice)
        print_kernels(added)
        output.print_message(f"watching {added.root.path}; `ktuned remove {added.root.path}` ends it")
    return Exit.NOT_REACHED if added.errors else Exit.DONE


@click.command()
@click.argument("path")
@json_option
def remove(path: str, as_json: bool) -> int:
    """Stop watching a directory.

    PATH is the directory that `ktuned status` lists as watched. Its jobs are cancelled, and lookups no longer know its
    kernels. Trials and winners are kept, and count again after `ktuned add PATH`.
    """
    with Client() as client:
        # Links are not resolved, because the directory may no longer exist.
        gone = call_method(client, UNWATCH, UnwatchParams(os.path.abspath(path)))
    unknown = text.format_count(len(gone.kernels), "kernel")
    output.emit_answer(gone, as_json, f"{gone.path} is no longer watched; lookups no longer know its {unknown}")
    return Exit.DONE
