"""Commands that ask once: what they send, what they print, how they exit."""

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
import pytest

from ktuned.cli.commands import jobs
from ktuned.cli.program import COMMANDS, cli
from ktuned_client.answers import LEFT_OUT
from tests.cli.conftest import Ran, Run, Serve
from tests.cli.fake_daemon import Refusal
from tests.cli.samples import DEVICE, KERNEL, answer_map, job_map, kernel_map, status_map, trial_map

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


def refuse(code: str, message: str = "no", hint: str = "") -> Any:
    """Return a handler that answers with an error."""

    def handler(params: dict[str, Any]) -> Any:
        raise Refusal(code, message, hint)

    return handler


@pytest.mark.parametrize("arguments", ASKING)
@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_without_a_daemon_each_command_exits_3(run: Run, arguments: tuple[str, ...], extra: tuple[str, ...]) -> None:
    """No daemon: one line on stderr that says how to start one, nothing on stdout, exit 3."""
    ran = run(*arguments, *extra)
    assert (ran.code, ran.out) == (3, "")
    assert re.fullmatch(r"ktuned: no daemon serves \S+; `ktuned start` starts one\n", ran.err)


def test_the_reference_says_which_commands_start_a_daemon_and_which_need_none(run: Run) -> None:
    """The reference names those that start a daemon and those that need none; all others exit with 3."""
    reference = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    starting, _, rest = re.split(r"\n\n", reference)[2].partition(" start a daemon")
    none_needed = rest.partition(".")[2].partition(" need none")[0]
    words = {name: set(re.findall(r"`([a-z]+)", text)) for name, text in (("start", starting), ("none", none_needed))}
    # A report is no JSON, and an import reads its files first.
    others = {arguments[0] for arguments in ASKING} | {"report", "import"}
    assert words["start"] | words["none"] | others == set(COMMANDS)
    assert not words["none"] & others
    assert run("report").code == 3


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
def test_wrong_usage_is_one_line_and_exit_2(run: Run, arguments: tuple[str, ...]) -> None:
    """A command line that cannot be meant is refused before any daemon is asked or started."""
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert re.fullmatch(r"ktuned: .+; see `ktuned.* --help`\n", ran.err)


@pytest.mark.parametrize(
    ("word", "hint"), [("tun", ", did you mean 'tune'?"), ("kernel", ", did you mean 'kernels'?"), ("xyz", "")]
)
def test_an_unknown_command_gets_a_suggestion(run: Run, word: str, hint: str) -> None:
    """The error of a mistyped command names the one that is nearest, if any is near."""
    ran = run(word)
    assert ran.err.startswith(f"ktuned: there is no command {word!r}{hint.rstrip('?')}")
    assert (ran.code, "did you mean" in ran.err) == (2, bool(hint))


def test_one_option_holds_several_keys(run: Run, serve: Serve) -> None:
    """``-p n=1,m=2`` is two keys; a comma that no key follows belongs to the value."""
    daemon = serve(lookup=answer_map())
    run("lookup", "gemm", "-p", "n=1,m=2.5", "-p", "layout=a,b,dtype=f16")
    assert daemon.params_of("lookup")["problem"] == {"n": 1, "m": 2.5, "layout": "a,b", "dtype": "f16"}


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
    run: Run, serve: Serve, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several projects that have the kernel, the daemon takes the one that the user works in."""
    monkeypatch.chdir(tmp_path)
    method = {"report": "kernels"}.get(arguments[0], arguments[0])
    if arguments[-1] in ("--cancel", "--pause", "--resume"):
        method = arguments[-1].removeprefix("--")
    if arguments[-1] == "--compile-only":
        method = "compile"
    daemon = serve(**{"status": status_map(home=str(tmp_path)), method: refuse("not_found")})
    for name in ("gemm", "p:gemm"):
        run(*(name if word == "gemm" else word for word in arguments))
    assert [place for called, place in daemon.directories if called == method] == [str(tmp_path), None]


def test_a_syntax_error_is_shown_with_its_caret(run: Run, serve: Serve) -> None:
    """Below the error stand the line of source and the caret, for ``kernels`` and for ``tune``."""
    wrong = BROKEN | {"excerpt": "return )\n       ^"}
    place = {"epoch": 7, "seq": 0}
    serve(
        kernels={"kernels": [], "errors": [wrong], "roots": []},
        tune={"jobs": [], "errors": [wrong], "notices": [], **place},
        subscribe=place,
        unsubscribe={},
    )
    shown = "    return )\n           ^\n"
    assert run("kernels").out.endswith(shown)
    assert run("tune", "gemm", "--detach").err.endswith(shown)


def test_a_list_of_jobs_that_is_cut_says_so(run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has as many as were wanted, and the daemon is asked for one more."""
    daemon = serve(jobs={"jobs": [job_map(number) for number in (1, 2, 3)]})
    monkeypatch.setattr(jobs, "LISTED", 2)
    cut = run("jobs", "--json")
    assert [job["id"] for job in json.loads(cut.out)] == [1, 2]
    assert cut.err == "there are more jobs than these 2; name a kernel to see its own\n"
    assert daemon.params_of("jobs") == {"limit": 3}


