from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import msgspec
import pytest

from ktuned.model.errors import KernelFileError, NotFound, UsageError
from ktuned.protocol import JudgeAnswer
from tests.daemon_parts import Parts, make_kernel_text
from tests.fake_tensors import REFERENCE
from tests.serve.test_methods import Methods

pytestmark = pytest.mark.anyio

DEFAULT = dict(us=50.0, does="work")
SPACE = "space(does=['work', 'wrong', 'segfault', 'compile_error', 'raise', 'unsupported'], us=[50.0, 60.0])"


async def judge(parts: Parts, **params: Any) -> JudgeAnswer:
    """Call the method ``judge`` while jobs run."""
    async with parts.run_jobs():
        return msgspec.convert(await Methods(parts).call_method("judge", **params), JudgeAnswer)


async def inspect_judged_kernel(parts: Parts, **options: str) -> None:
    await parts.inspect_file(
        make_kernel_text(**{"space": SPACE, "default": repr(DEFAULT), "reference": REFERENCE, **options})
    )


FAULTS = {
    "wrong": ("wrong", "y: 64 of 64 elements"),
    "segfault": ("crashed", "SIGSEGV"),
    "raise": ("crashed", "RuntimeError: the launch was refused"),
    "compile_error": ("compile_error", "fake.c:1: error: no"),
    "unsupported": ("refused", "wants more shared memory than there is"),
}


async def test_each_candidate_has_its_verdict_in_the_order_of_the_request(parts: Parts) -> None:
    await inspect_judged_kernel(parts)
    for faults in (list(FAULTS), list(reversed(FAULTS))):
        answer = await judge(parts, kernel="it", configs=[dict(us=50.0, does=fault) for fault in faults])
        assert [candidate.config["does"] for candidate in answer.candidates] == faults
        for fault, candidate in zip(faults, answer.candidates, strict=True):
            verdict, words = FAULTS[fault]
            assert candidate.verdict == verdict, candidate
            assert words in candidate.reason
            (problem,) = candidate.problems
            assert (problem.problem, problem.verdict, problem.latency_us) == ({"n": 64}, verdict, None)
            assert [error.line for error in candidate.errors] == ([1] if fault == "compile_error" else [])


async def test_judged_trials_are_kept_apart(parts: Parts) -> None:
    """They win nothing, are listed only if they are asked for, and a later tuning tries their configs itself."""
    await inspect_judged_kernel(parts)
    await judge(parts, kernel="it", configs=[dict(us=50.0, does="wrong")])
    methods = Methods(parts)
    listed = await methods.call_method("results", kernel="it", judged=True, count=True)
    assert {trial["config"]["does"] for trial in listed["trials"]} == {"work", "wrong"}
    assert listed["total"] == 2
    (job,) = (await methods.call_method("jobs"))["jobs"]
    assert len((await methods.call_method("results", kernel="it", job=job["id"]))["trials"]) == 2
    assert (await methods.call_method("results", kernel="it", count=True)) == {"trials": [], "numerics": [], "total": 0}
    assert parts.store.list_winners() == []
    assert (await methods.call_method("lookup", kernel="it", problem={"n": 64}, tune=False))["status"] == "default"
    # The tuning.
    await methods.call_method("tune", kernel="it", configs=[dict(us=50.0, does="wrong"), DEFAULT])
    async with parts.run_jobs():
        await parts.recorder.wait_for_ended_jobs(2)
    tuned = (await methods.call_method("results", kernel="it"))["trials"]
    assert {trial["config"]["does"]: trial["outcome"] for trial in tuned} == {"work": "measured", "wrong": "mismatch"}
    assert not {trial["id"] for trial in tuned} & {trial["id"] for trial in listed["trials"]}


async def test_every_request_is_judged_anew(parts: Parts) -> None:
    """The default alone keeps its judged figure, as the base of later comparisons."""
    await inspect_judged_kernel(parts)
    for _ in range(2):
        await judge(parts, kernel="it", configs=[dict(us=50.0, does="raise")])
    second, first = (await Methods(parts).call_method("jobs"))["jobs"]
    assert (first["objective"], second["objective"]) == ("judged", "judged")
    assert first["outcomes"] == {"launch_error": 1, "measured": 1}
    assert second["outcomes"]["launch_error"] == 1


