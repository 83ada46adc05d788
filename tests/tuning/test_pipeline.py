from __future__ import annotations

import pytest

from ktuned.protocol import ChannelInfo, Priority
from ktuned.protocol.jobs import find_notices
from ktuned.protocol.noise import is_ratio_implausible
from ktuned.scheduling import GIVEN_UP
from ktuned.serve.explain import Explainer
from ktuned.tuning import compile_stage
from tests.daemon_parts import ALL_ROUNDS, Parts, make_kernel_text
from tests.fake_tensors import REFERENCE
from tests.fleet.playground import wait_until
from tests.tuning.jobs import run_job, submit_job

pytestmark = pytest.mark.anyio

CONFIGS = "[dict(us=1.0), dict(us=2.0), dict(us=3.0)]"
WITH_A_WRONG_ONE = "[dict(us=us, does=does) for us, does in ((60.0, 'work'), (2000.0, 'work'), (50.0, 'wrong'))]"
FIGURES = {1.0: 10.0, 2.0: 20.0, 3.0: 30.0}


async def test_known_configs_are_counted_once(parts: Parts) -> None:
    """A default that is also a finalist is one config."""
    kernel = await parts.inspect_file(make_kernel_text(configs=CONFIGS, default="dict(us=1.0)"))
    await parts.record_measurements(kernel, FIGURES, rounds=ALL_ROUNDS)
    ended = await run_job(parts)
    assert (ended["state"], ended["done"], ended["total"]) == ("done", 3, 3)
    assert (ended["best_us"], ended["default_us"]) == (10.0, 10.0)
    assert {worker.role for worker in parts.fleet.describe_workers()} <= {"inspect", "explore"}


async def test_an_undone_edit_restores_the_old_winner(parts: Parts) -> None:
    """In a context that was decided before, its best config wins, not the winner of the edit in between."""
    text = make_kernel_text(configs=CONFIGS)
    kernel = await parts.inspect_file(text)
    await parts.record_measurements(kernel, FIGURES, rounds=ALL_ROUNDS)
    edited = await parts.inspect_file(make_kernel_text(configs=CONFIGS, rtol="0.5"))
    await parts.record_measurements(edited, {3.0: 5.0}, rounds=ALL_ROUNDS)
    (winner,) = parts.store.list_winners()
    assert winner.context.digest == edited.digest != kernel.digest
    context_of_edit = winner.context

    await parts.inspect_file(text)
    ended = await run_job(parts)
    assert ended["state"] == "done", ended["message"]
    (winner,) = parts.store.list_winners()
    assert winner.context == parts.build_context() != context_of_edit
    assert (winner.config, winner.latency_us) == ({"us": 1.0}, 10.0)
    (winner_event,) = parts.recorder.list_events("winner")
    assert winner_event["config"] == {"us": 1.0}


async def test_the_winner_is_decided_by_the_final_round(parts: Parts) -> None:
    """A job measures unknown configs, checks them, and runs its finalists again."""
    default = "dict(us=2000.0, does='work')"
    await parts.inspect_file(make_kernel_text(configs=WITH_A_WRONG_ONE, reference=REFERENCE, default=default))
    ended = await run_job(parts)
    assert (ended["state"], ended["done"], ended["total"]) == ("done", 3, 3)
    outcomes = {trial.config["us"]: trial.outcome for trial in parts.store.list_trials()}
    assert (outcomes[60.0], outcomes[50.0]) == ("measured", "mismatch")
    (winner,) = parts.store.list_winners()
    assert winner.config["us"] == 60.0
    assert winner.context == parts.build_context()
    trial = parts.store.get_trial(winner.trial)
    assert trial is not None
    assert trial.detail.final.rounds == len(trial.detail.final.round_medians_us) >= 3
    # The base of speed-ups is from the same rounds and has a spread.
    (default_trial,) = [trial for trial in parts.store.list_trials() if trial.config["us"] == 2000.0]
    assert len(parts.store.get_trial(default_trial.id).detail.final.round_medians_us) >= 3  # type: ignore[union-attr]
    assert (ended["default_us"], ended["default_spread_us"]) == (default_trial.latency_us, default_trial.spread_us)
    assert (ended["best_us"], ended["best_spread_us"]) == (trial.latency_us, trial.spread_us)
    assert (ended["reference_us"], ended["reference_spread_us"]) == (
        trial.detail.final.reference_us,
        trial.detail.final.reference_spread_us,
    )
    order = [event["type"] for event in parts.recorder.events]
    assert order.index("trial_done") < order.index("refining") < order.index("job_done")


