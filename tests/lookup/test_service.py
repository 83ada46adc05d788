from __future__ import annotations

from functools import partial
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from ktuned.answers import Lookup
from ktuned.model.errors import AmbiguousName, StoreError, UsageError
from ktuned.model.kernel import KernelInfo
from ktuned.model.keys import KernelName, WinnerKey
from ktuned.model.plan import Plan
from ktuned.model.trial import TrialResult
from ktuned.model.values import Outcome, Problem
from ktuned.protocol import ForgetParams, LookupManyParams, LookupParams, TuneParams
from ktuned.protocol.jobs import Job, JobState
from ktuned.serve import Explainer
from ktuned.store.database import Store
from tests.daemon_parts import ALL_ROUNDS, PATIENCE_S, Parts, assemble_daemon, make_kernel_text, make_winner_key
from tests.fake_tensors import REFERENCE
from tests.trials import make_detail

pytestmark = pytest.mark.anyio

UNTUNED = "not tuned yet for this problem"
ARITHMETIC = "us=[10.0, 20.0, 30.0], where=lambda p, c: c.us <= p.n"
CONSTRAINED = ARITHMETIC.replace("c.us <= p.n", "all([c.us <= p.n])")
"""A constraint that only its code, in a worker, can decide."""
GATED = "[dict(us=1.0, does='gate_compile_error', gate='door')]"


def look_up(
    parts: Parts, problem: Problem | None = None, device: str | None = None, *, tune: bool = False
) -> dict[str, Any]:
    """Look ``it`` up."""
    lookup = parts.lookups.look_up("it", problem or {"n": 64}, device, tune=tune)
    plain: dict[str, Any] = msgspec.to_builtins(lookup.answer)
    return plain


async def declare_tuned_kernel(parts: Parts, **options: str) -> KernelInfo:
    """Declare a kernel and enter a winner for its problem."""
    kernel = await parts.inspect_file(make_kernel_text(**{"configs": "us=[10.0, 20.0]", **options}))
    await parts.record_measurements(kernel, {20.0: 5.0}, rounds=ALL_ROUNDS)
    parts.touch_answers(kernel.name)
    return kernel


async def test_answer_has_all_its_fields(parts: Parts) -> None:
    """A fresh answer says what it is for, how fast it is and how old, and leaves out what is as for most."""
    await declare_tuned_kernel(parts)
    answer = look_up(parts)
    assert answer.pop("age_s") >= 0
    assert answer.pop("decided") > 0
    assert answer.pop("generation") > 0
    assert answer == {
        "kernel": "project:it",
        "problem": {"n": 64},
        "device": "Fake CPU",
        "status": "fresh",
        "config": {"us": 20.0},
        "latency_us": 5.0,
        "artifact": None,
        "message": "",
        "file": str(parts.catalog.resolve_kernel("it").file),
    }


async def test_recent_lookups_are_known(parts: Parts) -> None:
    """The kernels that were looked up within a while are listed once each; names that are no kernel's are not."""
    await declare_tuned_kernel(parts)
    assert parts.lookups.publication.list_used_kernels() == []
    for name in ("it", "project:it", "other"):
        parts.lookups.look_up(name, {"n": 64}, None, tune=False)
    assert parts.lookups.publication.list_used_kernels() == ["project:it"]
    assert parts.lookups.publication.list_used_kernels(within_s=0.0) == []


async def test_wrong_questions_are_refused(parts: Parts) -> None:
    """Another kernel's problem and a name of several kernels are errors that say what would do."""
    await declare_tuned_kernel(parts)
    with pytest.raises(UsageError, match="lacks n and does not take m"):
        look_up(parts, {"m": 1})
    other = parts.project.parent / "q"
    parts.write_file(make_kernel_text(), str(other / "tune_it.py"))
    tune = parts.api.handlers["tune"]
    accepted = await cast(Any, tune.handle)(TuneParams(path=str(other)), cast(Any, None))
    watched, notice = accepted.notices
    assert watched.startswith(f"{other} is watched from now on")
    assert notice.startswith("'it' alone may mean q:it or project:it now")
    assert not (await cast(Any, tune.handle)(TuneParams(path=str(other)), cast(Any, None))).notices
    with pytest.raises(AmbiguousName):
        look_up(parts)
    for name, directory in (("project:it", None), ("it", str(parts.project))):
        assert parts.lookups.look_up(name, {"n": 64}, None, tune=False, directory=directory).answer.status == "fresh"
    assert parts.lookups.look_up("it", {"n": 64}, None, tune=False, directory=str(other)).answer.kernel == "q:it"
    parts.kill_workers()