async def test_a_config_outside_of_the_space_is_refused(parts: Parts) -> None:
    """It may be right for other problems, so that is no error; a wrong knob is one."""
    await inspect_judged_kernel(
        parts, problems="[dict(n=64), dict(n=128)]", space=f"{SPACE[:-1]}, where=lambda p, c: p.n > 64 or c.us < 60)"
    )
    (candidate,) = (await judge(parts, kernel="it", configs=[dict(us=60.0, does="wrong")])).candidates
    assert [(one.verdict, one.reason) for one in candidate.problems] == [
        ("refused", "the space does not hold this config for this problem"),
        ("wrong", candidate.reason),
    ]
    assert candidate.verdict == "wrong"
    with pytest.raises(UsageError, match="there is no knob 'threads'"):
        await Methods(parts).call_method("judge", kernel="it", configs=[dict(threads=1)])


async def test_what_cannot_be_judged_is_a_clear_error(parts: Parts) -> None:
    await inspect_judged_kernel(parts)
    with pytest.raises(UsageError, match="neither a kernel nor a path"):
        await Methods(parts).call_method("judge")
    with pytest.raises(NotFound, match="no kernel 'other'"):
        await Methods(parts).call_method("judge", kernel="other")
    with pytest.raises(UsageError, match="against is 'nothing'"):
        await Methods(parts).call_method("judge", kernel="it", against="nothing")
    with pytest.raises(UsageError, match="0 configs"):
        await Methods(parts).call_method("judge", kernel="it", configs=[])
    two = parts.write_file(make_kernel_text("one") + make_kernel_text("two"), "tune_two.py")
    with pytest.raises(UsageError, match="has 2 kernels: one, two"):
        await Methods(parts).call_method("judge", path=str(two))
    broken = parts.write_file("1 / 0", "tune_broken.py")
    with pytest.raises(KernelFileError, match=r"tune_broken.py:1: ZeroDivisionError"):
        await Methods(parts).call_method("judge", path=str(broken))
    assert parts.jobs.list_live_jobs() == []


async def test_a_reference_that_fails_refuses_all_candidates(parts: Parts) -> None:
    await inspect_judged_kernel(parts, reference="lambda x: 1 / 0")
    (candidate,) = (await judge(parts, kernel="it", configs=[dict(us=50.0, does="wrong")])).candidates
    assert candidate.verdict == "refused"
    assert "ZeroDivisionError" in candidate.reason


async def test_a_cancelled_judging_ends(parts: Parts) -> None:
    """The reason says that nothing was found out."""
    await inspect_judged_kernel(
        parts, space="space([dict(does='gate_compile', gate='door')])", default="dict(does='gate_compile', gate='door')"
    )
    answers: list[JudgeAnswer] = []

    async def keep_answer() -> None:
        answers.append(msgspec.convert(await Methods(parts).call_method("judge", kernel="it"), JudgeAnswer))

    async with parts.run_jobs(), anyio.create_task_group() as asking:
        asking.start_soon(keep_answer)
        await parts.wait_until_reached("door")
        (job,) = parts.jobs.list_live_jobs()
        await parts.jobs.cancel_job(job.id)
    (candidate,) = answers[0].candidates
    assert (candidate.verdict, candidate.reason) == ("refused", "cancelled")


async def test_a_judging_ends_when_its_client_leaves(parts: Parts) -> None:
    await inspect_judged_kernel(
        parts, space="space([dict(does='gate_compile', gate='door')])", default="dict(does='gate_compile', gate='door')"
    )
    async with parts.run_jobs():
        async with anyio.create_task_group() as asking:
            asking.start_soon(partial(Methods(parts).call_method, "judge", kernel="it"))
            await parts.wait_until_reached("door")
            asking.cancel_scope.cancel()
        await parts.recorder.wait_for_ended_jobs(1)
    assert parts.jobs.list_live_jobs() == []
    (job,) = (await Methods(parts).call_method("jobs"))["jobs"]
    assert (job["state"], job["message"]) == ("cancelled", "its client has left")


@pytest.mark.parametrize("was_tuned", [False, True])
async def test_a_save_among_judged_kernels_tunes_nothing(parts: Parts, was_tuned: bool) -> None:
    """It may be a candidate that is not trusted. Once something there was tuned, saves are tuned again."""
    await inspect_judged_kernel(parts)
    await judge(parts, kernel="it", configs=[dict(us=50.0, does="raise")])
    if was_tuned:
        await Methods(parts).call_method("tune", kernel="it", trials=1)
        async with parts.run_jobs():
            await parts.recorder.wait_for_ended_jobs(2)
    await parts.save_file(make_kernel_text("other"), "tune_other.py")
    assert [job.kernel for job in parts.jobs.list_live_jobs()] == (["project:other"] if was_tuned else [])
