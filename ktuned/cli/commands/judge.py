"""``ktuned judge``: an honest verdict on configs that are not trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ktuned.cli import output, spawn, text
from ktuned.cli.completion import complete_target
from ktuned.cli.options import (
    device_option,
    is_path,
    json_option,
    problem_option,
    read_configs,
    resolve_path,
)
from ktuned.cli.output import Exit
from ktuned.model import JudgeVerdict, Scalar
from ktuned.protocol import JUDGE, WINNER, Candidate, JudgeAnswer, JudgedProblem, JudgeParams, call_method
from ktuned_client.answers import JUDGE_DEADLINE_S

_EXITS = {
    JudgeVerdict.RIGHT: Exit.DONE,
    JudgeVerdict.REFUSED: Exit.REFUSED,
    JudgeVerdict.COMPILE_ERROR: Exit.COMPILE_ERROR,
    JudgeVerdict.WRONG: Exit.WRONG,
    JudgeVerdict.CRASHED: Exit.CRASHED,
    JudgeVerdict.HUNG: Exit.HUNG,
    JudgeVerdict.CHEATING: Exit.CHEATING,
}

_MOST_ERRORS = 3
"""Compiler errors of a candidate that are printed; ``--json`` has more."""


def _read_against(context: click.Context, parameter: click.Parameter, word: str | None) -> Any:
    """Return what candidates are compared with: ``winner``, a config, or a file's absolute path."""
    if word is None or word == WINNER:
        return word
    if "=" in word and not is_path(word):
        (config,) = read_configs(context, parameter, (word,)) or [{}]
        return config
    return resolve_path(word, "give winner, a kernel file, or KNOB=VALUE,…")


@click.command()
@click.argument("target", metavar="[FILE|KERNEL]", required=False, shell_complete=complete_target)
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KNOB=VALUE,…",
    callback=read_configs,
    help="A candidate; repeat --config to judge several. Default: the kernel's default, else its space's first config.",
)
@click.option(
    "--against",
    metavar="FILE|winner|KNOB=VALUE,…",
    callback=_read_against,
    help="Also compare the speed with the kernel of another file, the current winner or a config.",
)
@click.option("--quick", is_flag=True, help="Judge with fewer launches.")
@click.option("--init", "tasks", metavar="DIR", help="Judge nothing; turn the problem files in DIR into kernel files.")
@click.option(
    "--language",
    type=click.Choice(["c++", "python"]),
    default="c++",
    show_default=True,
    help="With --init: the language of the candidates.",
)
@problem_option
@device_option
@json_option
def judge(
    target: str | None, tasks: str | None, language: str, problem: dict[str, Scalar], as_json: bool, **options: Any
) -> int:
    """Judge candidates that you do not trust, such as an agent's.

    Each candidate runs in its own sandboxed process, on inputs that it has not seen, and is timed from outside. A
    candidate never becomes the winner. Exits with 0 if a candidate is right, else with the code of the best verdict.
    """
    if (target is None) == (tasks is None):
        raise click.UsageError("name a kernel file or a kernel to judge, or else a directory of problems with --init")
    if target is None:
        return _write_tasks(resolve_path(str(tasks), "--init takes a directory of problem files"), language, as_json)
    kernel, path = (None, resolve_path(target)) if is_path(target) else (target, None)
    with spawn.open_client() as client, output.report_waiting(f"judging {target}"):
        params = JudgeParams(kernel, path, problem=problem or None, **options)
        found = call_method(client, JUDGE, params, deadline_s=JUDGE_DEADLINE_S)
    if as_json:
        output.emit_json(found)
    else:
        _print_verdicts(found)
        problems = [problem for candidate in found.candidates for problem in candidate.problems]
        is_right = any(problem.latency_us for problem in problems)
        if options["against"] is not None and is_right and not any(problem.factor_over.against for problem in problems):
            output.print_message("--against: nothing to compare with: it has no latency for these problems")
    ranks = list(JudgeVerdict)
    return _EXITS[min((one.verdict for one in found.candidates), key=ranks.index, default=JudgeVerdict.REFUSED)]


def _write_tasks(directory: str, language: str, as_json: bool) -> int:
    """Write the kernel files of a directory's problem files; the plugin ``ktuned-torch`` runs them, in this process."""
    try:
        from ktuned_torch import write_task_files
    except ModuleNotFoundError as error:
        output.print_error(f"--init needs {error.name}, which is not installed", "pip install 'ktuned[torch]'")
        return Exit.NOT_REACHED
    tasks = write_task_files(Path(directory), "python" if language == "python" else "c++")
    for task in tasks:
        if task.error:
            output.print_error(task.error)
        elif not as_json:
            kept = "" if task.is_new else "  (exists already: left as it is)"
            output.emit_line(f"{task.kernel_file}  {task.candidate}{kept}")
    if as_json:
        output.emit_json({"tasks": tasks})
    return Exit.NOT_REACHED if any(task.error for task in tasks) else Exit.DONE


def _print_verdicts(found: JudgeAnswer) -> None:
    """Print a line for each candidate and problem, the reasons and errors below, and what was not enforced."""
    columns = ["config", "problem", "verdict", "latency", "reference", "default", "winner", "against", "limit"]
    rows = [_make_row(candidate, problem) for candidate in found.candidates for problem in candidate.problems]
    shown = [place for place in range(len(columns)) if place < 4 or any(row[place] != text.ABSENT for row in rows)]
    output.print_table(
        [columns[place] for place in shown], [[row[place] for place in shown] for row in rows], right=columns[3:]
    )
    for candidate in found.candidates:
        for line in _explain_verdict(candidate):
            output.emit_line(line)
    for sentence in dict.fromkeys(one for candidate in found.candidates for one in candidate.not_enforced):
        output.emit_line(f"not enforced: {sentence}")


def _make_row(candidate: Candidate, problem: JudgedProblem) -> list[str]:
    factors = problem.factor_over
    return [
        text.format_values(candidate.config),
        text.format_values(problem.problem),
        problem.verdict,
        text.format_with_spread(problem.latency_us, problem.spread_us),
        *map(text.format_factor, (factors.reference, factors.default, factors.winner, factors.against)),
        text.ABSENT if problem.limit_share is None else f"{problem.limit_share:.0%} of {problem.limit}",
    ]


def _explain_verdict(candidate: Candidate) -> Iterator[str]:
    if candidate.verdict is JudgeVerdict.RIGHT:
        return
    reason = "" if candidate.errors else f": {text.first_line(candidate.reason)}"
    yield f"{text.format_values(candidate.config)}: {candidate.verdict}{reason}"
    for error in candidate.errors[:_MOST_ERRORS]:
        place = f"{error.file}:{error.line}" if error.column is None else f"{error.file}:{error.line}:{error.column}"
        yield f"  {place}: {text.first_line(error.message)}"
