from __future__ import annotations

import pytest

from ktuned.model.plan import Plan
from ktuned.protocol import ChannelInfo
from ktuned.protocol.jobs import find_notices
from ktuned.protocol.noise import is_ratio_implausible
from ktuned.serve.explain import Explainer
from ktuned.store.contexts import Context
from ktuned.tuning import compile_stage
from tests.daemon_parts import ALL_ROUNDS, Parts, make_kernel_text, make_winner_key
from tests.fake_tensors import REFERENCE
from tests.fleet.playing import until

pytestmark = pytest.mark.anyio

CONFIGS = "[dict(us=1.0), dict(us=2.0), dict(us=3.0)]"
WITH_A_WRONG_ONE = "[dict(us=us, does=does) for us, does in ((60.0, 'work'), (2000.0, 'work'), (50.0, 'wrong'))]"
FIGURES = {1.0: 10.0, 2.0: 20.0, 3.0: 30.0}


async def tune(parts: Parts, preset: str = "fast", *, again: bool = False) -> dict[str, object]:
    """Run one job to its end; ``again`` measures what is known already."""
    before = len(parts.recorder.list_events("job_done"))
    await parts.jobs.submit_job(
        make_winner_key({"n": 64}),
        {"n": 64},
        priority=100,
        reason="test",
        plan=Plan(preset=preset, strategy="exhaustive", again=again),
    )
    async with parts.run_jobs():
        *_, ended = await parts.recorder.wait_for_ended_jobs(before + 1)
    return ended


async def test_known_configs_are_counted_once(parts: Parts) -> None:
    """A default that is among the finalists, both of which go first, is one config."""
    kernel = await parts.inspect_file(make_kernel_text(configs=CONFIGS, default="dict(us=1.0)"))
    await parts.record_measurements(kernel, FIGURES, rounds=ALL_ROUNDS)
    ended = await tune(parts)
    assert (ended["state"], ended["done"], ended["total"]) == ("done", 3, 3)
    assert (ended["best_us"], ended["default_us"]) == (10.0, 10.0)
    assert {worker.role for worker in parts.fleet.describe_workers()} <= {"inspect", "explore"}


async def test_an_undone_edit_restores_the_old_winner(parts: Parts) -> None:
    """Back on a context that was decided before, its best is the winner, not what the edit in between had won."""
    text = make_kernel_text(configs=CONFIGS)
    kernel = await parts.inspect_file(text)
    await parts.record_measurements(kernel, FIGURES, rounds=ALL_ROUNDS)
    edited = await parts.inspect_file(make_kernel_text(configs=CONFIGS, rtol="0.5"))
    await parts.record_measurements(edited, {3.0: 5.0}, rounds=ALL_ROUNDS)
    (seated,) = parts.store.list_winners()
    assert seated.context.digest == edited.digest != kernel.digest
    ground_of_edit = seated.context

    await parts.inspect_file(text)
    ended = await tune(parts)
    assert ended["state"] == "done", ended["message"]
    (seated,) = parts.store.list_winners()
    assert seated.context == ground(parts) != ground_of_edit
    assert (seated.config, seated.latency_us) == ({"us": 1.0}, 10.0)
    (told,) = parts.recorder.list_events("winner")
    assert told["config"] == {"us": 1.0}


async def test_the_winner_is_decided_by_the_final_round(parts: Parts) -> None:
    """A job measures what it does not know, checks it, and lets its finalists run again before it is done."""
    default = "dict(us=2000.0, does='work')"
    await parts.inspect_file(make_kernel_text(configs=WITH_A_WRONG_ONE, reference=REFERENCE, default=default))
    ended = await tune(parts)
    assert (ended["state"], ended["done"], ended["total"]) == ("done", 3, 3)
    outcomes = {trial.config["us"]: trial.outcome for trial in parts.store.list_trials()}
    assert (outcomes[60.0], outcomes[50.0]) == ("measured", "mismatch")
    (winner,) = parts.store.list_winners()
    assert winner.config["us"] == 60.0
    assert winner.context == ground(parts)
    trial = parts.store.get_trial(winner.trial)
    assert trial is not None
    assert trial.detail.rounds == len(trial.detail.round_medians_us or ()) >= 3
    # The base of speed-ups is of the same rounds, and its spread is known as well.
    (base,) = [trial for trial in parts.store.list_trials() if trial.config["us"] == 2000.0]
    assert len(parts.store.get_trial(base.id).detail.round_medians_us or ()) >= 3  # type: ignore[union-attr]
    assert (ended["default_us"], ended["default_spread_us"]) == (base.latency_us, base.spread_us)
    assert (ended["best_us"], ended["best_spread_us"]) == (trial.latency_us, trial.spread_us)
    assert (ended["reference_us"], ended["reference_spread_us"]) == (
        trial.detail.reference_us,
        trial.detail.reference_spread_us,
    )
    order = [event["type"] for event in parts.recorder.events]
    assert order.index("trial_done") < order.index("refining") < order.index("job_done")


