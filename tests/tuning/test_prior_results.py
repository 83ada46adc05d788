"""In which order a job tries its configs, and what it need not measure."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ktuned.model import DeviceModel, KernelName, KeyProblem, canonical
from ktuned.model.plan import Plan
from ktuned.model.values import Outcome
from ktuned.store import Context, KnownConfig, Winner
from ktuned.store.artifacts import Artifacts
from ktuned.tuning.prior_results import MAX_NEAR, PriorResults, choose_near_configs, order_configs, sort_by_similarity
from tests.daemon_parts import ALL_ROUNDS, Parts, make_kernel_text, make_winner_key
from tests.fake_tensors import REFERENCE


def past(tag: int, outcome: Outcome = Outcome.MEASURED) -> KnownConfig:
    """Return what became of a config."""
    return KnownConfig(canonical({"n": tag}), {"n": tag}, outcome)


def test_configs_are_tried_in_the_promised_order() -> None:
    """Winner, default, the measured ones of the newest context and then of older ones; slow ones and failures last."""
    found = order_configs(
        {"n": 5},
        {"n": 7},
        [past(1), past(2, Outcome.CRASHED), past(3, Outcome.SLOWER), past(2), past(4), past(5), past(6, Outcome.HUNG)],
    )
    assert [config["n"] for config in found.first] == [5, 7, 1, 4]
    assert [config["n"] for config in found.last] == [3, 2, 6]
    assert order_configs(None, None, []).first == ()


def test_near_winners_come_first_if_nothing_was_measured() -> None:
    """A first tuning begins with what won for similar problems; later ones know better."""
    near = [{"n": 8}, {"n": 7}]
    assert [config["n"] for config in order_configs(None, {"n": 7}, [past(1, Outcome.HUNG)], near).first] == [7, 8]
    assert [config["n"] for config in order_configs(None, {"n": 7}, [past(1)], near).first] == [7, 1]


def won(tag: int, device: str = "H100", **problem: Any) -> Winner:
    """Return the winner of a problem and device."""
    context = Context(KernelName("p:k"), KeyProblem(canonical(problem)), DeviceModel(device), "d", "t", "f", 1)
    return Winner(context, 1, problem, {"n": tag}, 1.0, None, "d", 0.0)


def test_the_best_few_of_the_nearest_key_come_early() -> None:
    """Its winner comes first, then the next best of its key, then the winners of farther ones, all bounded."""
    here = won(0, M=64).key
    winners = sort_by_similarity(here, [won(1, M=4096), won(2, M=128), won(3, "A100", M=64), won(4, M=64)])
    assert [winner.config["n"] for winner in winners] == [2, 3, 1]
    assert [config["n"] for config in choose_near_configs(winners, [{"n": 7}, {"n": 2}, {"n": 8}])] == [2, 7, 8, 3, 1]
    assert len(choose_near_configs([won(tag, M=tag) for tag in range(1, 30)], [])) == MAX_NEAR
    assert choose_near_configs([], []) == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("trials", "time_limit_s", "numbers"),
    [(20, None, [*range(7), 19, *range(7, 19)]), (19, None, [*range(20)]), (20, 60.0, [*range(20)])],
)
async def test_a_long_compile_starts_early_enough(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, trials: int, time_limit_s: float | None, numbers: list[int]
) -> None:
    """Also where that config was slow; but a budget that leaves some out has the fastest tried."""
    await parts.inspect_file(make_kernel_text())
    plan = Plan(preset="fast", strategy="exhaustive", trials=trials, time_limit_s=time_limit_s)
    job = await parts.store.create_job(
        make_winner_key({"n": 64}), {"n": 64}, priority=100, reason="test", plan=plan, now=0.0
    )
    known = [replace(past(number), compile_s=1.0 if number < 19 else 6.0) for number in range(20)]
    monkeypatch.setattr(parts.store, "load_past_searches", lambda *arguments, **options: known)
    found = PriorResults(parts.preparation.prepare_brief(job), parts.store).plan_order((), slots=2)
    assert [config["n"] for config in found.first if "n" in config] == numbers


def test_a_failed_winner_or_default_still_comes_first() -> None:
    """The winner and the default are tried first even where they failed before."""
    found = order_configs({"n": 1}, {"n": 2}, [past(1, Outcome.MISMATCH), past(2, Outcome.SLOWER)])
    assert [config["n"] for config in found.first] == [1, 2]
    assert found.last == ()


def test_known_failures_count_towards_the_budget() -> None:
    """A config whose failure here is known comes before all unknown ones, after the measured ones."""
    settled = [past(3, Outcome.HUNG), past(4, Outcome.HUNG)]
    found = order_configs(None, {"n": 7}, [past(1), settled[0]], failed_here=settled)
    assert [config["n"] for config in found.first] == [7, 1, 3, 4]
    assert found.last == ()


SPACE = "[dict(us=50.0), dict(us=90.0)]"


async def _tune_text(parts: Parts, text: str, count: int) -> dict[str, Any]:
    """Save a kernel file and tune its kernel; this is the ``count``-th job that ends."""
    kernel = await parts.inspect_file(text)
    (job,) = await parts.requests.request_jobs(kernel, _wish())
    ended = await parts.recorder.wait_for_ended_jobs(count)
    return next(entry for entry in ended if entry["id"] == job.id)


def _wish() -> Any:
    from ktuned.scheduling.job_requests import TuningRequest

    return TuningRequest()


@pytest.mark.anyio
async def test_equal_artifacts_keep_their_measurements(parts: Parts) -> None:
    """Edits that yield the same machine code, arguments and bits are compiled, and not measured."""
    text = make_kernel_text(configs=SPACE, reference=REFERENCE)
    edits = (
        ("return Build(**c)", "d = dict(**c)\n    return Build(**d)"),
        ("2 * x", "x + x"),
        ("from ktuned import", "import colorsys\n\nUNUSED = [1, 2]\nfrom ktuned import"),
    )
    async with parts.run_jobs():
        first = await _tune_text(parts, text, 1)
        assert first["cost"]["lane_s"] > 0
        measured = {trial.id for trial in parts.store.list_trials(kernel="project:it", job=first["id"])}
        for count, (before, after) in enumerate(edits, start=2):
            kernel = await parts.inspect_file(text := text.replace(before, after))
            ended = await _tune_text(parts, text, count)
            assert (ended["state"], ended["outcomes"]) == ("done", {"measured": 2})
            assert not ended["cost"].get("lane_s")
            assert ended["cost"]["reused"] == 2
            trials = parts.store.list_trials(kernel=kernel.name, job=ended["id"])
            assert {trial.detail.carried_from for trial in trials} <= measured
            assert parts.lookups.look_up("it", {"n": 64}, None, tune=False).answer.status == "fresh"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2 * x", "x * 2.0000002"),
        ("tensor((p.n,))", "tensor((p.n,), fill='ones')"),
        ("from ktuned import", "import os\nos.environ['SETTING'] = '1'\nfrom ktuned import"),
        ("reference=", "rtol=0.5, reference="),
        ("reference=", "metrics=dict(rate=lambda p, t: 1 / t), reference="),
    ],
    ids=["expected outputs", "inputs", "environment", "tolerance", "metric"],
)
async def test_equal_artifacts_with_other_data_are_measured(parts: Parts, before: str, after: str) -> None:
    """Other bits of the data, another setting of the process, or another judge: nothing is taken over."""
    text = make_kernel_text(configs=SPACE, reference=REFERENCE)
    assert before in text
    async with parts.run_jobs():
        await _tune_text(parts, text, 1)
        ended = await _tune_text(parts, text.replace(before, after), 2)
    assert ended["cost"]["lane_s"] > 0


@pytest.mark.anyio
async def test_an_edit_beside_a_files_own_check_measures_again(parts: Parts) -> None:
    """Where the kernel file has a check of its own, any edit of its Python may be one of that."""
    text = make_kernel_text(configs=SPACE, check="lambda i, o: judge(o)") + "\ndef judge(o):\n    return True\n"
    async with parts.run_jobs():
        await _tune_text(parts, text, 1)
        ended = await _tune_text(parts, text.replace("return True", "return len(o) > 0"), 2)
    assert ended["cost"]["lane_s"] > 0


@pytest.mark.anyio
async def test_a_wrong_config_is_not_measured_again(parts: Parts) -> None:
    """With equal machine code and data it is as wrong as it was."""
    text = make_kernel_text(configs="[dict(us=50.0, does='work'), dict(us=90.0, does='nothing')]", reference=REFERENCE)
    async with parts.run_jobs():
        assert (await _tune_text(parts, text, 1))["outcomes"] == {"measured": 1, "mismatch": 1}
        ended = await _tune_text(parts, text.replace("2 * x", "x + x"), 2)
    assert (ended["outcomes"], ended["cost"].get("lane_s", 0.0)) == ({"measured": 1, "mismatch": 1}, 0.0)


def test_a_missing_artifact_has_no_manifest(tmp_path: Any) -> None:
    """What is not there has no content to be compared by."""
    assert Artifacts(tmp_path, 1).read_manifest("ab12") is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    "configs", ["us=[50.0, 90.0]", "us=[10.0, 50.0, 90.0], where=lambda p, c: c.us > 10.0"], ids=["axis", "where"]
)
async def test_a_winner_whose_config_left_the_space_is_replaced(parts: Parts, configs: str) -> None:
    """After the save the best of what is left is served; the job never decides for the one that is gone."""
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0, 50.0, 90.0]"))
    await parts.record_measurements(kernel, {10.0: 1.0, 50.0: 2.0, 90.0: 3.0}, rounds=ALL_ROUNDS)
    parts.write_file(make_kernel_text(configs=configs))
    found = await parts.inspector.inspect_files(parts.root, [str(parts.project / "tune_it.py")])
    assert found.changed == ("project:it",)
    await parts.renewal.react_to_changes(found, saved=True)
    async with parts.run_jobs():
        (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert ended["state"] == "done"
    seated = parts.store.get_winner(make_winner_key({"n": 64}))
    assert seated is not None
    assert seated.config == {"us": 50.0}
    assert parts.lookups.look_up("it", {"n": 64}, None, tune=False).answer.status == "fresh"


@pytest.mark.anyio
async def test_a_job_elects_a_slower_config_if_the_faster_left_the_space(parts: Parts) -> None:
    """With nothing left that was measured, the first config that is takes the key."""
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0]"))
    await parts.record_measurements(kernel, {10.0: 0.001}, rounds=ALL_ROUNDS)
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[50.0, 90.0]"))
    async with parts.run_jobs():
        await parts.requests.request_jobs(kernel, _wish())
        await parts.recorder.wait_for_ended_jobs()
    seated = parts.store.get_winner(make_winner_key({"n": 64}))
    assert seated is not None
    assert seated.config in ({"us": 50.0}, {"us": 90.0})


@pytest.mark.anyio
async def test_a_repeated_job_measures_nothing(parts: Parts) -> None:
    """Its budget is spent on what is known, failures too, although its strategy would choose other configs now."""
    configs = "[dict(us=float(50 + n), does='work' if n % 2 else 'compile_error') for n in range(40)]"
    async with parts.run_jobs():
        kernel = await parts.inspect_file(make_kernel_text(configs=configs, strategy="'guided'", trials="10"))
        for count in (1, 2):
            await parts.requests.request_jobs(kernel, _wish())
            ended = await parts.recorder.wait_for_ended_jobs(count)
            assert ended[-1]["done"] == 10
    assert len(parts.store.list_trials(kernel=kernel.name)) == 10
    assert ended[-1]["cost"].get("lane_s", 0.0) == 0.0
