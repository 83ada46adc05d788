"""A process's connection to the daemon: what it knows of keys, and later answers, also in forked children."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ktuned.dropin import Answer, CallKey, DaemonLink, daemon_link
from ktuned_client import DaemonUnavailable
from ktuned_client.answers import DaemonSilent

KEY = CallKey("0123456789abcdef", {"size": 1}, "a GPU")

LINKS = sys.modules["ktuned.dropin.daemon_link"]

UNKNOWN = {"config": None, "status": "unknown", "is_open": False}
OPEN = {**UNKNOWN, "is_open": True}
FRESH = {"config": {"BLOCK": 64}, "status": "fresh", "is_open": False, "artifact": "/a", "latency_us": 2.0}
FAILED = {**UNKNOWN, "message": "all configs failed"}


class FakeClient:
    """A daemon that answers what a test says, the last again and again."""

    def __init__(self, *answers: dict[str, Any] | None) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    def call(self, method: str, deadline_s: float, **params: Any) -> dict[str, Any]:
        """Answer, or be none."""
        self.asked.append(params)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise DaemonUnavailable("none")
        return {"answers": [answer for _ in params["keys"]]}


@pytest.fixture(autouse=True)
def _soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask often, and leave nothing in a home."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    for name in ("POLL_S", "WAIT_POLL_S"):
        monkeypatch.setattr(LINKS, name, 0.005)


def link_to(*answers: dict[str, Any] | None) -> tuple[DaemonLink, FakeClient]:
    """Return a link, and its daemon."""
    client = FakeClient(*answers)
    return DaemonLink(client), client  # type: ignore[arg-type]


def test_a_question_has_the_key() -> None:
    """And the process that asks, which uses the device."""
    link, client = link_to(FRESH)
    assert link.ask_about(KEY) == Answer('{"BLOCK":64}', True, False, "/a", 2.0)
    (asked,) = client.asked
    assert asked == {
        "keys": [{"identity": KEY.identity, "problem": {"size": 1}, "device": "a GPU", "objective": "latency"}],
        "waits": False,
        "beside": os.getpid(),
    }


@pytest.mark.parametrize(
    ("kinds", "expected"), [(["cpu"], False), (["cpu", "cuda"], True), (None, False), (DaemonSilent("late"), True)]
)
def test_daemon_may_have_a_gpu(kinds: Any, expected: bool) -> None:
    """A daemon that does not say in time may have one; without a daemon nothing is tuned."""
    link, client = link_to(None)

    def answer(method: str, deadline_s: float, **params: Any) -> dict[str, Any]:
        assert method == "backends"
        if not isinstance(kinds, list):
            raise kinds or DaemonUnavailable("none")
        return {"environments": [{"backends": {"triton": {"devices": [{"name": f"{kind}:0"} for kind in kinds]}}}]}

    client.call = answer  # type: ignore[method-assign]
    assert link.may_have_gpu() is expected


def test_a_daemon_that_is_late_is_there_and_knows_nothing_yet() -> None:
    """A first call that gave it up would be left to the framework's own tuner, beside the daemon's."""
    link, client = link_to(FRESH)

    def be_late(method: str, deadline_s: float, **params: Any) -> dict[str, Any]:
        raise DaemonSilent(f"no answer within {deadline_s} s")

    client.call = be_late  # type: ignore[method-assign]
    assert link.ask_about(KEY) == Answer()


def test_without_a_daemon_there_is_no_answer() -> None:
    """Neither to a question nor to a wait."""
    link, _ = link_to(None)
    assert (link.ask_about(KEY), link.await_tuning(KEY)) == (None, None)


@pytest.mark.parametrize(("last", "config"), [(FRESH, '{"BLOCK":64}'), (FAILED, None)], ids=["winner", "failure"])
def test_a_wait_ends_with_the_tuning(last: dict[str, Any], config: str | None) -> None:
    """Not before the record is taken in."""
    link, client = link_to(UNKNOWN, UNKNOWN, OPEN, OPEN, last)
    answer = link.await_tuning(KEY)
    assert answer is not None
    assert (answer.config, len(client.asked)) == (config, 5)
    assert all(asked["waits"] for asked in client.asked)


def test_a_record_that_is_never_taken_in_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been refused."""
    monkeypatch.setattr(LINKS, "TAKEN_IN_S", 0.05)
    link, _ = link_to(UNKNOWN)
    assert link.await_tuning(KEY) == Answer()


def test_later_answers_come_in_a_thread_that_ends() -> None:
    """One for all keys, which lives as long as one is followed."""
    link, _ = link_to(UNKNOWN, None, OPEN, FRESH)
    heard: list[Answer] = []
    over = threading.Event()

    def hear(answer: Answer) -> bool:
        heard.append(answer)
        if len(heard) == 2:
            over.set()
        return len(heard) < 2

    link.follow_key(KEY, hear)
    assert over.wait(10)
    assert [answer.is_final for answer in heard] == [True, True]
    _end(link)


def test_a_key_whose_winner_cannot_be_loaded_does_not_disturb_others() -> None:
    """It is not followed any more."""
    link, _ = link_to(FRESH)
    over = threading.Event()

    def fail(answer: Answer) -> bool:
        raise RuntimeError("it cannot be loaded")

    def hear(answer: Answer) -> bool:
        over.set()
        return False

    link.follow_key(KEY, fail)
    link.follow_key(CallKey(KEY.identity, {"size": 2}), hear)
    assert over.wait(10)
    _end(link)


def test_a_forked_child_follows_its_parents_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread of its own, though its parent's thread held the lock when it was forked."""
    link, client = link_to(OPEN)
    monkeypatch.setattr(LINKS, "_link", link)
    assert daemon_link() is link
    over = threading.Event()

    def hear(answer: Answer) -> bool:
        over.set()
        return False

    link.follow_key(KEY, hear)
    with link._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            client.answers[:] = [FRESH]
            os._exit(0 if over.wait(10) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.answers[:] = [FRESH]
    assert over.wait(10)
    _end(link)


def _end(link: DaemonLink) -> None:
    thread = link._thread
    if thread is not None:
        thread.join(10)
    assert link._thread is None
