"""Runs a real daemon for a test, with a real client and a command line to ask it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self

from ktuned.model import Scalar
from ktuned.observer import build_library
from ktuned_client import Client, DaemonUnavailable, Event, Hit, Job
from tests import daemon_parts
from tests.daemon_parts import FAKE_BACKEND, PATIENCE_S
from tests.forked_processes.forker import ForkedDaemon
from tests.forked_processes.starting import start_daemon

SHARED_HEADERS = "TEST_PRECOMPILED_HEADERS"
"""The variable that names the directory of C++ precompiled headers that all tests share."""

UNHURRIED = "dict(compile=60.0, first_launch=60.0, floor=60.0)"
"""Deadlines that do not pass on a busy machine, nor while a config waits at a gate."""


class Daemon:
    """A ``ktuned start --foreground`` process with a home, a socket and an environment of its own.

    Args:
        directory: the directory of all its files.
        env: further environment variables.
        config: further lines of ``config.toml``.
        spares: whether spare workers replace killed ones; most tests kill none. With torch a job is
            slow without spares: each of its final rounds takes a new worker, which imports torch.
        tensors: the library of the fake backend's tensors; importing torch costs 2 s of CPU.
        forked: whether the daemon and its workers are forked from processes that have imported their modules.
    """

    def __init__(
        self,
        directory: Path,
        *,
        env: Mapping[str, str] | None = None,
        config: str = "",
        spares: bool = False,
        tensors: Literal["numpy", "torch"] = "numpy",
        forked: bool = True,
    ) -> None:
        self._is_forked = forked
        self.directory = directory
        self.home = directory / "home"
        self.socket = directory / "run" / "k.sock"
        self.log = directory / "serve.log"
        self.gates = directory / "gates"
        self.compile_log = directory / "compiles.log"
        self.gates.mkdir(exist_ok=True)
        self.home.mkdir(exist_ok=True)
        _link_observer(self.home / "cache")
        (self.home / "config.toml").write_text(f"contention = false\nspares = {str(spares).lower()}\n{config}")
        self.env = {
            **os.environ,
            "KTUNED_HOME": str(self.home),
            "KTUNED_SOCKET": str(self.socket),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(FAKE_BACKEND), os.environ.get("PYTHONPATH")])),
            "FAKE_GATE": str(self.gates),
            "FAKE_LOG": str(self.compile_log),
            "FAKE_TENSORS": tensors,
            **(env or {}),
        }
        self.process: subprocess.Popen[bytes] | ForkedDaemon | None = None
        self.client = Client(str(self.socket), deadline_s=PATIENCE_S)

    def start(self, *flags: str) -> None:
        """Start the daemon with these flags of the interpreter, and wait until it answers."""
        self.launch(*flags)
        self.wait_until(self._is_answering, "the daemon to answer")

    def launch(self, *flags: str) -> None:
        """Start the daemon with these flags of the interpreter; what it takes up may kill it before it answers."""
        if SHARED_HEADERS in os.environ:
            _link_headers(Path(os.environ[SHARED_HEADERS]), self.home / "cache" / "tvm_ffi")
        with self.log.open("ab") as log:
            if self._is_forked and not flags:
                self.process = start_daemon(self.env, log.fileno())
            else:
                self.process = subprocess.Popen(
                    [sys.executable, *flags, "-m", "ktuned", "start", "--foreground"],
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def _is_answering(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended: {self.log.read_text()}")
        try:
            self.client.call("hello", deadline_s=1.0)
        except DaemonUnavailable:
            return False
        return True

    def kill(self) -> None:
        """``kill -9`` the daemon, and nothing else."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Ask the daemon to stop with SIGTERM and return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
        self.client.close()
        if SHARED_HEADERS in os.environ:
            _link_headers(self.home / "cache" / "tvm_ffi", Path(os.environ[SHARED_HEADERS]))

    def run_ktuned(self, *words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run ``ktuned`` with these arguments against this daemon."""
        return subprocess.run(
            [sys.executable, "-m", "ktuned", *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def write_kernel(self, text: str, name: str = "tune_it.py") -> Path:
        """Write a kernel file into the project directory and return its path."""
        path = self.directory / "project" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(textwrap.dedent(text))
        return path

    def tune(self, **request: Any) -> tuple[list[Event], list[Job]]:
        """Tune until all jobs of the request have ended; return the events and the ended jobs."""
        with self.client.tune(**request) as tuning:
            events = list(tuning)
        jobs = [event["job_state"] for event in events if event["type"] == "job_done"]
        return events, jobs

    def tune_one(self, **request: Any) -> Job:
        """Tune until the only job of the request has ended, and return it."""
        _, (job,) = self.tune(**request)
        return job

    def look_up(self, kernel: str = "it", **problem: Scalar) -> Hit:
        """Look a kernel up as an application does, for ``n = 64`` by default."""
        return self.client.lookup(kernel, problem or {"n": 64})

    def fetch_trials(self, kernel: str = "it") -> dict[str, dict[str, Any]]:
        """Return a kernel's trials by their ``tag`` knob."""
        trials = self.client.call("results", kernel=kernel, limit=2000)["trials"]
        return {trial["config"]["tag"]: trial for trial in trials}

    def fetch_trial(self, number: int) -> dict[str, Any]:
        """Return one trial with its detail."""
        trial: dict[str, Any] = self.client.call("results", trial=number)["trials"][0]
        return trial

    def make_gate(self, name: str) -> Gate:
        """Return the gate of this name."""
        return Gate(self, name)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds that another process brings about; ``what`` names it in the error."""
        deadline = monotonic() + PATIENCE_S
        while not condition():
            if monotonic() > deadline:
                raise AssertionError(f"waited {PATIENCE_S} s for {what}; the log:\n{self.log.read_text()[-3000:]}")
            select.select([], [], [], 0.01)

    def list_worker_pids(self) -> list[int]:
        """Return the process ids of the workers that the daemon lists."""
        return [worker["pid"] for worker in self.client.call("status")["workers"]]


def _link_observer(cache: Path) -> None:
    """Link the observer's library, which this process has compiled, into a daemon's cache: a compile takes 0.7 s."""
    library = build_library()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (cache / library.name).symlink_to(library)


def _link_headers(source: Path, target: Path) -> None:
    """Link the precompiled headers of one cache into another, because precompiling one takes 3 s of CPU."""
    # The sorted order links a header's text before its precompiled form. Unfinished headers have other names.
    for header in sorted(source.glob("[0-9a-f]*/prelude.hpp*")):
        link = target / header.parent.name / header.name
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError, FileNotFoundError):
            os.link(header, link)


class Gate:
    """A named point at which configs of the fake backend wait until it is open."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        self._daemon = daemon
        self._open = daemon.gates / name
        self._reached = daemon.gates / f"{name}.reached"

    def wait_until_reached(self) -> None:
        """Wait until a config has reached the gate."""
        self._daemon.wait_until(self._reached.exists, f"a config at {self._reached.name}")

    def open(self) -> None:
        """Open the gate for all configs."""
        self._open.touch()

    def close(self) -> None:
        """Close the gate, so that the next config waits at it."""
        self._open.unlink()
        self._reached.unlink(missing_ok=True)


def make_kernel_text(space: str, **options: str) -> str:
    """Return the text of a kernel file for the fake backend, with unhurried deadlines by default."""
    return daemon_parts.make_kernel_text(space=space, **{"deadlines": UNHURRIED, **options})