def test_a_path_without_kernels_is_one_line(run: Run, serve: Serve) -> None:
    """The hint is not printed twice, and a file that has an error is not said to declare nothing."""
    answers = iter([{"kernels": [], "errors": errors, "roots": []} for errors in ([], [BROKEN])])
    serve(kernels=lambda params: next(answers))
    ran = run("kernels", "./")
    assert (ran.code, ran.out, ran.err.count("\n"), ran.err.count("ktuned add PATH")) == (1, "", 1, 1)
    ran = run("kernels", "./")
    assert (ran.code, ran.err) == (1, "")
    assert "NameError" in ran.out


def test_a_directory_with_a_kernel_s_name_is_a_path_and_says_how_the_kernel_is_named(
    run: Run, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What exists is a path; the hint has the kernel's full name."""
    (tmp_path / "gemm").mkdir()
    monkeypatch.chdir(tmp_path)
    serve(kernels={"kernels": [], "errors": [], "roots": []})
    said = run("kernels", "gemm").err
    assert "no known kernel is declared at gemm" in said
    assert "for a kernel of that name write PROJECT:gemm" in said
    assert "PROJECT" not in run("kernels", "./gemm").err


def test_commands_that_take_no_kernel_say_so(run: Run, serve: Serve) -> None:
    """A kernel's name in place of a path is named as what it may be; a kernel without winners is named, too."""
    serve(export={"shared": []}, kernels={"kernels": []})
    assert "there is no file or directory gemm (`watch` takes a path" in run("watch", "gemm").err
    assert "there is no file or directory gemm (`add` takes a path" in run("add", "gemm").err
    assert "there are no winners of a kernel 'gemm'" in run("export", "--kernel", "gemm").err


def test_one_kernel_is_shown_with_its_place(run: Run, serve: Serve) -> None:
    """The innermost root that holds the file is the kernel's; the working directory decides between namesakes."""
    roots = [
        {"path": path, "name": name, "python": f"{path}/python", "env": {"A": "1"}, "polling": False}
        for path, name in (("/", "all"), ("/src", "project"), ("/sr", "no"))
    ]
    kernel = kernel_map(why=[])
    daemon = serve(kernels={"kernels": [kernel], "errors": [], "roots": roots})
    ran = run("kernels", "gemm")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        KERNEL,
        "  declared at  /src/tune_gemm.py:7",
        "  backend      tvm_ffi",
        "  space        2 configs of BM, constrained",
        "  problems     M=64",
        "  default      BM=32",
        "  root         /src",
        "  python       /src/python",
        "  environment  A=1",
        f"{KERNEL}: not tuned yet",
    ]
    assert daemon.params_of("kernels") == {"kernel": "gemm", "why": True}


def test_roots_are_added_and_removed(run: Run, serve: Serve, tmp_path: Path) -> None:
    """``add`` lists what it found, and exits 1 on a broken file; ``remove`` takes a directory that is gone."""
    root = {"path": "/src", "name": "project", "python": "/python", "env": {}, "polling": False}
    kernel = kernel_map()
    daemon = serve(
        add={"root": root, "kernels": [kernel], "errors": [BROKEN]},
        unwatch={"path": "/gone/src", "name": "project", "kernels": [KERNEL]},
    )
    ran = run("add", str(tmp_path))
    assert (ran.code, KERNEL in ran.out, "tune_bad.py:3" in ran.out, "watching /src" in ran.err) == (
        1,
        True,
        True,
        True,
    )
    assert daemon.params_of("add") == {"path": str(tmp_path)}
    ran = run("remove", "/gone/src")
    assert (ran.code, ran.out) == (0, "/gone/src is no longer watched; 1 kernel forgotten\n")


