"""``kill -9`` of the daemon: the store opens, nothing told is gone, the work is finished, no process survives."""

from __future__ import annotations

import random
import sqlite3
import threading
from contextlib import closing
from functools import partial
from time import monotonic
from typing import Any

import psutil
import pytest

from ktuned_client import DaemonError, DaemonUnavailable
from tests.e2e.harness import Daemon, kernel_text

KILLS = 20
CONFIGS = 56
DRAIN_S = 10.0
"""How long a daemon that is told to stop may take for what is under way."""


def _space() -> str:
    """Configs, some of which fail each in their way; deterministic, whatever the order."""
    special = {7: "wrong", 19: "compile_error", 31: "raise", 43: "exit", 55: "unsupported"}
    entries = [
        f"dict(us={100.0 + 10 * index}, does={special.get(index, 'work')!r}, tag='t{index}')"
        for index in range(CONFIGS)
    ]
    return f"space([{', '.join(entries)}])"


def _alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE}


def _none_alive(pids: set[int]) -> bool:
    return not _alive(pids)


def _check_told(daemon: Daemon, told: dict[int, str], measured: dict[int, float]) -> None:
    """Nothing that was told is gone, and no figure is another one now."""
    for number, outcome in told.items():
        trial = daemon.trial(number)
        assert trial["outcome"] == outcome
        if outcome == "measured":
            # A finalist gets its second figure; the first is kept beside it.
            figure = trial["detail"].get("first_latency_us", trial["latency_us"])
            assert measured.setdefault(number, figure) == figure


class Listener(threading.Thread):
    """Writes down every trial that the daemon tells of, until the daemon dies."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self.told: dict[int, str] = {}
        self._events = daemon.client.events(types=["trial_done"])
        self.count = threading.Semaphore(0)

    def run(self) -> None:
        """Take events until the stream breaks."""
        try:
            for event in self._events:
                trial: dict[str, Any] | None = event.get("trial")
                if trial is not None:
                    self.told[trial["id"]] = trial["outcome"]
                    self.count.release()
        except (DaemonUnavailable, DaemonError, OSError):
            return
        finally:
            self._events.close()


@pytest.mark.timeout(300)
def test_killed_at_random_moments_loses_nothing_and_ends_the_same(tmp_path: Any) -> None:
    """Twenty ``kill -9`` during one job: what was told is there each time, and the trials are those of a calm run."""
    dice = random.Random(2)
    kernel = kernel_text(_space(), default="dict(us=100.0, does='work', tag='t0')", early_stop="100.0")
    (tmp_path / "calm").mkdir()
    (tmp_path / "wild").mkdir()
    with Daemon(tmp_path / "calm") as calm:
        _, (job,) = calm.tune(path=str(calm.kernel_file(kernel)))
        assert job["state"] == "done"
        expected = {tag: trial["outcome"] for tag, trial in calm.trials().items()}

    told: dict[int, str] = {}
    measured: dict[int, float] = {}
    daemon = Daemon(tmp_path / "wild")
    path = daemon.kernel_file(kernel)
    try:
        for kill in range(KILLS):
            daemon.start()
            _check_told(daemon, told, measured)
            listener = Listener(daemon)
            listener.start()
            if kill == 0:
                daemon.client.call("tune", path=str(path))
            # Some kills right after the start, most after a few trials.
            for _ in range(dice.choice([0, 0, 1, 2, 4, 8])):
                listener.count.acquire(timeout=20)
            workers = set(daemon.workers())
            daemon.kill()
            listener.join(10)
            told |= listener.told
            daemon.until(partial(_none_alive, workers), "the workers to die with their daemon")
        daemon.start()
        _check_told(daemon, told, measured)
        daemon.until(
            lambda: all(job["state"] not in ("queued", "running") for job in daemon.client.call("jobs")["jobs"]),
            "the job to end",
        )
        (job,) = daemon.client.call("jobs")["jobs"]
        assert job["state"] == "done"
        assert {tag: trial["outcome"] for tag, trial in daemon.trials().items()} == expected
        assert daemon.client.lookup("it", dict(n=64)).status == "fresh"
    finally:
        daemon.stop()
        daemon.client.close()
    assert list((daemon.home / "cache" / "tmp").iterdir()) == []
    assert not any((daemon.home / "cache" / "artifacts" / ".staging").iterdir())


def test_sigterm_ends_cleanly_and_the_job_is_taken_up_again(daemon: Daemon) -> None:
    """SIGTERM in the middle of a job exits 0, leaves no worker, and the next daemon finishes the job."""
    space = "space([dict(us=50.0, does='work', tag='a', gate=''), dict(us=60.0, does='work', tag='b', gate='door')])"
    path = daemon.kernel_file(kernel_text(space, deadlines="dict(first_launch=60.0)"))
    daemon.client.call("tune", path=str(path))
    daemon.gate("door").wait_reached()
    workers = set(daemon.workers())
    assert workers
    began = monotonic()
    assert daemon.stop() == 0
    assert monotonic() - began < DRAIN_S
    assert not _alive(workers)
    with closing(sqlite3.connect(f"file:{daemon.home}/ktuned.sqlite?mode=ro", uri=True)) as store:
        # The job is neither done nor failed, and no trial is left as if it still ran.
        assert {state for (state,) in store.execute("SELECT state FROM jobs")} <= {"queued", "running"}
        outcomes = {outcome for (outcome,) in store.execute("SELECT outcome FROM trials")}
    assert outcomes <= {"measured", "cancelled", "interrupted"}

    daemon.gate("door").open()
    daemon.start()
    daemon.until(lambda: daemon.client.call("jobs")["jobs"][0]["state"] == "done", "the job to be finished")
    assert {trial["outcome"] for trial in daemon.trials().values()} == {"measured"}


def test_warden_kills_what_a_killed_daemon_leaves(daemon: Daemon) -> None:
    """A config that hangs at the moment of ``kill -9`` does not outlive the daemon, nor does its scratch directory."""
    space = "space([dict(us=50.0, does='hang', tag='a', gate='door')])"
    path = daemon.kernel_file(kernel_text(space, deadlines="dict(first_launch=60.0)"))
    daemon.client.call("tune", path=str(path))
    daemon.gate("door").wait_reached()
    daemon.gate("door").open()
    workers = set(daemon.workers())
    daemon.kill()
    daemon.until(lambda: not _alive(workers), "the workers to die")
    scratch = daemon.home / "cache" / "tmp"
    daemon.until(lambda: not list(scratch.iterdir()), "the scratch directory to be removed")
