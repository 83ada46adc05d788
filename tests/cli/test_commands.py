"""Commands that send one request: what they send, what they print, how they exit."""

from __future__ import annotations

import importlib.abc
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from ktuned.cli.commands import jobs
from ktuned.cli.program import COMMANDS, cli
from ktuned_client.answers import LEFT_OUT
from tests.cli.conftest import CommandResult, RunCli, StartDaemon
from tests.cli.fake_daemon import Refusal
from tests.cli.samples import (
    DEVICE,
    KERNEL,
    make_answer_map,
    make_job_map,
    make_kernel_map,
    make_status_map,
    make_trial_map,
)
from tests.trials import make_detail

ASKING = [
    ("lookup", "gemm"),
    ("status",),
    ("jobs",),
    ("jobs", "1", "--cancel"),
    ("jobs", "--pause"),
    ("jobs", "gemm", "--resume"),
    ("results", "gemm"),
    ("kernels",),
    ("kernels", "gemm"),
    ("check", "gemm"),
    ("forget", "gemm"),
    ("export",),
    ("remove", "."),
    ("stop",),
]

BROKEN = {"path": "/src/tune_bad.py", "line": 3, "message": "NameError: name 'x' is not defined", "hint": ""}


def make_refusing_handler(code: str, message: str = "no", hint: str = "") -> Any:
    """Return a handler that answers every request with this error."""

    def handler(params: dict[str, Any]) -> Any:
        raise Refusal(code, message, hint)

    return handler


@pytest.mark.parametrize("arguments", ASKING)
@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_without_a_daemon_each_command_exits_3(
    run_cli: RunCli, arguments: tuple[str, ...], extra: tuple[str, ...]
) -> None:
    """The command prints one line on stderr that says how to start a daemon, and nothing on stdout."""
    result = run_cli(*arguments, *extra)
    assert (result.code, result.out) == (3, "")
    words = r"no daemon serves \S+?(; |\", \"hint\": \")`ktuned start` starts one"
    assert re.search(words, result.err)
    assert result.err.count("\n") == 1
    assert result.err.startswith('{"error": ' if extra else "ktuned: ")