def test_no_command_is_wrong_usage(run: Run) -> None:
    """Without a command the help goes to stderr, because no one asked for it."""
    ran = run()
    assert (ran.code, ran.out) == (2, "")
    assert "Daemon:" in ran.err


def test_help_lists_every_command(run: Run) -> None:
    """Each command has its line in the help, whole."""
    ran = run("--help")
    assert ran.code == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\S.*[^.]\.$", ran.out, re.MULTILINE), command


def test_the_version_is_the_distributions(run: Run) -> None:
    """``--version`` prints name and version."""
    ran = run("--version")
    assert ran.code == 0
    assert re.fullmatch(r"ktuned \d+\.\d+\.\d+\S*\n", ran.out)


@pytest.mark.parametrize(
    ("code", "status"), [("usage", 2), ("ambiguous", 2), ("not_found", 1), ("internal", 1), ("of a newer daemon", 1)]
)
def test_the_daemons_refusals_are_one_line(run: Run, serve: Serve, code: str, status: int) -> None:
    """An error answer becomes its sentence and its hint; its code decides the exit status."""
    serve(lookup=refuse(code, "two projects\nhave it", "say which"))
    ran = run("lookup", "gemm", "--json")
    assert (ran.code, ran.out, ran.err) == (status, "", "ktuned: two projects have it; say which\n")


def test_lookup_reads_the_problems_values(run: Run, serve: Serve) -> None:
    """Ints, floats and bools travel as such, everything else as a string."""
    daemon = serve(lookup=answer_map())
    words = ["M=1024", "N=-3", "x=1.5", "y=1e3", "t=true", "f=false", "s=float16", "q=1_000", "n=nan", "e=", "d=a=b"]
    run("lookup", "gemm", *(part for word in words for part in ("-p", word)), "--device", "cpu:0")
    assert daemon.params_of("lookup") == {
        "kernel": "gemm",
        "device": "cpu:0",
        "settle": 5.0,
        "problem": {
            "M": 1024, "N": -3, "x": 1.5, "y": 1000.0, "t": True, "f": False, "s": "float16", "q": "1_000", "n": "nan",
            "e": "", "d": "a=b",
        },
    }  # fmt: skip


def test_lookup_prints_config_and_status(run: Run, serve: Serve) -> None:
    """The first line is the config alone, as it would be typed; the next says how sure it is."""
    serve(lookup=answer_map())
    ran = run("lookup", "gemm", "-p", "M=64")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"BM=32 fast=true\nfresh  {DEVICE}  12.50 µs  3.0 s old\n"


def test_lookup_says_why_an_answer_is_stale(run: Run, serve: Serve) -> None:
    """The changes of the winner that is served, a variable of the environment by its name; a doubt is no failure."""
    change = {"kind": "environment", "where": "tune_gemm.py", "name": "CXX", "before": "g++", "after": "clang++"}
    entry: dict[str, Any] = {"problem": {"M": 64}, "device": DEVICE, "objective": "latency", "changes": [change]}
    entry |= {"status": "stale", "decided": 1.0, "trial": 1, "message": ""}
    other = {**entry, "problem": {"M": 1}, "changes": [{**change, "name": "CPATH"}]}
    doubt = "not checked since the daemon started: /p/a.h changed"
    serve(
        lookup=answer_map(status="stale", problem={"M": 64}, message=doubt),
        kernels={"kernels": [kernel_map(why=[entry, other])], "errors": [], "roots": []},
    )
    ran = run("lookup", "gemm", "-p", "M=64", "--why")
    assert ran.out.splitlines()[2:] == [doubt, "  $CXX changed"]


def test_lookup_of_an_unknown_kernel_exits_1(run: Run, serve: Serve) -> None:
    """``unknown`` is a wanted result that was not reached; with ``--json`` the answer is printed nevertheless."""
    unknown = answer_map(status="unknown", config=None, device=None, latency_us=None, age_s=None)
    serve(lookup=unknown)
    ran = run("lookup", "gemm", "--json")
    assert (ran.code, ran.values) == (1, [unknown | LEFT_OUT])
    assert ran.err.startswith("ktuned: no kernel 'gemm' is known; ")


