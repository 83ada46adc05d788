"""An application with the client always has a valid config, whatever happens to the daemon."""

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
def tuned_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a daemon that has tuned ``it``; all tests use it, because tuning takes long."""
    directory = tmp_path_factory.mktemp("clients")
    with Daemon(directory) as daemon:
        daemon.tune(path=daemon.write_kernel(make_kernel_text(SPACE, default="dict(us=900.0)")))
    return directory


@pytest.fixture
def tuned_daemon(tuned_directory: Path) -> Iterator[Daemon]:
    """Run a daemon that has a winner for ``it`` and has probed its backends."""
    with Daemon(tuned_directory) as daemon:
        daemon.wait_until(lambda: daemon.client.lookup("it", PROBLEM).status == "fresh", "the winner")
        yield daemon


def look_up_in_time(client: Client, size: int = 64) -> Hit:
    """Look up, and check that there is a config and that the lookup kept its deadline."""
    start = time.monotonic()
    hit = client.lookup("it", {"n": size}, DEFAULT)
    assert time.monotonic() - start < DEADLINE_S + 1.0
    assert hit.config is not None
    assert set(hit.config) == {"us"}
    return hit


def kill_daemon(daemon: Daemon) -> None:
    daemon.kill()


def restart_daemon(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


def delete_socket(daemon: Daemon) -> None:
    daemon.socket.unlink()


def delete_socket_and_table(daemon: Daemon) -> None:
    daemon.kill()
    for file in daemon.socket.parent.iterdir():
        file.unlink()
    daemon.start()


@pytest.mark.parametrize("fault", [kill_daemon, restart_daemon, delete_socket, delete_socket_and_table])
def test_lookups_survive_the_loss_of_the_daemon(tuned_daemon: Daemon, fault: Callable[[Daemon], None]) -> None:
    """Lookups give the known config or the default within the deadline, and the daemon's answer once it is back."""
    with Client(tuned_daemon.socket, deadline_s=DEADLINE_S) as client:
        assert look_up_in_time(client).status == "fresh"
        fault(tuned_daemon)
        assert look_up_in_time(client).config == {"us": 300.0}
        # One that it did not know, so that someone has to be asked.
        look_up_in_time(client, 128)
        if fault in (kill_daemon, delete_socket):
            tuned_daemon.kill()
            tuned_daemon.start()
        tuned_daemon.wait_until(
            lambda: look_up_in_time(client, 256).status in ("near", "default"), "the daemon's answer"
        )
        assert look_up_in_time(client).status == "fresh"


