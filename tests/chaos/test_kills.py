"""``kill -9`` of the daemon, of a worker, of all workers, at random moments: no report is lost, and nothing stays."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.chaos.conftest import TableRow
from tests.chaos.watching import Baseline, ChaosDaemon, TrialListener, Victim
from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import make_kernel_text
from tests.fake_tensors import REFERENCE

KILLS = 100
KINDS = ["daemon"] * 3 + ["worker"] * 4 + ["all workers"] * 3
"""What is killed in ten strikes, in an order that the dice choose."""

CONFIGS = 40
SPECIAL = {3: "wrong", 6: "compile_error", 9: "raise", 12: "exit", 14: "unsupported"}
OUTCOMES = {
    "work": "measured",
    "wrong": "mismatch",
    "compile_error": "compile_error",
    "raise": "launch_error",
    "exit": "crashed",
    "unsupported": "unsupported",
}


class KilledDaemons:
    """A sequence of daemons on one home, whose processes are killed, and every trial that they reported."""

    def __init__(self, daemon: ChaosDaemon, seed: int) -> None:
        self.daemon = daemon
        self.kernels: dict[str, dict[str, str]] = {}
        self.killed: Counter[str] = Counter()
        self.workers_killed = 0
        self.quarantined = 0
        self._dice = random.Random(seed)
        self._deck: list[str] = []
        self._reported: dict[int, Mapping[str, Any]] = {}
        self._listener = self._start_listener()

    def _start_listener(self) -> TrialListener:
        listener = TrialListener(self.daemon, self._reported)
        listener.start()
        return listener

    def keep_job_running(self) -> None:
        """Keep a job running: start one for a new kernel when the last has ended."""
        if self.daemon.is_working():
            return
        name = f"k{len(self.kernels)}"
        does = {f"t{index}": SPECIAL.get(index, "work") for index in range(CONFIGS)}
        configs = [{"us": 100.0 + 10 * index, "does": did, "tag": tag} for index, (tag, did) in enumerate(does.items())]
        text = make_kernel_text(f"space({configs})", name=name, early_stop="100.0", reference=REFERENCE)
        self.daemon.client.call(
            "tune", path=str(self.daemon.write_kernel(text, f"tune_{name}.py")), deadline_s=PATIENCE_S
        )
        self.kernels[name] = {tag: OUTCOMES[did] for tag, did in does.items()}

    def kill_something(self) -> None:
        """Wait for a random time, kill something, and check that its processes end."""
        if not self._deck:
            self._deck = self._dice.sample(KINDS, len(KINDS))
        what = self._deck.pop()
        # A daemon may be killed while it starts. Workers are killed after some progress: the config that is there
        # whenever one is killed would be taken for the cause, which is right.
        wait_for = self._dice.choice([0, 0, 1, 1, 2, 4] if what == "daemon" else [1, 1, 1, 2, 3, 5])
        self._await_trials(wait_for)
        self.killed[what] += 1
        if what == "daemon":
            self._kill_daemon()
            return
        victims: list[Victim] = []
        while not victims:
            self.keep_job_running()
            victims = Victim.list_workers(self.daemon)
        if what == "worker":
            victims = self._dice.sample(victims, 1)
        for victim in victims:
            victim.kill_process()
        self.workers_killed += len(victims)
        self.daemon.wait_until(lambda: all(victim.is_gone() for victim in victims), "what the workers had to be gone")

    def _await_trials(self, count: int) -> None:
        while self._listener.measured.acquire(blocking=False):
            pass
        for _ in range(count):
            deadline = monotonic() + PATIENCE_S
            while not self._listener.measured.acquire(timeout=0.1):
                assert monotonic() < deadline, f"no trial for {PATIENCE_S} s: {self.daemon.log.read_text()[-3000:]}"
                self.keep_job_running()

    def _kill_daemon(self) -> None:
        self.daemon.kill()
        self._listener.join(10)
        self.daemon.wait_until(lambda: not self.daemon.list_processes(), "everything to die with the daemon")
        self.daemon.wait_until(
            lambda: not list((self.daemon.home / "cache").glob("tmp/*")), "the scratch files to be gone"
        )
        self.daemon.start()
        self.check_reports()
        self._listener = self._start_listener()

    def check_reports(self) -> None:
        """Check that each reported trial is stored, and that no latency but a finalist's has changed."""
        stored = {
            trial["id"]: trial
            for kernel in self.kernels
            for trial in self.daemon.client.call("results", kernel=kernel, limit=2000)["trials"]
        }
        for number, report in list(self._reported.items()):
            now = stored[number]
            assert (now["config"], now["outcome"]) == (report["config"], report["outcome"])
            if now["latency_us"] != report["latency_us"]:
                assert "final" in self.daemon.fetch_trial(number)["detail"]

    def _lift_quarantines(self) -> None:
        """Tune again without the quarantine of configs that a worker had in hand when two daemons were killed."""
        for kernel in self.kernels:
            trials = self.daemon.client.call("results", kernel=kernel, outcome="crashed")["trials"]
            if any("the daemon died" in trial["message"] for trial in trials):
                self.quarantined += 1
                self.daemon.client.call("forget", kernel=kernel, outcome="crashed")
                self.daemon.tune(kernel=kernel)

    def finish_job(self) -> dict[str, int]:
        """Wait for the last job; return the number of configs, and of right outcomes."""
        self.daemon.wait_until(lambda: not self.daemon.is_working(), "the last job to end")
        self.check_reports()
        self._lift_quarantines()
        right = [
            outcomes.get(tag) == outcome
            for kernel, expected in self.kernels.items()
            for outcomes in [{tag: trial["outcome"] for tag, trial in self.daemon.fetch_trials(kernel).items()}]
            for tag, outcome in expected.items()
        ]
        return {
            "configs": len(right),
            "right outcomes": sum(right),
            "told and kept": len(self._reported),
            "kernels in quarantine": self.quarantined,
        }


@pytest.mark.timeout(900)
def test_after_each_kill_all_reports_are_stored(tmp_path: Path, seed: int, table_row: TableRow) -> None:
    """Every job ends, every outcome is right, and nothing stays."""
    with ChaosDaemon(tmp_path) as daemon:
        daemon.tune_once()
        # The listener has a connection, at the beginning as at the end.
        onslaught = KilledDaemons(daemon, seed)
        before = Baseline(daemon)
        for _ in range(KILLS):
            onslaught.keep_job_running()
            onslaught.kill_something()
        table_row["kills"] = dict(onslaught.killed)
        table_row["workers killed"] = onslaught.workers_killed
        ended = onslaught.finish_job()
        jobs = Counter(job["state"] for job in daemon.client.call("jobs")["jobs"])
        leaks = before.find_leaks(daemon)
        table_row |= {
            "jobs": dict(jobs),
            **ended,
            **leaks,
            "daemon's RSS growth, MiB": before.measure_growth_mib(daemon),
        }
        assert set(jobs) == {"done"}
        assert ended["right outcomes"] == ended["configs"]
        assert not any(leaks.values()), daemon.list_stray_files()
    assert not daemon.list_processes()
    assert not list((daemon.home / "cache").glob("tmp/*"))
