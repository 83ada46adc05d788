"""Private daemon of a benchmark, with state, socket and settings in one temporary directory."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from ktuned_client import Client, DaemonUnavailable, Job

START_DEADLINE_S = 30.0
END_DEADLINE_S = 20.0
PATIENT_S = 5.0
"""Deadline that no lookup exceeds: slow ones count for the p99."""

_PROBE_INTERVAL_S = 0.002


@dataclass(frozen=True)
class PrivateDaemon:
    """A running daemon, and the seconds from its start to its first answer."""

    process: subprocess.Popen[bytes]
    socket: Path
    home: Path
    ready_s: float

    def client(self) -> Client:
        """Return a client of this daemon, which the caller closes."""
        return Client(self.socket, deadline_s=PATIENT_S)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which another process finds it."""
        return variables(self.home)

    def tuned(self, path: Path, **options: Any) -> tuple[Job, dict[str, Any]]:
        """Tune the only kernel below a path; return its job, and the config that won.

        Raises:
            RuntimeError: it is not tuned.
        """
        with self.client() as client:
            with client.tune(path=path, **options) as tuning:
                for _ in tuning:
                    pass
            if tuning.errors or not tuning.jobs or tuning.jobs[0]["state"] != "done":
                raise RuntimeError(f"{path.name} is not tuned: {tuning.errors or tuning.jobs}")
            (job,) = tuning.jobs
            return job, dict(client.lookup(job["kernel"], job["problem"]).config or {})


@contextmanager
def private_home() -> Iterator[Path]:
    """Make a directory for a daemon's state; short, because a socket's path must be."""
    with tempfile.TemporaryDirectory(prefix="ktuned-bench-") as name:
        yield Path(name)


def variables(home: Path) -> dict[str, str]:
    """Return the variables by which programs find the daemon of a home, or start one there; write its settings."""
    state = home / "state"
    state.mkdir(exist_ok=True)
    if not (state / "config.toml").exists():
        # A benchmark prefers a disturbed figure to none: its rows are compared with their peers.
        (state / "config.toml").write_text("contention = false\n")
    return {"KTUNED_HOME": str(state), "KTUNED_SOCKET": str(home / "run/ktuned.sock")}


@contextmanager
def serving(home: Path, command: Sequence[str] = ("ktuned", "start", "--foreground")) -> Iterator[PrivateDaemon]:
    """Run ``ktuned start --foreground``, or another module, on ``home`` until the end of the block.

    Raises:
        RuntimeError: it ends, or does not answer within :data:`START_DEADLINE_S`.
    """
    named = variables(home)
    socket = Path(named["KTUNED_SOCKET"])
    with (home / "serve.log").open("ab") as log:
        start = perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=installed_environment() | named,
        )
    try:
        ready_s = _wait_until_ready(process, socket, start)
        yield PrivateDaemon(process, socket, home, ready_s)
    except RuntimeError as error:
        error.add_note((home / "serve.log").read_text(errors="replace")[-2000:])
        raise
    finally:
        process.terminate()
        try:
            process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            # Its warden ends its workers.
            process.kill()
            process.wait()


def installed_environment() -> dict[str, str]:
    """Return our environment, with bytecode kept beside the sources as after an installer."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _wait_until_ready(process: subprocess.Popen[bytes], socket: Path, start: float) -> float:
    while perf_counter() - start < START_DEADLINE_S:
        # A new client each time: after a failure a client backs off, which would be measured as well.
        with Client(socket) as client:
            try:
                client.call("hello")
            except DaemonUnavailable:
                pass
            else:
                return perf_counter() - start
        try:
            process.wait(_PROBE_INTERVAL_S)
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError(f"the daemon ended with status {process.returncode}")
    raise RuntimeError(f"the daemon did not answer within {START_DEADLINE_S:g} s")


def forgetful(daemon: Path) -> Client:
    """Return a client whose every lookup asks the daemon, because no answer holds."""
    client = Client(daemon, deadline_s=PATIENT_S)
    client._memo.table.directory = None
    return client
