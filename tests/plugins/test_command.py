"""The command backend: a program is tuned by its time or by a number that it prints, and killed if it hangs."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ktuned.backends import Registry
from ktuned.testing.backends import check_backend
from ktuned_command import Build, Command, CommandOnCuda, Program
from ktuned_command.program import MAX_OUTPUT_BYTES, CommandFailed, run_command
from tests.e2e.harness import Daemon
from tests.plugins.command_example import EXAMPLE, SCRIPT

KERNEL_FILE = """
from ktuned import kernel, space
from ktuned_command import Build


@kernel(
    backend="command",
    sources=["says_how_long.sh"],
    space=space(HOW=["3", "2.5", "7", "fails", "dies", "silent", "hangs", "unprepared"]),
    problems=[dict(N=1)],
    check=None,
    preset="fast",
    strategy="exhaustive",
    default=dict(HOW="7"),
    deadlines=dict(first_launch=2.0, floor=2.0),
)
def program(p, c):
    prepare = (("cp", "gone.sh" if c.HOW == "unprepared" else "says_how_long.sh", "{artifact}/run.sh"),)
    return Build(("sh", "{artifact}/run.sh", c.HOW), {"EXTRA": c.HOW}, prepare, r"took ([\\d.]+) ms")


@kernel(backend="torch", space=space(S=[1, 2]), problems=[dict(N=1)], check=None, preset="fast", strategy="exhaustive")
def plain(p, c):
    from ktuned_torch import Build

    return Build(work, ("plain text", [c.S, None]), kwargs={"unit": "ms"})


def work(text, sizes, unit):
    assert (text, sizes[1], unit) == ("plain text", None, "ms")
    return sum(range(20_000 * sizes[0]))
"""


@dataclass(frozen=True)
class TuningResults:
    """Jobs by kernel, trials of the program, and answers to lookups."""

    jobs: dict[str, Any]
    trials: list[dict[str, Any]]
    answers: dict[str, Any]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> TuningResults:
    """What tuning KERNEL_FILE gave."""
    with Daemon(tmp_path_factory.mktemp("command"), tensors="torch") as daemon:
        file = daemon.write_kernel(KERNEL_FILE)
        shutil.copy(SCRIPT, file.parent)
        _, jobs_of_file = daemon.tune(path=file)
        jobs = {job["kernel"].rpartition(":")[2]: job for job in jobs_of_file}
        trials = daemon.client.call("results", kernel="program")["trials"]
        return TuningResults(jobs, trials, {kernel: daemon.client.lookup(kernel, dict(N=1)) for kernel in jobs})


def test_the_backend_passes_the_conformance_suite(tmp_path: Path) -> None:
    """No test of the suite needs a tensor."""
    check_backend(Registry().load("command"), EXAMPLE, tmp_path)


def test_a_program_is_tuned_by_what_it_prints(results: TuningResults) -> None:
    """The pattern's last match is the time; failures have their own outcomes, and a hang is killed."""
    assert results.jobs["program"]["state"] == "done", results.jobs
    trials = {trial["config"]["HOW"]: trial for trial in results.trials}
    assert {variant: trial["latency_us"] for variant, trial in trials.items() if trial["outcome"] == "measured"} == {
        "3": 3000.0,
        "2.5": 2500.0,
        "7": 7000.0,
    }
    expected = {
        "fails": ("launch_error", "exited with 3: no luck today"),
        "dies": ("launch_error", "was killed by SIGSEGV"),
        "silent": ("launch_error", "the output has no match"),
        "unprepared": ("compile_error", "gone.sh"),
        "hangs": ("hung", "first_launch timed out"),
    }
    for variant, (outcome, words) in expected.items():
        assert trials[variant]["outcome"] == outcome
        assert words in trials[variant]["message"]
    hit = results.answers["program"]
    assert (hit.status, hit.config) == ("fresh", {"HOW": "2.5"})


def test_deadlines_are_learned_from_the_wall_clock(tmp_path: Path) -> None:
    """A program that starts more slowly than any time that it prints is not hung."""
    kernel = """
from ktuned import kernel, space
from ktuned_command import Build

@kernel(backend="command", problems=[dict(N=1)], space=space(V=[2, 1]), check=None, preset="fast",
        deadlines=dict(floor=0.1))
def slow_to_start(p, c):
    return Build(argv=("sh", "-c", f"sleep 0.3; echo took {c.V} ms"), pattern=r"took ([\\d.]+) ms")
"""
    with Daemon(tmp_path) as daemon:
        job = daemon.tune_one(path=daemon.write_kernel(kernel))
        assert job["outcomes"] == {"measured": 2}, job
        assert daemon.client.lookup("slow_to_start", dict(N=1)).config == {"V": 1}


def test_a_plain_function_takes_any_arguments(results: TuningResults) -> None:
    """The torch backend calls a function with texts, lists and keywords, without a tensor."""
    job = results.jobs["plain"]
    # On a busy machine the second one may be hopelessly slower.
    assert (job["state"], sum(job["outcomes"].get(name, 0) for name in ("measured", "slower"))) == ("done", 2)
    assert results.answers["plain"].config == {"S": 1}


