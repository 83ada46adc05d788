"""An application that is linked to the client, beside a real daemon: it always has a valid config, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ktuned_client import Client, Hit, winners
from ktuned_client.answers import ENDED_STATES
from tests.e2e.harness import Daemon, make_kernel_text

DEFAULT = {"us": 1.0}
PROBLEM = {"n": 64}
SPACE = "space([dict(us=300.0), dict(us=900.0)])"
DEADLINE_S = 10.0
"""Far above what a lookup takes, because the machine is busy; what may not happen is to wait for longer."""


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a daemon that has tuned ``it``: to tune takes longer than what is tested here."""
    directory = tmp_path_factory.mktemp("clients")
    with Daemon(directory) as daemon:
        daemon.tune(path=str(daemon.write_kernel(make_kernel_text(SPACE, default="dict(us=900.0)"))))
    return directory


@pytest.fixture
def tuned(left_behind: Path) -> Iterator[Daemon]:
    """Run a daemon that has a winner for ``it``, and has asked its backends what they are."""
    with Daemon(left_behind) as daemon:
        daemon.wait_until(lambda: daemon.client.lookup("it", PROBLEM).status == "fresh", "the winner")
        yield daemon


def _look_up(client: Client, size: int = 64) -> Hit:
    """Look up, and check that there is a config and that no one waited for it."""
    start = time.monotonic()
    hit = client.lookup("it", {"n": size}, DEFAULT)
    assert time.monotonic() - start < DEADLINE_S + 1.0
    assert hit.config is not None
    assert set(hit.config) == {"us"}
    return hit


def _killed(daemon: Daemon) -> None:
    daemon.kill()


