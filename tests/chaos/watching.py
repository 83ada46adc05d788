"""A daemon under chaos, seen from outside: its processes, descriptors and files."""

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
from ktuned.observer import WORKER_MARK
from ktuned_client import DaemonError, DaemonUnavailable
from tests.e2e.harness import Daemon, make_kernel_text

_MARK = "CHAOS_RUN"
_KEPT_SCRATCH = {"expected"}
"""What a daemon keeps in its scratch directory on purpose, until it ends."""


class ChaosDaemon(Daemon):
    """A daemon whose processes have a mark, and whose temporary files are in one directory."""

    def __init__(self, directory: Path, *, config: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        own = {_MARK: self._mark.partition("=")[2], "TMPDIR": str(self.temporary)}
        super().__init__(directory, env=own, config=config, spares=True)

    @property
    def pid(self) -> int:
        """Return the daemon's own process."""
        assert self.process is not None
        return self.process.pid

    def list_processes(self) -> set[int]:
        """Return all living processes of this daemon and of earlier ones here, itself included."""
        return set(warden.list_marked_pids(self._mark))

    def count_descriptors(self) -> Counter[str]:
        """Return the number of the daemon's descriptors of each kind: a file's name, ``socket``, or ``pipe``."""
        counts: Counter[str] = Counter()
        for path in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                counts[path.readlink().name.partition(":[")[0]] += 1
        return counts

    def list_stray_files(self) -> list[str]:
        """Return the temporary files that belong to no living worker."""
        cache = self.home / "cache"
        scratch = [path for path in cache.glob("tmp/*/*") if path.name not in _KEPT_SCRATCH]
        staging = (cache / "artifacts" / ".staging").glob("*")
        return sorted(str(path) for path in (*scratch, *staging, *self.temporary.iterdir()))

    def measure_rss_mib(self) -> float:
        """Return the resident memory of the daemon's own process."""
        return float(self.client.call("status")["rss_bytes"]) / 2**20

    def kill_idle_workers(self) -> None:
        """Kill all workers and wait until the daemon has none."""

        def is_alone() -> bool:
            for pid in self.list_worker_pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.list_worker_pids()

        self.wait_until(is_alone, "the workers to be gone")

    def tune_once(self) -> float:
        """Tune a small kernel, which opens what stays open; return the time in s that its lane took to open."""
        path = self.write_kernel(make_kernel_text("space([dict(us=50.0, tag='warm')])", name="warm"), "tune_warm.py")
        job = self.tune_one(path=path)
        assert job["state"] == "done", job
        return float(job["cost"]["open_s"])

    def is_working(self) -> bool:
        """Return whether a job is queued or running."""
        return any(job["state"] in ("queued", "running") for job in self.client.call("jobs")["jobs"])


class Baseline:
    """The resources of a daemon at rest."""

    def __init__(self, daemon: ChaosDaemon) -> None:
        daemon.kill_idle_workers()
        self._descriptors = daemon.count_descriptors()
        self._processes = len(daemon.list_processes())
        self._rss_mib = daemon.measure_rss_mib()

    def measure_growth_mib(self, daemon: ChaosDaemon) -> float:
        """Return the growth of resident memory; a daemon that was killed since is another process."""
        return round(daemon.measure_rss_mib() - self._rss_mib, 1)

    def find_leaks(self, daemon: ChaosDaemon) -> dict[str, Any]:
        """Return the processes, files and descriptors that are new since the baseline; falsy if there are none.

        The caller must have no more connections than then, because each is a descriptor.
        """
        daemon.kill_idle_workers()

        def found() -> dict[str, Any]:
            return {
                "leaked processes": max(0, len(daemon.list_processes()) - self._processes),
                "leaked files": len(daemon.list_stray_files()),
                "leaked descriptors": dict(daemon.count_descriptors() - self._descriptors),
            }

        # What is reported as gone is swept up a moment later.
        with suppress(AssertionError):
            daemon.wait_until(lambda: not any(found().values()), "everything to be swept up")
        return found()


class Victim:
    """A worker to kill, and the processes and files that must end with it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        environment = dict(entry.decode().partition("=")[::2] for entry in entries if entry)
        self._mark = f"{WORKER_MARK}={environment[WORKER_MARK]}"
        self._scratch = Path(environment["TMPDIR"])

    @classmethod
    def list_workers(cls, daemon: ChaosDaemon) -> list[Victim]:
        """Return all living workers."""
        victims = []
        for pid in daemon.list_worker_pids():
            # One that is ending has no environment any more; one that just began has its parent's.
            with suppress(OSError, KeyError):
                victims.append(cls(pid))
        return victims

    def kill_process(self) -> None:
        """Kill the worker's process alone; ktuned must end its children."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Return whether the worker, its children and its files are gone."""
        return not warden.list_marked_pids(self._mark) and not self._scratch.exists()


class TrialListener(threading.Thread):
    """Records every trial that the daemon reports in ``reported``, until the daemon dies.

    ``measured`` is released for each new trial that was on a lane.
    """

    def __init__(self, daemon: Daemon, reported: dict[int, Mapping[str, Any]]) -> None:
        super().__init__(daemon=True)
        self.reported = reported
        self.measured = threading.Semaphore(0)
        self._events = daemon.client.events(types=["trial_done"])

    def run(self) -> None:
        """Read events until the connection breaks."""
        try:
            for event in self._events:
                trial = event["trial"] if event["type"] == "trial_done" else None
                if trial is not None:
                    is_news = trial["id"] not in self.reported
                    self.reported[trial["id"]] = trial
                    if is_news and trial["lane_s"]:
                        self.measured.release()
        except (DaemonUnavailable, DaemonError, OSError):
            return
        finally:
            self._events.close()
