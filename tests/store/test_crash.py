"""A process that is killed while it writes loses nothing that it has reported."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.model.values import Outcome
from ktuned.store.database import Store
from tests.store.samples import CONTEXT

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


def kill_writer(database: Path, lines: int) -> list[list[str]]:
    """Let a child write until it has reported ``lines`` lines, kill it, and return all its reports as words."""
    command = [sys.executable, "-m", "tests.store.endless_writer", str(database)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        reports = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        # What was printed before the kill was reported, too; the last line may be torn.
        reports += [line for line in child.stdout if line.endswith("\n")]
    assert all(reports)
    return [line.split() for line in reports]


@pytest.mark.parametrize("seed", range(8))
async def test_kill_9_loses_no_reported_trial(seed: int, database: Path) -> None:
    """The store opens without a complaint, and the winner is right."""
    reports = kill_writer(database, random.Random(seed).randrange(1, 400))
    begun = {int(words[1]) for words in reports if words[0] == "begun"}
    finished = {int(words[1]): words[2:] for words in reports if words[0] == "finished"}
    won = [float(words[2]) for words in reports if words[0] == "won"]
    async with Store.open(database) as store:
        assert store.notice == ""
        trials = {trial.id: trial for trial in store.list_trials(limit=10**6)}
        assert begun <= set(trials)
        for number, figures in finished.items():
            assert [str(trials[number].outcome), str(trials[number].latency_us)] == figures
        interrupted = {number for number, trial in trials.items() if trial.outcome is Outcome.INTERRUPTED}
        assert store.recovered.trials == len(interrupted)
        assert all(trial.outcome is not None for trial in trials.values())
        best = store.list_best_trials(CONTEXT, 1)
        winner = store.get_winner(CONTEXT.key)
        assert (winner.trial if winner else None) == (best[0].id if best else None)
        assert not won or (winner and winner.latency_us <= min(won))
