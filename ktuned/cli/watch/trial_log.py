"""Trials of one row of the board, for its details: configs, the best so far, the history over saves. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from ktuned.cli import text
from ktuned.cli.watch.board import BoardRow
from ktuned.cli.watch.choice import Listed
from ktuned.model import NOT_TRIED, FrozenStruct, Outcome, convert_to_cost, select_figure
from ktuned.protocol import Event, JobDone, KernelStale, ListedTrial, Trial, TrialDone, WinnerChanged

MAX_TRIALS = 1_000
"""Most trials that are requested: more than anyone scrolls through. A report has all."""


class TrialLog(FrozenStruct):
    """Trials of the kernel's current state by id, and the best trial of each earlier state of its sources by digest.

    ``winner`` is the id of the trial that won by the row's objective.
    """

    row: BoardRow
    trials: Mapping[int, Trial] = {}
    earlier: Mapping[str, Trial] = {}
    winner: int | None = None

    @property
    def tried(self) -> list[Trial]:
        """The trials whose outcome says something about the config, and the running ones."""
        return [trial for trial in self.trials.values() if trial.outcome not in NOT_TRIED]

    @property
    def best_so_far(self) -> list[float]:
        """The cost of the best config after each measured trial, in the order of the trials."""
        best: list[float] = []
        for _, trial in sorted(self.trials.items()):
            cost = self.find_cost(trial)
            if cost is not None:
                best.append(min(cost, best[-1]) if best else cost)
        return best

    @property
    def history(self) -> list[Trial]:
        """The best trial of each state of the sources, from the oldest state to the current one."""
        present = [trial for trial in self.trials.values() if self.find_cost(trial) is not None]
        now = {trial.digest for trial in present}
        past = [trial for digest, trial in self.earlier.items() if digest not in now]
        best = sorted(present, key=lambda trial: self.find_cost(trial) or 0.0)[:1]
        return [*sorted(past, key=lambda trial: trial.id), *best]

    def find_figure(self, trial: Trial) -> float | None:
        """Return a trial's figure by the row's objective, whatever bits its output has."""
        return select_figure(self.row.objective, trial.latency_us, trial.metrics)

    def find_cost(self, trial: Trial) -> float | None:
        """Return a trial's figure as a cost (less is better); ``None`` unless it was measured."""
        is_measured = trial.outcome is Outcome.MEASURED
        return convert_to_cost(self.row.objective, self.find_figure(trial)) if is_measured else None

    @property
    def listed(self) -> Listed[Trial]:
        """How the trials are listed: the best first, the newest first, or failures first."""
        return Listed(
            words=lambda trial: (
                f"{trial.id} {text.format_values(trial.config)} {trial.outcome or ''} {text.first_line(trial.message)}"
            ),
            orders={
                "best": lambda trial: (self.find_cost(trial) is None, self.find_cost(trial) or 0.0, trial.id),
                "newest": lambda trial: -trial.id,
                "failures": lambda trial: (trial.outcome is Outcome.MEASURED, trial.outcome or "under way", trial.id),
            },
        )


def open_log(row: BoardRow, current: Iterable[ListedTrial], measured: Iterable[Trial]) -> TrialLog:
    """Return the log of a row from the trials of its current state and the measured trials of all states."""
    log = TrialLog(row)
    now = {trial.id: trial for trial in current}
    best: dict[str, Trial] = {}
    for trial in measured:
        cost = log.find_cost(trial)
        before = best.get(trial.digest)
        if cost is not None and (before is None or cost < (log.find_cost(before) or cost)):
            best[trial.digest] = trial
    winner = next((trial.id for trial in now.values() if row.objective in trial.objectives), None)
    return replace(log, trials=now, earlier=best, winner=winner)


def follow_event(log: TrialLog, event: Event) -> TrialLog:
    """Return the log after an event: it takes in a trial of its row, or marks a new winner."""
    match event:
        case TrialDone(trial=Trial() as trial) if _is_trial_of_row(trial, log.row):
            return replace(log, trials={**log.trials, trial.id: trial})
        case WinnerChanged() if event.job is not None and event.job == _job_of_row(log.row):
            return replace(log, winner=event.trial)
    return log


def is_outdated(log: TrialLog, event: Event) -> bool:
    """Return whether a log must be requested again after an event: a job ended, or an edit changed the kernel."""
    return event.kernel == log.row.kernel and isinstance(event, JobDone | KernelStale)


def _job_of_row(row: BoardRow) -> int | None:
    return None if row.job is None else row.job.id


def _is_trial_of_row(trial: Trial, row: BoardRow) -> bool:
    if trial.job == _job_of_row(row):
        return True
    same = (trial.kernel, trial.device) == (row.kernel, row.device)
    # A trial has the key problem; the row's problem may have more keys.
    return same and trial.problem.items() <= row.problem.items()