def _restarted(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


def _socket_deleted(daemon: Daemon) -> None:
    daemon.socket.unlink()


def _socket_and_table_deleted(daemon: Daemon) -> None:
    daemon.kill()
    for file in daemon.socket.parent.iterdir():
        file.unlink()
    daemon.start()


@pytest.mark.parametrize("fault", [_killed, _restarted, _socket_deleted, _socket_and_table_deleted])
def test_an_application_survives(tuned: Daemon, fault: Callable[[Daemon], None]) -> None:
    """Before, while and after: what it knew, or its default, within its deadline; and the daemon once it is back."""
    with Client(tuned.socket, deadline_s=DEADLINE_S) as client:
        assert _look_up(client).status == "fresh"
        fault(tuned)
        assert _look_up(client).config == {"us": 300.0}
        # One that it did not know, so that someone has to be asked.
        _look_up(client, 128)
        if fault in (_killed, _socket_deleted):
            tuned.kill()
            tuned.start()
        tuned.wait_until(lambda: _look_up(client, 256).status in ("near", "default"), "the daemon's answer")
        assert _look_up(client).status == "fresh"


def test_an_application_survives_a_full_disk(tuned: Daemon, tmp_path: Path) -> None:
    """Where the daemon can write no file any more lookups are answered as before."""
    assert tuned.process is not None
    # A near winner is served once a worker has said that its config suits this size.
    tuned.wait_until(lambda: tuned.client.lookup("it", {"n": 128}).config == {"us": 300.0}, "the near winner")
    limit = ["prlimit", f"--pid={tuned.process.pid}", "--fsize=0:0"]
    if subprocess.run(limit, capture_output=True).returncode:
        pytest.skip("prlimit cannot limit the daemon")
    with Client(tuned.socket, deadline_s=DEADLINE_S) as client:
        _is_as_before(_look_up(client))
        assert _look_up(client, 128).config == {"us": 300.0}
        _is_as_before(_look_up(client))


def _is_as_before(hit: Hit) -> None:
    """Check an answer; where an inspection wanted to look again just then, and could not, it says so."""
    assert hit.config == {"us": 300.0}
    assert hit.status == "fresh" or (hit.status == "stale" and "File too large" in hit.message), hit


def test_an_application_survives_a_stepped_clock(tuned: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own clock of the day goes back and forth by years: answers hold or not as before, and no age is negative."""
    with Client(tuned.socket, deadline_s=DEADLINE_S) as client:
        first = _look_up(client)
        for now in (0.0, 1e10):
            monkeypatch.setattr(time, "time", lambda now=now: now)
            assert _look_up(client) is first
            assert first.age_s is not None
            assert first.age_s >= 0
            assert _look_up(client, 128).config == {"us": 300.0}


def test_a_new_winner_is_seen_as_soon_as_it_is_told(tuned: Daemon) -> None:
    """A lookup that follows the event of a new winner never gives the one before, without a connection in between."""
    with Client(tuned.socket, deadline_s=DEADLINE_S) as client:
        assert _look_up(client) is _look_up(client)
        generation = _look_up(client).generation
        with tuned.client.events(types=["winner"]) as events:
            tuned.client.call("forget", kernel="it")
            with tuned.client.tune("it") as tuning:
                event = next(events)
                assert event["type"] == "winner"
                hit = _look_up(client)
                # On a busy machine the next one may have been found between the event and the lookup.
                later = [told["config"] for told in tuning if told["type"] == "winner"]
                assert hit.generation != generation
                assert hit.status == "fresh"
                assert hit.config in [event["config"], *later]


def test_winners_are_shared_through_files(tuned: Daemon, tmp_path: Path) -> None:
    """Exported, looked up with no daemon, taken back in; those of other sources as stale, what does not fit refused."""
    # Other sizes, which earlier lookups have had tuned, would be near answers: only this problem has a winner.
    tuned.wait_until(
        lambda: all(job["state"] in ENDED_STATES for job in tuned.client.call("jobs")["jobs"]), "all jobs to end"
    )
    tuned.client.call("forget", kernel="it")
    assert tuned.run_ktuned("tune", "it", "-p", "n=64").returncode == 0
    shared = tmp_path / "shared"
    assert (
        tuned.run_ktuned("export", str(shared), "--all", "--with-artifacts", str(shared / "artifacts")).returncode == 0
    )
    (file,) = shared.glob("*.json")
    text = file.read_text()
    assert (
        "unchanged"
        in tuned.run_ktuned("export", str(shared), "--all", "--with-artifacts", str(shared / "artifacts")).stdout
    )
    with Client(winners=shared) as client:
        hit = client.lookup("it", PROBLEM, DEFAULT)
        assert (hit.status, hit.config) == ("stale", {"us": 300.0})
        assert hit.artifact is not None
        assert os.path.isfile(os.path.join(hit.artifact, "manifest.json"))

    assert "it is the same" in tuned.run_ktuned("import", str(shared)).stdout
    tuned.client.call("forget", kernel="it")
    assert "would be taken, fresh" in tuned.run_ktuned("import", str(shared), "--dry-run").stdout
    assert tuned.client.call("lookup", kernel="it", problem=PROBLEM, tune=False)["status"] == "default"
    assert "taken, fresh  there was none" in tuned.run_ktuned("import", str(shared)).stdout
    assert tuned.client.call("lookup", kernel="it", problem=PROBLEM, tune=False)["status"] == "fresh"

    tuned.client.call("forget", kernel="it")
    document = winners.read_file(file)
    document["winners"][0]["digest"] = "0" * 64
    document["winners"].append({**document["winners"][0], "problem": {"m": 1}})
    document["winners"].append({**document["winners"][0], "config": {"us": 5.0}})
    file.write_text(winners.render_document(document))
    told = tuned.run_ktuned("import", str(shared)).stdout
    assert "taken, stale" in told
    assert "refused: project:it: the problem names m" in told
    assert "refused: the kernel's space has no such config" in told
    assert tuned.client.call("lookup", kernel="it", problem=PROBLEM, tune=False)["status"] == "stale"

    file.write_text(text.replace('"ktuned_winners": 1', '"ktuned_winners": 2'))
    refused = tuned.run_ktuned("import", str(shared))
    assert refused.returncode == 2
    assert "upgrade ktuned" in refused.stderr
    elsewhere = file.with_name("elsewhere.json")
    elsewhere.write_text(text.replace("project:it", "nowhere:it"))
    file.unlink()
    refused = tuned.run_ktuned("import", str(shared))
    assert (refused.returncode, "no watched project named 'nowhere' has a kernel 'it'" in refused.stdout) == (1, True)
    assert "there is project:it; if that is the same, name its project 'nowhere'" in refused.stdout
    file.write_text(text)
    both = tuned.run_ktuned("import", str(shared), "--dry-run")
    assert (both.returncode, "named 'nowhere'" in both.stdout) == (0, True)
    assert "1 would be taken, 1 left" in both.stderr


def test_the_readme_of_the_client_is_right_about_asyncio(tuned: Daemon) -> None:
    """Its program runs as it stands, from a lookup to the end of a tuning."""
    gemm = make_kernel_text(SPACE).replace("dict(n=64)", "dict(M=4096, N=4096, K=4096)").replace("p.n", "64")
    path = tuned.write_kernel(gemm.replace("def it(", "def gemm("), "tune_gemm.py")
    tuned.run_ktuned("add", str(path))
    page = (Path(__file__).parent.parent.parent / "client/README.md").read_text()
    (program,) = re.findall(r"^```python\n(import asyncio.*?)^```$", page, re.DOTALL | re.MULTILINE)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=tuned.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['done']"


def _ask_in_new_process(daemon: Daemon, directory: Path) -> list[str]:
    """Return the status and config that a new process gets in a directory that never asked."""
    script = (
        f"import ktuned_client as c; hit = c.Client().lookup('it', {PROBLEM}, {DEFAULT}); print(hit.status, hit.config)"
    )
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, cwd=directory, env=daemon.env, capture_output=True, text=True, check=True)
    return told.stdout.strip().split(" ", 1)


def test_what_was_tuned_needs_no_daemon(tmp_path: Path) -> None:
    """A new process gets the winner though the daemon does not answer: right after the tuning and after a restart."""
    (tmp_path / "elsewhere").mkdir()
    with Daemon(tmp_path) as daemon:
        path = str(daemon.write_kernel(make_kernel_text(SPACE, default="dict(us=900.0)")))
        for status in ("fresh", "stale"):
            if status == "fresh":
                daemon.tune(path=path)
            else:
                daemon.kill()
                daemon.start()
            assert daemon.process is not None
            daemon.process.send_signal(signal.SIGSTOP)
            try:
                assert _ask_in_new_process(daemon, tmp_path / "elsewhere") == [status, "{'us': 300.0}"]
            finally:
                daemon.process.send_signal(signal.SIGCONT)