async def test_a_reference_far_above_the_winner_is_timed_in_twice_as_many_rounds(parts: Parts) -> None:
    """The preset has three rounds; still as slow, its figure is doubtful."""
    slow = "lambda x: (__import__('time').sleep(0.02), dict(y=2 * x))[1]"
    await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0, does='work')]", reference=slow))
    await tune(parts)
    (winner,) = parts.store.list_winners()
    trial = parts.store.get_trial(winner.trial)
    assert trial is not None
    assert trial.detail.rounds == 6
    assert is_ratio_implausible(trial.detail.reference_us, trial.latency_us)


def ground(parts: Parts) -> Context:
    """Return what the kernel is measured on now."""
    kernel = parts.catalog.resolve_kernel("it")
    device = parts.machine.find_device(parts.environment, "fake", None)
    return parts.machine.build_context(kernel, parts.environment, {"n": 64}, device)


async def test_decided_finalists_are_not_measured_again(parts: Parts) -> None:
    """A finalist's figure rose in the contest above that of one that was none: no news, so nothing is measured."""
    kernel = await parts.inspect_file(make_kernel_text(configs=CONFIGS))
    await parts.record_measurements(kernel, {2.0: 10.5, 3.0: 10.6})
    await parts.record_measurements(kernel, {1.0: 11.0}, rounds=ALL_ROUNDS)
    (decided,) = [trial for trial in parts.store.list_best_trials(ground(parts), 3) if trial.detail.rounds]
    await parts.store.decide_winner(decided.id)
    ended = await tune(parts)
    assert (ended["state"], ended["done"], parts.recorder.list_events("refining", "winner")) == ("done", 3, [])
    (seated,) = parts.store.list_winners()
    assert (seated.config, seated.latency_us) == ({"us": 1.0}, 11.0)


async def test_configs_are_compiled_ahead_within_a_bound(parts: Parts) -> None:
    """Slots need not wait for outcomes: a job counts what it compiled without them, and the status shows the bound."""
    configs = "[dict(us=float(us), does='gate_compile', gate='door') for us in range(1, 61)]"
    await parts.inspect_file(make_kernel_text(configs=configs))
    # With a limit of time, after which they would be measured; without one there are more while the lane is opened.
    plan = Plan(preset="fast", strategy="exhaustive", time_limit_s=600.0)
    await parts.jobs.submit_job(make_winner_key({"n": 64}), {"n": 64}, priority=100, reason="test", plan=plan)

    def channel(name: str) -> ChannelInfo:
        return parts.jobs.describe_channels().get(f"{name} (job 1)", ChannelInfo(0, 1))

    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await until(lambda: channel("ahead").used == channel("ahead").size)
        assert 0 < channel("compile").used < channel("ahead").used < 60
        parts.open_gate("door")
        (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert ended["done"] == 60
    assert ended["cost"]["speculative"] == 59


async def test_a_knob_that_the_kernel_ignores_is_reported(parts: Parts) -> None:
    """A job says so when it ends, and so does the explanation of its winner."""
    configs = "[dict(us=us, spare=spare) for us in (50.0, 60.0) for spare in (1, 2)]"
    text = make_kernel_text(configs=configs).replace("Build(**c)", "Build(us=c.us)")
    assert "c.us" in text
    kernel = await parts.inspect_file(text)
    ended = await tune(parts)
    (notice,) = find_notices(str(ended["message"]))
    assert notice.startswith("spare has no effect: configs that differ in it alone compile to the same bytes")
    explainer = Explainer(parts.catalog, parts.daemon.states, parts.store)
    assert [entry.notices for entry in explainer.explain_winners(kernel)] == [(notice,)]


async def test_the_fast_preset_ends_a_compile_that_takes_too_long(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner is decided among the others; a job with another preset gives that compile its whole deadline."""
    monkeypatch.setattr(compile_stage, "STRAGGLER_S", 0.5)
    configs = "[dict(us=us, does=does) for us, does in ((60.0, 'work'), (80.0, 'work'), (50.0, 'compile_hang'))]"
    await parts.inspect_file(make_kernel_text(configs=configs, deadlines="dict(compile=3600.0)"))
    ended = await tune(parts)
    assert (ended["state"], ended["done"], ended["total"]) == ("done", 3, 3)
    (winner,) = parts.store.list_winners()
    assert winner.config["us"] == 60.0
    (late,) = [trial for trial in parts.store.list_trials() if trial.config["us"] == 50.0]
    assert late.outcome == "compile_timeout"
    assert 0.5 <= (late.detail.after_s or 0.0) < 3600.0

    await parts.inspect_file(make_kernel_text(configs=configs, deadlines="dict(compile=3.0)"))
    assert (await tune(parts, "default"))["state"] == "done"
    *_, late = [trial for trial in parts.store.list_trials(order="newest")[::-1] if trial.config["us"] == 50.0]
    assert late.detail.after_s == 3.0
