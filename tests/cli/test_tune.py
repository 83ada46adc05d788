"""``tune`` and ``watch`` against a daemon that reports a known story."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.cli.conftest import Run, Serve
from tests.cli.fake_daemon import FakeDaemon
from tests.cli.samples import DEVICE, KERNEL, PROBLEM, answer_map, job_map, state_event, trial_event, trial_map

DONE = job_map(
    state="done",
    done=4,
    best_us=40.0,
    best_spread_us=0.4,
    default_us=80.0,
    default_spread_us=1.0,
    reference_us=60.0,
    outcomes={"measured": 2, "hung": 2},
)
STORY = [
    state_event("job_started", job_map()),
    trial_event(trial_map(1, latency_us=50.0), 1, default_us=80.0),
    trial_event(trial_map(2, "hung"), 2, best_us=50.0, default_us=80.0),
    trial_event(trial_map(3, "hung"), 3, best_us=50.0, default_us=80.0),
    trial_event(trial_map(4, latency_us=40.0), 4, default_us=80.0),
    {"type": "refining", "kernel": KERNEL, "job": 1, "finalists": 2, "round": 1, "rounds": 1},
    state_event("job_done", DONE),
]
ACCEPTED = {"jobs": [job_map(state="queued")], "errors": [], "epoch": 7, "seq": 0}
WATCHED = {"kernels": [], "errors": [], "roots": [{"path": "/src", "name": "project", "python": "p"}]}
BROKEN = {"path": "/src/tune_bad.py", "line": 3, "message": "NameError: name 'x' is not defined", "hint": ""}


def tuning(serve: Serve, **changes: Any) -> FakeDaemon:
    """Serve the story above."""
    answers: dict[str, Any] = {"tune": ACCEPTED, "lookup": answer_map(config={"BM": 4}), "events": STORY, **changes}
    return serve(**answers)


def test_configs_to_measure_again(run: Run, serve: Serve) -> None:
    """Each --config is one config, with values read as those of a problem; --again goes with or without them."""
    daemon = tuning(serve)
    given = ["--config", "BM=64,fast=true", "--config", "BM=32,fast=false"]
    assert run("tune", "gemm", "--remeasure", *given).code == 0
    configs = [{"BM": 64, "fast": True}, {"BM": 32, "fast": False}]
    assert daemon.params_of("tune") == {"kernel": "gemm", "configs": configs, "again": True}
    for wrong in ("BM", "BM=1,BM=2", "=3"):
        ran = run("tune", "gemm", "--config", wrong)
        assert (ran.code, len(ran.err.splitlines())) == (2, 1)
        assert "--config" in ran.err


def test_tune_tells_bests_and_first_failures(run: Run, serve: Serve) -> None:
    """In a pipe: one line per new best, one per failure kind, then the table of winners and the failures."""
    daemon = tuning(serve)
    ran = run("tune", "gemm", "-p", "M=64", "--trials", "4", "--preset", "fast")
    assert (ran.code, ran.err) == (0, "")
    assert daemon.params_of("tune") == {"kernel": "gemm", "problem": {"M": 64}, "trials": 4, "preset": "fast"}
    assert daemon.params_of("subscribe") == {"since": [7, 0], "jobs": [1]}
    story, winners, failures, hint = ran.out.split("\n\n")
    name = f"{KERNEL} [M=64 dtype=float32] on {DEVICE}: "
    assert story.splitlines() == [
        f"{name}job 1 tunes of 4 configs",
        f"{name}1/4 best 50.00 µs (1.60× the default)  BM=1",
        f"{name}hung  BM=2  why it is hung",
        f"{name}4/4 best 40.00 µs (2.00× the default)  BM=4",
        f"{name}tuned, 40.00 µs, 2.00× the default  BM=4",
    ]
    assert re.search(r"done +40\.00 µs ±0\.5 % +80\.00 µs ±0\.62 % +2\.00× +60\.00 µs +BM=4$", winners)
    assert "varied from" not in ran.out
    assert re.search(r"hung +2 +BM=2 \(trial 2\)$", failures)
    assert ran.out.count("why it is hung") == 1
    assert f"`ktuned results {KERNEL} --outcome hung`" in hint


def test_a_job_s_end_has_the_compiler_s_message(run: Run, serve: Serve) -> None:
    """Its first failure may be pages above; the table leaves out what the job's end said."""
    why = "k.cc:3: error: no such type"
    message = f"no config ran; compile_error: {why}"
    failed = job_map(state="failed", done=1, outcomes={"compile_error": 1}, message=message)
    trial = trial_event(trial_map(1, "compile_error", message=why), 1)
    tuning(serve, events=[trial, state_event("job_done", failed)])
    ran = run("tune", "gemm")
    assert (ran.code, ran.out.count(why), ran.out.count("no config ran")) == (1, 2, 1)
    assert f"job 1 failed: {message} (1 compile_error)" in ran.out