async def test_a_reference_far_above_the_winner_is_timed_in_twice_as_many_rounds(parts: Parts) -> None:
    """The preset has three rounds; if the reference is still as slow, its figure is implausible."""
    slow = "lambda x: (__import__('time').sleep(0.02), dict(y=2 * x))[1]"
    await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0, does='work')]", reference=slow))
    await run_job(parts)
    (winner,) = parts.store.list_winners()
    trial = parts.store.get_trial(winner.trial)
    assert trial is not None
    assert trial.detail.final.rounds == 6
    assert is_ratio_implausible(trial.detail.final.reference_us, trial.latency_us)


async def test_decided_finalists_are_not_measured_again(parts: Parts) -> None:
    """The contest raised a finalist's figure above that of a config that was no finalist; that needs no measurement."""
    kernel = await parts.inspect_file(make_kernel_text(configs=CONFIGS))
    await parts.record_measurements(kernel, {2.0: 10.5, 3.0: 10.6})
    await parts.record_measurements(kernel, {1.0: 11.0}, rounds=ALL_ROUNDS)
    (decided_trial,) = [
        trial for trial in parts.store.list_best_trials(parts.build_context(), 3) if trial.detail.final.rounds
    ]
    await parts.store.decide_winner(decided_trial.id)
    ended = await run_job(parts)
    assert (ended["state"], ended["done"], parts.recorder.list_events("refining", "winner")) == ("done", 3, [])
    (winner,) = parts.store.list_winners()
    assert (winner.config, winner.latency_us) == ({"us": 1.0}, 11.0)


async def test_configs_are_compiled_ahead_within_a_bound(parts: Parts) -> None:
    """Slots need not wait for outcomes: a job counts speculative compilations, and the status shows the bound."""
    configs = "[dict(us=float(us), does='gate_compile', gate='door') for us in range(1, 61)]"
    await parts.inspect_file(make_kernel_text(configs=configs))
    # Without a time limit, there would be more configs while the lane is opened.
    await submit_job(parts, time_limit_s=600.0)

    def describe_channel(name: str) -> ChannelInfo:
        return parts.jobs.describe_channels().get(f"{name} (job 1)", ChannelInfo(0, 1))

    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await wait_until(lambda: describe_channel("ahead").used == describe_channel("ahead").size)
        assert 0 < describe_channel("compile").used < describe_channel("ahead").used < 60
        parts.open_gate("door")
        ended = await parts.wait_for_job()
    assert ended["done"] == 60
    assert ended["cost"]["speculative"] == 59


async def test_a_knob_that_the_kernel_ignores_is_reported(parts: Parts) -> None:
    """The ended job says so, and so does the explanation of its winner."""
    configs = "[dict(us=us, spare=spare) for us in (50.0, 60.0) for spare in (1, 2)]"
    text = make_kernel_text(configs=configs).replace("Build(**c)", "Build(us=c.us)")
    assert "c.us" in text
    kernel = await parts.inspect_file(text)
    ended = await run_job(parts)
    (notice,) = find_notices(str(ended["message"]))
    assert notice.startswith("spare has no effect: configs that differ only in it compile to the same bytes")
    explainer = Explainer(parts.catalog, parts.daemon.states, parts.store)
    assert [entry.notices for entry in explainer.explain_winners(kernel)] == [(notice,)]


async def test_a_compile_that_the_fast_preset_gives_up_is_tried_when_nothing_else_waits(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner is decided among the others. A job of the lowest rank then waits for that compile, and it wins."""
    monkeypatch.setattr(compile_stage, "STRAGGLER_S", 0.5)
    builds = "((60.0, 'work'), (80.0, 'work'), (50.0, 'gate_compile'))"
    configs = f"[dict(us=us, does=does, gate='door' if us == 50.0 else '') for us, does in {builds}]"
    await parts.inspect_file(make_kernel_text(configs=configs))
    await submit_job(parts)
    async with parts.run_jobs():
        ended = await parts.wait_for_job()
        assert (ended["state"], ended["done"], ended["total"]) == ("done", 3, 3)
        (winner,) = parts.store.list_winners()
        assert winner.config["us"] == 60.0
        (late_trial,) = [trial for trial in parts.store.list_trials() if trial.config["us"] == 50.0]
        assert late_trial.outcome == "compile_timeout"
        assert late_trial.detail.failure.after_s >= 0.5

        (late_job,) = parts.jobs.list_live_jobs()
        assert (late_job.reason, late_job.priority) == (GIVEN_UP, Priority.VERIFY)
        # It is in the store before the end is, so that no death of the daemon between the two loses it.
        assert late_job.created <= ended["finished"]
        assert [config["us"] for config in late_job.plan.configs] == [50.0]
        parts.open_gate("door")
        ended = await parts.wait_for_job(2)
    assert ended["state"] == "done"
    (winner,) = parts.store.list_winners()
    assert winner.config["us"] == 50.0
    assert parts.jobs.list_live_jobs() == []