def test_the_reference_says_which_commands_start_a_daemon_and_which_need_none(run_cli: RunCli) -> None:
    reference = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
    starting, _, rest = re.split(r"\n\n", reference)[2].partition(". ")
    none_needed = rest.partition(" need no daemon")[0]
    words = {name: set(re.findall(r"`([a-z]+)", text)) for name, text in (("start", starting), ("none", none_needed))}
    # A report is no JSON, and an import reads its files first.
    others = {arguments[0] for arguments in ASKING} | {"report", "import"}
    assert words["start"] | words["none"] | others == set(COMMANDS)
    assert not words["none"] & others
    assert run_cli("report").code == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("watch", "--tolerance", "3%"),
        ("export", "--by", "K"),
        ("lookup",),
        ("lookup", "gemm", "-p", "M"),
        ("lookup", "gemm", "-p", "=4"),
        ("lookup", "gemm", "-p", "M=1", "-p", "M=2"),
        ("lookup", "gemm", "-p", f"M={2**63}"),
        ("lookup", "gemm", "-p", "x=1e999"),
        ("results",),
        ("results", "gemm", "--outcome", "odd"),
        ("results", "gemm", "--limit", "0"),
        ("tune", "gemm", "--preset", "sloppy"),
        ("tune", "gemm", "--trials", "0"),
        ("tune", "gemm", "--time-limit", "0"),
        ("tune", "gemm", "--arch", "sm_90a"),
        ("tune", "gemm", "--compile-only", "--preset", "fast"),
        ("jobs", "--cancel"),
        ("jobs", "gemm", "--device", "cpu:0"),
        ("watch", "--against", "."),
        ("tune", "no/such/file.py"),
        ("watch", "no-such-directory"),
        ("start", "--log-level", "loud"),
        ("status", "--bogus"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(run_cli: RunCli, arguments: tuple[str, ...]) -> None:
    """A wrong command line is refused before a daemon is asked or started."""
    result = run_cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert re.fullmatch(r"ktuned: .+; see `ktuned.* --help`\n", result.err)
    fault = json.loads(run_cli(*arguments, "--json").err)["error"]
    assert (fault["code"], set(fault)) == ("usage", {"code", "message", "hint"})


@pytest.mark.parametrize(
    ("word", "hint"), [("tun", ", did you mean 'tune'?"), ("kernel", ", did you mean 'kernels'?"), ("xyz", "")]
)
def test_an_unknown_command_gets_a_suggestion(run_cli: RunCli, word: str, hint: str) -> None:
    result = run_cli(word)
    assert result.err.startswith(f"ktuned: there is no command {word!r}{hint.rstrip('?')}")
    assert (result.code, "did you mean" in result.err) == (2, bool(hint))


def test_one_option_holds_several_keys(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """``-p n=1,m=2`` sets two keys; a comma without a following key belongs to the value."""
    daemon = start_daemon(lookup=make_answer_map())
    run_cli("lookup", "gemm", "-p", "n=1,m=2.5", "-p", "layout=a,b,dtype=f16")
    assert daemon.find_params("lookup")["problem"] == {"n": 1, "m": 2.5, "layout": "a,b", "dtype": "f16"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("tune", "gemm"),
        ("tune", "gemm", "--compile-only"),
        ("lookup", "gemm"),
        ("results", "gemm"),
        ("report", "gemm"),
        ("kernels", "gemm"),
        ("check", "gemm"),
        ("forget", "gemm"),
        ("export", "--kernel", "gemm"),
        ("jobs", "gemm"),
        ("jobs", "gemm", "--cancel"),
        ("jobs", "gemm", "--pause"),
        ("jobs", "gemm", "--resume"),
    ],
)
def test_a_short_name_travels_with_the_directory_that_it_was_typed_in(
    run_cli: RunCli,
    start_daemon: StartDaemon,
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The daemon chooses a kernel of the project that contains the directory; a full name has no directory."""
    monkeypatch.chdir(tmp_path)
    method = {"report": "kernels"}.get(arguments[0], arguments[0])
    if arguments[-1] in ("--cancel", "--pause", "--resume"):
        method = arguments[-1].removeprefix("--")
    if arguments[-1] == "--compile-only":
        method = "compile"
    daemon = start_daemon(**{"status": make_status_map(home=str(tmp_path)), method: make_refusing_handler("not_found")})
    for name in ("gemm", "p:gemm"):
        run_cli(*(name if word == "gemm" else word for word in arguments))
    assert [directory for called, directory in daemon.directories if called == method] == [str(tmp_path), None]


def test_a_syntax_error_is_shown_with_its_caret(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """``kernels`` and ``tune`` print the source line and the caret below the error."""
    wrong = BROKEN | {"excerpt": "return )\n       ^"}
    position = {"epoch": 7, "seq": 0}
    start_daemon(
        kernels={"kernels": [], "errors": [wrong], "roots": []},
        tune={"jobs": [], "errors": [wrong], "notices": [], **position},
        subscribe=position,
        unsubscribe={},
    )
    excerpt = "    return )\n           ^\n"
    assert run_cli("kernels").out.endswith(excerpt)
    assert run_cli("tune", "gemm", "--detach").err.endswith(excerpt)
    data = run_cli("tune", "gemm", "--detach", "--json")
    # Each line of stderr is JSON, and the answer has the excerpt.
    assert [json.loads(line)["error"]["code"] for line in data.err.splitlines()] == ["not_reached"]
    assert json.loads(data.out)["errors"] == [wrong]


def test_a_list_of_jobs_that_is_cut_says_so(
    run_cli: RunCli, start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command requests one job more than it prints, to know whether there are more."""
    daemon = start_daemon(jobs={"jobs": [make_job_map(number) for number in (1, 2, 3)]})
    monkeypatch.setattr(jobs, "LISTED", 2)
    cut = run_cli("jobs", "--json")
    assert [job["id"] for job in json.loads(cut.out)] == [1, 2]
    assert cut.err == "there are more jobs than these 2; name a kernel to see its own\n"
    assert daemon.find_params("jobs") == {"limit": 3}


def test_a_path_without_kernels_is_one_line(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """The hint is printed once, and not for a file that has an error."""
    answers = iter([{"kernels": [], "errors": errors, "roots": []} for errors in ([], [BROKEN])])
    start_daemon(kernels=lambda params: next(answers))
    result = run_cli("kernels", "./")
    assert (result.code, result.out, result.err.count("\n"), result.err.count("ktuned add PATH")) == (1, "", 1, 1)
    result = run_cli("kernels", "./")
    assert (result.code, result.err) == (1, "")
    assert "NameError" in result.out


def test_a_directory_with_a_kernel_s_name_is_a_path_and_says_how_the_kernel_is_named(
    run_cli: RunCli, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gemm").mkdir()
    monkeypatch.chdir(tmp_path)
    start_daemon(kernels={"kernels": [], "errors": [], "roots": []})
    error = run_cli("kernels", "gemm").err
    assert "no known kernel is declared at gemm" in error
    assert "for a kernel of that name write PROJECT:gemm" in error
    assert "PROJECT" not in run_cli("kernels", "./gemm").err


def test_commands_that_take_no_kernel_say_so(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """The error says that the word may be a kernel's name; ``export --kernel`` names a kernel without winners."""
    start_daemon(export={"shared": []}, kernels={"kernels": []})
    assert "there is no file or directory gemm (`watch` takes a path" in run_cli("watch", "gemm").err
    assert "there is no file or directory gemm (`add` takes a path" in run_cli("add", "gemm").err
    assert "there are no winners of a kernel 'gemm'" in run_cli("export", "--kernel", "gemm").err


def test_one_kernel_is_shown_with_its_place(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """The root is the innermost one that contains the kernel's file."""
    roots = [
        {"path": path, "name": name, "python": f"{path}/python", "env": {"A": "1"}, "polling": False}
        for path, name in (("/", "all"), ("/src", "project"), ("/sr", "no"))
    ]
    kernel = make_kernel_map(why=[])
    failed = make_answer_map(status="default", message="its tuning failed: no config compiles")
    daemon = start_daemon(
        kernels={"kernels": [kernel], "errors": [], "roots": roots}, lookup_many={"answers": [failed]}
    )
    result = run_cli("kernels", "gemm")
    assert result.code == 0
    assert result.out.splitlines() == [
        KERNEL,
        "  file         /src/tune_gemm.py:7",
        "  backend      tvm_ffi",
        "  space        2 configs of BM, constrained",
        "  problems     M=64",
        "  default      BM=32",
        "  root         /src",
        "  python       /src/python",
        "  made again   –",
        "  environment  A=1",
        f"{KERNEL} M=64 dtype=float32 on cpu-model: its tuning failed: no config compiles",
    ]
    assert daemon.find_params("kernels") == {"kernel": "gemm", "why": True}
    assert daemon.find_params("lookup_many")["lookups"] == [{"kernel": KERNEL, "problem": {"M": 64}, "tune": False}]


def test_roots_are_added_and_removed(run_cli: RunCli, start_daemon: StartDaemon, tmp_path: Path) -> None:
    """``add`` lists the kernels it found, and exits 1 if a file is broken; ``remove`` accepts a deleted directory."""
    root = {"path": "/src", "name": "project", "python": "/python", "env": {}, "polling": False}
    kernel = make_kernel_map()
    daemon = start_daemon(
        add={"root": root, "kernels": [kernel], "errors": [BROKEN]},
        unwatch={"path": "/gone/src", "name": "project", "kernels": [KERNEL]},
    )
    result = run_cli("add", str(tmp_path))
    assert (result.code, KERNEL in result.out, "tune_bad.py:3" in result.out, "watching /src" in result.err) == (
        1,
        True,
        True,
        True,
    )
    assert daemon.find_params("add") == {"path": str(tmp_path)}
    result = run_cli("remove", "/gone/src")
    assert (result.code, result.out) == (0, "/gone/src is no longer watched; lookups no longer know its 1 kernel\n")


def test_no_command_is_wrong_usage(run_cli: RunCli) -> None:
    """The help goes to stderr, because it was not requested."""
    result = run_cli()
    assert (result.code, result.out) == (2, "")
    assert "Daemon:" in result.err


def test_help_lists_every_command(run_cli: RunCli) -> None:
    result = run_cli("--help")
    assert result.code == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\S.*[^.]\.$", result.out, re.MULTILINE), command


def test_the_version_is_the_distributions(run_cli: RunCli) -> None:
    result = run_cli("--version")
    assert result.code == 0
    assert re.fullmatch(r"ktuned \d+\.\d+\.\d+\S*\n", result.out)


@pytest.mark.parametrize(
    ("code", "status"), [("usage", 2), ("ambiguous", 2), ("not_found", 1), ("internal", 1), ("of a newer daemon", 1)]
)
def test_the_daemons_refusals_are_one_line(run_cli: RunCli, start_daemon: StartDaemon, code: str, status: int) -> None:
    """An error answer is printed with its hint; its code decides the exit status."""
    start_daemon(lookup=make_refusing_handler(code, "two projects\nhave it", "say which"))
    result = run_cli("lookup", "gemm")
    assert (result.code, result.out, result.err) == (status, "", "ktuned: two projects have it; say which\n")
    result = run_cli("lookup", "gemm", "--json")
    fault = {"code": code, "message": "two projects have it", "hint": "say which"}
    assert (result.code, result.out, json.loads(result.err)) == (status, "", {"error": fault})


def test_lookup_reads_the_problems_values(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """Ints, floats and bools are sent as such, everything else as a string."""
    daemon = start_daemon(lookup=make_answer_map())
    words = ["M=1024", "N=-3", "x=1.5", "y=1e3", "t=true", "f=false", "s=float16", "q=1_000", "n=nan", "e=", "d=a=b"]
    run_cli("lookup", "gemm", *(part for word in words for part in ("-p", word)), "--device", "cpu:0")
    assert daemon.find_params("lookup") == {
        "kernel": "gemm",
        "device": "cpu:0",
        "settle": 5.0,
        "problem": {
            "M": 1024, "N": -3, "x": 1.5, "y": 1000.0, "t": True, "f": False, "s": "float16", "q": "1_000", "n": "nan",
            "e": "", "d": "a=b",
        },
    }  # fmt: skip


def test_lookup_prints_config_and_status(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """The first line is the config alone, as on a command line; the second line has its status and figures."""
    start_daemon(lookup=make_answer_map())
    result = run_cli("lookup", "gemm", "-p", "M=64")
    assert (result.code, result.err) == (0, "")
    assert result.out == f"BM=32 fast=true\nfresh  {DEVICE}  12.50 µs  3.0 s old\n"


def test_lookup_says_why_an_answer_is_stale(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """``--why`` lists the changes of the served winner; an environment variable is shown by its name."""
    change = {"kind": "environment", "where": "tune_gemm.py", "name": "CXX", "before": "g++", "after": "clang++"}
    entry: dict[str, Any] = {"problem": {"M": 64}, "device": DEVICE, "objective": "latency", "changes": [change]}
    entry |= {"status": "stale", "decided": 1.0, "trial": 1, "message": ""}
    other = {**entry, "problem": {"M": 1}, "changes": [{**change, "name": "CPATH"}]}
    doubt = "not checked since the daemon started: /p/a.h changed"
    start_daemon(
        lookup=make_answer_map(status="stale", problem={"M": 64}, message=doubt),
        kernels={"kernels": [make_kernel_map(why=[entry, other])], "errors": [], "roots": []},
    )
    result = run_cli("lookup", "gemm", "-p", "M=64", "--why")
    assert result.out.splitlines()[2:] == [doubt, "  $CXX changed"]


def test_lookup_of_an_unknown_kernel_exits_1(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """With ``--json`` the answer is printed nevertheless."""
    unknown = make_answer_map(status="unknown", config=None, device=None, latency_us=None, age_s=None)
    start_daemon(lookup=unknown)
    result = run_cli("lookup", "gemm", "--json")
    assert (result.code, result.json_lines) == (1, [unknown | LEFT_OUT])
    assert json.loads(result.err)["error"]["message"] == "no kernel 'gemm' is known"


@pytest.mark.parametrize(
    ("arguments", "answers", "expected"),
    [
        (("lookup", "gemm"), {"lookup": make_answer_map()}, make_answer_map() | LEFT_OUT),
        (("lookup", "gemm"), {"lookup": make_answer_map(final=True)}, make_answer_map() | LEFT_OUT | {"final": True}),
        (("status",), {"status": make_status_map()}, make_status_map()),
        (("jobs",), {"jobs": {"jobs": [make_job_map()]}}, [make_job_map()]),
        (("jobs",), {"jobs": {"jobs": []}}, []),
        (("jobs", "1", "--cancel"), {"cancel": {"jobs": [make_job_map()]}}, {"jobs": [make_job_map()]}),
        (("results", "gemm"), {"results": {"trials": [make_trial_map()]}}, [make_trial_map()]),
        (("kernels",), {"kernels": {"kernels": [], "errors": [BROKEN], "roots": []}},
         {"kernels": [], "errors": [BROKEN], "roots": []}),
    ],
)  # fmt: skip
def test_json_is_the_data_alone(
    run_cli: RunCli,
    start_daemon: StartDaemon,
    arguments: tuple[str, ...],
    answers: dict[str, Any],
    expected: Any,
) -> None:
    """``--json`` prints one line, the data as the daemon sent it, with the fields that it omitted."""
    start_daemon(**answers)
    result = run_cli(*arguments, "--json")
    assert (result.code, result.json_lines, result.err) == (0, [expected], "")


def test_jobs_passes_its_filter(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """Options that were not given are not sent."""
    daemon = start_daemon(jobs={"jobs": [make_job_map(done=3, best_us=12.5, left_s=5.0, waiters=1)]})
    result = run_cli("jobs", "gemm")
    assert daemon.find_params("jobs") == {"kernel": "gemm", "limit": 201}
    row = rf"^ *1 +{KERNEL} .* running +asked; 1 client waiting +3/4 +5\.0 s +12\.50 µs"
    assert re.search(row, result.out, re.MULTILINE)


@pytest.mark.parametrize(("target", "params"), [("12", {"job": 12}), ("gemm", {"kernel": "gemm"})])
def test_cancel_takes_a_number_or_a_kernel(
    run_cli: RunCli, start_daemon: StartDaemon, target: str, params: dict[str, Any]
) -> None:
    """A number names a job, a word a kernel; if there is nothing to cancel, the exit status is 1."""
    daemon = start_daemon(cancel={"jobs": []})
    result = run_cli("jobs", target, "--cancel")
    assert (result.code, result.out, daemon.find_params("cancel")) == (1, "", params)
    assert result.err.startswith(f"ktuned: {target} has no job")


def test_results_shows_one_line_each(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """Each row has only the first line of the trial's message."""
    daemon = start_daemon(results={"trials": [make_trial_map(1, winner=True), make_trial_map(2, "hung")], "total": 2})
    result = run_cli("results", "gemm", "--outcome", "hung", "-p", "M=64")
    params = {"kernel": "gemm", "problem": {"M": 64}, "outcome": "hung", "limit": 50, "count": True}
    assert daemon.find_params("results") == {**params, "current": True}
    assert (result.code, result.err) == (0, "")
    assert re.search(r"^ *\* 1 ", result.out, re.MULTILINE)
    assert len(result.out.splitlines()) == 3
    assert "why it is hung" in result.out
    assert "more of it" not in result.out


def test_a_trial_is_printed_in_full(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """The output has the whole message and the streams, without control characters."""
    detail = make_detail(
        phase="first_launch",
        signal="SIGSEGV",
        stderr="\x1b[31mred\x1b[0m\nlast words\a",
        facts={"registers": 40, "spills": 0, "command": ["c++ -c gemm.cc", "c++ -shared -o kernel.so"]},
        build={"function": "gemm", "args": ["a", 2.0], "defines": {"BM": 32}, "flags": []},
        round_medians_us=[61.8105, 110.26050000000001],
        reference_us=7982.3330000000005,
        open_s=3.911,
        count=70,
        mismatched_ratio=0.123456789,
        story=["compile_started", "compile_done", "lane_taken", "died"],
    )
    daemon = start_daemon(results={"trials": [make_trial_map(7, "crashed", detail=msgspec.to_builtins(detail))]})
    result = run_cli("results", "--trial", "7")
    assert daemon.find_params("results")["trial"] == 7
    story = (
        "compile started → compile done → lane taken → died",
        "tried again       when its sources, its toolchain or its driver changes, or after `ktuned forget",
    )
    for words in (
        *story,
        "registers=40 spills=0\n",
        "command:\n  c++ -c gemm.cc\n  c++ -shared -o kernel.so\n",
        "function=gemm args=a, 2 defines=BM=32\n",
        "round medians     61.81 µs, 110.3 µs\n",
        "reference         7.982 ms\n",
        "opening           3.9 s\n",
        "samples           70\n",
        "mismatched ratio  0.1235\n",
        "crashed",
        "first_launch",
        "SIGSEGV",
        "  more of it",
        "  red\n  last words\\x07\n",
    ):
        assert words in result.out
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", result.out)


def test_results_with_all_shows_the_age_of_each_trial(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """`--all` shows what was measured before an edit too, and when."""
    daemon = start_daemon(results={"trials": [make_trial_map(1, updated=time.time() - 75)], "total": 1})
    result = run_cli("results", "gemm", "--all")
    assert daemon.find_params("results") == {"kernel": "gemm", "limit": 50, "count": True}
    heading, row = result.out.splitlines()
    assert heading.split()[-2:] == ["age", "message"]
    assert row.endswith("1 min 15 s")


def test_a_cut_list_says_how_many_trials_there_are(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """The hint goes to stderr, so that JSON and CSV stay valid."""
    start_daemon(results={"trials": [make_trial_map(1)], "total": 1234})
    for options in ((), ("--limit", "1", "--json"), ("--limit", "1", "--format", "csv")):
        assert run_cli("results", "gemm", *options).err == "1 of 1234 trials; --limit 1234 shows all\n"


@pytest.mark.parametrize("form", ["json", "csv", "t4"])
def test_formats_for_programs_have_all_trials(run_cli: RunCli, start_daemon: StartDaemon, form: str) -> None:
    """Without ``--limit``, the command sends as many requests as it takes."""
    daemon = start_daemon(results={"trials": [make_trial_map(2), make_trial_map(1)]})
    result = run_cli("results", "gemm", "--format", form)
    assert (result.code, result.err) == (0, "")
    asked = {"kernel": "gemm", "limit": 2000, "order": "newest", "current": True}
    asked |= {"details": True} if form == "t4" else {}
    assert [params for method, params in daemon.calls if method == "results"] == [asked, {**asked, "before": 1}]


def test_json_and_another_format_are_a_usage_error(run_cli: RunCli) -> None:
    result = run_cli("results", "gemm", "--json", "--format", "csv")
    assert (result.code, result.out) == (2, "")


def test_no_results_exit_1(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """The line mentions ``--all``, because there may be earlier trials."""
    start_daemon(results={"trials": [], "total": 0})
    result = run_cli("results", "gemm")
    assert result.code == 1
    assert "no such trial of gemm in its present version; " in result.err
    assert "--all earlier trials" in result.err
    assert "--all" not in run_cli("results", "gemm", "--all").err


def test_kernels_lists_errors_with_file_and_line(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """Errors follow the table as ``file:line: message``."""
    start_daemon(kernels={"kernels": [make_kernel_map()], "errors": [BROKEN], "roots": []})
    result = run_cli("kernels")
    assert result.code == 0
    assert "/src/tune_gemm.py:7  2 configs of BM, constrained" in result.out
    assert result.out.splitlines()[-1] == "/src/tune_bad.py:3: NameError: name 'x' is not defined"


def test_kernels_of_a_path_asks_for_the_absolute_path(
    run_cli: RunCli, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """The daemon has another working directory. The exit status is 1, because the path declares no kernel."""
    daemon = start_daemon(kernels={"kernels": [], "errors": [BROKEN], "roots": []})
    result = run_cli("kernels", str(tmp_path))
    assert (result.code, daemon.find_params("kernels")) == (1, {"path": str(tmp_path.resolve())})


def test_status_lists_lanes_workers_channels_roots_and_pauses(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    start_daemon(status=make_status_map(notices=["the disk is nearly full"], paused=["", "H200"]))
    result = run_cli("status")
    for words in ("pid 4242", "up 1 min 15 s", "cpu:0", "4243", "used=1 size=8", "/src"):
        assert words in result.out
    assert result.err == "notice: the disk is nearly full\n"
    assert "paused     all tuning, H200; `ktuned jobs --resume` ends it" in result.out


def test_stop_waits_until_the_process_has_ended(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:

        def end(params: dict[str, Any]) -> dict[str, Any]:
            assert process.stdin
            process.stdin.close()
            return {}

        start_daemon(hello={"protocol": 1, "build": "0.1.0", "pid": process.pid}, shutdown=end)
        result = run_cli("stop", "--json")
        assert (result.code, result.json_lines) == (0, [{"pid": process.pid}])
        assert process.poll() is not None


def test_a_closed_pipe_is_no_error(start_daemon: StartDaemon) -> None:
    start_daemon(results={"trials": [make_trial_map(n) for n in range(5000)]})
    command = f"{sys.executable} -m ktuned results gemm | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("--help",), ("lookup", "gemm"), ("jobs",)])
def test_commands_that_ask_import_little(start_daemon: StartDaemon, arguments: tuple[str, ...]) -> None:
    """Help and requests import neither the daemon nor its dependencies, except msgspec."""
    start_daemon(lookup=make_answer_map(), jobs={"jobs": []})
    program = (
        "import sys; from ktuned.cli import main; main(sys.argv[1:]);"
        "heavy = {'anyio', 'structlog', 'sqlite3', 'torch', 'rich'};"
        "heavy |= {'ktuned.daemon', 'ktuned.search', 'ktuned.declaration', 'ktuned.dropin'};"
        "heavy |= {'hashlib', 'logging', 'importlib.metadata', 'webbrowser'};"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert result.stderr.splitlines()[-1] == "[]"


def test_help_has_the_first_line_of_each_command_s_help(run_cli: RunCli) -> None:
    """``--help`` imports no command, so it has copies of the lines."""
    context = click.Context(cli)
    for name, entry in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert (command.help or "").partition("\n")[0] == entry.summary
    help_text = run_cli("--help").out
    assert [line for line in help_text.splitlines() if line.endswith(":")] == [
        "Options:", "Tune:", "Results:", "Share:", "Daemon:",
    ]  # fmt: skip
    assert len(COMMANDS) <= 26


def test_advanced_options_have_a_section_of_their_own(run_cli: RunCli) -> None:
    plain, _, advanced = run_cli("tune", "--help").out.partition("Advanced options:")
    assert "--trials N" in plain
    assert "--time-limit SECONDS" in plain
    assert "--priority" not in plain
    for option in ("--priority", "--remeasure", "--anchor"):
        assert option in advanced


def test_an_argument_that_is_not_utf_8_is_one_line(run_cli: RunCli) -> None:
    for word, shown in (("tune_\udcff.py", r"tune_\xff.py"), ("tune_\ud800.py", r"tune_\ud800.py")):
        result = run_cli("tune", word)
        assert (result.code, result.err) == (2, f"ktuned: {shown} is not UTF-8; rename the file or directory\n")


def test_a_directory_that_is_not_utf_8_is_one_line(run_cli: RunCli, start_daemon: StartDaemon, tmp_path: Path) -> None:
    """The same holds if a relative path stands for it."""
    start_daemon()
    directory = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(directory)
    before = os.getcwd()
    try:
        os.chdir(directory)
        result = run_cli("tune", ".")
    finally:
        os.chdir(before)
    assert (result.code, result.err) == (2, f"ktuned: {tmp_path}/caf\\xe9 is not UTF-8; rename the file or directory\n")


def test_ctrl_c_before_the_program_is_imported_prints_nothing(run_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "ktuned.cli.program")
    monkeypatch.setattr(sys, "meta_path", [Interrupted()])
    assert run_cli("status") == CommandResult(130, "", "")


@pytest.mark.parametrize(
    "arguments", [("lookup", "gem", "-p", "M=1"), ("export", "--kernel", "gem")], ids=lambda words: words[0]
)
def test_an_unknown_kernel_name_gets_a_suggestion(
    run_cli: RunCli, start_daemon: StartDaemon, arguments: tuple[str, ...]
) -> None:
    """``lookup`` and ``export`` have answers without kernels, and ask for the suggestion."""
    unknown = make_answer_map(status="unknown", config=None, device=None, latency_us=None, age_s=None)
    start_daemon(
        lookup=unknown,
        export={"shared": []},
        kernels=make_refusing_handler("not_found", "there is no kernel 'gem'", "'gemm'?"),
    )
    assert run_cli(*arguments) == CommandResult(1, "", "ktuned: there is no kernel 'gem'; 'gemm'?\n")


def test_status_marks_a_deleted_root(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """A root without its directory stays in the list until it is removed."""
    start_daemon(status=make_status_map())
    assert "/src (gone)" in run_cli("status").out


@pytest.mark.parametrize(
    ("trials", "winners", "words"), [(1, 0, "1 trial forgotten"), (9, 1, "9 trials forgotten, 1 winner among them")]
)
def test_forget_says_which_winners_go(
    run_cli: RunCli, start_daemon: StartDaemon, trials: int, winners: int, words: str
) -> None:
    start_daemon(forget={"kernel": KERNEL, "trials": trials, "winners": winners})
    assert run_cli("forget", "gemm").out == f"{KERNEL}: {words}\n"