async def wait_for_verdict(parts: Parts, generation: int, kernel: str = "project:it") -> None:
    """Wait until a worker's verdict made a new generation."""
    with anyio.fail_after(PATIENCE_S):
        while parts.lookups.table.generation(kernel) == generation:  # noqa: ASYNC110 - no event reports a verdict
            await anyio.sleep(0.005)


async def test_config_that_the_space_has_lost_is_never_served(parts: Parts) -> None:
    """Whatever took it out (an axis, a constraint), it is not served, `--why` says so, and clients ask again."""
    await declare_tuned_kernel(parts, configs="us=[10.0, 20.0, 30.0]", default="dict(us=10.0)")
    assert (look_up(parts)["status"], look_up(parts)["config"]) == ("fresh", {"us": 20.0})
    for configs in ("us=[10.0, 30.0]", "us=[10.0, 20.0], where=lambda p, c: c.us != 20.0"):
        before = parts.lookups.table.generation("project:it")
        await parts.save_file(make_kernel_text(configs=configs, default="dict(us=10.0)"), saved=False)
        assert parts.lookups.table.generation("project:it") > before
        assert (look_up(parts)["status"], look_up(parts)["config"]) == ("default", {"us": 10.0})


async def test_constraint_is_asked_before_the_winner_is_served(parts: Parts) -> None:
    """A winner that a constraint may refuse by now is not served until a worker has found it in the space."""
    kernel = await declare_tuned_kernel(parts, configs=CONSTRAINED, default="dict(us=10.0)")
    generation = parts.lookups.table.generation(kernel.name)
    explain = Explainer(parts.catalog, parts.daemon.states, parts.store).explain_winners
    assert look_up(parts)["status"] == "default"
    (entry,) = explain(kernel)
    assert entry.changes[0].name == "us=20.0 is served once a worker has confirmed that the space has it"
    await wait_for_verdict(parts, generation)
    assert (look_up(parts)["status"], look_up(parts)["config"]) == ("fresh", {"us": 20.0})
    (entry,) = explain(kernel)
    assert (entry.status, entry.changes) == ("fresh", ())
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0, 30.0]", default="dict(us=10.0)"))
    (entry,) = explain(kernel)
    assert entry.status == "stale"
    message = "us=20.0 is not in the space any more: it is not served"
    assert message in {change.name for change in entry.changes if change.kind == "space"}


async def test_sources_edited_while_no_daemon_ran_are_not_fresh(tmp_path: Path) -> None:
    """A daemon that starts compares them when a kernel is looked up: stale, and ``--why`` agrees."""
    async with assemble_daemon(tmp_path) as parts:
        await declare_tuned_kernel(parts)
        other = make_kernel_text("other", configs="us=[10.0, 20.0]")
        await parts.inspector.inspect_files(parts.root, [str(parts.write_file(other, "tune_other.py"))])
        await parts.record_measurements(parts.catalog.resolve_kernel("other"), {20.0: 5.0}, rounds=ALL_ROUNDS)
    parts.write_file(make_kernel_text(configs="us=[10.0, 20.0]", rtol="0.5"))
    async with assemble_daemon(tmp_path) as parts:
        left = parts.jobs.list_live_jobs()
        edited = look_up(parts, tune=True)
        assert (edited["status"], edited["config"]) == ("stale", {"us": 20.0})
        assert edited["message"].endswith("tune_it.py changed")
        kernel = parts.catalog.resolve_kernel("it")
        explain = Explainer(parts.catalog, parts.daemon.states, parts.store).explain_winners
        (entry,) = explain(kernel)
        assert (entry.status, entry.message) == ("stale", edited["message"])
        untouched = parts.look_up("other", tune=True)
        assert (untouched.status, untouched.message) == ("fresh", "")
        assert parts.daemon.follow_ups.describe_queue().used == 0
        assert parts.jobs.list_live_jobs() == left
        # Its inspection, which a start's scan begins, ends the doubt.
        await parts.inspect_file()
        assert look_up(parts, tune=True)["message"] == ""
        parts.kill_workers()


