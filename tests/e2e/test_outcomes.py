"""Every way in which a config can end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ktuned.observer import OFF_VARIABLE
from ktuned_client import Event
from tests.e2e.harness import Daemon, make_kernel_text
from tests.fake_tensors import REFERENCE

DEFAULT = "dict(us=1_500.0, does='work', tag='default')"
HEALTHY = f"dict(us=300.0, does='work', tag='best'), {DEFAULT}"
DEADLINE_S = 5.0
DEADLINES = f"dict(compile={DEADLINE_S}, first_launch={DEADLINE_S}, floor={DEADLINE_S})"
"""What a config that hangs costs here: more than one that works takes on a busy machine."""

BEST_US = (300, 1_500)
"""Between these a busy machine may measure the best one."""

FAILURES = {
    "slow": ("dict(us=500_000.0, does='work', tag='slow')", "slower"),
    "compile_error": ("dict(us=1.0, does='compile_error', tag='compile_error')", "compile_error"),
    "compile_hang": ("dict(us=1.0, does='compile_hang', tag='compile_hang')", "compile_timeout"),
    "compile_crash": ("dict(us=1.0, does='compile_crash', tag='compile_crash')", "crashed"),
    "unsupported_here": ("dict(us=1.0, does='unsupported_here', tag='unsupported_here')", "unsupported"),
    "unsupported": ("dict(us=1.0, does='unsupported', tag='unsupported')", "unsupported"),
    "wrong": ("dict(us=1.0, does='wrong', tag='wrong')", "mismatch"),
    "nothing": ("dict(us=1.0, does='nothing', tag='nothing')", "mismatch"),
    "beyond": ("dict(us=1.0, does='beyond', tag='beyond')", "crashed"),
    "before": ("dict(us=1.0, does='before', tag='before')", "mismatch"),
    "dirty": ("dict(us=1.0, does='dirty', tag='dirty')", "mismatch"),
    "tires": ("dict(us=1.0, does='tires', tag='tires')", "mismatch"),
    "first_seed": ("dict(us=1.0, does='first_seed', tag='first_seed')", "mismatch"),
    "raise": ("dict(us=1.0, does='raise', tag='raise')", "launch_error"),
    "flood": ("dict(us=1.0, does='flood', tag='flood')", "launch_error"),
    "segfault": ("dict(us=1.0, does='segfault', tag='segfault')", "crashed"),
    "abort": ("dict(us=1.0, does='abort', tag='abort')", "crashed"),
    "exit": ("dict(us=1.0, does='exit', tag='exit')", "crashed"),
    "hang": ("dict(us=1.0, does='hang', tag='hang')", "hung"),
}


def make_space(*names: str) -> str:
    return f"space([{', '.join([HEALTHY, *(FAILURES[name][0] for name in names)])}])"


def test_every_failure_has_its_outcome_and_the_healthy_best_wins(daemon: Daemon) -> None:
    """One job has all kinds of bad configs; none hides another, and the winner is right."""
    text = make_kernel_text(
        make_space(*FAILURES), default=DEFAULT, deadlines=DEADLINES, early_stop="30.0", reference=REFERENCE
    )
    path = daemon.write_kernel(text)
    events, (job,) = daemon.tune(path=path)

    assert job["state"] == "done", job
    trials = daemon.fetch_trials()
    assert {tag: trials[tag]["outcome"] for tag in FAILURES} == {tag: pair[1] for tag, pair in FAILURES.items()}
    assert trials["best"]["outcome"] == trials["default"]["outcome"] == "measured"
    assert job["done"] == job["total"] == len(FAILURES) + 2
    assert job["outcomes"]["crashed"] == 5

    hit = daemon.look_up()
    assert (hit.status, hit.config["tag"] if hit.config else None) == ("fresh", "best")
    assert hit.latency_us is not None
    assert job["default_us"] is not None
    assert BEST_US[0] <= hit.latency_us < BEST_US[1] <= job["default_us"]
    assert job["reference_us"] is not None
    assert job["reference_us"] > 0
    _check_stories(daemon, trials)
    _check_told_after_commit(events)


def test_without_guards_a_crash_does_not_name_the_tensor(tmp_path: Path) -> None:
    """Guards need the observer's library, which needs a C compiler."""
    configs = "dict(us=300, does='beyond', tag='beyond'), dict(us=300, does='work', tag='best')"
    with Daemon(tmp_path, env={OFF_VARIABLE: "1"}) as daemon:
        daemon.tune(path=daemon.write_kernel(make_kernel_text(f"space([{configs}])", reference=REFERENCE)))
        crashed = daemon.fetch_trials()["beyond"]
    assert crashed["outcome"] == "crashed"
    assert crashed["message"].startswith("the worker was killed by SIGSEGV during first_launch")


def test_a_job_without_a_right_config_says_what_is_wrong(daemon: Daemon) -> None:
    """The best config is right for its first inputs only, and is not served."""
    path = daemon.write_kernel(
        make_kernel_text("space([dict(us=200, does='first_seed', tag='it')])", reference=REFERENCE)
    )
    job = daemon.tune_one(path=path)
    assert job["state"] == "failed"
    assert "no config could be measured; mismatch: right on its first inputs" in job["message"]
    assert daemon.look_up().config is None


def _check_stories(daemon: Daemon, trials: dict[str, dict[str, Any]]) -> None:
    """Check the details of some trials."""
    segfault = daemon.fetch_trial(trials["segfault"]["id"])
    assert segfault["detail"]["failure"]["signal"] == "SIGSEGV"
    assert "Segmentation fault" in segfault["detail"]["failure"]["stderr"]
    assert "code 3" in trials["exit"]["message"]
    assert trials["beyond"]["message"].startswith("wrote outside its tensors: 8192 bytes after y; the worker")
    assert trials["before"]["message"] == "wrote outside its tensors: 32 bytes before y"
    assert trials["dirty"]["message"].startswith("the first launch was right, a later one was not: y: 64 of 64")
    assert trials["tires"]["message"].startswith("the first launch was right, a later one was not: y was never written")
    assert trials["first_seed"]["message"].startswith("right on its first inputs, wrong on others (seed 1)")
    flood = daemon.fetch_trial(trials["flood"]["id"])
    assert "last words" in flood["detail"]["failure"]["stderr"]
    assert len(flood["detail"]["failure"]["stdout"]) <= 16 * 1024
    assert "fake.c:1" in trials["compile_error"]["message"]
    assert daemon.fetch_trial(trials["wrong"]["id"])["detail"]["checks"]["mismatched_ratio"] == 1.0
    assert DEADLINE_S <= trials["hang"]["lane_s"] < 6 * DEADLINE_S
    assert daemon.fetch_trial(trials["hang"]["id"])["detail"]["failure"]["phase"] == "first_launch"


def _check_told_after_commit(events: list[Event]) -> None:
    done = [event["trial"] for event in events if event["type"] == "trial_done"]
    assert all(trial is not None and trial["outcome"] is not None for trial in done)
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


def test_parallel_compiles_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Each compile slot has its own staging directory."""
    entries = ", ".join(f"dict(us={100.0 + index}, does='work', tag='t{index}')" for index in range(18))
    with Daemon(tmp_path, config="compile_slots = 6\n") as daemon:
        job = daemon.tune_one(path=daemon.write_kernel(make_kernel_text(f"space([{entries}])", early_stop="100.0")))
        assert (job["state"], job["outcomes"]) == ("done", {"measured": 18})
