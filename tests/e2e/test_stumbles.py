"""What a new user stumbles over in the first hour, each by the command that was typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ktuned_client import Client
from tests.e2e.harness import Daemon, make_kernel_text

SPACE = "space([dict(us=50.0, does='work', tag='a'), dict(us=90.0, does='work', tag='b')])"
DONE, NOT_REACHED, USAGE = 0, 1, 2


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon that has one tuned kernel."""
    with Daemon(tmp_path_factory.mktemp("shared")) as running:
        running.run_ktuned("tune", str(running.write_kernel(make_kernel_text(SPACE))))
        yield running


def _project(daemon: Daemon, name: str, text: str) -> Path:
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
def test_a_wrong_argument_leaves_nothing_watched(shared: Daemon, words: tuple[str, ...]) -> None:
    """All arguments are checked before the directory is watched or a job is made."""
    name = re.sub(r"\W+", "_", "_".join(("wrong", *words)))
    path = _project(shared, name, make_kernel_text(SPACE))
    before = shared.client.call("status")
    refused = shared.run_ktuned("tune", str(path), *words)
    assert refused.returncode in (NOT_REACHED, USAGE)
    assert refused.stderr.startswith("ktuned: ")
    after = shared.client.call("status")
    assert after["roots"] == before["roots"]
    assert shared.client.call("jobs")["jobs"][0]["kernel"] == "project:it"
    # The watcher was about to inspect the new directory, too.
    assert name not in shared.run_ktuned("kernels").stdout
    assert "notice" not in shared.run_ktuned("status").stdout


def test_an_architecture_of_another_kind_leaves_nothing_watched(shared: Daemon) -> None:
    """It is refused before the directory is watched; one that may be right is compiled for, and the watching said."""
    path = _project(shared, "native", make_kernel_text(SPACE))
    path.with_name("ktuned.toml").write_text('[env]\nFAKE_DEVICES = ""\nFAKE_TARGET = "sm_90a"\n')
    before = shared.client.call("status")["roots"]
    refused = shared.run_ktuned("tune", str(path), "--compile-only", "--arch", "native-1234")
    assert refused.returncode == USAGE
    assert "fake compiles for sm_90a, not for 'native-1234'" in refused.stderr
    assert shared.client.call("status")["roots"] == before
    done = shared.run_ktuned("tune", str(path), "--compile-only", "--arch", "sm_100a")
    assert done.returncode == DONE, done.stderr
    assert f"{path.parent} is watched from now on" in done.stderr


def test_the_first_tune_says_what_is_watched_from_now_on(shared: Daemon) -> None:
    """Once: the second does not."""
    path = _project(shared, "told", make_kernel_text(SPACE))
    line = f"{path.parent} is watched from now on"
    assert line in shared.run_ktuned("tune", str(path)).stderr
    again = shared.run_ktuned("tune", str(path))
    assert line not in again.stderr
    assert "2 of 2 configs known" in again.stdout


def test_a_misspelt_knob_is_one_error_of_the_declaration(shared: Daemon) -> None:
    """With its line and what was meant, and no job that tries a thousand configs."""
    text = make_kernel_text(SPACE, body="Build(us=c.us, does=c.dose, tag=c.tag)")
    path = _project(shared, "misspelt", text)
    refused = shared.run_ktuned("tune", str(path))
    line = next(number for number, words in enumerate(path.read_text().splitlines(), 1) if "c.dose" in words)
    assert refused.returncode == NOT_REACHED
    assert f"{path}:{line}" in refused.stderr
    assert "there is no knob 'dose'" in refused.stderr
    assert "does" in refused.stderr
    assert not [job for job in shared.client.call("jobs")["jobs"] if job["kernel"] == "misspelt:misspelt"]


def test_a_forgotten_decorator_is_named(shared: Daemon) -> None:
    """The function is there, and its decorator is not."""
    path = shared.directory / "bare" / "tune_bare.py"
    path.parent.mkdir()
    path.write_text("def gemm(p, c):\n    return None\n")
    refused = shared.run_ktuned("tune", str(path))
    assert refused.returncode == USAGE
    assert "its function 'gemm' has no decorator: write @kernel(…) above it" in refused.stderr


def test_export_is_of_the_current_project(shared: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it says so, and ``--all`` has the whole store."""
    other = _project(shared, "other", make_kernel_text(SPACE))
    assert shared.run_ktuned("tune", str(other)).returncode == DONE
    monkeypatch.chdir(other.parent)
    written = json.loads(shared.run_ktuned("export", "--json").stdout)["files"]
    assert [entry["kernel"] for entry in written] == ["other:other"]
    everything = json.loads(shared.run_ktuned("export", "--all", "--json").stdout)["files"]
    assert {"other:other", "project:it"} <= {entry["kernel"] for entry in everything}
    monkeypatch.chdir("/")
    refused = shared.run_ktuned("export")
    assert refused.returncode == USAGE
    assert "--all" in refused.stderr


def test_slow_rot_is_seen_beside_committed_winners(shared: Daemon, tmp_path: Path) -> None:
    """A winner that is slower than the one in git is a regression, though nothing was saved since."""
    project = shared.directory / "project"
    assert shared.run_ktuned("export", str(tmp_path), "--kernel", "it").returncode == DONE
    (file,) = tmp_path.glob("*.json")
    assert shared.run_ktuned("watch", str(project), "--once", "--against", str(tmp_path)).returncode == DONE
    document = json.loads(file.read_text())
    document["winners"][0]["latency_us"] /= 2
    file.write_text(json.dumps(document))
    ran = shared.run_ktuned("watch", str(project), "--once", "--against", str(tmp_path))
    assert ran.returncode == NOT_REACHED
    assert "slower" in ran.stdout


def test_a_lookup_says_why_it_is_only_the_default(shared: Daemon) -> None:
    """And which job will tune it; a wrong name gets the one that was meant."""
    _project(shared, "plain", make_kernel_text(SPACE, default="dict(us=90.0, does='work', tag='b')", problems="[]"))
    shared.run_ktuned("add", str(shared.directory / "plain"))
    shared.run_ktuned("jobs", "--pause")
    try:
        ran = shared.run_ktuned("lookup", "plain", "-p", "n=7")
        assert "not tuned yet for this problem; its tuning is queued" in ran.stdout
    finally:
        shared.run_ktuned("jobs", "--resume")
    answer = shared.client.call("lookup", kernel="plan", problem=dict(n=7))
    assert (answer["status"], "did you mean" in answer["message"]) == ("unknown", True)


def test_an_application_gets_the_near_winner_at_the_first_ask_between_tuned_sizes(shared: Daemon) -> None:
    """Its kernel file's constraint was never asked about that size; a client that may wait a second has it asked."""
    space = "space([dict(us=50.0, does='work', tag=tag) for tag in 'ab'], where=lambda p, c: p.n % 2 == 0)"
    text = make_kernel_text(space, default="dict(us=50.0, does='work', tag='a')", problems="[dict(n=64), dict(n=256)]")
    assert shared.run_ktuned("tune", str(_project(shared, "between", text))).returncode == DONE
    with Client(str(shared.socket), deadline_s=10.0) as client:
        even, odd = (client.lookup("between", {"n": n}) for n in (128, 129))
    assert even.status == "near"
    assert odd.status == "default"
