"""``ktuned watch --once``: tunes stale kernels, and finds those that became slower.

A *case* is a kernel, a problem and an objective; each case is compared on its own. Its figure *before* is the figure of
the winner before anything is inspected, or of a winner that was committed to files. Its figure *now* comes from a fresh
answer after the tuning; if the answer is not fresh, there is no figure, and the case has failed. Cases of kernels that
no longer exist are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ktuned.cli import output, text
from ktuned.cli.commands.share import read_documents
from ktuned.cli.output import Exit
from ktuned.cli.present import choose_presenter, follow_tuning, request_tuning
from ktuned.model import (
    FrozenStruct,
    NotFound,
    Objective,
    Outcome,
    canonical,
    compute_gain,
    convert_to_cost,
    format_objective_suffix,
    is_latency,
    listed,
    select_figure,
)
from ktuned.protocol import (
    JOBS,
    KERNELS,
    LOOKUP_MANY,
    RESULTS,
    TUNE,
    Answer,
    FileError,
    JobsParams,
    KernelsParams,
    LookupManyParams,
    LookupParams,
    ResultsParams,
    Status,
    Trial,
    TuneParams,
    call_method,
)
from ktuned_client import Client

LOOKUPS_AT_ONCE = 500
TRIALS_BEFORE = 2_000
"""Number of newest trials that are searched for the best one of a kernel's previous state."""

Case = tuple[str, str, Objective]
"""A kernel, a problem's canonical text, and an objective."""


class Comparison(FrozenStruct):
    """A kernel on a problem by an objective, before and after it was tuned again.

    Attributes:
        answer: the answer after the tuning.
        before: the figure before, in the objective's unit; None if there was none.
        now: the figure for the current files; None if there is none.
        verdict: ``faster``, ``same``, ``slower``, ``new`` (no figure before) or ``failed`` (no figure now).
    """

    answer: Answer
    before: float | None
    now: float | None
    verdict: str

    @property
    def is_noisy(self) -> bool:
        """True if the figure now is noisy, so that it says little."""
        return self.answer.message.startswith("noisy:")

    @property
    def gain(self) -> float | None:
        """How many times better the figure is than before."""
        return compute_gain(self.answer.objective, self.before, self.now)

    @property
    def is_regression(self) -> bool:
        """True if the verdict makes the check fail."""
        return self.verdict in ("slower", "failed")

    def to_plain(self) -> dict[str, Any]:
        """Return the entry of ``--json``."""
        objective = self.answer.objective
        before_us, now_us = (self.before, self.now) if is_latency(objective) else (None, None)
        return {
            "kernel": self.answer.kernel,
            "problem": self.answer.problem,
            "device": self.answer.device or "",
            "objective": objective,
            "before": self.before,
            "now": self.now,
            "before_us": before_us,
            "now_us": now_us,
            "ratio": self.gain,
            "verdict": self.verdict,
            "noisy": self.is_noisy,
        }


def make_answer_case(answer: Answer) -> Case:
    """Return the case of an answer."""
    return answer.kernel, canonical(answer.problem), answer.objective


def compare_answers(before: Mapping[Case, float | None], after: Iterable[Answer], tolerance: float) -> list[Comparison]:
    """Compare the answers ``after`` with the figures ``before``; ``tolerance`` is a fraction (0.03 is 3 %)."""
    return [_judge_case(before.get(make_answer_case(answer)), answer, tolerance) for answer in after]


def _judge_case(before: float | None, answer: Answer, tolerance: float) -> Comparison:
    now = answer.figure if answer.status is Status.FRESH else None
    cost_before, cost_now = convert_to_cost(answer.objective, before), convert_to_cost(answer.objective, now)
    if cost_now is None:
        verdict = "failed"
    elif cost_before is None:
        verdict = "new"
    elif cost_now > cost_before * (1 + tolerance):
        verdict = "slower"
    else:
        verdict = "faster" if cost_now * (1 + tolerance) < cost_before else "same"
    return Comparison(answer, before, now, verdict)


def find_previous_best(trials: Iterable[Trial], digest: str, device: str | None, objective: Objective) -> float | None:
    """Return the best figure among the measured trials of a kernel's newest state other than ``digest``."""
    known = []
    for trial in trials:
        figure = select_figure(objective, trial.latency_us, trial.metrics)
        cost = convert_to_cost(objective, figure)
        if cost and trial.digest != digest and trial.device == device:
            known.append((trial, cost, figure))
    if not known:
        return None
    newest = max((trial for trial, _, _ in known), key=lambda trial: trial.updated)
    return min((cost, figure) for trial, cost, figure in known if trial.digest == newest.digest)[1]


