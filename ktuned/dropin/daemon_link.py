"""A process's link to the daemon: it asks what the daemon knows about a key, and reports winners found later.

Tunings are not requested here: a call that needs one is left in the spool, which works without a daemon. Only answers
need a daemon. While keys are followed, a thread asks for later answers, with one message for all keys.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any

from msgspec import structs

from ktuned.dropin.launch_counts import leave_launch_counts
from ktuned.dropin.launch_machine import Answer
from ktuned.model import CallKey, canonical
from ktuned_client import Client, DaemonError, DaemonUnavailable
from ktuned_client.answers import DaemonSilent

FIRST_LOOK_DEADLINE_S = 0.1
"""Deadline of the question in a key's first call. That call compiles a config anyway, so 0.1 s is not noticed."""

LOOK_DEADLINE_S = 10.0
"""Deadline of a question that no call waits for. It is long because a program's tight loop lets other threads rarely
run."""

POLL_S = 0.1
SLOW_POLL_S = 1.0
"""Intervals of the questions about followed keys: in the first minute, and later."""

SLOW_AFTER_S = 60.0

WAIT_POLL_S = 0.02
"""Interval of the questions while a call waits for its key's tuning; it is short, because the daemon answers from
memory."""

TAKEN_IN_S = 30.0
"""How long a waiting call gives the daemon to accept its record. The daemon may have to find out first which devices
the call's interpreter can use."""

MAX_FOLLOWED = 1000
"""Most keys that a process follows; all others keep the config of their first call."""

_log = logging.getLogger("ktuned.dropin")


OnAnswer = Callable[[Answer], bool]
"""Receives a later answer; returns whether it wants further ones."""


class DaemonLink:
    """A process's link to the daemon."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._followed: dict[str, tuple[CallKey, OnAnswer]] = {}
        self._thread: threading.Thread | None = None

    def restart_after_fork(self) -> None:
        """Follow the parent's keys in a forked child, too. The parent's threads, one of which may hold the lock, do not
        exist in the child, so lock and thread are made anew.
        """
        self._lock = threading.Lock()
        self._thread = None
        if self._followed:
            self._start_thread()

    def ask_about(self, key: CallKey, deadline_s: float = FIRST_LOOK_DEADLINE_S) -> Answer | None:
        """Return what the daemon knows about a key; ``None`` if none runs.

        A daemon that does not answer in time counts as running, because it may be accepting hundreds of keys at once:
        the answer is then empty, the key is recorded, and a later answer follows.
        """
        try:
            (answer,) = self._request_answers([key], deadline_s)
        except DaemonSilent:
            return Answer()
        except (DaemonUnavailable, DaemonError):
            return None
        return answer

    def may_have_gpu(self, deadline_s: float = FIRST_LOOK_DEADLINE_S) -> bool:
        """Return whether a daemon runs that has found a GPU, or that does not say in time."""
        try:
            found = self._client.call("backends", deadline_s=deadline_s)
        except DaemonSilent:
            return True
        except (DaemonUnavailable, DaemonError):
            return False
        backends = (backend for environment in found["environments"] for backend in environment["backends"].values())
        return any("cuda" in device["name"] for backend in backends for device in backend.get("devices", ()))

    def await_tuning(self, key: CallKey) -> Answer | None:
        """Wait for the end of a key's tuning, and return what the daemon knows then; ``None`` if it is gone.

        The key's call must be in the spool. The wait has no deadline, because each phase of a tuning has one.
        """
        until = monotonic() + TAKEN_IN_S
        pause = threading.Event()
        while True:
            answers = self._ask_daemon([key], LOOK_DEADLINE_S, waits=True)
            if answers is None:
                return None
            (answer,) = answers
            if not answer.is_open and (answer.is_final or answer.message or monotonic() > until):
                return answer
            pause.wait(WAIT_POLL_S)

    def follow_key(self, key: CallKey, on_answer: OnAnswer) -> None:
        """Call ``on_answer`` with each later answer to a key, from another thread, until it returns ``False``."""
        with self._lock:
            if len(self._followed) >= MAX_FOLLOWED:
                return
            self._followed[key.text] = key, on_answer
            if self._thread is None or not self._thread.is_alive():
                self._start_thread()

    def prepare_workers(
        self, tool: str, variables: Mapping[str, str], library: Mapping[str, Any] | None = None
    ) -> None:
        """Tell the daemon which framework or library is imported here, so that workers import it at the same time."""
        try:
            self._client.call(
                "prepare_workers",
                deadline_s=FIRST_LOOK_DEADLINE_S,
                tool=tool,
                python=sys.executable,
                library=None if library is None else dict(library),
                variables=dict(variables),
            )
        except (DaemonUnavailable, DaemonError):
            return

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._report_answers, name="ktuned-dropin", daemon=True)
        self._thread.start()

    def _ask_daemon(self, keys: Iterable[CallKey], deadline_s: float, *, waits: bool = False) -> list[Answer] | None:
        try:
            return self._request_answers(keys, deadline_s, waits=waits)
        except (DaemonUnavailable, DaemonError):
            return None

    def _request_answers(self, keys: Iterable[CallKey], deadline_s: float, *, waits: bool = False) -> list[Answer]:
        found = self._client.call(
            "calls",
            deadline_s=deadline_s,
            keys=[structs.asdict(key) for key in keys],
            waits=waits,
            beside=os.getpid(),
        )
        return [_read_answer(entry) for entry in found["answers"]]

    def _report_answers(self) -> None:
        began, pause = monotonic(), threading.Event()
        while True:
            pause.wait(POLL_S if monotonic() - began < SLOW_AFTER_S else SLOW_POLL_S)
            leave_launch_counts(at_most_every_s=10.0)
            with self._lock:
                followed = dict(self._followed)
                if not followed:
                    self._thread = None
                    return
            answers = self._ask_daemon([key for key, _ in followed.values()], LOOK_DEADLINE_S)
            for (text, (key, on_answer)), answer in zip(followed.items(), answers or (), strict=False):
                if answer.is_open or not self._hand_over_answer(key, on_answer, answer):
                    continue
                with self._lock:
                    self._followed.pop(text, None)

    def _hand_over_answer(self, key: CallKey, on_answer: OnAnswer, answer: Answer) -> bool:
        """Hand an answer over; return whether following the key ends with it."""
        if not answer.is_final and not answer.message:
            # The daemon has not accepted the record yet.
            return False
        try:
            return not on_answer(answer)
        except Exception as error:
            _log.warning("the winner of %s cannot be loaded: %s", key.identity, error)
            return True


def _read_answer(entry: Mapping[str, Any]) -> Answer:
    config = entry["config"]
    return Answer(
        None if config is None else canonical(config),
        entry["status"] == "fresh",
        entry["is_open"],
        entry.get("artifact"),
        entry.get("latency_us"),
        entry.get("message", ""),
        entry.get("given_up", 0),
        entry.get("default_us"),
    )


_link: DaemonLink | None = None


def _restart_link_after_fork() -> None:
    if _link is not None:
        _link.restart_after_fork()


os.register_at_fork(after_in_child=_restart_link_after_fork)


def daemon_link() -> DaemonLink:
    """Return this process's link to the daemon."""
    global _link
    if _link is None:
        _link = DaemonLink(Client())
    return _link
