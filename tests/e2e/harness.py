"""A real daemon of its own for a test: started as a user would, asked by a real client, killed at will."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self

from ktuned_client import Client, DaemonUnavailable, Event, Job
from tests.assembled import FAKE_BACKEND, PATIENCE_S
from tests.fake_tensors import with_inputs
from tests.forked_processes.forker import ForkedDaemon
from tests.forked_processes.starting import start_daemon

SHARED_HEADERS = "TEST_PRECOMPILED_HEADERS"
"""The variable that names the directory of all tests' precompiled headers of C++."""

UNHURRIED = "dict(compile=60.0, first_launch=60.0, floor=60.0)"
"""Deadlines that nothing runs into, however busy the machine is, and however long a config stands at a gate."""


class Daemon:
    """A ``ktuned start --foreground`` process with a home, a socket and an environment of its own.

    A worker's import of torch would be the largest cost of most tests: the fake backend's tensors are NumPy's, unless
    ``tensors`` says torch. Most lose no worker, either: ``spares`` says which keep one. It and its workers are
    ``forked`` from processes that have their imports, unless a test is about their starts or their parents.
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
        self.compiles = directory / "compiles.log"
        self.gates.mkdir(exist_ok=True)
        self.home.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text(f"contention = false\nspares = {str(spares).lower()}\n{config}")
        self.env = {
            **os.environ,
            "KTUNED_HOME": str(self.home),
            "KTUNED_SOCKET": str(self.socket),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(FAKE_BACKEND), os.environ.get("PYTHONPATH")])),
            "FAKE_GATE": str(self.gates),
            "FAKE_LOG": str(self.compiles),
            "FAKE_TENSORS": tensors,
            **(env or {}),
        }
        self.process: subprocess.Popen[bytes] | ForkedDaemon | None = None
        self.client = Client(str(self.socket), deadline_s=PATIENCE_S)

    def start(self, *flags: str) -> None:
        """Start the daemon and wait until it answers; ``flags`` are the interpreter's."""
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
        self.until(self._answers, "the daemon to answer")

    def _answers(self) -> bool:
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

    def ktuned(self, *words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run the command line against this daemon."""
        return subprocess.run(
            [sys.executable, "-m", "ktuned", *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def kernel_file(self, text: str, name: str = "tune_it.py") -> Path:
        """Write a kernel file into the project directory and return its path."""
        path = self.directory / "project" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(textwrap.dedent(text))
        return path

    def tune(self, **request: Any) -> tuple[list[Event], list[Job]]:
        """Tune to the end; return the events and the jobs as they ended."""
        with self.client.tune(**request) as tuning:
            events = list(tuning)
        jobs = [event["job_state"] for event in events if event["type"] == "job_done"]
        return events, jobs

    def trials(self, kernel: str = "it") -> dict[str, dict[str, Any]]:
        """Return a kernel's trials by their ``tag`` knob."""
        found = self.client.call("results", kernel=kernel, limit=2000)["trials"]
        return {trial["config"]["tag"]: trial for trial in found}

    def trial(self, number: int) -> dict[str, Any]:
        """Return one trial with its detail."""
        found: dict[str, Any] = self.client.call("results", trial=number)["trials"][0]
        return found

    def gate(self, name: str) -> Gate:
        """Return a gate that a fake config waits at."""
        return Gate(self, name)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that another process does, with a deadline."""
        deadline = monotonic() + PATIENCE_S
        while not condition():
            if monotonic() > deadline:
                raise AssertionError(f"waited {PATIENCE_S} s for {what}; the log:\n{self.log.read_text()[-3000:]}")
            select.select([], [], [], 0.01)

    def workers(self) -> list[int]:
        """Return the worker processes that the daemon says it has."""
        return [worker["pid"] for worker in self.client.call("status")["workers"]]


def _link_headers(source: Path, target: Path) -> None:
    """Link the precompiled headers of one cache into another: making one takes 3 s of CPU."""
    # The text comes before its precompiled form. Unfinished ones have other names.
    for header in sorted(source.glob("[0-9a-f]*/prelude.hpp*")):
        place = target / header.parent.name / header.name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError, FileNotFoundError):
            os.link(header, place)


class Gate:
    """A named point at which a config waits."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        self._daemon = daemon
        self._open = daemon.gates / name
        self._reached = daemon.gates / f"{name}.reached"

    def wait_reached(self) -> None:
        """Wait until a config stands at the gate."""
        self._daemon.until(self._reached.exists, f"a config at {self._reached.name}")

    def open(self) -> None:
        """Let everyone through."""
        self._open.touch()

    def close(self) -> None:
        """Let no one through from now on."""
        self._open.unlink()
        self._reached.unlink(missing_ok=True)


@contextmanager
def running(directory: Path, **options: Any) -> Iterator[Daemon]:
    """Run a daemon for the length of a block."""
    daemon = Daemon(directory, **options)
    with daemon:
        yield daemon


def kernel_text(configs: str, *, body: str = "Build(**c)", **options: str) -> str:
    """Return a kernel file over the fake backend; ``configs`` is the space's expression.

    It has tensors if a ``reference``, a ``check`` or ``inputs`` are among the options.
    """
    given = {"problems": "[dict(n=64)]", "deadlines": UNHURRIED, "preset": "'fast'", **with_inputs(options)}
    arguments = "\n".join(f"    {name}={value}," for name, value in given.items())
    return f"""\
from ktuned import kernel, space, tensor
from ktuned_fake import Build

@kernel(
    backend="fake",
    space={configs},
{arguments}
)
def it(p, c):
    return {body}
"""