def test_without_a_pattern_the_clock_decides(tmp_path: Path) -> None:
    """The launch runs in the kernel file's directory with the Build's variables."""
    (tmp_path / "marker").touch()
    build = Build(("sh", "-c", 'test -e marker && test "$WHERE" = "$0"', "{artifact}"), {"WHERE": "{artifact}"})
    assert Program(build, tmp_path / "artifact", tmp_path, {}).bind({})() is None


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("/no/such/program",), "`/no/such/program` cannot be started"),
        (("sh", "-c", "echo took x ms"), "'x', which is not a number"),
        (("sh", "-c", "printf '%s' \0"), "cannot be started"),
        (("sh", "-c", "exit 3", "--tile=1"), "`sh -c 'exit 3' --tile=1` exited with 3"),
        (("sh", "-c", "head -c 4000 /dev/zero >&2; exit 3"), r"exited with 3: \(4,000 characters that are not text\)"),
    ],
)
def test_a_program_that_cannot_be_run_is_one_message(tmp_path: Path, argv: Any, words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        Program(Build(argv, pattern=r"took (\S+) ms"), tmp_path, tmp_path, {}).bind({})()


@pytest.mark.parametrize(
    ("pattern", "output", "expected"),
    [
        (r"took ([\d.]+)", "took 12,7 ms", None),
        (r"took ([\d.]+)", "took 1.234,5 ms", None),
        (r"took (\d+)", "took 12.5 ms", None),
        (r"took (\d\d)", "took 127 ms", None),
        (r"([\d.]+) ms", "took 12,7 ms", None),
        (r"(5) ms", "took 125 ms", None),
        (r"took ([\d.,]+) ms", "took 12,7 ms", None),
        (r"took ([\d.]+)", "took 12.5 ms", 12.5),
        (r"took ([\d.]+)", "took 12.5, then 13 ms", 12.5),
        (r"([\d.]+)$", "4096 12.5", 12.5),
        (r",([\d.]+),", "64,12.5,3", 12.5),
    ],
)
def test_a_number_that_the_pattern_cuts_is_refused(
    tmp_path: Path, pattern: str, output: str, expected: float | None
) -> None:
    """Part of a number is no time; text outside the pattern's group may hold other numbers."""
    launch = Program(Build(("echo", output), pattern=pattern), tmp_path, tmp_path, {}).bind({})
    if expected is None:
        with pytest.raises(CommandFailed, match=r"a part of the number|not a number"):
            launch()
    else:
        assert launch() == 1000 * expected


def test_programs_run_in_the_c_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program prints a decimal point whatever the user's locale is; the kernel file may choose another locale."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    argv = ("sh", "-c", 'test "$LC_ALL" = C.UTF-8 && echo took 1 ms || echo took 2 ms')
    for env, took_us in (({}, 1000.0), ({"LC_ALL": "fr_FR.UTF-8"}, 2000.0)):
        build = Build(argv, env, pattern=r"took (\d) ms")
        assert Program(build, tmp_path, tmp_path, {}).bind({})() == took_us


def test_a_flood_of_output_is_read_and_its_end_is_kept(tmp_path: Path) -> None:
    """Endless output neither blocks the program nor fills memory, and its last time counts."""
    flood = "head -c 20000000 /dev/zero | tr '\\0' x"
    argv = ("sh", "-c", f"echo took 1 ms; {flood}; {flood} >&2; echo; echo took 2 ms")
    assert Program(Build(argv, pattern=r"took (\d) ms"), tmp_path, tmp_path, {}).bind({})() == 2000.0
    output = run_command(argv, tmp_path, dict(os.environ))
    assert len(output) <= 2 * MAX_OUTPUT_BYTES


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(argv="./program --size 3"), "argv is the string .* not a tuple"),
        (dict(argv=()), "a tuple of words"),
        (dict(argv=("x",), prepare=("make",)), r"prepare\[0\] is the string 'make', not a tuple"),
        (dict(argv=("x", "--t={T}")), r"\{T\} is not a placeholder, only \{artifact\} is: .* f'--t=\{c.T\}'"),
        (dict(argv=("x",), prepare=(("make", "-j{c.T}"),)), r"\{c.T\} is not a placeholder, .* f'-j\{c.T\}'"),
        (dict(argv=("x",), unit="min"), "no unit 'min'"),
        (dict(argv=("x",), pattern="("), "not a regular expression"),
        (dict(argv=("x",), pattern="took .* ms"), "has 0 groups"),
    ],
)
def test_a_build_that_makes_no_sense_is_refused(fields: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Build(**fields)


@pytest.mark.parametrize("word", ["echo ${X} {X}", "%{time_total}", "{{Name}}", "{}", '{"a": 1}', "out={artifact}"])
def test_braces_of_the_program_s_own_are_left_alone(word: str) -> None:
    """Braces of scripts and of other programs' formats are no placeholders."""
    assert Build(("x", word)).argv == ("x", word)


def test_a_cuda_source_means_a_gpu() -> None:
    """Such a kernel has a GPU to itself."""
    assert Command.for_sources((Path("a.cc"), Path("b.cu"))) == CommandOnCuda.name
    assert CommandOnCuda.for_sources((Path("a.cc"),)) == Command.name
