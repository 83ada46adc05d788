"""The application's side of the daemon: the best config known, requests for tunings, and winners as they come."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from ktuned.dropin.account import QUEUED, TUNED, account
from ktuned.model import canonical
from ktuned_client import Client, DaemonError, DaemonUnavailable
from ktuned_client.answers import ENDED_STATES

POLL_S: Final = 0.1
"""Interval at which a winner is looked for while its tuning goes on; the daemon answers from memory."""

FIRST_LOOK_DEADLINE_S: Final = 0.1
"""Limit of the lookup in a key's first call, which compiles a config anyway."""

LOOK_DEADLINE_S: Final = 10.0
"""Limit of a lookup in the background: a program in a tight loop lets other threads run only now and then."""

HELLO_DEADLINE_S: Final = 1.0
"""A daemon that does not answer within this is none."""

MAX_OPEN: Final = 1000
"""Keys whose winners are waited for; those that come later keep the config that they have."""

_log = logging.getLogger("ktuned.dropin")

Upgrade = Callable[[str, str | None], bool]
"""Called with a fresh winner's config (canonical text) and artifact; returns whether that was the last upgrade."""


class Best(NamedTuple):
    """A config that the daemon knows for a key."""

    text: str
    is_fresh: bool
    artifact: str | None
    latency_us: float | None = None


class Request(Protocol):
    """A tuning key of an application's function, with one call that has it."""

    @property
    def kernel(self) -> str:
        """The full name of the kernel that stands for the function."""

    @property
    def function(self) -> str:
        """The application's function that is to be tuned: its module, and its name there."""

    @property
    def problem(self) -> Mapping[str, Any]:
        """The tuning key, as a problem."""

    @property
    def device(self) -> str | None:
        """The model of the GPU that the call is for; ``None`` leaves it to the daemon."""

    def write(self) -> tuple[Path, Mapping[str, Any]]:
        """Write what the daemon reads; return the kernel file, and the problem that it is tuned for.

        Raises:
            OSError: the files cannot be written.
        """

    def without_content(self) -> Request:
        """Return this without what only :meth:`write` needs: a winner may be waited for long."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request whose winner is waited for, and its jobs."""

    request: Request
    upgrade: Upgrade
    jobs: tuple[int, ...]


