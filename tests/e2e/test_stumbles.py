"""Mistakes of new users, each with the command that was typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Daemon, make_kernel_text

SPACE = "space([dict(us=50.0, does='work', tag='a'), dict(us=90.0, does='work', tag='b')])"
DONE, NOT_REACHED, USAGE = 0, 1, 2


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon with one tuned kernel."""
    with Daemon(tmp_path_factory.mktemp("shared")) as running:
        running.run_ktuned("tune", str(running.write_kernel(make_kernel_text(SPACE))))
        yield running


def write_project(daemon: Daemon, name: str, text: str) -> Path:
    """Write a kernel file into a project of its own, and return its path."""
    path = daemon.directory / name / f"tune_{name}.py"
    path.parent.mkdir()
    path.write_text(text.replace("def it(", f"def {name}("))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("--strategy", "bogus"),
        ("-p", "n=bogus"),
        ("-p", "n=64", "--config", "us=1.0"),
        ("--device", "cuda:99"),
        ("--objective", "max:bogus"),
    ],
    ids=" ".join,
)
def test_a_wrong_argument_leaves_nothing_watched(shared_daemon: Daemon, words: tuple[str, ...]) -> None:
    """All arguments are checked before the directory is watched or a job is created."""
    name = re.sub(r"\W+", "_", "_".join(("wrong", *words)))
    path = write_project(shared_daemon, name, make_kernel_text(SPACE))
    before = shared_daemon.client.call("status")
    refused = shared_daemon.run_ktuned("tune", str(path), *words)
    assert refused.returncode in (NOT_REACHED, USAGE)
    assert refused.stderr.startswith("ktuned: ")
    after = shared_daemon.client.call("status")
    assert after["roots"] == before["roots"]
    assert shared_daemon.client.call("jobs")["jobs"][0]["kernel"] == "project:it"
    # The watcher was about to inspect the new directory, too.
    assert name not in shared_daemon.run_ktuned("kernels").stdout
    assert "notice" not in shared_daemon.run_ktuned("status").stdout


@pytest.mark.parametrize(("does", "code"), [("work", 0), ("wrong", 4), ("segfault", 5), ("hang", 6)])
def test_the_exit_status_tells_what_became_of_one_config(shared_daemon: Daemon, does: str, code: int) -> None:
    """A program that writes kernels need not parse anything."""
    path = shared_daemon.directory / "verdicts" / "tune_verdicts.py"
    if not path.exists():
        space = "space([dict(us=50.0, does=does, tag='a') for does in ('work', 'wrong', 'segfault', 'hang')])"
        text = make_kernel_text(
            space, deadlines="dict(first_launch=1.0, floor=1.0)", reference="lambda x: dict(y=2 * x)"
        )
        write_project(shared_daemon, "verdicts", text)
    words = ("tune", str(path), "--config", f"us=50.0,does={does},tag=a", "--json")
    done = shared_daemon.run_ktuned(*words)
    assert done.returncode == code, done.stderr
    # The second time, it is known.
    assert shared_daemon.run_ktuned(*words).returncode == code


def test_kernels_as_json_have_no_internals(shared_daemon: Daemon) -> None:
    (kernel,) = json.loads(shared_daemon.run_ktuned("kernels", "project:it", "--json").stdout)["kernels"]
    assert not {"stamps", "learned", "python_parts", "argument_parts", "source_digest"} & kernel.keys()
    assert len(json.dumps(kernel)) < 4_000


def test_a_wrong_architecture_leaves_nothing_watched(shared_daemon: Daemon) -> None:
    """A possible architecture is compiled for."""
    path = write_project(shared_daemon, "native", make_kernel_text(SPACE))
    path.with_name("ktuned.toml").write_text('[env]\nFAKE_DEVICES = ""\nFAKE_TARGET = "sm_90a"\n')
    before = shared_daemon.client.call("status")["roots"]
    refused = shared_daemon.run_ktuned("tune", str(path), "--compile-only", "--arch", "native-1234")
    assert refused.returncode == USAGE
    assert "fake compiles for sm_90a, not for 'native-1234'" in refused.stderr
    absent = shared_daemon.run_ktuned("tune", str(path), "--compile-only", "--arch", "sm_90b")
    assert absent.returncode == USAGE
    assert "there is no GPU architecture 'sm_90b'" in absent.stderr
    assert "sm_90a" in absent.stderr
    assert shared_daemon.client.call("status")["roots"] == before
    done = shared_daemon.run_ktuned("tune", str(path), "--compile-only", "--arch", "sm_100a")
    assert done.returncode == DONE, done.stderr
    assert f"{path.parent} is watched from now on" in done.stderr


