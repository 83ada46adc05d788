"""``kill -9`` of the daemon, of a worker, of all workers, at random moments: no report is lost, nothing is left."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.chaos.conftest import Row, Scale
from tests.chaos.watching import Baseline, ChaosDaemon, Listener, Victim
from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import make_kernel_text
from tests.fake_tensors import REFERENCE

KILLS = 100
KINDS = ["daemon"] * 3 + ["worker"] * 4 + ["all workers"] * 3
"""What is killed in ten strikes, in an order that the dice choose."""

CONFIGS, FEW_CONFIGS = 40, 16
SPECIAL = {3: "wrong", 6: "compile_error", 9: "raise", 12: "exit", 14: "unsupported"}
OUTCOMES = {
    "work": "measured",
    "wrong": "mismatch",
    "compile_error": "compile_error",
    "raise": "launch_error",
    "exit": "crashed",
    "unsupported": "unsupported",
}


class Onslaught:
    """One daemon after another on one home, each killed or robbed of its workers, and all that they ever reported."""

    def __init__(self, daemon: ChaosDaemon, scale: Scale) -> None:
        self.daemon = daemon
        self._is_full = scale.is_full
        self.kernels: dict[str, dict[str, str]] = {}
        self.killed: Counter[str] = Counter()
        self.workers_killed = 0
        self._dice = random.Random(scale.seed)
        self._deck: list[str] = []
        self._told: dict[int, Mapping[str, Any]] = {}
        self._listener = self._listen()

    def _listen(self) -> Listener:
        listener = Listener(self.daemon, self._told)
        listener.start()
        return listener

    def keep_busy(self) -> None:
        """Have a job run: a new kernel's, when the last one is done."""
        if self.daemon.is_working():
            return
        name = f"k{len(self.kernels)}"
        does = {f"t{index}": SPECIAL.get(index, "work") for index in range(CONFIGS if self._is_full else FEW_CONFIGS)}
        configs = [{"us": 100.0 + 10 * index, "does": did, "tag": tag} for index, (tag, did) in enumerate(does.items())]
        text = make_kernel_text(f"space({configs})", name=f"'{name}'", early_stop="100.0", reference=REFERENCE)
        self.daemon.client.call(
            "tune", path=str(self.daemon.write_kernel(text, f"tune_{name}.py")), deadline_s=PATIENCE_S
        )
        self.kernels[name] = {tag: OUTCOMES[did] for tag, did in does.items()}

    def strike(self) -> None:
        """Wait for a random moment, kill something, and see that what hung on it goes too."""
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
            self.keep_busy()
            victims = Victim.all_of(self.daemon)
        if what == "worker":
            victims = self._dice.sample(victims, 1)
        for victim in victims:
            victim.kill()
        self.workers_killed += len(victims)
        self.daemon.wait_until(lambda: all(victim.is_gone() for victim in victims), "what the workers had to be gone")

    def _await_trials(self, count: int) -> None:
        while self._listener.measured.acquire(blocking=False):
            pass
        for _ in range(count):
            deadline = monotonic() + PATIENCE_S
            while not self._listener.measured.acquire(timeout=0.1):
                assert monotonic() < deadline, f"no trial for {PATIENCE_S} s: {self.daemon.log.read_text()[-3000:]}"
                self.keep_busy()

    def _kill_daemon(self) -> None:
        self.daemon.kill()
        self._listener.join(10)
        self.daemon.wait_until(lambda: not self.daemon.processes(), "everything to die with the daemon")
        self.daemon.wait_until(
            lambda: not list((self.daemon.home / "cache").glob("tmp/*")), "the scratch files to be gone"
        )
        self.daemon.start()
        self.check_told()
        self._listener = self._listen()

    def check_told(self) -> None:
        """Nothing that was reported is gone, and no figure is another one now, but that of a finalist."""
        known = {
            trial["id"]: trial
            for kernel in self.kernels
            for trial in self.daemon.client.call("results", kernel=kernel, limit=2000)["trials"]
        }
        for number, told in list(self._told.items()):
            now = known[number]
            assert (now["config"], now["outcome"]) == (told["config"], told["outcome"])
            if now["latency_us"] != told["latency_us"]:
                assert "rounds" in self.daemon.fetch_trial(number)["detail"]

    def finish(self) -> dict[str, int]:
        """Let the last job end; return how many configs there are and how many ended right."""
        self.daemon.wait_until(lambda: not self.daemon.is_working(), "the last job to end")
        self.check_told()
        right = [
            found.get(tag) == outcome
            for kernel, expected in self.kernels.items()
            for found in [{tag: trial["outcome"] for tag, trial in self.daemon.fetch_trials(kernel).items()}]
            for tag, outcome in expected.items()
        ]
        return {"configs": len(right), "right outcomes": sum(right), "told and kept": len(self._told)}


@pytest.mark.timeout(900)
def test_after_each_kill_everything_reported_is_there(tmp_path: Path, scale: Scale, row: Row) -> None:
    """After each kill all that was reported is there, nothing is left over; every job ends, every outcome is right."""
    kills = KILLS if scale.is_full else 5
    with ChaosDaemon(tmp_path) as daemon:
        daemon.tuned_once()
        # The listener has a connection, at the beginning as at the end.
        onslaught = Onslaught(daemon, scale)
        before = Baseline(daemon)
        for _ in range(kills):
            onslaught.keep_busy()
            onslaught.strike()
        row["kills"] = dict(onslaught.killed)
        row["workers killed"] = onslaught.workers_killed
        ended = onslaught.finish()
        jobs = Counter(job["state"] for job in daemon.client.call("jobs")["jobs"])
        leaks = before.leaks(daemon)
        row |= {"jobs": dict(jobs), **ended, **leaks, "daemon's RSS growth, MiB": before.growth_mib(daemon)}
        assert set(jobs) == {"done"}
        assert ended["right outcomes"] == ended["configs"]
        assert not any(leaks.values()), daemon.stray_files()
    assert not daemon.processes()
    assert not list((daemon.home / "cache").glob("tmp/*"))
