"""The next config is loaded while the GPU runs the current one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ktuned.backends import Kernel, Registry
from ktuned.checking.problem_inputs import TensorRoles
from ktuned.checking.verdict import Verdict
from ktuned.ipc import Places, replies, requests
from ktuned.measuring.costs import Costs
from ktuned.measuring.cuda_timer import CudaTimer
from ktuned.measuring.launch_observer import LaunchObserver
from ktuned.measuring.race import Ending, Race, RaceRules
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import LATENCY
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Phase, Target
from ktuned.model.plan import PRESETS
from ktuned.model.values import Outcome
from ktuned.worker.bench import Bench
from ktuned.worker.open_problem import LoadedConfig, OpenProblem
from ktuned.worker.process_state import ProcessState
from ktuned.worker.reply import Reply

GPU = Device(DeviceName("cuda:0"), DeviceModel("a GPU"), Target("sm_90"))


@pytest.fixture(autouse=True)
def free_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is there to look at."""
    monkeypatch.setattr("ktuned.worker.bench.is_device_free", lambda device: True)


class FakeTimer(CudaTimer):
    """A timer without a GPU, whose batch is enqueued at once."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def synchronize(self) -> None:
        """Do nothing."""

    def time_launches(self, launches: TimedLaunches, rules: RaceRules) -> Race:
        """Report that the batch is enqueued, and end the race."""
        self._log.append("samples enqueued")
        if launches.meanwhile is not None:
            launches.meanwhile()
        race = Race(rules)
        race.samples.add_sample(5.0)
        race.ending = Ending.BEATEN
        return race


class FakeProblemData:
    """A problem's data that every config computes correctly."""

    tensors: dict[str, Any] = {}
    roles = TensorRoles((), (), (), ())
    library = quick_look = None
    was_surely_right = False
    restores = False
    is_judged = True

    def replace_changed_tensors(self) -> bool:
        """Return that no tensor was replaced."""
        return False

    def reset_tensors(self) -> None:
        """Do nothing."""

    prepare_checked_launch = reset_tensors

    def take_damage(self, *, whole: bool = True) -> None:
        """Do nothing."""

    def look_at_outputs(self, *, is_last: bool) -> bool:
        """Return that only the full check can tell."""
        return False

    def count_affordable_copies(self, limit_bytes: int) -> int:
        """Return that there is room for one copy."""
        return 1

    def check_outputs(self) -> Verdict:
        """Return that all outputs are right."""
        return Verdict(ok=True)

    def find_overwritten_inputs(self) -> tuple[str, ...]:
        return ()


class FakeProblem(OpenProblem):
    """Logs what is loaded; the unit ``heavy`` cannot be loaded beside another one."""

    log: list[str] = []

    def _load_and_bind(self, unit: requests.UnitRef) -> LoadedConfig:
        self.log.append(f"load {unit.key}")
        if unit.key == "heavy" and self.log[-2] == "load_next":
            raise RuntimeError("out of memory")
        return LoadedConfig(unit.key, lambda: self.log.append(f"launch {unit.key}"), cast("Kernel", None))


class LoggingReply(Reply):
    """Logs the loading phases instead of sending answers."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def begin_phase(self, phase: Phase) -> None:
        if phase is Phase.LOAD_NEXT:
            self._log.append("load_next")

    def send_item(self, value: replies.Measurement, *, hold_s: float = 0.0) -> None:
        """Do nothing."""


def measure_batch(*keys: str) -> tuple[replies.Measurement, list[str]]:
    """Measure units as one batch; return the last measurement and the log."""
    log: list[str] = []
    units = tuple(requests.UnitRef(key, {}) for key in keys)
    bench = Bench(Registry([]), Places({}, "/no/artifacts", "/no/references"))
    unused = cast("Any", None)
    data, costs = cast("Any", FakeProblemData()), Costs(LATENCY, lambda us: {})
    bench._open = FakeProblem(
        GPU, data, FakeTimer(log), costs, LaunchObserver(), unused, unused, ProcessState(), log=log
    )
    last = bench.run_trial(requests.Trial(units, PRESETS["fast"], False), LoggingReply(log))
    return last, log


def test_the_next_config_is_loaded_while_the_samples_run() -> None:
    """It is loaded once and launched at once when its turn comes; the last config has no next."""
    last, log = measure_batch("a", "b")
    assert last.result.outcome is Outcome.MEASURED
    expected = ["load a", "launch a", "samples enqueued", "load_next", "load b"]
    assert log[:5] == expected
    assert log[5:] == ["launch a", "launch b", "samples enqueued", "launch b"]


def test_a_config_that_cannot_be_loaded_ahead_is_loaded_in_its_turn() -> None:
    """It may have lacked only the memory that the config before it used."""
    last, log = measure_batch("a", "heavy")
    assert last.result.outcome is Outcome.MEASURED
    assert log.count("load heavy") == 2