def check_regressions(client: Client, root: str | None, tolerance: float, against: Path | None, as_json: bool) -> int:
    """Tune stale kernels below a path, or below all roots, and check that no winner became slower.

    The winners before are the daemon's, or with ``against`` the winners committed to these files.
    """
    # Read before any inspection: the winners at this moment are the baseline of the comparison.
    answers = _look_up(client, _list_questions(client, root))
    before = {make_answer_case(answer): _find_earlier_figure(client, answer) for answer in answers}
    places = [root] if root is not None else [known.path for known in call_method(client, KERNELS).roots]
    errors: list[FileError] = []
    for place in places:
        accepted = request_tuning(client, TUNE, TuneParams(path=place, stale_only=True))
        errors += accepted.errors
        follow_tuning(client, accepted, choose_presenter(as_json=as_json))
    for asked in _list_questions(client, root):
        if asked.objective is not None:
            again = TuneParams(asked.kernel, problem=dict(asked.problem), objective=asked.objective, stale_only=True)
            follow_tuning(client, request_tuning(client, TUNE, again), choose_presenter(as_json=as_json))
    now = _look_up(client, _list_questions(client, root))
    if against is not None:
        before = _read_committed_figures(against, now)
    found = compare_answers(before, now, tolerance)
    if as_json:
        output.emit_json(
            {"comparisons": [entry.to_plain() for entry in found], "tolerance": tolerance, "errors": errors}
        )
    elif found:
        columns = ["kernel", "problem", "device", "before", "now", "change", "verdict"]
        output.print_table(columns, map(_comparison_row, found), right=["before", "now", "change"])
    else:
        output.print_error("there is no kernel to compare", "name a kernel file or a directory of them")
    regressions = [entry for entry in found if entry.is_regression]
    return Exit.NOT_REACHED if regressions or errors or not found else Exit.DONE


def _list_questions(client: Client, root: str | None) -> list[LookupParams]:
    """Return a lookup for each declared problem of the kernels at a path, by each objective of a winner.

    Lookups by the kernel's own objective come first, and name no objective.
    """
    declared, by_winners = [], []
    for kernel in call_method(client, KERNELS, KernelsParams(path=root, why=True)).kernels:
        for problem in kernel.problems:
            declared.append(LookupParams(kernel.name, problem, tune=False))
            # A winner's problem is the part that the kernel is specialised for.
            alike = [standing for standing in kernel.why or () if standing.problem.items() <= problem.items()]
            objectives = {standing.objective for standing in alike} - {kernel.plan.objective}
            by_winners += [
                LookupParams(kernel.name, problem, tune=False, objective=other) for other in sorted(objectives)
            ]
    return declared + by_winners


def _look_up(client: Client, questions: list[LookupParams]) -> list[Answer]:
    answers: list[Answer] = []
    for first in range(0, len(questions), LOOKUPS_AT_ONCE):
        params = LookupManyParams(questions[first : first + LOOKUPS_AT_ONCE])
        answers += call_method(client, LOOKUP_MANY, params).read_answers()
    return answers


def _read_committed_figures(place: Path, answers: Iterable[Answer]) -> dict[Case, float | None]:
    """Return, for each answer, the figure of its problem's and device's winner in files of `ktuned export`.

    A clone has another name than its original. So a file that names none of the kernels belongs to the only one whose
    name ends alike.

    Raises:
        CannotShare: a file cannot be read.
        NotFound: none of the files belongs to these kernels.
    """
    documents = [document for _, document in read_documents([str(place)])]
    answers = list(answers)
    kernels = sorted({answer.kernel for answer in answers})
    known = {
        (kernel, document.device): document.by_objective
        for document in documents
        for kernel in ([document.kernel] if document.kernel in kernels else _list_namesakes(document.kernel, kernels))
    }
    if kernels and not {kernel for kernel, _ in known} & {*kernels}:
        named = listed(sorted({document.kernel for document in documents}))
        raise NotFound(
            f"{place} has winners of none of the compared kernels {named}", hint="`ktuned export` writes them"
        )
    found: dict[Case, float | None] = {}
    for answer in answers:
        by = known.get((answer.kernel, answer.device or ""), {}).get(answer.objective, ())
        # A winner's problem is the part that the kernel is specialised for.
        alike = [winner for winner in by if winner.problem.items() <= answer.problem.items()]
        for winner in alike[:1]:
            found[make_answer_case(answer)] = select_figure(answer.objective, winner.latency_us, winner.metrics or {})
    return found


def _list_namesakes(name: str, kernels: Iterable[str]) -> list[str]:
    """Return the kernel of another project that has the same short name, if there is only one."""
    alike = [kernel for kernel in kernels if kernel.rpartition(":")[2] == name.rpartition(":")[2]]
    return alike if len(alike) == 1 else []


def _find_earlier_figure(client: Client, answer: Answer) -> float | None:
    """Return a case's figure from before its tuning, given the current answer; None if there was none.

    A running job may have published winners already. After an edit that removes the winner's config from the space, the
    answer has no figure; then the best figure of the kernel's last measured state counts.
    """
    if answer.status is Status.STALE:
        return answer.figure
    kernel, problem = answer.kernel, answer.problem
    digest = ""
    if answer.status is Status.FRESH:
        jobs = call_method(client, JOBS, JobsParams(kernel=kernel)).jobs
        if not any(job.problem == problem and not job.is_ended for job in jobs):
            return answer.figure
        (known,) = call_method(client, KERNELS, KernelsParams(kernel)).kernels
        digest = known.digest
    measured = ResultsParams(kernel, dict(problem), outcome=Outcome.MEASURED, order="newest", limit=TRIALS_BEFORE)
    trials = call_method(client, RESULTS, measured).trials
    return find_previous_best(trials, digest, answer.device, answer.objective)


def _comparison_row(entry: Comparison) -> list[str]:
    answer = entry.answer
    return [
        answer.kernel,
        text.format_values(answer.problem) + format_objective_suffix(answer.objective),
        answer.device or "",
        text.format_by_objective(answer.objective, entry.before),
        text.format_by_objective(answer.objective, entry.now),
        text.format_factor(entry.gain),
        f"{entry.verdict}, noisy" if entry.is_noisy else entry.verdict,
    ]
