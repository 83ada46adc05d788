"""Errors around a daemon are one line with a remedy and the right exit status, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from tests.e2e.harness import Daemon, make_kernel_text

SPACE = "space([dict(us=50.0, does='work', tag='a'), dict(us=90.0, does='work', tag='b')])"
DONE, NOT_REACHED, USAGE, NO_DAEMON = 0, 1, 2, 3


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon for tests that leave it unchanged. It starts its workers itself, for the deadline of starts."""
    with Daemon(tmp_path_factory.mktemp("shared"), forked=False) as running:
        yield running


def check_one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    return lines[0]


def run_second_daemon(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ktuned", "start", "--foreground", *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_second_daemon_on_the_same_home_is_refused(shared_daemon: Daemon) -> None:
    """Two daemons never share a store, even with two sockets."""
    second = run_second_daemon(
        {**shared_daemon.env, "KTUNED_SOCKET": str(shared_daemon.directory / "run" / "other" / "k.sock")}
    )
    assert second.returncode == NOT_REACHED
    assert shared_daemon.process is not None
    assert f"pid {shared_daemon.process.pid}" in check_one_line(second.stderr)


def test_a_wrong_config_file_is_one_line(tmp_path: Path) -> None:
    """Also where a command starts the daemon."""
    daemon = Daemon(tmp_path, config="[deadlines]\ncompiling = 3\n")
    for refused in (run_second_daemon(daemon.env), daemon.run_ktuned("tune", str(tmp_path))):
        assert refused.returncode == USAGE
        line = check_one_line(refused.stderr)
        assert "config.toml" in line
        assert "compiling" in line


def _may_mount() -> bool:
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _may_mount(), reason="this user may not mount a small file system to fill")
def test_a_full_disk_ends_the_job_and_lookups_go_on(tmp_path: Path) -> None:
    """The job's message has the remedy; published results stay."""
    daemon = Daemon(tmp_path)
    # The daemon's home is a tmpfs of 2 MiB, mounted in a namespace of its own.
    home = daemon.home
    config = (home / "config.toml").read_text()
    script = (
        f"mount -t tmpfs -o size=2m,mode=700 tmpfs {home} && printf '%s' '{config}' > {home}/config.toml && "
        f"mkdir -p {home}/cache && exec {sys.executable} -m ktuned start --foreground"
    )
    with daemon.log.open("ab") as log:
        daemon.process = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", script], env=daemon.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        daemon.wait_until(daemon._is_answering, "the daemon to answer")
        path = daemon.write_kernel(make_kernel_text(SPACE))
        job = daemon.tune_one(path=path)
        assert job["state"] == "done"
        inside = Path(f"/proc/{daemon.process.pid}/root{home}")
        ballast = inside / "ballast"
        descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
        with suppress(OSError):
            while os.write(descriptor, b"\0" * 4096):
                pass
        os.close(descriptor)
        daemon.write_kernel(make_kernel_text(SPACE, rtol="0.01"))
        refused = daemon.run_ktuned("tune", "it")
        assert refused.returncode == NOT_REACHED
        assert "space" in refused.stdout + refused.stderr
        assert daemon.look_up().config is not None

        ballast.unlink()
        job = daemon.tune_one(kernel="it")
        assert job["state"] == "done", job
    finally:
        daemon.stop()
        daemon.client.close()


def test_the_daemon_imports_neither_torch_nor_user_code(tmp_path: Path) -> None:
    """Neither after inspecting, compiling, measuring and serving."""
    daemon = Daemon(tmp_path)
    try:
        daemon.start("-X", "importtime")
        job = daemon.tune_one(path=daemon.write_kernel(make_kernel_text(SPACE)))
        assert job["state"] == "done"
        assert daemon.look_up().status == "fresh"
    finally:
        daemon.stop()
        daemon.client.close()
    imported = {
        line.rpartition("|")[2].strip()
        for line in daemon.log.read_text().splitlines()
        if line.startswith("import time:")
    }
    assert "ktuned.daemon" in imported
    roots = {name.partition(".")[0] for name in imported}
    assert not roots & {"torch", "numpy", "cuda", "tvm_ffi", "ktuned_fake", "ktuned_tvm_ffi", "tune_it", "safetensors"}
    assert not any(name.startswith(("ktuned.worker", "ktuned.declaration")) for name in imported)


