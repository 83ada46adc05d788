"""In which order a job tries its configs, and what it need not measure."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ktuned.model import DeviceModel, KernelName, KeyProblem, canonical
from ktuned.model.plan import Plan
from ktuned.model.values import Outcome
from ktuned.store import Context, KnownConfig, Winner
from ktuned.tuning.prior_results import MAX_NEAR, PriorResults, choose_near_configs, order_configs, sort_by_similarity
from tests.daemon_parts import ALL_ROUNDS, Parts, make_kernel_text, make_winner_key
from tests.fake_tensors import REFERENCE


def make_past_config(tag: int, outcome: Outcome = Outcome.MEASURED) -> KnownConfig:
    """Return a config with a known outcome."""
    return KnownConfig(canonical({"n": tag}), {"n": tag}, outcome)


def test_configs_are_tried_in_the_promised_order() -> None:
    """The winner and the default lead, then measured configs of newer contexts; slow ones and failures are last."""
    order = order_configs(
        {"n": 5},
        {"n": 7},
        [
            make_past_config(1),
            make_past_config(2, Outcome.CRASHED),
            make_past_config(3, Outcome.SLOWER),
            make_past_config(2),
            make_past_config(4),
            make_past_config(5),
            make_past_config(6, Outcome.HUNG),
        ],
    )
    assert [config["n"] for config in order.first] == [5, 7, 1, 4]
    assert [config["n"] for config in order.last] == [3, 2, 6]
    assert order_configs(None, None, []).first == ()


def test_near_winners_come_first_if_nothing_was_measured() -> None:
    """Only a first tuning begins with winners of similar problems."""
    near = [{"n": 8}, {"n": 7}]
    assert [
        config["n"] for config in order_configs(None, {"n": 7}, [make_past_config(1, Outcome.HUNG)], near).first
    ] == [7, 8]
    assert [config["n"] for config in order_configs(None, {"n": 7}, [make_past_config(1)], near).first] == [7, 1]


def make_winner(tag: int, device: str = "H100", **problem: Any) -> Winner:
    """Return the winner of a problem and device."""
    context = Context(KernelName("p:k"), KeyProblem(canonical(problem)), DeviceModel(device), "d", "t", "f", 1)
    return Winner(context, 1, problem, {"n": tag}, 1.0, None, "d", 0.0)


def test_the_best_few_of_the_nearest_key_come_early() -> None:
    """The nearest winner comes first, then the next best of its key, then farther winners, up to a bound."""
    key = make_winner(0, M=64).key
    winners = sort_by_similarity(
        key, [make_winner(1, M=4096), make_winner(2, M=128), make_winner(3, "A100", M=64), make_winner(4, M=64)]
    )
    assert [winner.config["n"] for winner in winners] == [2, 3, 1]
    assert [config["n"] for config in choose_near_configs(winners, [{"n": 7}, {"n": 2}, {"n": 8}])] == [2, 7, 8, 3, 1]
    assert len(choose_near_configs([make_winner(tag, M=tag) for tag in range(1, 30)], [])) == MAX_NEAR
    assert choose_near_configs([], []) == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("trials", "time_limit_s", "numbers"),
    [(20, None, [*range(7), 19, *range(7, 19)]), (19, None, [*range(20)]), (20, 60.0, [*range(20)])],
)
async def test_a_long_compile_starts_early_enough(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, trials: int, time_limit_s: float | None, numbers: list[int]
) -> None:
    """This holds even if the config was slow; but a budget that omits configs tries the fastest."""
    await parts.inspect_file(make_kernel_text())
    plan = Plan(preset="fast", strategy="exhaustive", trials=trials, time_limit_s=time_limit_s)
    job = await parts.store.create_job(
        make_winner_key({"n": 64}), {"n": 64}, priority=100, reason="test", plan=plan, now=0.0
    )
    known = [replace(make_past_config(number), compile_s=1.0 if number < 19 else 6.0) for number in range(20)]
    monkeypatch.setattr(parts.store, "load_past_searches", lambda *arguments, **options: known)
    order = PriorResults(parts.preparation.prepare_brief(job), parts.store).plan_order((), slots=2)
    assert [config["n"] for config in order.first if "n" in config] == numbers


def test_a_failed_winner_or_default_still_comes_first() -> None:
    order = order_configs(
        {"n": 1}, {"n": 2}, [make_past_config(1, Outcome.MISMATCH), make_past_config(2, Outcome.SLOWER)]
    )
    assert [config["n"] for config in order.first] == [1, 2]
    assert order.last == ()


def test_known_failures_count_towards_the_budget() -> None:
    """A config that is known to fail here comes after measured configs and before unknown ones."""
    failed_here = [make_past_config(3, Outcome.HUNG), make_past_config(4, Outcome.HUNG)]
    order = order_configs(None, {"n": 7}, [make_past_config(1), failed_here[0]], failed_here=failed_here)
    assert [config["n"] for config in order.first] == [7, 1, 3, 4]
    assert order.last == ()


SPACE = "[dict(us=50.0), dict(us=90.0)]"


async def save_and_tune(parts: Parts, text: str) -> dict[str, Any]:
    """Save a kernel file and tune its kernel; return the ended job."""
    await parts.inspect_file(text)
    return await parts.tune()


@pytest.mark.anyio
async def test_equal_artifacts_keep_their_measurements(parts: Parts) -> None:
    """Edits that give the same machine code, arguments and bits are compiled but not measured."""
    text = make_kernel_text(configs=SPACE, reference=REFERENCE)
    edits = (
        ("return Build(**c)", "d = dict(**c)\n    return Build(**d)"),
        ("2 * x", "x + x"),
        ("from ktuned import", "import colorsys\n\nUNUSED = [1, 2]\nfrom ktuned import"),
    )
    async with parts.run_jobs():
        first = await save_and_tune(parts, text)
        assert first["cost"]["lane_s"] > 0
        measured = {trial.id for trial in parts.store.list_trials(kernel="project:it", job=first["id"])}
        for _count, (before, after) in enumerate(edits, start=2):
            text = text.replace(before, after)
            ended = await save_and_tune(parts, text)
            assert (ended["state"], ended["outcomes"]) == ("done", {"measured": 2})
            assert not ended["cost"].get("lane_s")
            assert ended["cost"]["reused"] == 2
            trials = parts.store.list_trials(job=ended["id"])
            assert {trial.detail.timing.carried_from for trial in trials} <= measured
            assert parts.look_up().status == "fresh"


@pytest.mark.anyio
async def test_equal_artifacts_with_other_data_are_measured(parts: Parts) -> None:
    """Other data, another process environment or another check invalidates measurements; with a check of its own, any
    edit of the file's Python does.
    """
    text = make_kernel_text(configs=SPACE, reference=REFERENCE) + "\ndef judge(o):\n    return True\n"
    edits = (
        ("2 * x", "x * 2.0000002"),
        ("tensor((p.n,))", "tensor((p.n,), fill='ones')"),
        ("from ktuned import", "import os\nos.environ['SETTING'] = '1'\nfrom ktuned import"),
        ("reference=", "rtol=0.5, reference="),
        ("reference=", "metrics=dict(rate=lambda p, t: 1 / t), reference="),
        ("reference=", "check=lambda i, o: judge(o), reference="),
        ("return True", "return len(o) > 0"),
    )
    async with parts.run_jobs():
        await save_and_tune(parts, text)
        for before, after in edits:
            assert before in text
            text = text.replace(before, after)
            assert (await save_and_tune(parts, text))["cost"]["lane_s"] > 0, after


@pytest.mark.anyio
async def test_a_wrong_config_is_not_measured_again(parts: Parts) -> None:
    """With equal machine code and data, it is still wrong."""
    text = make_kernel_text(configs="[dict(us=50.0, does='work'), dict(us=90.0, does='nothing')]", reference=REFERENCE)
    async with parts.run_jobs():
        assert (await save_and_tune(parts, text))["outcomes"] == {"measured": 1, "mismatch": 1}
        ended = await save_and_tune(parts, text.replace("2 * x", "x + x"))
    assert (ended["outcomes"], ended["cost"].get("lane_s", 0.0)) == ({"measured": 1, "mismatch": 1}, 0.0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "configs", ["us=[50.0, 90.0]", "us=[10.0, 50.0, 90.0], where=lambda p, c: c.us > 10.0"], ids=["axis", "where"]
)
async def test_a_winner_whose_config_left_the_space_is_replaced(parts: Parts, configs: str) -> None:
    """After the save the best remaining config is served, and the job never elects the removed one."""
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0, 50.0, 90.0]"))
    await parts.record_measurements(kernel, {10.0: 1.0, 50.0: 2.0, 90.0: 3.0}, rounds=ALL_ROUNDS)
    assert (await parts.save_file(make_kernel_text(configs=configs))).changed == ("project:it",)
    async with parts.run_jobs():
        ended = await parts.wait_for_job()
    assert ended["state"] == "done"
    winner = parts.store.get_winner(make_winner_key({"n": 64}))
    assert winner is not None
    assert winner.config == {"us": 50.0}
    assert parts.look_up().status == "fresh"


@pytest.mark.anyio
async def test_a_repeated_job_measures_nothing(parts: Parts) -> None:
    """Its budget is spent on known configs, failures included, although its strategy would now choose others."""
    configs = "[dict(us=float(50 + n), does='work' if n % 2 else 'compile_error') for n in range(40)]"
    async with parts.run_jobs():
        await parts.inspect_file(make_kernel_text(configs=configs, strategy="'guided'", trials="10"))
        for _ in range(2):
            ended = await parts.tune()
            assert ended["done"] == 10
    assert len(parts.store.list_trials()) == 10
    assert ended["cost"].get("lane_s", 0.0) == 0.0
