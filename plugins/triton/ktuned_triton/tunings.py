"""The application's side of the daemon: the best config known, requests for tunings, and winners as they come."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ktuned.model import canonical
from ktuned_client import Client, DaemonError, DaemonUnavailable
from ktuned_triton.adoption import CALL_KEY, Adopted, home, write_record
from ktuned_triton.call import Call

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

_log = logging.getLogger("ktuned.triton")

Upgrade = Callable[[str, str | None], bool]
"""Called with a fresh winner's config (canonical text) and artifact; returns whether that was the last upgrade."""


class Best(NamedTuple):
    """A config that the daemon knows for a key."""

    text: str
    is_fresh: bool
    artifact: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """A tuning key of an adopted function, with one call that has it."""

    adopted: Adopted
    problem: Mapping[str, Any]
    call: Call


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
        self.asked: dict[str, str] = {}
        """The state of each key: ``queued`` or ``tuned``."""

    def best(self, request: Request, deadline_s: float = FIRST_LOOK_DEADLINE_S) -> Best | None:
        """Return the best config that the daemon knows now; ``None`` if it knows none, or there is no daemon.

        It queues nothing: a lookup's own request would lack the call, without which the key cannot be tuned.
        """
        pin = {} if self._pin is None else {"pin": self._pin}
        problem = dict(request.problem)
        try:
            answer = self._client.call(
                "lookup", deadline_s=deadline_s, kernel=request.adopted.kernel, problem=problem, tune=False, **pin
            )
        except (DaemonUnavailable, DaemonError):
            return None
        if answer["status"] == "fresh":
            self._note(request, "tuned")
        if answer["config"] is None or answer["status"] not in ("fresh", "stale", "near"):
            return None
        return Best(canonical(answer["config"]), answer["status"] == "fresh", answer.get("artifact"))

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
                self._thread = threading.Thread(target=self._work, name="ktuned-triton", daemon=True)
                self._thread.start()

    def wait(self, request: Request) -> Best | None:
        """Have a key tuned, and return its winner when its tuning has ended; ``None`` if there is none."""
        try:
            with self._tune(request) as tuning:
                for _ in tuning:
                    pass
        except (DaemonUnavailable, DaemonError, OSError) as error:
            _log.warning("%s is not tuned: %s", request.adopted.kernel, error)
        return self.best(request, LOOK_DEADLINE_S)

    def _tune(self, request: Request) -> Any:
        """Write what the daemon needs, and ask for the tuning."""
        file = request.adopted.write(home())
        problem = {**request.problem, CALL_KEY: write_record(file, request.call)}
        tuning = self._client.tune(path=file, problem=problem, python=sys.executable)
        for error in tuning.errors:
            _log.warning("%s is not tuned: %s", request.adopted.kernel, error.get("message", ""))
        self._note(request, "queued")
        return tuning

    def _work(self) -> None:
        waiting: list[tuple[Request, Upgrade]] = []
        while True:
            with contextlib.suppress(queue.Empty):
                request, upgrade = self._requests.get(timeout=POLL_S)
                self._ask_quietly(request)
                if upgrade is not None and len(waiting) < MAX_OPEN:
                    waiting.append((request, upgrade))
                continue
            waiting = [entry for entry in waiting if not self._upgraded(*entry)]
            with self._lock:
                if not waiting and self._requests.empty():
                    self._thread = None
                    return

    def _ask_quietly(self, request: Request) -> None:
        """Ask for a tuning; the application goes on whatever becomes of it."""
        try:
            self._tune(request).close()
        except Exception as error:
            _log.warning("%s is not tuned: %s", request.adopted.kernel, error)

    def _upgraded(self, request: Request, upgrade: Upgrade) -> bool:
        best = self.best(request, LOOK_DEADLINE_S)
        if best is None or not best.is_fresh:
            return False
        try:
            is_last = upgrade(best.text, best.artifact)
        except Exception as error:
            _log.warning("the winner of %s cannot be loaded: %s", request.adopted.kernel, error)
            return True
        return is_last

    def _note(self, request: Request, state: str) -> None:
        self.asked[f"{request.adopted.module}.{request.adopted.qualname} {canonical(dict(request.problem))}"] = state


_shared: dict[str | None, Tunings] = {}


def shared(pin: str | None) -> Tunings:
    """Return this process's connection to the daemon, one for each pin."""
    if pin not in _shared:
        _shared[pin] = Tunings(Client(), pin)
    return _shared[pin]


def all_asked() -> dict[str, str]:
    """Return the state of each key that this process has asked for: ``tuned`` or ``queued``."""
    return {key: state for tunings in list(_shared.values()) for key, state in tunings.asked.items()}
