"""Which contexts are remembered as failed: those where another job would find the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ktuned.model.keys import DeviceModel, KernelName, KeyProblem
from ktuned.model.objective import LATENCY
from ktuned.model.plan import Plan
from ktuned.protocol.jobs import JobState
from ktuned.scheduling.job_machine import KnownFailures
from ktuned.store.contexts import Context

CONTEXT = Context(KernelName("project:it"), KeyProblem('{"n":64}'), DeviceModel("CPU"), "digest", "toolchain", "driver")
DECLARED = Plan(trials=10)


def make_brief(
    ground: Context = CONTEXT, plan: Plan = DECLARED, plan_digest: str = "plan", *, devices: bool = True
) -> Any:
    """Return what a job of such a plan works on."""
    kernel = SimpleNamespace(name=ground.kernel, plan=DECLARED, plan_digest=plan_digest)
    return SimpleNamespace(
        context=ground, kernel=kernel, job=SimpleNamespace(plan=plan, objective=plan.objective), devices=[1] * devices
    )


def find_message(failures: KnownFailures, context: Context, plan_digest: str) -> str:
    """Return why the last job in a context failed."""
    kernel: Any = SimpleNamespace(name=context.kernel, plan_digest=plan_digest)
    return failures.list_messages(kernel).get((context, LATENCY), "")


def test_failure_is_of_its_very_ground_until_one_succeeds() -> None:
    """Another digest, toolchain, driver or space may work; what worked once has not failed."""
    failures = KnownFailures()
    failures.record_job_end(make_brief(), JobState.FAILED, "no")
    assert find_message(failures, CONTEXT, "plan") == "no"
    assert find_message(failures, CONTEXT, "larger plan") == ""
    for part in ("digest", "toolchain", "device_fingerprint", "device", "problem"):
        assert find_message(failures, replace(CONTEXT, **{part: "another"}), "plan") == ""
    failures.record_job_end(make_brief(), JobState.CANCELLED, "superseded")
    assert find_message(failures, CONTEXT, "plan") == "no"
    failures.record_job_end(make_brief(), JobState.DONE, "")
    assert find_message(failures, CONTEXT, "plan") == ""


@pytest.mark.parametrize(
    ("job", "counts"),
    [
        (make_brief(plan=Plan(trials=3)), False),
        (make_brief(plan=Plan(trials=10, time_limit_s=1.0)), False),
        (make_brief(plan=Plan(trials=20)), True),
        (make_brief(plan=Plan(trials=10, strategy="exhaustive")), False),
        (make_brief(plan=Plan(trials=10, compile_only=True)), False),
        (make_brief(devices=False), False),
    ],
)
def test_job_that_did_not_try_all_proves_nothing(job: Any, counts: bool) -> None:
    """A smaller budget, another way or no device leaves configs that may work."""
    failures = KnownFailures()
    failures.record_job_end(job, JobState.FAILED, "no")
    assert bool(find_message(failures, CONTEXT, "plan")) is counts


@pytest.mark.parametrize(
    ("job", "counts"),
    [
        (make_brief(plan=Plan(trials=3, preset="fast", time_limit_s=1.0, seed=7)), True),
        (make_brief(plan=Plan(trials=10, configs=({"tile": 1},))), False),
        (make_brief(devices=False), False),
    ],
)
def test_a_hopeless_job_proves_it_whatever_its_budget(job: Any, counts: bool) -> None:
    """It ended because all configs fail alike; of chosen ones that says nothing of the others."""
    failures = KnownFailures()
    failures.record_job_end(job, JobState.FAILED, "stopped: no", is_hopeless=True)
    assert bool(find_message(failures, CONTEXT, "plan")) is counts


def test_failures_are_forgotten_by_kernel_and_for_room() -> None:
    """One kernel's, all, or the oldest when there are too many."""
    failures = KnownFailures(limit=2)
    several = [replace(CONTEXT, kernel=KernelName(f"project:{name}")) for name in "abc"]
    for ground in several:
        failures.record_job_end(make_brief(ground), JobState.FAILED, "no")
    messages = [find_message(failures, ground, "plan") for ground in several]
    assert messages == ["", "no", "no"]
    assert failures.forget_failures("project:b")
    assert not failures.forget_failures("project:b")
    assert [find_message(failures, ground, "plan") for ground in several] == ["", "", "no"]
    failures.forget_failures()
    assert [find_message(failures, ground, "plan") for ground in several] == ["", "", ""]
