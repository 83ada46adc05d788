"""``compile`` against a daemon that reports a known story."""

from __future__ import annotations

from typing import Any

from ktuned.cli.commands.compile_report import Lines
from tests.cli.conftest import Run, Serve
from tests.cli.samples import KERNEL, PROBLEM, job_map, state_event

ACCEPTED = {"jobs": [job_map(state="queued", device="sm_90a")], "errors": [], "epoch": 7, "seq": 0}
OVER = job_map(
    state="done",
    device="sm_90a",
    done=3,
    outcomes={"compiled": 2, "compile_error": 1},
    message="2 artifacts are ready for sm_90a",
    cost={"compile_s": 3.5, "wall_s": 2.0},
)


def event(number: int, **changes: Any) -> dict[str, Any]:
    """Return what is reported one config."""
    told: dict[str, Any] = {
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
    return told | changes


STORY = [
    state_event("job_started", job_map(device="sm_90a")),
    event(1),
    event(2, outcome="compile_error", message="\nk.cu(1): error: no\nmore", artifact=None, facts={}),
    event(3, reused=True, compile_s=0.0),
    state_event("job_done", OVER),
]


def test_every_config_has_its_line(run: Run, serve: Serve) -> None:
    """What compiled reports its seconds and figures, what did not the compiler's first line; the sum is on stderr."""
    daemon = serve(compile=ACCEPTED, events=STORY)
    ran = run("tune", "gemm", "--compile-only", "-p", "M=64", "--arch", "sm_90a", "--trials", "3")
    assert ran.code == 0
    assert daemon.params_of("compile") == {"kernel": "gemm", "problem": {"M": 64}, "arch": "sm_90a", "trials": 3}
    assert [line.split() for line in ran.out.splitlines()] == [
        ["ok", "1.25", "s", "BM=1", "registers=128"],
        ["compile_error", "1.25", "s", "BM=2", "k.cu(1):", "error:", "no"],
        ["ok", "0.00", "s", "BM=3", "registers=128", "(reused)"],
    ]
    assert ran.err == (
        f"{KERNEL} [M=64 dtype=float32]: 2 artifacts are ready for sm_90a "
        "(2 compiled, 1 compile_error; 3.5 s of compiling in 2.0 s)\n"
    )


def test_one_reason_for_all_configs_is_one_line(run: Run, serve: Serve) -> None:
    """A wrong architecture is said once; where another outcome follows, no config's line is missing."""
    wrong = [
        event(n, outcome="unsupported", message="the target is sm_90a", artifact=None, facts={}) for n in (1, 2, 3)
    ]
    over = job_map(state="done", done=3, outcomes={"unsupported": 3}, message="no config could be compiled")
    serve(compile=ACCEPTED, events=[*wrong, state_event("job_done", over)])
    ran = run("tune", "gemm", "--compile-only")
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "no config could be compiled: the target is sm_90a (3 unsupported; " in ran.err
    shown = Lines()
    taken = [
        shown.take_line(line, reason) for line, reason in (("a", "x"), ("b", "x"), ("c", None), ("d", "x"), ("e", "x"))
    ]
    assert taken == [[], [], ["a", "b", "c"], ["d"], ["e"]]
    assert shown.refusal == ""


def test_json_is_the_events_and_last_the_jobs(run: Run, serve: Serve) -> None:
    """One object a line."""
    serve(compile=ACCEPTED, events=STORY)
    *told, jobs = run("tune", "gemm", "--compile-only", "--json").values
    assert [entry["config"]["BM"] for entry in told] == [1, 2, 3]
    assert jobs == [OVER]


def test_nothing_compiled_is_a_result_not_reached(run: Run, serve: Serve) -> None:
    """Exit 1, whatever the reason; kernels are named where there are several; what was missed is counted."""
    failed = job_map(state="failed", done=9, outcomes={"compile_error": 9}, message="no config could be compiled")
    accepted = {**ACCEPTED, "jobs": [job_map(state="queued"), job_map(2, state="failed", message="no such backend")]}
    ends = [event(1, outcome="compile_error", message="no"), state_event("job_done", failed)]
    serve(compile=accepted, events=ends)
    ran = run("tune", "gemm", "--compile-only")
    assert ran.code == 1
    assert f"{KERNEL} [M=64 dtype=float32] BM=1  no" in ran.out
    assert "8 configs are not listed: their events came faster than they were read" in ran.err
    assert "no such backend" in ran.err
