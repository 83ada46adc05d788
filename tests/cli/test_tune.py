"""``tune`` and ``watch`` against a fake daemon that publishes :data:`STORY`."""

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

from tests.cli.conftest import RunCli, StartDaemon
from tests.cli.fake_daemon import FakeDaemon
from tests.cli.samples import (
    DEVICE,
    KERNEL,
    PROBLEM,
    make_answer_map,
    make_job_map,
    make_state_event,
    make_trial_event,
    make_trial_map,
)

DONE = make_job_map(
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
    make_state_event("job_started", make_job_map()),
    make_trial_event(make_trial_map(1, latency_us=50.0), 1, default_us=80.0),
    make_trial_event(make_trial_map(2, "hung"), 2, best_us=50.0, default_us=80.0),
    make_trial_event(make_trial_map(3, "hung"), 3, best_us=50.0, default_us=80.0),
    make_trial_event(make_trial_map(4, latency_us=40.0), 4, default_us=80.0),
    {"type": "refining", "kernel": KERNEL, "job": 1, "finalists": 2, "round": 1, "rounds": 1},
    make_state_event("job_done", DONE),
]
ACCEPTED = {"jobs": [make_job_map(state="queued")], "errors": [], "epoch": 7, "seq": 0}
WATCHED = {"kernels": [], "errors": [], "roots": [{"path": "/src", "name": "project", "python": "p"}]}
BROKEN = {"path": "/src/tune_bad.py", "line": 3, "message": "NameError: name 'x' is not defined", "hint": ""}


def serve_tuning(serve: StartDaemon, **changes: Any) -> FakeDaemon:
    """Start a daemon that tunes as :data:`STORY` says."""
    answers: dict[str, Any] = {
        "tune": ACCEPTED,
        "lookup": make_answer_map(config={"BM": 4}),
        "events": STORY,
        **changes,
    }
    return serve(**answers)


