"""Answers never get worse within one context: the ladder, the served configs and the store's rule together."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.answers.ladder import Question, decide_answer
from ktuned.model.kernel import KernelInfo, SpaceInfo
from ktuned.model.keys import DeviceModel, KernelName, KeyProblem, ProjectName
from ktuned.model.objective import LATENCY
from ktuned.model.plan import Plan
from ktuned.model.trial import TrialResult
from ktuned.model.values import Config, Outcome, canonical
from ktuned.protocol.jobs import JobState
from ktuned.protocol.winners import Status
from ktuned.store.contexts import Context
from ktuned.store.winner_rule import Effect, Standing, judge_result
from ktuned.store.winners import Winner
from ktuned.tuning.judgements import ServedConfigs, choose_served_configs
from ktuned.tuning.outcomes import Outcomes
from tests.daemon_parts import ALL_ROUNDS, Parts, make_kernel_text
from tests.made_state import make_state
from tests.trials import make_detail

KNOBS = range(6)
SPACE = SpaceInfo("cartesian", {"B": tuple(KNOBS)}, size=len(KNOBS))
MODEL = DeviceModel("cpu-x")


def make_context(size: int, digest: str = "now") -> Context:
    return Context(KernelName("p:k"), KeyProblem(canonical({"M": size})), MODEL, digest, "gcc", "driver")


def make_winner(size: int, knob: int, latency_us: float, digest: str = "now") -> Winner:
    return Winner(make_context(size, digest), knob, {"M": size}, {"B": knob}, latency_us, 0.1, None, decided=0.0)


def make_kernel(default: Config | None) -> KernelInfo:
    return KernelInfo(
        ProjectName("p"), "k", "/p/tune_k.py", 1, "fake", "d", "s", "p", (), {}, (), default, None, SPACE, Plan()
    )


DISTURBED = 0.0
"""Takes the place of a latency: the config was contended, which says nothing about it."""

latencies_strategy = st.lists(
    st.none() | st.just(DISTURBED) | st.floats(1.0, 1e4), min_size=len(KNOBS), max_size=len(KNOBS)
)
"""Latencies of all configs; ``None`` for a config that fails."""


@given(
    latencies_us=latencies_strategy,
    order=st.permutations(KNOBS),
    default=st.none() | st.sampled_from(KNOBS),
    near=st.none() | st.sampled_from(KNOBS),
    winner_before=st.none() | st.sampled_from(KNOBS),
    lookups=st.lists(st.booleans(), min_size=len(KNOBS), max_size=len(KNOBS)),
)
def test_no_answer_is_slower_than_the_one_before(
    latencies_us: list[float | None],
    order: list[int],
    default: int | None,
    near: int | None,
    winner_before: int | None,
    lookups: list[bool],
) -> None:
    """Configs may end in any order: the next answer is only slower if the previous config failed."""
    kernel = make_kernel(None if default is None else {"B": default})
    others = [] if near is None else [make_winner(128, near, 1.0)]
    winner = None if winner_before is None else make_winner(64, winner_before, 2.0, "before the edit")
    served = ServedConfigs(
        choose_served_configs(
            None if winner is None else winner.config,
            [config_winner.config for config_winner in others],
            kernel.default,
            lambda _: True,
        )
    )
    answers: list[int] = []
    measured: dict[int, float] = {}

    def look_up() -> None:
        known = [*others, *([] if winner is None else [winner])]
        state = make_state(kernel, known, make_context(64))
        question = Question({"M": 64}, MODEL, LATENCY, admits=lambda _: True)
        answer = decide_answer(state, question, state.places[0], make_context(64), "")
        if answer.config is not None:
            answers.append(int(answer.config["B"]))
        if answer.status is Status.FRESH:
            assert answer.config is not None
            assert measured[int(answer.config["B"])] == min(measured.values())

    look_up()
    for knob, is_asked in zip(order, lookups, strict=True):
        outcome = get_outcome(latencies_us[knob])
        latency_us = latencies_us[knob] if outcome is Outcome.MEASURED else None
        incumbent = None if winner is None else Standing(winner.trial, 2 if winner.context.digest == "now" else 1, 2.0)
        if incumbent is not None and winner is not None and incumbent.context == 2:
            incumbent = Standing(winner.trial, 2, winner.latency_us)
        # A trial of this context is another row than the trial of the earlier context.
        effect = judge_result(
            Standing(knob, 2, latency_us), move_to_other_row(incumbent), keeps_winner=not served.are_judged
        )
        if latency_us is not None:
            measured[knob] = latency_us
        if effect is Effect.TAKE and latency_us is not None:
            winner = make_winner(64, knob, latency_us)
        if served.record_outcome({"B": knob}, outcome) and measured:
            best = min(measured, key=lambda config_winner: measured[config_winner])
            winner = make_winner(64, best, measured[best])
        if is_asked:
            look_up()
    look_up()
    known_us = [latency_us for knob in answers if (latency_us := latencies_us[knob])]
    assert known_us == sorted(known_us, reverse=True)
    for left, right in pairwise(answers):
        assert left == right or get_outcome(latencies_us[left]) is not Outcome.CONTENDED, "it gave way unmeasured"


def get_outcome(latency_us: float | None) -> Outcome:
    if latency_us is None:
        return Outcome.MISMATCH
    return Outcome.MEASURED if latency_us != DISTURBED else Outcome.CONTENDED


def move_to_other_row(incumbent: Standing | None) -> Standing | None:
    if incumbent is None or incumbent.context == 2:
        return incumbent
    return Standing(incumbent.trial + 100, incumbent.context, incumbent.cost)


def test_a_near_winner_gives_way_once_its_config_has_its_outcome() -> None:
    """Only a meaningful outcome of the served config lets others win, not their own outcomes or a contended one."""
    served = ServedConfigs(
        choose_served_configs(None, [{"B": 1}, {"B": 2}], {"B": 3}, lambda config: config != {"B": 1})
    )
    assert served.configs == ({"B": 2}, {"B": 3})
    assert [served.record_outcome({"B": knob}, Outcome.MEASURED) for knob in (1, 3, 4)] == [False] * 3
    assert not served.record_outcome({"B": 2}, Outcome.CONTENDED)
    assert served.awaited_config == {"B": 2}
    assert [served.record_outcome({"B": 2}, Outcome.SLOWER) for _ in range(2)] == [True, False]


def test_the_opening_waits_for_the_next_served_config_if_the_first_fails() -> None:
    """Lookups then get the default."""
    served = ServedConfigs([{"B": 1}, {"B": 2}])
    assert not served.record_outcome({"B": 1}, Outcome.CRASHED)
    assert served.awaited_config == {"B": 2}
    assert served.record_outcome({"B": 2}, Outcome.HUNG)
    assert served.awaited_config is None


def test_the_opening_does_not_wait_for_a_known_outcome() -> None:
    """An interrupted job resumes: a served config with an outcome needs no second one."""
    assert ServedConfigs([{"B": 1}], lambda config: Outcome.MEASURED).are_judged
    assert not ServedConfigs([{"B": 1}], lambda config: None).are_judged


@pytest.mark.anyio
@pytest.mark.parametrize(("default", "tried"), [("", 2), ("dict(us=700.0)", 3)])
async def test_a_job_for_some_configs_never_worsens_the_answer(parts: Parts, default: str, tried: int) -> None:
    """It also tries the served config: a slower requested config does not replace it."""
    configs = "[dict(us=2000.0), dict(us=700.0), dict(us=50.0)]"
    problems = "[dict(n=64), dict(n=128)]"
    await parts.inspect_file(make_kernel_text(configs=configs, problems=problems, default=default))
    async with parts.run_jobs():
        await parts.tune(problem={"n": 128})
        ended = await parts.tune(problem={"n": 64}, configs=({"us": 2000.0},))
        parts.kill_workers()
    answer = parts.look_up()
    assert (answer.status, answer.config, answer.is_final) == (Status.FRESH, {"us": 50.0}, True)
    assert (ended["state"], ended["done"]) == ("done", tried)


@pytest.mark.anyio
async def test_after_an_undone_edit_only_decided_winners_are_served(parts: Parts) -> None:
    """A slow config that a cancelled job had measured does not win once a later edit is undone."""
    text = make_kernel_text(configs="[dict(us=2000.0), dict(us=50.0)]", problems="[dict(n=64), dict(n=128)]")
    kernel = await parts.inspect_file(text)
    await parts.record_measurements(kernel, {50.0: 50.0}, {"n": 128}, rounds=ALL_ROUNDS)
    await parts.record_measurements(kernel, {2000.0: 2000.0}, keeps_winner=True)
    edited = make_kernel_text(
        configs="[dict(us=2000.0), dict(us=50.0)]", problems="[dict(n=64), dict(n=128)]", rtol="0.5"
    )
    kernel = await parts.inspect_file(edited)
    await parts.record_measurements(kernel, {50.0: 50.0}, rounds=ALL_ROUNDS)
    await parts.save_file(text)
    answer = parts.look_up()
    assert (answer.status, answer.config) == (Status.STALE, {"us": 50.0})


@pytest.mark.anyio
@pytest.mark.parametrize(("fastest_us", "is_served"), [(51.0, True), (49.0, False), (None, False)])
async def test_a_busy_machine_leaves_a_provisional_winner_if_one_is_surely_better(
    parts: Parts, fastest_us: float | None, is_served: bool
) -> None:
    """The served default was timed only beside other programs: even its fastest timing must be slower."""
    default = {"us": 2000.0}
    kernel = await parts.inspect_file(
        make_kernel_text(configs="[dict(us=2000.0), dict(us=50.0)]", default="dict(us=2000.0)")
    )
    await parts.record_measurements(kernel, {50.0: 50.0}, keeps_winner=True, high_us=50.5)
    (job,) = parts.store.list_jobs()
    brief = parts.preparation.prepare_brief(job)
    trial = await parts.store.begin_trial(brief.context, brief.specialized_problem, job.id, default)
    contended = TrialResult(Outcome.CONTENDED, detail=make_detail(low_us=fastest_us))
    await parts.store.finish_trial(trial, contended, keeps_winner=True)
    outcomes = Outcomes(brief, store=parts.store, publish=parts.daemon.router.publish_event, pace=parts.fleet.pace)
    await outcomes.open_job()
    assert outcomes.served_configs.awaited_config == default
    await outcomes.elect_provisional_winner()
    answer = parts.look_up()
    assert (answer.config, answer.is_final) == ({"us": 50.0} if is_served else default, False)
    outcomes.progress.set_best(parts.store.list_best_trials(brief.context, 1)[0])
    state, message = outcomes.conclude_job()
    assert (state, "provisional" in message) == ((JobState.DONE, True) if is_served else (JobState.FAILED, False))


ALWAYS_CONTENDED = """
import ktuned.measuring.contention as contention