def test_a_misspelt_knob_is_an_error_of_the_declaration(shared_daemon: Daemon) -> None:
    """The error has the line and the right name, and no job is created."""
    text = make_kernel_text(SPACE, body="Build(us=c.us, does=c.dose, tag=c.tag)")
    path = write_project(shared_daemon, "misspelt", text)
    refused = shared_daemon.run_ktuned("tune", str(path))
    line = next(number for number, words in enumerate(path.read_text().splitlines(), 1) if "c.dose" in words)
    assert refused.returncode == NOT_REACHED
    assert f"{path}:{line}" in refused.stderr
    assert "there is no knob 'dose'" in refused.stderr
    assert "does" in refused.stderr
    assert not [job for job in shared_daemon.client.call("jobs")["jobs"] if job["kernel"] == "misspelt:misspelt"]


def test_a_forgotten_decorator_is_named(shared_daemon: Daemon) -> None:
    path = shared_daemon.directory / "bare" / "tune_bare.py"
    path.parent.mkdir()
    path.write_text("def gemm(p, c):\n    return None\n")
    refused = shared_daemon.run_ktuned("tune", str(path))
    assert refused.returncode == USAGE
    assert "its function 'gemm' has no decorator: write @kernel(…) above it" in refused.stderr


def test_export_writes_the_current_project(shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--all`` exports the whole store."""
    other = write_project(shared_daemon, "other", make_kernel_text(SPACE))
    assert shared_daemon.run_ktuned("tune", str(other)).returncode == DONE
    monkeypatch.chdir(other.parent)
    files = json.loads(shared_daemon.run_ktuned("export", "--json").stdout)["files"]
    assert [entry["kernel"] for entry in files] == ["other:other"]
    everything = json.loads(shared_daemon.run_ktuned("export", "--all", "--json").stdout)["files"]
    assert {"other:other", "project:it"} <= {entry["kernel"] for entry in everything}
    monkeypatch.chdir("/")
    refused = shared_daemon.run_ktuned("export")
    assert refused.returncode == USAGE
    assert "--all" in refused.stderr


def test_a_winner_slower_than_the_committed_one_is_a_regression(shared_daemon: Daemon, tmp_path: Path) -> None:
    """Even if no file was saved since, and in a clone, which has another name; files of other kernels are an error."""
    project = shared_daemon.directory / "project"
    assert shared_daemon.run_ktuned("export", str(tmp_path), "--kernel", "it").returncode == DONE
    (file,) = tmp_path.glob("*.json")
    assert shared_daemon.run_ktuned("watch", str(project), "--once", "--against", str(tmp_path)).returncode == DONE
    document = json.loads(file.read_text())
    document["winners"][0]["latency_us"] /= 2
    for name, words in (
        (document["kernel"], "slower"),
        ("original:it", "slower"),
        ("original:other", "has winners of none of the compared kernels (there are: original:other)"),
    ):
        file.write_text(json.dumps({**document, "kernel": name}))
        result = shared_daemon.run_ktuned("watch", str(project), "--once", "--against", str(tmp_path))
        assert result.returncode == NOT_REACHED
        assert words in result.stdout + result.stderr


def test_a_mistaken_problem_can_be_forgotten(shared_daemon: Daemon, tmp_path: Path) -> None:
    """The other problems keep their winners, and a save does not tune the mistaken one again."""
    path = write_project(shared_daemon, "mistaken", make_kernel_text(SPACE))
    for problem in ("n=64", "n=46"):
        assert shared_daemon.run_ktuned("tune", str(path), "-p", problem).returncode == DONE
    done = shared_daemon.run_ktuned("forget", "mistaken", "-p", "n=46")
    assert done.stdout == "mistaken:mistaken: 2 trials forgotten, 1 winner among them\n"
    assert shared_daemon.run_ktuned("export", str(tmp_path), "--kernel", "mistaken").returncode == DONE
    (file,) = tmp_path.glob("*.json")
    assert [winner["problem"] for winner in json.loads(file.read_text())["winners"]] == [{"n": 64}]
    path.write_text(path.read_text().replace("us=90.0", "us=80.0"))
    assert shared_daemon.run_ktuned("tune", "mistaken").returncode == DONE
    jobs = shared_daemon.client.call("jobs", kernel="mistaken")["jobs"]
    assert {job["problem"]["n"] for job in jobs} == {64}