@pytest.mark.parametrize(
    ("arguments", "answers", "expected"),
    [
        (("lookup", "gemm"), {"lookup": answer_map()}, answer_map() | LEFT_OUT),
        (("lookup", "gemm"), {"lookup": answer_map(final=True)}, answer_map() | LEFT_OUT | {"final": True}),
        (("status",), {"status": status_map()}, status_map()),
        (("jobs",), {"jobs": {"jobs": [job_map()]}}, [job_map()]),
        (("jobs",), {"jobs": {"jobs": []}}, []),
        (("jobs", "1", "--cancel"), {"cancel": {"jobs": [job_map()]}}, {"jobs": [job_map()]}),
        (("results", "gemm"), {"results": {"trials": [trial_map()]}}, [trial_map()]),
        (("kernels",), {"kernels": {"kernels": [], "errors": [BROKEN], "roots": []}},
         {"kernels": [], "errors": [BROKEN], "roots": []}),
    ],
)  # fmt: skip
def test_json_is_the_data_alone(
    run: Run, serve: Serve, arguments: tuple[str, ...], answers: dict[str, Any], expected: Any
) -> None:
    """With ``--json`` stdout holds one line, the data as the daemon sent it, and what it left out."""
    serve(**answers)
    ran = run(*arguments, "--json")
    assert (ran.code, ran.values, ran.err) == (0, [expected], "")


def test_jobs_passes_its_filter(run: Run, serve: Serve) -> None:
    """Only what was given travels."""
    daemon = serve(jobs={"jobs": [job_map(done=3, best_us=12.5, left_s=5.0, waiters=1)]})
    ran = run("jobs", "gemm")
    assert daemon.params_of("jobs") == {"kernel": "gemm", "limit": 201}
    assert re.search(rf"^ *1 +{KERNEL} .* running +asked; 1 waits +3/4 +5\.0 s +12\.50 µs", ran.out, re.MULTILINE)


@pytest.mark.parametrize(("target", "params"), [("12", {"job": 12}), ("gemm", {"kernel": "gemm"})])
def test_cancel_takes_a_number_or_a_kernel(run: Run, serve: Serve, target: str, params: dict[str, Any]) -> None:
    """A number names a job, anything else a kernel; nothing to cancel exits 1."""
    daemon = serve(cancel={"jobs": []})
    ran = run("jobs", target, "--cancel")
    assert (ran.code, ran.out, daemon.params_of("cancel")) == (1, "", params)
    assert ran.err.startswith(f"ktuned: {target} has no job")


def test_results_shows_one_line_each(run: Run, serve: Serve) -> None:
    """A table row per trial, with the message's first line only."""
    daemon = serve(results={"trials": [trial_map(1, winner=True), trial_map(2, "hung")], "total": 2})
    ran = run("results", "gemm", "--outcome", "hung", "-p", "M=64")
    asked = {"kernel": "gemm", "problem": {"M": 64}, "outcome": "hung", "limit": 50, "count": True}
    assert daemon.params_of("results") == {**asked, "current": True}
    assert (ran.code, ran.err) == (0, "")
    assert re.search(r"^ *\* 1 ", ran.out, re.MULTILINE)
    assert len(ran.out.splitlines()) == 3
    assert "why it is hung" in ran.out
    assert "more of it" not in ran.out


