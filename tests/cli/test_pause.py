from __future__ import annotations

import pytest

from tests.cli.conftest import RunCli, StartDaemon
from tests.cli.samples import KERNEL, make_job_map, make_status_map


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
def test_pause_and_resume_send_what_was_named(
    run_cli: RunCli,
    start_daemon: StartDaemon,
    command: str,
    words: tuple[str, ...],
    params: dict[str, object],
) -> None:
    """A number is a job, a word a kernel, nothing means all tuning. ``--json`` prints the answer."""
    answer = {"jobs": [make_job_map(state="paused")], "paused": []}
    daemon = start_daemon(**{command: answer}, status=make_status_map(paused=[]))
    result = run_cli("jobs", f"--{command}", *words, "--json")
    assert (result.code, result.json_lines) == (0, [answer])
    assert daemon.find_params(command) == params


@pytest.mark.parametrize(
    ("action", "before", "after", "line"),
    [
        ("pause", [], [""], "paused: all tuning\npaused now: all tuning (`ktuned jobs --resume` ends it; "),
        ("pause", ["H200"], ["H200"], "nothing else was paused\npaused now: H200 ("),
        ("resume", ["", "H200"], ["H200"], "resumed: all tuning\npaused now: H200 ("),
        ("resume", ["H200"], [], "resumed: H200\nnothing is paused\n"),
        ("resume", [], [], "nothing was paused\nnothing is paused\n"),
    ],
)
def test_pause_and_resume_print_the_paused_devices(
    run_cli: RunCli,
    start_daemon: StartDaemon,
    action: str,
    before: list[str],
    after: list[str],
    line: str,
) -> None:
    start_daemon(**{action: {"jobs": [], "paused": after}}, status=make_status_map(paused=before), jobs={"jobs": []})
    result = run_cli("jobs", f"--{action}")
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith(line)


def test_resume_names_jobs_that_stay_paused(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """Jobs that were paused by themselves need their own ``--resume``."""
    paused = [make_job_map(3), make_job_map(5)]
    daemon = start_daemon(resume={"jobs": [], "paused": []}, status=make_status_map(paused=[""]), jobs={"jobs": paused})
    result = run_cli("jobs", "--resume")
    assert result.err.startswith("resumed: all tuning\npaused now: job 3, 5 (")
    assert daemon.find_params("jobs") == {"state": "paused"}


def test_paused_jobs_are_printed_as_a_table(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    start_daemon(
        pause={"jobs": [make_job_map(state="paused", waits_for="it is paused")], "paused": []},
        status=make_status_map(paused=[]),
    )
    result = run_cli("jobs", "1", "--pause")
    assert (result.code, result.err) == (0, "paused job 1\n")
    assert KERNEL in result.out
    assert "it is paused" in result.out


def test_a_kernel_without_jobs_exits_1(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    start_daemon(pause={"jobs": [], "paused": []}, status=make_status_map(paused=[]))
    result = run_cli("jobs", "gemm", "--pause")
    assert result.code == 1
    assert "gemm has no job that could be paused" in result.err


def test_target_and_device_together_are_wrong_usage(run_cli: RunCli) -> None:
    result = run_cli("jobs", "gemm", "--pause", "--device", "cpu:0")
    assert result.code == 2
    assert "give one of them" in result.err


@pytest.mark.parametrize(
    ("word", "priority"), [("background", 100), ("waited-for", 400), ("requested", 350), ("0", 0), ("999", 999)]
)
def test_a_priority_is_a_name_or_a_number(run_cli: RunCli, start_daemon: StartDaemon, word: str, priority: int) -> None:
    daemon = start_daemon(tune={"jobs": [], "errors": [], "epoch": 7, "seq": 0})
    run_cli("tune", "gemm", "--priority", word)
    assert daemon.find_params("tune") == {"kernel": "gemm", "priority": priority}


@pytest.mark.parametrize("word", ["1000", "-1", "urgent", "1.5"])
def test_an_unknown_priority_is_wrong_usage(run_cli: RunCli, word: str) -> None:
    """The line lists the known names."""
    result = run_cli("tune", "gemm", f"--priority={word}")
    assert result.code == 2
    assert "waited-for" in result.err
