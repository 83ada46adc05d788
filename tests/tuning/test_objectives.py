"""Objectives: one winner for each requested objective, and no measurement repeated for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.model.errors import UsageError
from ktuned.model.objective import LATENCY, Objective, maximize, minimize
from ktuned.model.values import Outcome
from ktuned.protocol.winners import Status
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text
from tests.fake_tensors import REFERENCE

pytestmark = pytest.mark.anyio

BY_ENERGY, BY_SPEED = minimize("energy"), maximize("speed")

CONFIGS = "[dict(us=50.0, joules=0.004), dict(us=70.0, joules=0.001), dict(us=90.0, joules=0.0005)]"
"""The fastest config, the finalist that needs less energy, and a config that is no finalist."""

FAST, FRUGAL = {"us": 50.0, "joules": 0.004}, {"us": 70.0, "joules": 0.001}


async def test_the_energy_decides_among_the_finalists(parts: Parts) -> None:
    """A job by energy repeats no known compilation or search, and does not change the winner by latency."""
    await parts.inspect_file(make_kernel_text(configs=CONFIGS))
    async with parts.run_jobs():
        await parts.tune()
        assert parts.look_up().config == FAST
        assert parts.look_up(objective=BY_ENERGY).status is Status.NEAR
        assert parts.look_up(objective=BY_ENERGY).config == FAST
        job = await parts.tune(objective=BY_ENERGY)
        assert (job["state"], job["objective"], job["outcomes"]) == ("done", BY_ENERGY, {"measured": 3})
        assert job["best_figure"] == pytest.approx(0.001, rel=0.01)
        assert job["cost"].get("compile_s", 0.0) == job["cost"].get("lane_s", 0.0) == 0.0
        second_job = await parts.tune(objective=BY_ENERGY)
        assert (second_job["best_figure"], second_job["cost"].get("finalists_s")) == (job["best_figure"], None)
    energies = {trial.config["us"]: trial.metrics.get("energy") for trial in parts.store.list_trials()}
    assert energies == {50.0: pytest.approx(0.004, rel=0.01), 70.0: pytest.approx(0.001, rel=0.01), 90.0: None}
    answer = parts.look_up(objective=BY_ENERGY)
    assert (answer.config, answer.status, answer.is_final) == (FRUGAL, Status.FRESH, True)
    assert answer.objective == BY_ENERGY
    assert answer.metrics["energy"] == pytest.approx(0.001, rel=0.01)
    assert parts.look_up().config == FAST
    winner_event = parts.recorder.list_events("winner")[-1]
    assert (winner_event["objective"], winner_event["config"]) == (BY_ENERGY, FRUGAL)


async def test_an_objective_of_the_kernel_file_holds_for_requests_without_one(parts: Parts) -> None:
    """A first job by energy measures everything; a job by another metric then needs no new measurement."""
    options = {"metrics": "dict(speed=lambda p, t: p.n / t)", "objective": "'min:energy'"}
    await parts.inspect_file(make_kernel_text(configs=CONFIGS, **options))
    async with parts.run_jobs():
        first = await parts.tune()
        assert (parts.look_up().objective, parts.look_up().config) == (BY_ENERGY, FRUGAL)
        job = await parts.tune(objective=maximize("speed"))
        assert parts.look_up(objective=maximize("speed")).config == FAST
        assert job["cost"].get("lane_s", 0.0) == 0.0
    assert first["best_figure"] == pytest.approx(0.001, rel=0.01)
    assert {winner.objective for winner in parts.store.list_winners()} == {BY_ENERGY, "max:speed"}
    assert parts.look_up().metrics.keys() == {"energy", "speed"}


async def test_a_device_without_a_counter_is_unsupported(tmp_path: Path) -> None:
    """The job fails with that message and measures nothing; a lookup says so and queues nothing."""
    async with assemble_daemon(tmp_path, env={"FAKE_ENERGY": "0"}) as parts, parts.run_jobs():
        kernel = await parts.inspect_file(make_kernel_text(objective="'min:energy'"))
        answer = parts.look_up(tune=True)
        assert answer.message.startswith("unsupported: the objective 'min:energy' on cpu:0 (Fake CPU)")
        assert not parts.jobs.list_live_jobs()
        job = await parts.tune()
        assert job["state"] == "failed"
        assert job["message"] == "unsupported: the objective 'min:energy' on cpu:0 (Fake CPU): it has no energy counter"
        assert not parts.store.list_trials(kernel=kernel.name)
        assert (await parts.tune(objective=LATENCY))["state"] == "done"


async def test_a_failed_config_wins_by_no_objective(parts: Parts) -> None:
    """A config that fails while its energy is measured is no longer served as the fastest."""
    configs = "[dict(us=50.0, does='changes', gate='now'), dict(us=90.0, does='work', gate='')]"
    kernel = await parts.inspect_file(make_kernel_text(configs=configs, reference=REFERENCE))
    async with parts.run_jobs():
        await parts.tune()
        answer = parts.look_up().config
        assert answer is not None
        assert answer["us"] == 50.0
        parts.open_gate("now")
        await parts.tune(objective=BY_ENERGY)
    for objective in (LATENCY, BY_ENERGY):
        answer = parts.look_up(objective=objective).config
        assert answer is not None
        assert answer["us"] == 90.0
    assert [trial.outcome for trial in parts.store.list_trials(kernel=kernel.name, outcome=Outcome.MISMATCH)]


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("speed", "there is no objective 'speed'"),
        ("max:speed", "has no metric 'speed'"),
    ],
)
async def test_an_unknown_objective_is_refused_before_any_job(parts: Parts, objective: str, message: str) -> None:
    """The message lists the objectives."""
    await parts.inspect_file(make_kernel_text(metrics="dict(tflops=lambda p, t: 1.0)"))
    with pytest.raises(UsageError, match=message):
        await parts.request_jobs(objective=Objective(objective))
    with pytest.raises(UsageError, match=message):
        parts.look_up(objective=objective)
    assert not parts.jobs.list_live_jobs()


async def test_a_save_tunes_again_by_every_objective(parts: Parts) -> None:
    """An edit makes all winners stale, and each requested objective gets a job."""
    metrics = "dict(speed=lambda p, t: 1 / t)"
    await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0)]", metrics=metrics))
    async with parts.run_jobs():
        await parts.tune()
        await parts.tune(objective=BY_SPEED)
        changed = make_kernel_text(configs="[dict(us=50.0)]", metrics=metrics, reference="lambda x: dict(y=x + x)")
        path = parts.write_file(changed)
        changes = await parts.inspector.inspect_files(parts.root, [str(path)])
        assert parts.look_up(objective=BY_SPEED).status is Status.STALE
        await parts.renewal.react_to_changes(changes, saved=True)
        jobs = (await parts.recorder.wait_for_ended_jobs(4))[2:]
    assert [job["objective"] for job in jobs] == ["latency", BY_SPEED]
    assert parts.look_up(objective=BY_SPEED).status is Status.FRESH


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("-t", "its figure is -"),
        ("float('nan')", "its figure is not finite, and must be finite and above 0"),
        ("10**400", "the metric speed(p, t): OverflowError"),
    ],
)
async def test_a_metric_that_is_no_figure_is_named_in_the_message(parts: Parts, metric: str, words: str) -> None:
    """The configs were measured, so the job names the metric."""
    options = {"metrics": f"dict(speed=lambda p, t: {metric})", "objective": "'min:speed'"}
    await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0)]", **options))
    async with parts.run_jobs():
        job = await parts.tune()
    assert job["state"] == "failed"
    assert "no config has a figure by min:speed; " in job["message"]
    assert words in job["message"]