async def test_hundred_lookups_make_one_job(parts: Parts) -> None:
    """What is not fresh asks for a tuning, once however many ask, and not at all when reported not to."""
    await parts.inspect_file(make_kernel_text(configs=GATED))
    look_up(parts, tune=False)
    async with parts.run_jobs():
        for _ in range(100):
            assert look_up(parts, tune=True)["status"] == "default"
            parts.touch_answers(KernelName("project:it"))
        await parts.wait_until_reached("door")
        (job,) = parts.jobs.list_live_jobs()
        assert (job.reason, job.plan.preset) == ("looked up", "fast")
        parts.open_gate("door")
        await parts.recorder.wait_for_ended_jobs()
    assert len(parts.store.list_jobs()) == 1


async def test_each_problem_of_a_key_asks_whether_a_config_is_valid(parts: Parts) -> None:
    """A constraint sees the whole problem: the verdict for one says nothing of another."""
    constrained = "us=[10.0, 20.0, 30.0], where=lambda p, c: all([c.us <= p.k])"
    kernel = await parts.inspect_file(
        make_kernel_text(
            configs=constrained, problems="[dict(n=64, k=64)]", specialize="('n',)", default="dict(us=10.0)"
        )
    )
    await parts.record_measurements(kernel, {20.0: 5.0}, {"n": 64, "k": 64}, rounds=ALL_ROUNDS)
    parts.touch_answers(kernel.name)
    generation = parts.lookups.table.generation(kernel.name)
    for k, status in ((64, "near"), (15, "default")):
        assert look_up(parts, {"n": 32, "k": k})["status"] == "default"
        await wait_for_verdict(parts, generation)
        generation += 1
        assert look_up(parts, {"n": 32, "k": k})["status"] == status


async def test_what_failed_is_told_and_not_asked_for_again(parts: Parts) -> None:
    """An answer says how its tuning failed and lookups leave it at that, until who may know better says otherwise."""
    await declare_tuned_kernel(parts)
    (before,) = parts.store.list_jobs()
    await parts.store.update_job(replace(before, state=JobState.DONE))
    kernel = await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0, does='compile_error')]", rtol="0.5"))
    parts.touch_answers(kernel.name)
    assert look_up(parts)["message"] == UNTUNED
    async with parts.run_jobs():
        await parts.jobs.submit_job(
            make_winner_key({"n": 64}), {"n": 64}, priority=300, reason="saved", plan=replace(kernel.plan, trials=1)
        )
        await parts.recorder.wait_for_ended_jobs(1)
        assert look_up(parts)["message"] == UNTUNED, "one that was to try less has not tried all"
        assert look_up(parts, tune=True)["status"] == "default", "the space has lost the winner's config"
        await parts.recorder.wait_for_ended_jobs(2)
        answer = look_up(parts)
        assert (answer["status"], answer["config"]) == ("default", None)
        assert "compile_error: fake.c:1: error: no" in answer["message"]

        parts.jobs.forget_failures(KernelName("project:another"))
        await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0, does='compile_error')]", rtol="0.25"))
        parts.touch_answers(kernel.name)
        assert look_up(parts)["message"] == UNTUNED, "another state of the files may work"
        await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0, does='compile_error')]", rtol="0.5"))
        parts.touch_answers(kernel.name)
        assert look_up(parts, tune=True)["message"] == answer["message"]

        parts.jobs.forget_failures(kernel.name)
        parts.touch_answers(kernel.name)
        assert look_up(parts)["message"] == UNTUNED
        await parts.jobs.submit_job(
            make_winner_key({"n": 1}, device="none"), {"n": 1}, priority=1, reason="a marker", plan=Plan()
        )
        await parts.recorder.wait_for_ended_jobs(3)
    assert [job.reason for job in parts.store.list_jobs()] == ["a marker", "looked up", "saved", "asked"]


