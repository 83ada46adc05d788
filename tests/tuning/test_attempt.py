from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ktuned.fleet.executor import Environment
from ktuned.fleet.failures import Output
from ktuned.ipc.requests import UnitRef
from ktuned.model.device import Device
from ktuned.model.errors import IllegalMove
from ktuned.model.kernel import KernelInfo, SpaceInfo
from ktuned.model.keys import DeviceModel, DeviceName, KernelName, KeyProblem, ProjectName, Target
from ktuned.model.plan import PRESETS, Plan
from ktuned.model.trial import TrialResult
from ktuned.model.values import Outcome
from ktuned.protocol.jobs import Job, JobState
from ktuned.store.contexts import Context
from ktuned.store.rows import decode_detail, encode_detail
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.progress import Progress
from ktuned.tuning.trial_machine import Attempt, TrialEvent, Verdict
from tests.trials import make_detail, make_result

KERNEL = KernelInfo(
    ProjectName("p"),
    "k",
    "/p/tune_k.py",
    1,
    "fake",
    "d",
    "s",
    "pl",
    ("/p/k.c",),
    {"/p/k.c": "1"},
    (),
    None,
    ("M",),
    SpaceInfo(),
    Plan(),
)
JOB = Job(1, KernelName("p:k"), {"M": 1, "N": 2}, DeviceModel("x"), JobState.RUNNING, 200, "asked", Plan(), created=0.0)
BRIEF = JobBrief(
    JOB,
    KERNEL,
    JOB.problem,
    (Device(DeviceName("cpu:0"), DeviceModel("x"), Target("native")),),
    "native",
    Context(KernelName("p:k"), KeyProblem('{"M":1}'), DeviceModel("x"), "d", "gcc", "driver"),
    Environment("python", "/p", project="p"),
    PRESETS["fast"],
    {},
    judge_contention=False,
    admission=None,  # type: ignore[arg-type]
    traces=None,  # type: ignore[arg-type]
    served=tuple,
)


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"job": replace(JOB, id=2)}, True),
        ({"problem": {"M": 7, "N": 7}}, True),
        ({"kernel": replace(KERNEL, digest="other", plan_digest="other", line=9)}, True),
        ({"context": replace(BRIEF.context, device_fingerprint="other")}, True),
        ({"kernel": replace(KERNEL, source_digest="other")}, False),
        ({"kernel": replace(KERNEL, backend="other")}, False),
        ({"context": replace(BRIEF.context, toolchain="other")}, False),
        ({"devices": ()}, True),
        ({"target": "other"}, False),
    ],
)
def test_an_artifacts_key_changes_with_what_decides_its_bytes(change: dict[str, Any], is_same: bool) -> None:
    """Sources, toolchain, target, backend and Build name an artifact; what only decides its speed does not."""
    assert (msgspec.structs.replace(BRIEF, **change).make_unit({"n": 1}) == BRIEF.make_unit({"n": 1})) is is_same
    assert BRIEF.make_unit({"n": 1}).key != BRIEF.make_unit({"n": 2}).key


def test_only_the_keys_part_of_the_problem_is_specialized() -> None:
    """Workers get the whole problem."""
    assert BRIEF.specialized_problem == {"M": 1}
    assert BRIEF.make_explore_request().problem == {"M": 1, "N": 2}


def test_a_failed_result_keeps_the_output() -> None:
    """A measured trial keeps none, and empty values are dropped."""
    attempt = Attempt(1, {"B": 1}, UnitRef("key", {"n": 1}), compile_s=2.0, lane_s=3.0)
    for event in (TrialEvent.COMPILE_STARTED, TrialEvent.COMPILE_DONE, TrialEvent.LANE_TAKEN):
        attempt.make_move(event)
    result = attempt.end_trial(
        Verdict(TrialEvent.DIED, make_result(None, "it died", signal="SIGSEGV"), Output("out", "err"))
    )
    assert (result.outcome, result.message, result.artifact) == (Outcome.CRASHED, "it died", "key")
    assert (result.compile_s, result.lane_s) == (2.0, 3.0)
    story = ("compile_started", "compile_done", "lane_taken", "died")
    assert result.detail == make_detail(signal="SIGSEGV", build={"n": 1}, story=story, stdout="out", stderr="err")
    with pytest.raises(IllegalMove):
        attempt.end_trial(Verdict(TrialEvent.TIMED))


def test_a_measured_result_has_figures_and_no_output() -> None:
    """``latency_us`` and ``spread_us`` are fields, not details."""
    attempt = Attempt(1, {"B": 1}, UnitRef("", {}))
    for event in (TrialEvent.ARTIFACT_FOUND, TrialEvent.LANE_TAKEN):
        attempt.make_move(event)
    result = attempt.end_trial(
        Verdict(TrialEvent.TIMED, make_result(None, latency_us=5.0, spread_us=0.1, count=3), Output("out", "err"))
    )
    assert (result.latency_us, result.spread_us, result.artifact, result.detail) == (
        5.0,
        0.1,
        None,
        make_detail(count=3),
    )


def test_progress_counts_and_keeps_the_best() -> None:
    """Only measured figures compete; the default's figure is kept as well."""
    progress = Progress(total=5)
    progress.count_outcome(TrialResult(Outcome.MEASURED, 9.0), is_default=True)
    progress.count_outcome(TrialResult(Outcome.MEASURED, 5.0), is_default=False)
    progress.count_outcome(TrialResult(Outcome.SLOWER, 1.0), is_default=False)
    progress.count_outcome(TrialResult(Outcome.CRASHED), is_default=False)
    progress.add_cost("lane_s", 1.0)
    progress.add_cost("lane_s", 0.5004)
    job = progress.stamp_job(JOB, state=JobState.DONE)
    assert (job.done, job.total, job.best_us, job.default_us, job.state) == (4, 5, 5.0, 9.0, JobState.DONE)
    assert job.outcomes == {"measured": 2, "slower": 1, "crashed": 1}
    assert job.cost == {"lane_s": 1.5}


def test_a_stored_detail_is_read_as_it_was_written() -> None:
    """A finalist is launched from its stored Build, and the spans of its attempt are kept."""
    attempt = Attempt(7, {}, UnitRef("k1", {"entry": "f", "grid": [1, 2]}))
    attempt.record_place("compile", "slot 1", 1.0)
    attempt.record_place("lane", "cpu:0", 0.5)
    for event in (TrialEvent.COMPILE_STARTED, TrialEvent.COMPILE_DONE, TrialEvent.LANE_TAKEN):
        attempt.make_move(event)
    measured = make_result(Outcome.MEASURED, count=3, samples=(1.0, 2.0), low_us=1.0, undisputed=Outcome.MEASURED)
    detail, metrics = decode_detail(encode_detail(attempt.end_trial(Verdict(TrialEvent.TIMED, measured))))
    assert metrics == {}
    assert detail.compiled.build == {"entry": "f", "grid": [1, 2]}
    assert detail.profile.spans is not None
    assert [(kind, place) for kind, place, _ in detail.profile.spans] == [("compile", "slot 1"), ("lane", "cpu:0")]
    assert (detail.timing.count, detail.checks.undisputed) == (3, Outcome.MEASURED)
