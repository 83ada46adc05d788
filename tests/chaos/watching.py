"""A daemon under chaos, and what can be seen of it from outside: its processes, descriptors and files."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ktuned.fleet import warden
from ktuned.fleet.process import WORKER_MARK
from ktuned_client import DaemonError, DaemonUnavailable
from tests.e2e.harness import Daemon, make_kernel_text

_MARK = "CHAOS_RUN"
_KEPT_SCRATCH = {"expected"}
"""What a daemon keeps in its scratch directory on purpose, until it ends."""


class ChaosDaemon(Daemon):
    """A daemon all of whose processes bear a mark, and whose temporary files have one place."""

    def __init__(self, directory: Path, *, config: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        own = {_MARK: self._mark.partition("=")[2], "TMPDIR": str(self.temporary)}
        super().__init__(directory, env=own, config=config, spares=True)

    @property
    def pid(self) -> int:
        """The daemon's own process."""
        assert self.process is not None
        return self.process.pid

    def processes(self) -> set[int]:
        """Return every living process that this daemon, or an earlier one here, has started, itself included."""
        return set(warden.list_marked_pids(self._mark))

    def descriptors(self) -> Counter[str]:
        """Return how many file descriptors the daemon has open of each kind: a file's name, or ``socket``, ``pipe``."""
        found: Counter[str] = Counter()
        for path in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found[path.readlink().name.partition(":[")[0]] += 1
        return found

    def stray_files(self) -> list[str]:
        """Return the temporary files that belong to no living worker."""
        cache = self.home / "cache"
        scratch = [path for path in cache.glob("tmp/*/*") if path.name not in _KEPT_SCRATCH]
        staging = (cache / "artifacts" / ".staging").glob("*")
        return sorted(str(path) for path in (*scratch, *staging, *self.temporary.iterdir()))

    def rss_mib(self) -> float:
        """Return what the daemon's own process has resident."""
        return float(self.client.call("status")["rss_bytes"]) / 2**20

    def settle(self) -> None:
        """Kill the workers that are left, which idle, until the daemon stands alone."""

        def is_alone() -> bool:
            for pid in self.list_worker_pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.list_worker_pids()

        self.wait_until(is_alone, "the workers to be gone")

    def tuned_once(self) -> float:
        """Tune something small, so that what a daemon opens once is open; return how long a cold lane took to open."""
        path = self.write_kernel(make_kernel_text("space([dict(us=50.0, tag='warm')])", name="'warm'"), "tune_warm.py")
        _, (job,) = self.tune(path=str(path))
        assert job["state"] == "done", job
        return float(job["cost"]["open_s"])

    def is_working(self) -> bool:
        """Return whether a job waits or runs."""
        return any(job["state"] in ("queued", "running") for job in self.client.call("jobs")["jobs"])


class Baseline:
    """What a daemon at rest holds; :meth:`leaks` is what it holds more later on."""

    def __init__(self, daemon: ChaosDaemon) -> None:
        daemon.settle()
        self._descriptors = daemon.descriptors()
        self._processes = len(daemon.processes())
        self._rss_mib = daemon.rss_mib()

    def growth_mib(self, daemon: ChaosDaemon) -> float:
        """Return how much more the daemon has resident now; one that was killed since is another one than then."""
        return round(daemon.rss_mib() - self._rss_mib, 1)

    def leaks(self, daemon: ChaosDaemon) -> dict[str, Any]:
        """Return how many processes and files, and which descriptors, are left of what happened since; falsy if none.

        Anyone who asks must have no more connections than at the time of the baseline: each is a descriptor.
        """
        daemon.settle()

        def found() -> dict[str, Any]:
            return {
                "leaked processes": max(0, len(daemon.processes()) - self._processes),
                "leaked files": len(daemon.stray_files()),
                "leaked descriptors": dict(daemon.descriptors() - self._descriptors),
            }

        # What is reported as gone is swept up a moment later.
        with suppress(AssertionError):
            daemon.wait_until(lambda: not any(found().values()), "everything to be swept up")
        return found()


class Victim:
    """A worker that will be killed from outside, and what must go with it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        environment = dict(entry.decode().partition("=")[::2] for entry in entries if entry)
        self._mark = f"{WORKER_MARK}={environment[WORKER_MARK]}"
        self._scratch = Path(environment["TMPDIR"])

    @classmethod
    def all_of(cls, daemon: ChaosDaemon) -> list[Victim]:
        """Return the workers that live now."""
        victims = []
        for pid in daemon.list_worker_pids():
            # One that is ending has no environment any more; one that just began has its parent's.
            with suppress(OSError, KeyError):
                victims.append(cls(pid))
        return victims

    def kill(self) -> None:
        """Kill the one process, and leave what it has started to ktuned."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Return whether neither it, nor what it started, nor its files are left."""
        return not warden.list_marked_pids(self._mark) and not self._scratch.exists()


class Listener(threading.Thread):
    """Writes down in ``reported`` every trial that the daemon reports, until the daemon dies.

    ``measured`` is released for each that was not reported before and was on a lane.
    """

    def __init__(self, daemon: Daemon, told: dict[int, Mapping[str, Any]]) -> None:
        super().__init__(daemon=True)
        self.told = told
        self.measured = threading.Semaphore(0)
        self._events = daemon.client.events(types=["trial_done"])

    def run(self) -> None:
        """Take events until the stream breaks."""
        try:
            for event in self._events:
                trial = event["trial"] if event["type"] == "trial_done" else None
                if trial is not None:
                    is_news = trial["id"] not in self.told
                    self.told[trial["id"]] = trial
                    if is_news and trial["lane_s"]:
                        self.measured.release()
        except (DaemonUnavailable, DaemonError, OSError):
            return
        finally:
            self._events.close()