async def test_equal_numbers_of_other_types_are_the_declared_problem(parts: Parts) -> None:
    """``1.0`` is ``1`` where integers are declared, and ``True`` is no size."""
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0, 20.0]"))
    await parts.record_measurements(kernel, {20.0: 5.0}, {"n": 1})
    parts.touch_answers(kernel.name)
    assert [look_up(parts, {"n": n})["status"] for n in (1, 1.0)] == ["fresh", "fresh"]
    with pytest.raises(UsageError, match="the problem's n is True"):
        look_up(parts, {"n": True})


async def test_results_that_are_gone_are_tuned_again(parts: Parts) -> None:
    """After ``forget`` of a kernel the next lookup has its problem tuned once more."""
    kernel = await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0)]"))
    forget = parts.api.handlers["forget"]

    async def ends_fresh(count: int) -> None:
        assert look_up(parts, tune=True)["status"] == "default"
        await parts.recorder.wait_for_ended_jobs(count)
        assert look_up(parts, tune=True)["status"] == "fresh"

    async with parts.run_jobs():
        await ends_fresh(1)
        await cast(Any, forget.handle)(ForgetParams(kernel=kernel.name), cast(Any, None))
        await ends_fresh(2)


async def test_a_slow_constraint_delays_nothing_but_its_own_kernel(parts: Parts) -> None:
    """While the ``where`` of one kernel hangs, others are tuned for lookups, and their constraints asked."""
    slow = await parts.inspect_file(
        make_kernel_text(
            configs="us=[10.0], where=lambda p, c: p.n == 64 or not __import__('ktuned_fake').wait_at('door')"
        )
    )
    await parts.record_measurements(slow, {10.0: 5.0}, rounds=ALL_ROUNDS)
    quick = make_kernel_text("quick", configs="us=[10.0], where=lambda p, c: True", default="dict(us=10.0)")
    changes = await parts.inspector.inspect_files(parts.root, [str(parts.write_file(quick, "tune_quick.py"))])
    assert changes.added == ("project:quick",)
    generation = parts.lookups.table.generation("project:quick")
    parts.touch_answers(slow.name)
    async with parts.run_jobs():
        assert look_up(parts, {"n": 65})["status"] == "default"
        await parts.wait_until_reached("door")
        assert parts.look_up("quick", tune=True).status == "default"
        await parts.recorder.wait_for_ended_jobs()
        await wait_for_verdict(parts, generation, "project:quick")
        assert parts.look_up("quick", tune=True).status == "fresh"
        parts.open_gate("door")


class StoreFullOnce(Store):
    """A store whose disk is full once."""

    refused = False

    async def create_job(self, key: WinnerKey, problem: Problem, **options: Any) -> Job:
        """Refuse, or do as any store."""
        if not self.refused:
            self.refused = True
            raise StoreError("the disk is full")
        return await super().create_job(key, problem, **options)


async def test_a_tuning_that_could_not_be_recorded_is_asked_for_again(tmp_path: Path) -> None:
    """A tuning that could not be recorded is asked for by the next lookup."""
    async with assemble_daemon(tmp_path, store_type=StoreFullOnce) as parts:
        await parts.inspect_file(make_kernel_text())
        with anyio.fail_after(PATIENCE_S):
            while not parts.jobs.list_live_jobs():
                look_up(parts, tune=True)
                parts.touch_answers(KernelName("project:it"))
                await anyio.sleep(0.005)
        assert isinstance(parts.store, StoreFullOnce)
        assert parts.store.refused


async def test_a_near_config_that_fails_here_is_not_served_on(parts: Parts) -> None:
    """A tuning has found that it is wrong for this problem, and that nothing else works."""
    text = make_kernel_text(configs="us=[50.0]", problems="[dict(n=64), dict(n=128)]", reference=REFERENCE)
    await parts.inspect_file(text.replace("Build(**c)", "Build(us=c.us, does='wrong' if p.n == 64 else 'work')"))
    async with parts.run_jobs():
        for _count, n in enumerate((128, 64), start=1):
            await parts.tune(problem={"n": n})
        parts.kill_workers()
    answer = look_up(parts)
    assert (answer["status"], answer["config"]) == ("default", None)
    assert "mismatch" in answer["message"]


