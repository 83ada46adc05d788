from __future__ import annotations

import pytest

from tests.cli.conftest import Run, Serve
from tests.cli.samples import KERNEL, job_map, status_map


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize(
    ("words", "params"),
    [
        ((), {}),
        (("7",), {"job": 7}),
        (("gemm",), {"kernel": "gemm"}),
        (("--device", "cuda:1"), {"device": "cuda:1"}),
    ],
)
def test_what_is_named_travels(
    run: Run, serve: Serve, command: str, words: tuple[str, ...], params: dict[str, object]
) -> None:
    """A number is a job, a word a kernel, nothing is everything; ``--json`` prints the answer as it came."""
    answer = {"jobs": [job_map(state="paused")], "paused": []}
    daemon = serve(**{command: answer}, status=status_map(paused=[]))
    ran = run("jobs", f"--{command}", *words, "--json")
    assert (ran.code, ran.values) == (0, [answer])
    assert daemon.params_of(command) == params


@pytest.mark.parametrize(
    ("action", "before", "after", "said"),
    [
        ("pause", [], [""], "paused: all tuning\npaused now: all tuning (`ktuned jobs --resume` ends it; "),
        ("pause", ["H200"], ["H200"], "nothing else was paused\npaused now: H200 ("),
        ("resume", ["", "H200"], ["H200"], "resumed: all tuning\npaused now: H200 ("),
        ("resume", ["H200"], [], "resumed: H200\nnothing is paused\n"),
        ("resume", [], [], "nothing was paused\nnothing is paused\n"),
    ],
)
def test_devices_are_told_in_a_line(
    run: Run, serve: Serve, action: str, before: list[str], after: list[str], said: str
) -> None:
    """Both say what they did, and what is paused now."""
    serve(**{action: {"jobs": [], "paused": after}}, status=status_map(paused=before), jobs={"jobs": []})
    ran = run("jobs", f"--{action}")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith(said)


def test_paused_jobs_are_named_as_they_are_not_resumed_with_a_device(run: Run, serve: Serve) -> None:
    """They need their own ``--resume``."""
    paused = [job_map(3), job_map(5)]
    daemon = serve(resume={"jobs": [], "paused": []}, status=status_map(paused=[""]), jobs={"jobs": paused})
    ran = run("jobs", "--resume")
    assert ran.err.startswith("resumed: all tuning\npaused now: job 3, 5 (")
    assert daemon.params_of("jobs") == {"state": "paused"}


def test_jobs_are_told_in_their_table(run: Run, serve: Serve) -> None:
    """A paused job is shown as it stands; a kernel without jobs is a result not reached."""
    serve(
        pause={"jobs": [job_map(state="paused", waits_for="it is paused")], "paused": []}, status=status_map(paused=[])
    )
    ran = run("jobs", "1", "--pause")
    assert (ran.code, ran.err) == (0, "paused job 1\n")
    assert KERNEL in ran.out
    assert "it is paused" in ran.out


def test_nothing_to_pause_exits_1(run: Run, serve: Serve) -> None:
    """A kernel without jobs is a result not reached, and says where jobs are listed."""
    serve(pause={"jobs": [], "paused": []}, status=status_map(paused=[]))
    ran = run("jobs", "gemm", "--pause")
    assert ran.code == 1
    assert "gemm has no job that could be paused" in ran.err


def test_target_and_device_are_wrong_usage(run: Run) -> None:
    """They are two things."""
    ran = run("jobs", "gemm", "--pause", "--device", "cpu:0")
    assert ran.code == 2
    assert "give one of them" in ran.err


@pytest.mark.parametrize(
    ("word", "priority"), [("background", 100), ("waited-for", 400), ("requested", 350), ("0", 0), ("999", 999)]
)
def test_priority_of_a_tune(run: Run, serve: Serve, word: str, priority: int) -> None:
    """Levels have names; a number is meant as it is."""
    daemon = serve(tune={"jobs": [], "errors": [], "epoch": 7, "seq": 0})
    run("tune", "gemm", "--priority", word)
    assert daemon.params_of("tune") == {"kernel": "gemm", "priority": priority}


@pytest.mark.parametrize("word", ["1000", "-1", "urgent", "1.5"])
def test_no_such_priority(run: Run, word: str) -> None:
    """What is none is wrong usage, and the line names those that are."""
    ran = run("tune", "gemm", f"--priority={word}")
    assert ran.code == 2
    assert "waited-for" in ran.err
