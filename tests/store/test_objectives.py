"""Winners by several objectives: each has a row of its own, and one trial may win by all."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ktuned.model.objective import LATENCY, Objective, minimize
from ktuned.model.trial import TrialResult
from ktuned.model.values import Outcome
from ktuned.store.database import Store
from tests.store.samples import CONTEXT, NEW_CONTEXT, PROBLEM, create_job, make_failed_result

pytestmark = pytest.mark.anyio

BY_ENERGY = minimize("energy")


def make_result(latency_us: float, **metrics: float) -> TrialResult:
    """Return a measured result with metrics."""
    return TrialResult(Outcome.MEASURED, latency_us, 0.1, metrics=metrics)


async def finish_trials(store: Store, objective: Objective, *results: TrialResult) -> list[int]:
    """Store the trials of one job."""
    job = await create_job(store)
    configs = [{"BM": number} for number in range(len(results))]
    ids = await store.begin_trials(CONTEXT, PROBLEM, job.id, configs)
    for number, result in zip(ids, results, strict=True):
        await store.finish_trial(number, result, objective=objective)
    return ids


@pytest.mark.parametrize(
    ("objective", "won"),
    [
        (LATENCY, 0),
        (BY_ENERGY, 1),
        (Objective("min:bytes"), 2),
        (Objective("max:speed"), 0),
        (Objective("min:speed"), 1),
    ],
)
async def test_the_best_by_the_objective_wins(tmp_path: Path, objective: Objective, won: int) -> None:
    """Both as results arrive and when a winner is elected again; the winner by latency is not affected."""
    results = (
        make_result(1.0, energy=9.0, bytes=9.0, speed=9.0),
        make_result(9.0, energy=1.0, bytes=9.0, speed=1.0),
        make_result(2.0, energy=2.0, bytes=4.0, speed=5.0),
    )
    async with Store.open(tmp_path / "k.db") as store:
        ids = await finish_trials(store, objective, *results)
        winner = store.get_winner(CONTEXT.key_for(objective))
        assert winner is not None
        assert (winner.trial, winner.objective, winner.key) == (ids[won], objective, CONTEXT.key_for(objective))
        assert [trial.id for trial in store.list_best_trials(CONTEXT, 1, objective=objective)] == [ids[won]]
        assert (store.get_winner(CONTEXT.key) is None) == (objective != LATENCY)
        await store.finish_trial(ids[won], make_failed_result(Outcome.MISMATCH), objective=objective)
        follower = store.get_winner(CONTEXT.key_for(objective))
        assert follower is not None
        assert follower.trial != ids[won]


async def test_a_failed_trial_is_replaced_for_every_objective(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "k.db") as store:
        ids = await finish_trials(
            store, BY_ENERGY, make_result(1.0, energy=1.0), make_result(2.0, energy=3.0), make_result(3.0, energy=2.0)
        )
        await store.decide_winner(ids[0])
        assert {winner.objective: winner.trial for winner in store.list_winners()} == {
            LATENCY: ids[0],
            BY_ENERGY: ids[0],
        }
        assert await store.finish_trial(ids[0], make_failed_result(Outcome.CRASHED), objective=BY_ENERGY)
        assert {winner.objective: winner.trial for winner in store.list_winners()} == {
            LATENCY: ids[1],
            BY_ENERGY: ids[2],
        }


async def test_a_trial_without_the_figure_wins_by_other_objectives_only(tmp_path: Path) -> None:
    """Forgetting it removes it for all."""
    async with Store.open(tmp_path / "k.db") as store:
        ids = await finish_trials(store, BY_ENERGY, make_result(1.0), make_result(2.0, energy=3.0))
        assert [winner.trial for winner in store.list_winners()] == [ids[1]]
        await store.decide_winner(ids[0])
        assert await store.forget_trials(CONTEXT.kernel) == (2, 2)
        assert store.list_winners() == []


async def test_the_note_is_about_the_objective_s_figure(tmp_path: Path) -> None:
    """A new winner that takes more energy has a note, though it is faster."""
    async with Store.open(tmp_path / "k.db") as store:
        await finish_trials(store, BY_ENERGY, make_result(5.0, energy=1.0))
        job = await create_job(store)
        (number,) = await store.begin_trials(NEW_CONTEXT, PROBLEM, job.id, [{"BM": 1}])
        winner = await store.finish_trial(number, make_result(1.0, energy=2.0), objective=BY_ENERGY)
        assert winner is not None
        assert winner.note == "2 energy, after 1 energy before its sources, toolchain or device changed"


async def test_a_winner_as_fast_as_before_has_no_note(tmp_path: Path) -> None:
    """Each winner of a new context is compared with its own predecessor."""
    async with Store.open(tmp_path / "k.db") as store:
        await finish_trials(store, LATENCY, make_result(100.0))
        job = await create_job(store)
        configs = [{"BM": size} for size in (1, 2, 4)]
        slow, slower, fast = await store.begin_trials(NEW_CONTEXT, PROBLEM, job.id, configs)
        notes = []
        for number, latency_us in ((slow, 200.0), (slower, 300.0), (fast, 100.0)):
            await store.finish_trial(number, make_result(latency_us), objective=LATENCY)
            (winner,) = store.list_winners()
            notes.append((winner.latency_us, winner.note.partition(",")[0]))
        assert notes == [(200.0, "200 µs"), (200.0, "200 µs"), (100.0, "")]
        await store.decide_winner(slow)
        (winner,) = store.list_winners()
        assert winner.note.startswith("200 µs, after 100 µs")


async def test_a_job_keeps_its_objective_and_figures(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "k.db") as store:
        plain = await create_job(store)
        job = await store.create_job(
            CONTEXT.key_for(BY_ENERGY), PROBLEM, priority=100, reason="asked", plan=plain.plan, now=1.0
        )
        await store.update_job(replace(job, best_figure=0.5, default_figure=1.5))
        found = store.get_job(job.id)
        assert found is not None
        assert (found.key, found.best_figure, found.default_figure) == (CONTEXT.key_for(BY_ENERGY), 0.5, 1.5)
        assert store.get_job(plain.id) == plain
        assert (found.objective, plain.objective) == (BY_ENERGY, LATENCY)
