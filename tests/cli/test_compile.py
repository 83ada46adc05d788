"""``tune --compile-only`` against a fake daemon."""

from __future__ import annotations

from typing import Any

from ktuned.cli.commands.compile_report import Lines
from tests.cli.conftest import RunCli, StartDaemon
from tests.cli.samples import KERNEL, PROBLEM, make_job_map, make_state_event

ACCEPTED = {"jobs": [make_job_map(state="queued", device="sm_90a")], "errors": [], "epoch": 7, "seq": 0}
OVER = make_job_map(
    state="done",
    device="sm_90a",
    done=3,
    outcomes={"compiled": 2, "compile_error": 1},
    message="2 artifacts are ready for sm_90a",
    cost={"compile_s": 3.5, "wall_s": 2.0},
)


def make_compile_event(number: int, **changes: Any) -> dict[str, Any]:
    """Return the event that reports a config."""
    event: dict[str, Any] = {
        "type": "config_compiled",
        "kernel": KERNEL,
        "job": 1,
        "problem": PROBLEM,
        "target": "sm_90a",
        "config": {"BM": number},
        "outcome": None,
        "message": "",
        "compile_s": 1.25,
        "facts": {"registers": 128, "command": ["nvcc", "-c"]},
        "artifact": "/a/1",
        "reused": False,
        "done": number,
        "total": 3,
        "outcomes": {"compiled": number},
    }
    return event | changes


STORY = [
    make_state_event("job_started", make_job_map(device="sm_90a")),
    make_compile_event(1),
    make_compile_event(2, outcome="compile_error", message="\nk.cu(1): error: no\nmore", artifact=None, facts={}),
    make_compile_event(3, reused=True, compile_s=0.0),
    make_state_event("job_done", OVER),
]


def test_every_config_has_its_line(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """A compiled config has its figures, a failed one the compiler's first line; the summary is on stderr."""
    daemon = start_daemon(compile=ACCEPTED, events=STORY)
    result = run_cli("tune", "gemm", "--compile-only", "-p", "M=64", "--arch", "sm_90a", "--trials", "3")
    assert result.code == 0
    assert daemon.find_params("compile") == {"kernel": "gemm", "problem": {"M": 64}, "arch": "sm_90a", "trials": 3}
    assert [line.split() for line in result.out.splitlines()] == [
        ["ok", "1.25", "s", "BM=1", "registers=128"],
        ["compile_error", "1.25", "s", "BM=2", "k.cu(1):", "error:", "no"],
        ["ok", "0.00", "s", "BM=3", "registers=128", "(reused)"],
    ]
    assert result.err == (
        f"{KERNEL} [M=64 dtype=float32]: 2 artifacts are ready for sm_90a "
        "(2 compiled, 1 compile_error; 3.5 s of compiling in 2.0 s)\n"
    )


def test_one_reason_for_all_configs_is_one_line(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """If all configs fail for one reason, it is printed once; otherwise every config has its line."""
    wrong = [
        make_compile_event(n, outcome="unsupported", message="the target is sm_90a", artifact=None, facts={})
        for n in (1, 2, 3)
    ]
    ended = make_job_map(state="done", done=3, outcomes={"unsupported": 3}, message="no config could be compiled")
    start_daemon(compile=ACCEPTED, events=[*wrong, make_state_event("job_done", ended)])
    result = run_cli("tune", "gemm", "--compile-only")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "no config could be compiled: the target is sm_90a (3 unsupported; " in result.err
    lines = Lines()
    printed = [
        lines.take_line(line, reason) for line, reason in (("a", "x"), ("b", "x"), ("c", None), ("d", "x"), ("e", "x"))
    ]
    assert printed == [[], [], ["a", "b", "c"], ["d"], ["e"]]
    assert lines.refusal == ""


def test_json_is_the_events_and_last_the_jobs(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    start_daemon(compile=ACCEPTED, events=STORY)
    *events, jobs = run_cli("tune", "gemm", "--compile-only", "--json").json_lines
    assert [entry["config"]["BM"] for entry in events] == [1, 2, 3]
    assert jobs == [OVER]


def test_nothing_compiled_exits_1(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """Several kernels are named, and configs whose events were lost are counted."""
    failed = make_job_map(state="failed", done=9, outcomes={"compile_error": 9}, message="no config could be compiled")
    accepted = {
        **ACCEPTED,
        "jobs": [make_job_map(state="queued"), make_job_map(2, state="failed", message="no such backend")],
    }
    ends = [make_compile_event(1, outcome="compile_error", message="no"), make_state_event("job_done", failed)]
    start_daemon(compile=accepted, events=ends)
    result = run_cli("tune", "gemm", "--compile-only")
    assert result.code == 1
    assert f"{KERNEL} [M=64 dtype=float32] BM=1  no" in result.out
    assert "8 configs are not listed: their events came faster than they were read" in result.err
    assert "no such backend" in result.err