def test_config_and_remeasure_choose_configs_to_measure_again(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """Values are read as those of a problem."""
    daemon = serve_tuning(start_daemon)
    options = ["--config", "BM=64,fast=true", "--config", "BM=32,fast=false"]
    assert run_cli("tune", "gemm", "--remeasure", *options).code == 6
    configs = [{"BM": 64, "fast": True}, {"BM": 32, "fast": False}]
    assert daemon.find_params("tune") == {"kernel": "gemm", "configs": configs, "again": True}
    for wrong in ("BM", "BM=1,BM=2", "=3"):
        result = run_cli("tune", "gemm", "--config", wrong)
        assert (result.code, len(result.err.splitlines())) == (2, 1)
        assert "--config" in result.err


def test_tune_prints_new_bests_and_first_failures(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """In a pipe: a line for each new best and for each kind of failure, then two tables."""
    daemon = serve_tuning(start_daemon)
    result = run_cli("tune", "gemm", "-p", "M=64", "--trials", "4", "--preset", "fast")
    assert (result.code, result.err) == (0, "")
    assert daemon.find_params("tune") == {"kernel": "gemm", "problem": {"M": 64}, "trials": 4, "preset": "fast"}
    assert daemon.find_params("subscribe") == {"since": [7, 0], "jobs": [1]}
    story, winners, failures, hint = result.out.split("\n\n")
    name = f"{KERNEL} [M=64 dtype=float32] on {DEVICE}: "
    assert story.splitlines() == [
        f"{name}job 1 tunes of 4 configs",
        f"{name}1/4 best 50.00 µs (1.60× the default)  BM=1",
        f"{name}hung  BM=2  why it is hung",
        f"{name}4/4 best 40.00 µs (2.00× the default)  BM=4",
        f"{name}tuned, 40.00 µs, 2.00× the default  BM=4",
    ]
    assert re.search(r"done +40\.00 µs ±0\.5 % +80\.00 µs ±0\.62 % +2\.00× +60\.00 µs +BM=4$", winners)
    assert "varied from" not in result.out
    assert re.search(r"hung +2 +BM=2 \(trial 2\)$", failures)
    assert result.out.count("why it is hung") == 1
    assert f"`ktuned results {KERNEL} --outcome hung`" in hint


def test_the_end_of_a_failed_job_repeats_the_compiler_s_message(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """The first failure may be pages above."""
    why = "k.cc:3: error: no such type"
    message = f"no config ran; compile_error: {why}"
    failed = make_job_map(state="failed", done=1, outcomes={"compile_error": 1}, message=message)
    trial = make_trial_event(make_trial_map(1, "compile_error", message=why), 1)
    serve_tuning(start_daemon, events=[trial, make_state_event("job_done", failed)])
    result = run_cli("tune", "gemm")
    assert (result.code, result.out.count(why), result.out.count("no config ran")) == (1, 2, 1)
    assert f"job 1 failed: {message} (1 compile_error)" in result.out


def test_an_uncertain_speed_up_is_a_warning(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """If rounds of the default or the reference differ much, their ranges follow the table."""
    wide = {**DONE, "default_spread_us": 40.0, "reference_spread_us": 30.0}
    serve_tuning(start_daemon, events=[make_state_event("job_done", wide)])
    out = run_cli("tune", "gemm").out
    assert "the speed-up over the default varied from 1.49× to 2.51×" in out
    assert "the reference took from 45.00 µs to 75.00 µs" in out
    assert out.count("unlocked clocks") == 1
    assert "60.00 µs ±25 %  " in out


def test_a_reference_that_took_thousands_of_times_as_long_is_noisy(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    far = {**DONE, "reference_us": 155_000.0, "reference_spread_us": 19_000.0}
    serve_tuning(start_daemon, events=[make_state_event("job_done", far)])
    out = run_cli("tune", "gemm").out
    assert "155.0 ms ±6.1 % noisy" in out
    assert "noisy: the reference took 3,875 times the winner's time: was the machine busy" in out


@pytest.mark.parametrize(
    ("option", "words"), [("--trials", "a valid whole number"), ("--time-limit", "a valid number")]
)
def test_a_budget_that_is_no_number_is_one_line(run_cli: RunCli, option: str, words: str) -> None:
    result = run_cli("tune", "gemm", option, "ten")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert f"Invalid value for '{option}': 'ten' is not {words}" in result.err


def test_tune_json_prints_the_events_and_then_the_jobs(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    serve_tuning(start_daemon)
    result = run_cli("tune", "gemm", "--json")
    assert (result.code, result.err) == (0, "")
    assert [event["type"] for event in result.json_lines[:-1]] == [event["type"] for event in STORY]
    assert result.json_lines[-1] == {"jobs": [DONE], "errors": []}


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (dict(state="failed", best_us=40.0, message="no lane is open"), "job 1 failed: no lane is open"),
        (dict(state="cancelled", best_us=40.0, message="no lane is open"), "job 1 cancelled: no lane is open"),
        (
            dict(state="cancelled", message="cancelled", outcomes={"measured": 2, "hung": 1}),
            f"{DEVICE}: job 1 cancelled (2 measured, 1 hung)\n",
        ),
        (dict(state="done", outcomes={"mismatch": 4}), "found no valid config (4 mismatch)"),
    ],
)
def test_a_job_without_a_winner_exits_1(
    run_cli: RunCli, start_daemon: StartDaemon, ended: dict[str, Any], words: str
) -> None:
    """The line has the job's message, once, or the counts."""
    serve_tuning(start_daemon, events=[make_state_event("job_done", make_job_map(**ended))])
    result = run_cli("tune", "gemm")
    assert (result.code, result.out.count(words)) == (1, 1)


def test_errors_in_kernel_files_are_printed_and_exit_1(
    run_cli: RunCli, start_daemon: StartDaemon, tmp_path: os.PathLike[str]
) -> None:
    """The other files are tuned nevertheless."""
    daemon = serve_tuning(start_daemon, tune={**ACCEPTED, "errors": [BROKEN]})
    result = run_cli("tune", str(tmp_path))
    assert result.code == 1
    assert result.err == "ktuned: /src/tune_bad.py:3: NameError: name 'x' is not defined\n"
    assert "tuned, 40.00 µs" in result.out
    assert daemon.find_params("tune") == {"path": os.path.realpath(tmp_path)}


def test_nothing_to_tune_exits_1(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    serve_tuning(start_daemon, tune={**ACCEPTED, "jobs": []})
    result = run_cli("tune", "gemm")
    assert (result.code, result.out) == (1, "")
    assert "nothing to tune" in result.err


def test_ended_jobs_need_no_events(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """A tuning of known configs ends at once, with its table."""
    daemon = serve_tuning(start_daemon, tune={**ACCEPTED, "jobs": [DONE]})
    result = run_cli("tune", "gemm")
    assert result.code == 0
    assert "2.00×" in result.out
    assert "subscribe" not in [method for method, _ in daemon.calls]


def test_detach_returns_at_once(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    daemon = serve_tuning(start_daemon)
    result = run_cli("tune", "gemm", "--detach", "--json")
    assert (result.code, result.json_lines) == (0, [{"jobs": ACCEPTED["jobs"], "errors": []}])
    assert [method for method, _ in daemon.calls] == ["hello", "tune"]


def test_a_lost_connection_exits_3_with_one_line(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    daemon = serve_tuning(start_daemon, events=STORY[:2])
    daemon.hangs_up = True
    result = run_cli("tune", "gemm")
    assert result.code == 3
    assert len(result.err.splitlines()) == 1


def test_ctrl_c_leaves_the_job_running(start_daemon: StartDaemon) -> None:
    """The command says how to see and cancel the job."""
    daemon = serve_tuning(start_daemon, events=STORY[:2])
    command = [sys.executable, "-m", "ktuned", "tune", "gemm"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert daemon.has_sent_events.wait(30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "cancel" not in {method for method, _ in daemon.calls}
    assert "`ktuned jobs`" in err
    assert "`ktuned jobs 1 --cancel`" in err


def test_a_terminal_gets_a_live_view(start_daemon: StartDaemon) -> None:
    """The bar shows the progress, the best and the counts; the cursor is shown again at the end."""
    serve_tuning(start_daemon)
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    command = [sys.executable, "-m", "ktuned", "tune", "gemm"]
    with subprocess.Popen(command, stdout=slave, stderr=slave, stdin=slave, env=environment) as process:
        os.close(slave)
        output = b""
        try:
            while data := os.read(master, 65536):
                output += data
        except OSError:
            pass  # the terminal's other end is closed: how Linux says that it has ended
        finally:
            os.close(master)
    screen = output.decode()
    assert process.returncode == 0, screen
    assert "tuned, 40.00 µs, 2.00× the default" in screen
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l")


def make_save_events() -> list[dict[str, Any]]:
    """Return the events of one save."""
    winner = {"type": "winner", "kernel": KERNEL, "job": 2, "problem": PROBLEM, "device": DEVICE}
    return [
        {"type": "reloaded", "kernel": None, "job": None, "added": [], "changed": [KERNEL], "removed": []},
        {"type": "stale", "kernel": KERNEL, "job": None, "digest": "e"},
        make_state_event("job_started", make_job_map(2)),
        make_trial_event(make_trial_map(9, latency_us=20.0, job=2), 1),
        {**winner, "config": {"BM": 9}, "latency_us": 20.0, "trial": 9},
        {"type": "stale", "kernel": "other:kernel", "job": None, "digest": "f"},
        make_state_event("job_done", make_job_map(2, state="done", best_us=20.0, done=1)),
    ]


def test_watch_prints_a_save_and_its_retuning(
    run_cli: RunCli, start_daemon: StartDaemon, tmp_path: os.PathLike[str]
) -> None:
    """The new winner is compared with the stale one; other projects are left out."""
    root = os.path.realpath(tmp_path)
    roots = [{"path": "/", "name": "outer", "python": "p"}, {"path": root, "name": "project", "python": "p"}]
    daemon = start_daemon(
        tune={**ACCEPTED, "jobs": []},
        kernels={"kernels": [], "errors": [], "roots": roots},
        jobs={"jobs": [DONE]},
        events=make_save_events(),
    )
    daemon.hangs_up = True
    result = run_cli("watch", root)
    assert result.code == 3
    name = f"{KERNEL} [M=64 dtype=float32] on {DEVICE}: "
    assert result.out.splitlines() == [
        f"changed: {KERNEL}",
        f"{KERNEL}: saved, its winners are stale",
        f"{name}job 2 tunes of 4 configs",
        f"{name}1/4 best 20.00 µs  BM=9",
        f"{name}tuned, 20.00 µs, 1 of 4 configs tried, was 40.00 µs, 2.00× that speed now  BM=9",
    ]
    assert daemon.find_params("subscribe") == {"since": [7, 0]}


def test_watch_without_a_path_prints_all_events(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(kernels=WATCHED, jobs={"jobs": []}, events=make_save_events())
    daemon.hangs_up = True
    result = run_cli("watch", "--json")
    assert [event["type"] for event in result.json_lines] == [event["type"] for event in make_save_events()]
    assert [method for method, _ in daemon.calls] == ["hello", "kernels", "subscribe", "jobs", "peaks"]
    assert result.err.startswith("watching /src; Ctrl-C")


def test_watch_requests_the_jobs_after_a_gap(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    states = iter([[make_job_map()], [DONE]])
    daemon = start_daemon(kernels=WATCHED, jobs=lambda params: {"jobs": next(states)}, events=[{"type": "gap"}])
    daemon.hangs_up = True
    result = run_cli("watch")
    assert "tuned, 40.00 µs" in result.out


def test_ctrl_c_ends_watch_with_status_0(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(kernels=WATCHED, jobs={"jobs": []}, events=make_save_events())
    command = [sys.executable, "-m", "ktuned", "watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert daemon.has_sent_events.wait(30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "continues to watch /src" in err


def test_ctrl_c_before_the_answer_says_that_the_request_goes_on(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    is_over = threading.Event()

    def interrupt(params: dict[str, Any]) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        is_over.wait(10)
        return {"jobs": [], "errors": [], "notices": [], "epoch": 7, "seq": 0}

    start_daemon(tune=interrupt)
    result = run_cli("tune", "gemm")
    is_over.set()
    assert (result.code, result.out) == (130, "")
    assert result.err.splitlines()[0] == (
        "the daemon continues with the request: `ktuned jobs` has its jobs, `ktuned jobs JOB --cancel` cancels one"
    )