def test_a_trial_is_told_whole(run: Run, serve: Serve) -> None:
    """One trial's story holds all its message and its streams, without what would steer the terminal."""
    detail: dict[str, Any] = {
        "phase": "first_launch",
        "signal": "SIGSEGV",
        "stderr": "\x1b[31mred\x1b[0m\nlast words\a",
    }
    detail |= {
        "facts": {"registers": 40, "spills": 0, "command": ["c++ -c gemm.cc", "c++ -shared -o kernel.so"]},
        "build": {"function": "gemm", "args": ["a", 2.0], "defines": {"BM": 32}, "flags": []},
        "round_medians_us": [61.8105, 110.26050000000001],
        "reference_us": 7982.3330000000005,
        "open_s": 3.911,
        "count": 70,
        "mismatched_ratio": 0.123456789,
        "story": ["compile_started", "compile_done", "lane_taken", "died"],
    }
    daemon = serve(results={"trials": [trial_map(7, "crashed", detail=detail)]})
    ran = run("results", "--trial", "7")
    assert daemon.params_of("results")["trial"] == 7
    told = ("compile started → compile done → lane taken → died", "tried again       not before its digest")
    for words in (
        *told,
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
        assert words in ran.out
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", ran.out)


def test_results_of_all_sources_tell_their_age(run: Run, serve: Serve) -> None:
    """`--all` shows what was measured before an edit too, and when."""
    daemon = serve(results={"trials": [trial_map(1, updated=time.time() - 75)], "total": 1})
    ran = run("results", "gemm", "--all")
    assert daemon.params_of("results") == {"kernel": "gemm", "limit": 50, "count": True}
    heading, row = ran.out.splitlines()
    assert heading.split()[-2:] == ["age", "message"]
    assert row.endswith("1 min 15 s")


def test_a_short_list_says_how_much_is_missing(run: Run, serve: Serve) -> None:
    """A list that ends before the last trial says how many there are, also beside JSON."""
    serve(results={"trials": [trial_map(1)], "total": 1234})
    for options in ((), ("--limit", "1", "--json"), ("--limit", "1", "--format", "csv")):
        assert run("results", "gemm", *options).err == "1 of 1234 trials; --limit 1234 shows all\n"


@pytest.mark.parametrize("form", ["json", "csv", "t4"])
def test_files_have_all_trials(run: Run, serve: Serve, form: str) -> None:
    """Without --limit no trial is left out of a format for programs, however many requests that takes."""
    daemon = serve(results={"trials": [trial_map(2), trial_map(1)]})
    ran = run("results", "gemm", "--format", form)
    assert (ran.code, ran.err) == (0, "")
    asked = {"kernel": "gemm", "limit": 2000, "order": "newest", "current": True}
    asked |= {"details": True} if form == "t4" else {}
    assert [params for method, params in daemon.calls if method == "results"] == [asked, {**asked, "before": 1}]


def test_formats_do_not_contradict(run: Run) -> None:
    """--json beside another format is a usage error."""
    ran = run("results", "gemm", "--json", "--format", "csv")
    assert (ran.code, ran.out) == (2, "")


def test_no_results_exit_1(run: Run, serve: Serve) -> None:
    """A trial that is not there is a result not reached; there may be earlier ones."""
    serve(results={"trials": [], "total": 0})
    ran = run("results", "gemm")
    assert ran.code == 1
    assert "no such trial of gemm in its current state; " in ran.err
    assert "--all earlier trials" in ran.err
    assert "--all" not in run("results", "gemm", "--all").err


def test_kernels_lists_errors_with_file_and_line(run: Run, serve: Serve) -> None:
    """Kernels come as a table, and below it each error as ``file:line: message``."""
    serve(kernels={"kernels": [kernel_map()], "errors": [BROKEN], "roots": []})
    ran = run("kernels")
    assert ran.code == 0
    assert "/src/tune_gemm.py:7  2 configs of BM, constrained" in ran.out
    assert ran.out.splitlines()[-1] == "/src/tune_bad.py:3: NameError: name 'x' is not defined"


def test_kernels_of_a_path_asks_for_the_absolute_path(run: Run, serve: Serve, tmp_path: Path) -> None:
    """The daemon has another working directory; a path that declares nothing, or errs, exits 1."""
    daemon = serve(kernels={"kernels": [], "errors": [BROKEN], "roots": []})
    ran = run("kernels", str(tmp_path))
    assert (ran.code, daemon.params_of("kernels")) == (1, {"path": str(tmp_path.resolve())})


def test_status_names_what_there_is(run: Run, serve: Serve) -> None:
    """The tables hold the lanes, workers, channels and roots; what is paused has a line."""
    serve(status=status_map(notices=["the disk is nearly full"], paused=["", "H200"]))
    ran = run("status")
    for words in ("pid 4242", "up 1 min 15 s", "cpu:0", "4243", "used=1 size=8", "/src"):
        assert words in ran.out
    assert ran.err == "notice: the disk is nearly full\n"
    assert "paused     all tuning, H200; `ktuned jobs --resume` ends it" in ran.out


def test_stop_waits_until_the_process_has_ended(run: Run, serve: Serve) -> None:
    """``stop`` returns when the daemon is gone, not when it was reported."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:

        def end(params: dict[str, Any]) -> dict[str, Any]:
            assert process.stdin
            process.stdin.close()
            return {}

        serve(hello={"protocol": 1, "build": "0.1.0", "pid": process.pid}, shutdown=end)
        ran = run("stop", "--json")
        assert (ran.code, ran.values) == (0, [{"pid": process.pid}])
        assert process.poll() is not None


def test_a_reader_that_goes_away_is_no_error(serve: Serve) -> None:
    """A closed pipe ends the command without a word."""
    serve(results={"trials": [trial_map(n) for n in range(5000)]})
    command = f"{sys.executable} -m ktuned results gemm | head -1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert ran.stderr == ""
    assert len(ran.stdout.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("--help",), ("lookup", "gemm"), ("jobs",)])
def test_what_only_asks_stays_light(serve: Serve, arguments: tuple[str, ...]) -> None:
    """Help and questions import neither the daemon nor what it is built on, except msgspec."""
    serve(lookup=answer_map(), jobs={"jobs": []})
    program = (
        "import sys; from ktuned.cli import main; main(sys.argv[1:]);"
        "heavy = {'anyio', 'structlog', 'sqlite3', 'torch', 'rich'};"
        "heavy |= {'ktuned.daemon', 'ktuned.search', 'ktuned.declaration', 'ktuned.dropin'};"
        "heavy |= {'hashlib', 'logging', 'importlib.metadata', 'webbrowser'};"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert ran.stderr.splitlines()[-1] == "[]"


def test_help_has_each_command_s_own_words(run: Run) -> None:
    """The lines of ``--help``, which imports no command, are the first of each command's own help; few are long."""
    context = click.Context(cli)
    for name, entry in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert (command.help or "").partition("\n")[0] == entry.summary
    shown = run("--help").out
    assert [line for line in shown.splitlines() if line.endswith(":")] == [
        "Options:", "Tune:", "Results:", "Share:", "Daemon:",
    ]  # fmt: skip
    assert len(COMMANDS) <= 26


def test_advanced_options_stand_apart(run: Run) -> None:
    """In a section of their own, below those that most users need; a whole number is ``N``."""
    plain, _, advanced = run("tune", "--help").out.partition("Advanced options:")
    assert "--trials N" in plain
    assert "--time-limit SECONDS" in plain
    assert "--priority" not in plain
    for option in ("--priority", "--remeasure", "--anchor"):
        assert option in advanced


def test_an_argument_that_is_no_text_is_named(run: Run) -> None:
    """A file's name can be any bytes; what cannot be sent is one line."""
    for word, shown in (("tune_\udcff.py", r"tune_\xff.py"), ("tune_\ud800.py", r"tune_\ud800.py")):
        ran = run("tune", word)
        assert (ran.code, ran.err) == (2, f"ktuned: {shown} is not UTF-8; rename the file or directory\n")


def test_a_directory_that_is_no_text_is_named(run: Run, serve: Serve, tmp_path: Path) -> None:
    """Also one that a relative path stands for."""
    serve()
    place = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(place)
    before = os.getcwd()
    try:
        os.chdir(place)
        ran = run("tune", ".")
    finally:
        os.chdir(before)
    assert (ran.code, ran.err) == (2, f"ktuned: {tmp_path}/caf\\xe9 is not UTF-8; rename the file or directory\n")


def test_ctrl_c_before_the_program_is_imported_prints_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """However early it comes, there is no traceback."""

    class Interrupted(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            """Raise what Ctrl-C raises."""
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "ktuned.cli.program")
    monkeypatch.setattr(sys, "meta_path", [Interrupted()])
    assert run("status") == Ran(130, "", "")


@pytest.mark.parametrize(
    "arguments", [("lookup", "gem", "-p", "M=1"), ("export", "--kernel", "gem")], ids=lambda words: words[0]
)
def test_a_name_that_no_kernel_has_is_refused_with_one_that_is_near(
    run: Run, serve: Serve, arguments: tuple[str, ...]
) -> None:
    """Where the daemon has an answer for unknown kernels, the command says what was meant, as all others do."""
    unknown = answer_map(status="unknown", config=None, device=None, latency_us=None, age_s=None)
    serve(lookup=unknown, export={"shared": []}, kernels=refuse("not_found", "there is no kernel 'gem'", "'gemm'?"))
    assert run(*arguments) == Ran(1, "", "ktuned: there is no kernel 'gem'; 'gemm'?\n")


def test_status_marks_a_directory_that_is_gone(run: Run, serve: Serve) -> None:
    """A root whose directory is not there stands in the list until it is forgotten, and says so."""
    serve(status=status_map())
    assert "/src (gone)" in run("status").out


def test_one_of_a_thing_is_not_many(run: Run, serve: Serve) -> None:
    """What was forgotten is counted in words."""
    serve(forget={"kernel": KERNEL, "trials": 1})
    assert run("forget", "gemm").out == f"{KERNEL}: 1 trial forgotten\n"