async def test_a_default_says_why_it_is_only_that(parts: Parts) -> None:
    """Its tuning is queued, or was not asked for; a name that is not known gets the one that was meant."""
    await parts.inspect_file(make_kernel_text(default="dict(us=50.0)"))
    assert look_up(parts)["message"] == UNTUNED
    assert look_up(parts, tune=True)["message"] == f"{UNTUNED}; its tuning is queued"
    unknown = parts.look_up("itt")
    assert unknown.status == "unknown"
    assert "did you mean" in unknown.message
    parts.kill_workers()


async def test_an_arithmetic_constraint_is_decided_at_the_first_ask(parts: Parts) -> None:
    """No worker is asked, so a lookup that may not wait is ``near`` between tuned sizes, and refused below them."""
    await declare_tuned_kernel(parts, configs=ARITHMETIC, default="dict(us=10.0)")
    first = parts.lookups.look_up("it", {"n": 40}, None, tune=False)
    assert (first.answer.status, first.answer.config, first.undecided) == ("near", {"us": 20.0}, ())
    assert look_up(parts, {"n": 15})["status"] == "default"


async def test_a_lookup_that_may_wait_is_near_at_the_first_ask(parts: Parts) -> None:
    """A worker says in its time whether the space holds the winner of the nearest size, once for all who wait."""
    await declare_tuned_kernel(parts, configs=CONSTRAINED, default="dict(us=10.0)")
    (tuned_one,) = await settle_lookups(parts, {"n": 64})
    answers = await settle_lookups(parts, {"n": 40}, {"n": 40})
    assert [lookup.answer.status for lookup in answers] == ["near", "near"]
    assert answers[0].answer.generation == tuned_one.answer.generation + 1
    assert [found.answer.status for found in await settle_lookups(parts, {"n": 15})] == ["default"]


async def test_a_lookup_waits_for_a_worker_no_longer_than_it_may(parts: Parts) -> None:
    """After its time it has what is known by then."""
    await declare_tuned_kernel(
        parts, configs="us=[10.0, 20.0], where=lambda p, c: p.n == 64 or __import__('time').sleep(30)"
    )
    (lookup,) = await settle_lookups(parts, {"n": 40}, within_s=0.05)
    assert (lookup.answer.status, len(lookup.undecided)) == ("default", 1)
    asked_together = [LookupParams("it", {"n": n}, tune=False, settle=1.0) for n in range(1, 9)]
    deferred = cast(Any, parts.api.handlers["lookup_many"].handle)(
        LookupManyParams(asked_together), cast(Any, SimpleNamespace(repeats=0))
    )
    began = monotonic()
    assert {answer.status for answer in (await deferred.rest()).answers} == {"default"}
    # Not one second after the other.
    assert monotonic() - began < 4.0
    parts.kill_workers()


async def settle_lookups(parts: Parts, *problems: Problem, within_s: float = PATIENCE_S) -> list[Lookup]:
    """Return the settled answers of lookups that run at once."""
    lookups: dict[int, Lookup] = {}

    async def settle(index: int, problem: Problem) -> None:
        look_up = partial(parts.lookups.look_up, "it", problem, None, tune=False)
        lookups[index] = await parts.lookups.settle_answer(look_up(), look_up, monotonic() + within_s)

    async with anyio.create_task_group() as tasks:
        for place, problem in enumerate(problems):
            tasks.start_soon(settle, place, problem)
    return [lookups[place] for place in range(len(problems))]


async def test_a_noisy_winner_is_not_served_with_confidence(parts: Parts) -> None:
    """Its spread is more than half of it: the answer says so, and is not final."""
    kernel = await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0), dict(us=2.0)]"))
    context = parts.build_context()
    job = await parts.store.create_job(context.key, {"n": 64}, priority=1, reason="", plan=kernel.plan, now=0.0)
    trial = await parts.store.begin_trial(context, {"n": 64}, job.id, {"us": 1.0})
    result = TrialResult(Outcome.MEASURED, 10.0, 8.0, detail=make_detail(rounds=1000))
    await parts.store.finish_trial(trial, result)
    await parts.store.decide_winner(trial)
    answer = look_up(parts)
    assert answer["status"] == "fresh"
    assert answer["message"].startswith("noisy: measured to ±40 %")
    assert "final" not in answer