def test_a_space_of_1e9_configs_starts_at_once_and_takes_no_memory(daemon: Daemon) -> None:
    axes = ", ".join(f"k{index}={list(range(1, 11))}" for index in range(9))
    text = make_kernel_text(f"space({axes})", trials="20").replace("Build(**c)", "Build(us=50.0 + c.k0)")
    small = daemon.write_kernel(make_kernel_text(SPACE).replace("def it(", "def small("), "tune_small.py")
    daemon.tune(path=small)
    before = daemon.client.call("status")["rss_bytes"]
    job = daemon.tune_one(path=daemon.write_kernel(text))
    assert (job["state"], job["done"]) == ("done", 20)
    assert daemon.client.call("status")["rss_bytes"] - before < 20 * 2**20


def test_forget_lifts_a_quarantine(daemon: Daemon) -> None:
    """A config that crashed is not run again by any job or daemon until its kernel is forgotten."""
    space = "space([dict(us=50.0, does='work', tag='a'), dict(us=90.0, does='abort', tag='b')])"
    path = daemon.write_kernel(make_kernel_text(space))
    daemon.tune(path=path)
    first = daemon.fetch_trials()["b"]
    assert first["outcome"] == "crashed"
    daemon.stop()
    daemon.start()
    daemon.tune(kernel="it")
    assert daemon.fetch_trials()["b"]["updated"] == first["updated"]

    forgotten = daemon.run_ktuned("forget", "it", "--outcome", "crashed")
    assert (forgotten.returncode, forgotten.stdout.strip()) == (DONE, "project:it: 1 trial forgotten")
    daemon.tune(kernel="it")
    assert daemon.fetch_trials()["b"]["updated"] > first["updated"]
    assert daemon.fetch_trials()["b"]["outcome"] == "crashed"


def test_no_process_outlives_its_worker(tmp_path: Path) -> None:
    """Cases: a process without its worker's group, session, parent and environment."""
    with Daemon(tmp_path, forked=False) as daemon:
        _outlives_nothing(daemon)


def _outlives_nothing(daemon: Daemon) -> None:
    path = daemon.write_kernel(
        """\
        import os, pathlib, subprocess
        child = subprocess.Popen(["env", "-i", "setsid", "sleep", "1000"])
        pathlib.Path(__file__).with_name("left").write_text(str(child.pid))
        os._exit(0)
        """
    )
    assert daemon.run_ktuned("tune", str(path)).returncode == NOT_REACHED
    pid = int(path.with_name("left").read_text())
    daemon.wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the process that the kernel file left to end")


def test_a_stopped_daemon_is_named(daemon: Daemon) -> None:
    """Clients and commands learn its pid and the remedy within one deadline."""
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        began = monotonic()
        refused = daemon.run_ktuned("tune", "it")
        assert refused.returncode == NO_DAEMON
        line = check_one_line(refused.stderr)
        assert "did not answer" in line
        assert f"kill -9 {daemon.process.pid}" in line
        assert monotonic() - began < 40
    finally:
        daemon.process.send_signal(signal.SIGCONT)


def test_a_damaged_store_is_moved_aside(tmp_path: Path) -> None:
    """One start is enough: the daemon continues with an empty store and says so."""
    daemon = Daemon(tmp_path)
    with daemon:
        daemon.write_kernel(make_kernel_text(SPACE))
    store = daemon.home / "ktuned.sqlite"
    content = bytearray(store.read_bytes())
    content[4096:] = bytes(byte ^ 0xFF for byte in content[4096:])
    store.write_bytes(content)
    with daemon:
        stderr = daemon.run_ktuned("status").stderr
        assert "was damaged" in stderr
        (aside,) = daemon.home.glob("ktuned.sqlite.damaged-*")
        assert aside.name in stderr
        assert stderr.rstrip().endswith("`") or ".recover" in stderr


def test_a_save_during_a_full_disk_is_tuned_later(daemon: Daemon) -> None:
    """``status`` reports it meanwhile."""
    path = daemon.write_kernel(make_kernel_text(SPACE))
    assert daemon.run_ktuned("tune", str(path)).returncode == DONE
    store = daemon.home / "ktuned.sqlite"
    store.rename(store.with_name("aside"))
    path.write_text(path.read_text().replace("us=90.0", "us=20.0"))
    daemon.wait_until(lambda: "tuned again later" in daemon.run_ktuned("status").stderr, "the save to be put off")
    assert "was removed or replaced" in daemon.run_ktuned("status").stderr
    store.with_name("aside").rename(store)
    daemon.wait_until(
        lambda: (daemon.look_up().config or {}).get("tag") == "b",
        "the save to be tuned once it can be stored",
    )
    # The lookup may have had it tuned before the daemon tried again.
    daemon.wait_until(lambda: daemon.run_ktuned("status").stderr == "", "the notice to go")