def test_a_job_s_message_is_printed_once(run: Run, serve: Serve) -> None:
    """As a line when it ends; in the table where it had ended before."""
    failed = job_map(state="failed", message="inputs(p) returned an empty dict")
    tuning(serve, events=[state_event("job_done", failed)])
    assert run("tune", "gemm").out.count("empty dict") == 1


def test_a_speed_up_that_is_hardly_known_is_a_warning(run: Run, serve: Serve) -> None:
    """Where the default's or the reference's rounds differ much, the table is followed by the range of both."""
    wide = {**DONE, "default_spread_us": 40.0, "reference_spread_us": 30.0}
    tuning(serve, events=[state_event("job_done", wide)])
    out = run("tune", "gemm").out
    assert "the speed-up over the default varied from 1.49× to 2.51×" in out
    assert "the reference took from 45.00 µs to 75.00 µs" in out
    assert out.count("unlocked clocks") == 1
    assert "60.00 µs ±25 %  " in out


def test_a_reference_that_took_thousands_of_times_as_long_is_noisy(run: Run, serve: Serve) -> None:
    """Though its rounds agree: the table has the badge, and a line says why."""
    far = {**DONE, "reference_us": 155_000.0, "reference_spread_us": 19_000.0}
    tuning(serve, events=[state_event("job_done", far)])
    out = run("tune", "gemm").out
    assert "155.0 ms ±6.1 % noisy" in out
    assert "noisy: the reference took 3,875 times the winner's time: was the machine busy" in out


@pytest.mark.parametrize(
    ("option", "words"), [("--trials", "a valid whole number"), ("--time-limit", "a valid number")]
)
def test_a_budget_that_is_no_number_is_one_line(run: Run, option: str, words: str) -> None:
    """In words of people, not of the parser."""
    ran = run("tune", "gemm", option, "ten")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert f"Invalid value for '{option}': 'ten' is not {words}" in ran.err