class Tunings:
    """Asks for tunings in a thread of its own, and hands over winners as they become known.

    The thread starts with the first request, and ends when nothing is waited for.
    """

    def __init__(self, client: Client, pin: str | None = None) -> None:
        self._client = client
        self._pin = pin
        self._requests: queue.SimpleQueue[tuple[Request, Upgrade | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._has_daemon: bool | None = None

    def best(self, request: Request, deadline_s: float = FIRST_LOOK_DEADLINE_S) -> Best | None:
        """Return the best config that the daemon knows now; ``None`` if it knows none, or there is no daemon.

        It queues nothing: a lookup's own request would lack the call, without which the key cannot be tuned.
        """
        more = {name: value for name, value in (("pin", self._pin), ("device", request.device)) if value is not None}
        problem = dict(request.problem)
        try:
            answer = self._client.call(
                "lookup", deadline_s=deadline_s, kernel=request.kernel, problem=problem, tune=False, **more
            )
        except (DaemonUnavailable, DaemonError):
            return None
        if answer["status"] == "fresh":
            _note(request, TUNED)
        if answer["config"] is None or answer["status"] not in ("fresh", "stale", "near"):
            return None
        return Best(
            canonical(answer["config"]), answer["status"] == "fresh", answer.get("artifact"), answer.get("latency_us")
        )

    def is_open(self, request: Request) -> bool:
        """Return whether a job for a key goes on, whose best so far is no more than that."""
        try:
            jobs = self._client.call("jobs", deadline_s=FIRST_LOOK_DEADLINE_S, kernel=request.kernel)["jobs"]
        except (DaemonUnavailable, DaemonError):
            return False
        wanted = dict(request.problem)
        return any(
            job["state"] not in ENDED_STATES and {name: job["problem"].get(name) for name in wanted} == wanted
            for job in jobs
        )

    def has_daemon(self) -> bool:
        """Return whether a daemon runs; found out once."""
        if self._has_daemon is None:
            try:
                self._client.call("hello", deadline_s=HELLO_DEADLINE_S)
                self._has_daemon = True
            except (DaemonUnavailable, DaemonError):
                self._has_daemon = False
        return self._has_daemon

    def ask(self, request: Request, upgrade: Upgrade | None) -> None:
        """Have a key tuned, and ``upgrade`` called with its winner."""
        with self._lock:
            self._requests.put((request, upgrade))
            if self._thread is None or not self._thread.is_alive() or self._pid != os.getpid():
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._work, name="ktuned-dropin", daemon=True)
                self._thread.start()

    def wait(self, request: Request) -> Best | None:
        """Have a key tuned, and return its winner when its tuning has ended; ``None`` if there is none."""
        jobs: tuple[int, ...] = ()
        try:
            with self._tune(request) as tuning:
                jobs = tuple(job["id"] for job in tuning.jobs)
                for _ in tuning:
                    pass
        except (DaemonUnavailable, DaemonError, OSError) as error:
            _refused(request, error)
        best = self.best(request, LOOK_DEADLINE_S)
        if jobs and (best is None or not best.is_fresh):
            with contextlib.suppress(DaemonUnavailable, DaemonError):
                _refused(request, _messages(self._client.call("jobs", ids=list(jobs))["jobs"]))
        return best

    def _tune(self, request: Request) -> Any:
        """Write what the daemon needs, and ask for the tuning."""
        file, problem = request.write()
        tuning = self._client.tune(
            path=file, problem=dict(problem), device=request.device, python=sys.executable, beside=os.getpid()
        )
        for error in tuning.errors:
            _refused(request, error.get("message", ""))
        if tuning.jobs:
            _note(request, QUEUED)
        return tuning

    def _work(self) -> None:
        waiting: list[_Waiting] = []
        while True:
            with contextlib.suppress(queue.Empty):
                request, upgrade = self._requests.get(timeout=POLL_S)
                jobs = self._ask_quietly(request)
                if upgrade is not None and jobs and len(waiting) < MAX_OPEN:
                    waiting.append(_Waiting(request.without_content(), upgrade, jobs))
                continue
            waiting = [entry for entry in waiting if not self._upgraded(entry)]
            with self._lock:
                if not waiting and self._requests.empty():
                    self._thread = None
                    return

    def _ask_quietly(self, request: Request) -> tuple[int, ...]:
        """Ask for a tuning and return its jobs; the application goes on whatever becomes of it."""
        try:
            with self._tune(request) as tuning:
                return tuple(job["id"] for job in tuning.jobs)
        except Exception as error:
            _refused(request, error)
            return ()

    def _upgraded(self, waiting: _Waiting) -> bool:
        """Hand over the winner once its job has ended; return whether nothing more is to be waited for.

        While a job goes on, the best so far may be the first config that it measured.
        """
        request = waiting.request
        try:
            jobs = self._client.call("jobs", ids=list(waiting.jobs))["jobs"]
        except DaemonUnavailable:
            return False
        except DaemonError:
            jobs = []
        if any(job["state"] not in ENDED_STATES for job in jobs):
            return False
        best = self.best(request, LOOK_DEADLINE_S)
        if best is None or not best.is_fresh:
            _refused(request, _messages(jobs))
            return True
        try:
            return waiting.upgrade(best.text, best.artifact)
        except Exception as error:
            _log.warning("the winner of %s cannot be loaded: %s", request.kernel, error)
            return True


def _messages(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Return why jobs that have ended have no winner."""
    return "; ".join(filter(None, (job["message"] or job["state"] for job in jobs))) or "its job is gone"


def _refused(request: Request, reason: object) -> None:
    """Say once for a key why it is not tuned; the application goes on."""
    text = str(reason).partition("\n")[0]
    _log.warning("%s is not tuned: %s", request.function, text)
    _note(request, f"not tuned: {text}")


def _note(request: Request, state: str) -> None:
    account.note(f"{request.function} {canonical(dict(request.problem))}", state)


_shared: dict[str | None, Tunings] = {}
# A forked child has no thread that asks.
os.register_at_fork(after_in_child=_shared.clear)


def shared(pin: str | None) -> Tunings:
    """Return this process's connection to the daemon, one for each pin."""
    if pin not in _shared:
        _shared[pin] = Tunings(Client(), pin)
    return _shared[pin]


def device_model(index: int | None = None) -> str | None:
    """Return the model of a GPU of this process, by default torch's current one; ``None`` without one."""
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name(index)) if torch is not None and torch.cuda.is_available() else None