contention.CpuWatch.is_contended = lambda self, samples=None: True

"""


@pytest.mark.anyio
@pytest.mark.parametrize("default", [None, "dict(us=400.0)"])
async def test_a_machine_that_is_never_quiet_leaves_a_provisional_winner(parts: Parts, default: str | None) -> None:
    """Every config is contended. The next job, on a quieter machine, measures them again and decides."""
    options = {} if default is None else {"default": default}
    text = make_kernel_text(configs="[dict(us=400.0), dict(us=50.0), dict(us=200.0)]", **options)
    await parts.inspect_file(ALWAYS_CONTENDED + text)
    async with parts.run_jobs():
        parts.preparation.judges_contention = True
        ended = await parts.tune()
        answer = parts.look_up()
        assert (answer.status, answer.config, answer.is_final) == (Status.FRESH, {"us": 50.0}, False)
        assert answer.message == "provisional: other programs used the device while it was measured"
        assert (ended["state"], ended["outcomes"]) == ("done", {"measured": 2, "contended": 1})
        assert "the winner is provisional: other programs used the device" in ended["message"]

        parts.preparation.judges_contention = False
        assert await parts.renewal.remeasure_provisional_winners()
        again = await parts.wait_for_job(2)
        parts.kill_workers()
    answer = parts.look_up()
    assert (answer.status, answer.config, answer.is_final, answer.message) == (Status.FRESH, {"us": 50.0}, True, "")
    assert "provisional" not in again["message"]
    assert not await parts.renewal.remeasure_provisional_winners()