def test_lookups_survive_clock_steps(tuned_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's clock steps by years in both directions; no age is negative."""
    with Client(tuned_daemon.socket, deadline_s=DEADLINE_S) as client:
        first = look_up_in_time(client)
        for now in (0.0, 1e10):
            monkeypatch.setattr(time, "time", lambda now=now: now)
            assert look_up_in_time(client) is first
            assert first.age_s is not None
            assert first.age_s >= 0
            assert look_up_in_time(client, 128).config == {"us": 300.0}


def test_winners_are_shared_through_files(tuned_daemon: Daemon, tmp_path: Path) -> None:
    """Winners are exported, looked up without a daemon, and imported; other sources make them stale or refused."""
    # Other sizes, which earlier lookups have had tuned, would be near answers: only this problem has a winner.
    tuned_daemon.wait_until(
        lambda: all(job["state"] in ENDED_STATES for job in tuned_daemon.client.call("jobs")["jobs"]), "all jobs to end"
    )
    tuned_daemon.client.call("forget", kernel="it")
    assert tuned_daemon.run_ktuned("tune", "it", "-p", "n=64").returncode == 0
    shared = tmp_path / "shared"
    assert (
        tuned_daemon.run_ktuned(
            "export", str(shared), "--all", "--with-artifacts", str(shared / "artifacts")
        ).returncode
        == 0
    )
    (file,) = shared.glob("*.json")
    text = file.read_text()
    assert (
        "unchanged"
        in tuned_daemon.run_ktuned("export", str(shared), "--all", "--with-artifacts", str(shared / "artifacts")).stdout
    )
    with Client(winners=shared) as client:
        hit = client.lookup("it", PROBLEM, DEFAULT)
        assert (hit.status, hit.config) == ("stale", {"us": 300.0})
        assert hit.artifact is not None
        assert os.path.isfile(os.path.join(hit.artifact, "manifest.json"))

    assert "it is the same" in tuned_daemon.run_ktuned("import", str(shared)).stdout
    tuned_daemon.client.call("forget", kernel="it")
    assert "would be imported, fresh" in tuned_daemon.run_ktuned("import", str(shared), "--dry-run").stdout
    assert tuned_daemon.client.call("lookup", kernel="it", problem=PROBLEM, tune=False)["status"] == "default"
    assert "imported, fresh  there was none" in tuned_daemon.run_ktuned("import", str(shared)).stdout
    assert tuned_daemon.client.call("lookup", kernel="it", problem=PROBLEM, tune=False)["status"] == "fresh"

    tuned_daemon.client.call("forget", kernel="it")
    document = winners.read_file(file)
    document["winners"][0]["digest"] = "0" * 64
    document["winners"].append({**document["winners"][0], "problem": {"m": 1}})
    document["winners"].append({**document["winners"][0], "config": {"us": 5.0}})
    file.write_text(winners.render_document(document))
    output = tuned_daemon.run_ktuned("import", str(shared)).stdout
    assert "imported, stale" in output
    assert "refused: project:it: the problem lacks n and does not take m" in output
    assert "refused: the kernel's space has no such config" in output
    assert tuned_daemon.client.call("lookup", kernel="it", problem=PROBLEM, tune=False)["status"] == "stale"

    file.write_text(text.replace('"ktuned_winners": 1', '"ktuned_winners": 2'))
    refused = tuned_daemon.run_ktuned("import", str(shared))
    assert refused.returncode == 2
    assert "upgrade ktuned" in refused.stderr
    elsewhere = file.with_name("elsewhere.json")
    elsewhere.write_text(text.replace("project:it", "nowhere:it"))
    file.unlink()
    refused = tuned_daemon.run_ktuned("import", str(shared))
    assert (refused.returncode, "no watched project named 'nowhere' has a kernel 'it'" in refused.stdout) == (1, True)
    assert "there is project:it; if that is the same, name its project 'nowhere'" in refused.stdout
    file.write_text(text)
    both = tuned_daemon.run_ktuned("import", str(shared), "--dry-run")
    assert (both.returncode, "named 'nowhere'" in both.stdout) == (0, True)
    assert "1 would be imported, 1 left out" in both.stderr


def test_the_asyncio_program_of_the_client_s_readme_runs(tuned_daemon: Daemon) -> None:
    gemm = make_kernel_text(SPACE).replace("dict(n=64)", "dict(M=4096, N=4096, K=4096)").replace("p.n", "64")
    path = tuned_daemon.write_kernel(gemm.replace("def it(", "def gemm("), "tune_gemm.py")
    tuned_daemon.run_ktuned("add", str(path))
    page = (Path(__file__).parent.parent.parent / "client/README.md").read_text()
    (program,) = re.findall(r"^```python\n(import asyncio.*?)^```$", page, re.DOTALL | re.MULTILINE)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=tuned_daemon.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['done']"


def look_up_in_new_process(daemon: Daemon, directory: Path) -> list[str]:
    """Return the status and config that a new process gets in a directory that never asked."""
    script = (
        f"import ktuned_client as c; hit = c.Client().lookup('it', {PROBLEM}, {DEFAULT}); print(hit.status, hit.config)"
    )
    command = [sys.executable, "-c", script]
    process = subprocess.run(command, cwd=directory, env=daemon.env, capture_output=True, text=True, check=True)
    return process.stdout.strip().split(" ", 1)


def test_tuned_winners_need_no_daemon(tmp_path: Path) -> None:
    """A new process gets the winner from the table while the daemon is stopped, also after a restart."""
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
                assert look_up_in_new_process(daemon, tmp_path / "elsewhere") == [status, "{'us': 300.0}"]
            finally:
                daemon.process.send_signal(signal.SIGCONT)