def test_tune_json_is_the_events_and_last_the_jobs(run: Run, serve: Serve) -> None:
    """With ``--json`` stdout holds one event a line and, last, the jobs as they ended."""
    tuning(serve)
    ran = run("tune", "gemm", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert [event["type"] for event in ran.values[:-1]] == [event["type"] for event in STORY]
    assert ran.values[-1] == {"jobs": [DONE], "errors": []}


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_that_does_not_succeed_exits_1(run: Run, serve: Serve, state: str) -> None:
    """A failed or cancelled job is a result not reached, and its message is reported."""
    ended = job_map(state=state, best_us=40.0, message="no lane is open")
    tuning(serve, events=[state_event("job_done", ended)])
    ran = run("tune", "gemm")
    assert ran.code == 1
    assert f"job 1 {state}: no lane is open" in ran.out


def test_a_cancelled_job_keeps_its_counts(run: Run, serve: Serve) -> None:
    """Its line has the number of configs of each outcome, and does not say twice that it was cancelled."""
    ended = job_map(state="cancelled", message="cancelled", outcomes={"measured": 2, "hung": 1})
    tuning(serve, events=[state_event("job_done", ended)])
    assert f"{DEVICE}: job 1 cancelled (2 measured, 1 hung)\n" in run("tune", "gemm").out


def test_a_job_without_a_valid_config_exits_1(run: Run, serve: Serve) -> None:
    """A job that is done and has no winner is a result not reached."""
    tuning(serve, events=[state_event("job_done", job_map(state="done", outcomes={"mismatch": 4}))])
    ran = run("tune", "gemm")
    assert ran.code == 1
    assert "found no valid config (4 mismatch)" in ran.out


def test_errors_in_kernel_files_are_told_and_exit_1(run: Run, serve: Serve, tmp_path: os.PathLike[str]) -> None:
    """A broken kernel file does not keep the others from being tuned, and does not go unseen."""
    daemon = tuning(serve, tune={**ACCEPTED, "errors": [BROKEN]})
    ran = run("tune", str(tmp_path))
    assert ran.code == 1
    assert ran.err == "ktuned: /src/tune_bad.py:3: NameError: name 'x' is not defined\n"
    assert "tuned, 40.00 µs" in ran.out
    assert daemon.params_of("tune") == {"path": os.path.realpath(tmp_path)}


def test_nothing_to_tune_exits_1(run: Run, serve: Serve) -> None:
    """No jobs and no errors: the kernel declares no problem, and the line says so."""
    tuning(serve, tune={**ACCEPTED, "jobs": []})
    ran = run("tune", "gemm")
    assert (ran.code, ran.out) == (1, "")
    assert "nothing to tune" in ran.err


def test_jobs_that_had_ended_already_need_no_events(run: Run, serve: Serve) -> None:
    """A tuning that finds everything known ends at once, with its table."""
    daemon = tuning(serve, tune={**ACCEPTED, "jobs": [DONE]})
    ran = run("tune", "gemm")
    assert ran.code == 0
    assert "2.00×" in ran.out
    assert "subscribe" not in [method for method, _ in daemon.calls]


def test_detach_returns_at_once(run: Run, serve: Serve) -> None:
    """``--detach`` prints the jobs and waits for nothing."""
    daemon = tuning(serve)
    ran = run("tune", "gemm", "--detach", "--json")
    assert (ran.code, ran.values) == (0, [{"jobs": ACCEPTED["jobs"], "errors": []}])
    assert [method for method, _ in daemon.calls] == ["hello", "tune"]


def test_a_daemon_that_goes_away_exits_3(run: Run, serve: Serve) -> None:
    """A stream that breaks is no daemon, said in one line."""
    daemon = tuning(serve, events=STORY[:2])
    daemon.hangs_up = True
    ran = run("tune", "gemm")
    assert ran.code == 3
    assert len(ran.err.splitlines()) == 1


def test_ctrl_c_detaches(serve: Serve) -> None:
    """Ctrl-C leaves the job running, and says how to see and cancel it."""
    daemon = tuning(serve, events=STORY[:2])
    command = [sys.executable, "-m", "ktuned", "tune", "gemm"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert daemon.told.wait(30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "cancel" not in {method for method, _ in daemon.calls}
    assert "`ktuned jobs`" in err
    assert "`ktuned jobs 1 --cancel`" in err


def test_a_terminal_gets_a_live_view(serve: Serve) -> None:
    """On a terminal the bar shows done/total, the best and the counts; the cursor comes back."""
    tuning(serve)
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    command = [sys.executable, "-m", "ktuned", "tune", "gemm"]
    with subprocess.Popen(command, stdout=slave, stderr=slave, stdin=slave, env=environment) as process:
        os.close(slave)
        shown = b""
        try:
            while data := os.read(master, 65536):
                shown += data
        except OSError:
            pass  # the terminal's other end is closed: how Linux says that it has ended
        finally:
            os.close(master)
    screen = shown.decode()
    assert process.returncode == 0, screen
    assert "tuned, 40.00 µs, 2.00× the default" in screen
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l")


def watching() -> list[dict[str, Any]]:
    """Return what happens around one save."""
    winner = {"type": "winner", "kernel": KERNEL, "job": 2, "problem": PROBLEM, "device": DEVICE}
    return [
        {"type": "reloaded", "kernel": None, "job": None, "added": [], "changed": [KERNEL], "removed": []},
        {"type": "stale", "kernel": KERNEL, "job": None, "digest": "e"},
        state_event("job_started", job_map(2)),
        trial_event(trial_map(9, latency_us=20.0, job=2), 1),
        {**winner, "config": {"BM": 9}, "latency_us": 20.0, "trial": 9},
        {"type": "stale", "kernel": "other:kernel", "job": None, "digest": "f"},
        state_event("job_done", job_map(2, state="done", best_us=20.0, done=1)),
    ]


def test_watch_tells_a_save_and_its_retuning(run: Run, serve: Serve, tmp_path: os.PathLike[str]) -> None:
    """From the save over the stale winner to the new one, with the ratio; other projects stay out of it."""
    root = os.path.realpath(tmp_path)
    roots = [{"path": "/", "name": "outer", "python": "p"}, {"path": root, "name": "project", "python": "p"}]
    daemon = serve(
        tune={**ACCEPTED, "jobs": []},
        kernels={"kernels": [], "errors": [], "roots": roots},
        jobs={"jobs": [DONE]},
        events=watching(),
    )
    daemon.hangs_up = True
    ran = run("watch", root)
    assert ran.code == 3
    name = f"{KERNEL} [M=64 dtype=float32] on {DEVICE}: "
    assert ran.out.splitlines() == [
        f"changed: {KERNEL}",
        f"{KERNEL}: saved, its winners are stale",
        f"{name}job 2 tunes of 4 configs",
        f"{name}1/4 best 20.00 µs  BM=9",
        f"{name}tuned, 20.00 µs, 1 of 4 configs tried, was 40.00 µs, 2.00× that speed now  BM=9",
    ]
    assert daemon.params_of("subscribe") == {"since": [7, 0]}


def test_watch_without_a_path_shows_all(run: Run, serve: Serve) -> None:
    """Without a path nothing is added, and every project's events come."""
    daemon = serve(kernels=WATCHED, jobs={"jobs": []}, events=watching())
    daemon.hangs_up = True
    ran = run("watch", "--json")
    assert [event["type"] for event in ran.values] == [event["type"] for event in watching()]
    assert [method for method, _ in daemon.calls] == ["hello", "kernels", "subscribe", "jobs", "peaks"]
    assert ran.err.startswith("watching /src; Ctrl-C")


def test_watch_catches_up_after_a_gap(run: Run, serve: Serve) -> None:
    """When events were lost, the jobs are asked for again and their ends are reported."""
    states = iter([[job_map()], [DONE]])
    daemon = serve(kernels=WATCHED, jobs=lambda params: {"jobs": next(states)}, events=[{"type": "gap"}])
    daemon.hangs_up = True
    ran = run("watch")
    assert "tuned, 40.00 µs" in ran.out


def test_ctrl_c_ends_a_watch_in_peace(serve: Serve) -> None:
    """The view ends, the daemon goes on, and nothing failed."""
    daemon = serve(kernels=WATCHED, jobs={"jobs": []}, events=watching())
    command = [sys.executable, "-m", "ktuned", "watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert daemon.told.wait(30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "continues to watch /src" in err


def test_ctrl_c_before_the_jobs_are_known_says_that_they_follow(run: Run, serve: Serve) -> None:
    """The daemon inspects and tunes, though the command has ended; the line names the commands for its jobs."""
    is_over = threading.Event()

    def interrupt(params: dict[str, Any]) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        is_over.wait(10)
        return {"jobs": [], "errors": [], "notices": [], "epoch": 7, "seq": 0}

    serve(tune=interrupt)
    ran = run("tune", "gemm")
    is_over.set()
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.splitlines()[0] == (
        "the daemon continues with the request: `ktuned jobs` has its jobs, `ktuned jobs JOB --cancel` cancels one"
    )
