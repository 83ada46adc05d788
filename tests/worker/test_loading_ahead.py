"""The config that follows is loaded while a GPU works on the one before."""

from __future__ import annotations

from typing import Any, cast

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


class PlayedTimer(CudaTimer):
    """A timer without a GPU: its batch is in the queue at once."""

    def __init__(self, diary: list[str]) -> None:
        self._diary = diary

    def synchronize(self) -> None:
        """Wait for nothing."""

    def time_launches(self, launches: TimedLaunches, rules: RaceRules) -> Race:
        """Call back at once: the batch counts as enqueued."""
        self._diary.append("samples enqueued")
        if launches.meanwhile is not None:
            launches.meanwhile()
        race = Race(rules)
        race.samples.add_sample(5.0)
        race.ending = Ending.BEATEN
        return race


class PlayedData:
    """Data that every config leaves right."""

    tensors: dict[str, Any] = {}
    roles = TensorRoles((), (), (), ())
    library = quick_look = None
    was_surely_right = False
    restores = False
    is_judged = True

    def replace_changed_tensors(self) -> bool:
        """Leave all as it is."""
        return False

    def reset_tensors(self) -> None:
        """Poison nothing."""

    prepare_checked_launch = reset_tensors

    def take_damage(self, *, whole: bool = True) -> None:
        """Find nothing."""

    def look_at_outputs(self, *, is_last: bool) -> bool:
        """Leave it to the check."""
        return False

    def count_affordable_copies(self, limit_bytes: int) -> int:
        """Have no copies."""
        return 1

    def check_outputs(self) -> Verdict:
        """Find all right."""
        return Verdict(ok=True)

    def find_overwritten_inputs(self) -> tuple[str, ...]:
        """Name no input."""
        return ()


class PlayedProblem(OpenProblem):
    """Writes down what is loaded; a unit called ``heavy`` cannot be loaded beside another one."""

    def __init__(self, diary: list[str]) -> None:
        nothing = cast("Any", None)
        data, costs = cast("Any", PlayedData()), Costs(LATENCY, lambda us: {})
        super().__init__(GPU, data, PlayedTimer(diary), costs, LaunchObserver(), nothing, nothing, ProcessState())
        self._diary = diary

    def _load_and_bind(self, unit: requests.UnitRef) -> LoadedConfig:
        self._diary.append(f"load {unit.key}")
        if unit.key == "heavy" and self._diary[-2] == "load_next":
            raise RuntimeError("out of memory")
        return LoadedConfig(unit.key, lambda: self._diary.append(f"launch {unit.key}"), cast("Kernel", None))


class Diary(Reply):
    """Takes answers instead of sending them."""

    def __init__(self, diary: list[str]) -> None:
        self._diary = diary

    def begin_phase(self, phase: Phase) -> None:
        """Write down the phases of loading."""
        if phase is Phase.LOAD_NEXT:
            self._diary.append("load_next")

    def send_item(self, value: replies.Measurement, *, hold_s: float = 0.0) -> None:
        """Leave it out."""


def measured(*keys: str) -> tuple[replies.Measurement, list[str]]:
    """Measure units as one batch; return the last measurement, and all that happened, launches of checks once."""
    diary: list[str] = []
    units = tuple(requests.UnitRef(key, {}) for key in keys)
    bench = Bench(Registry([]), cast("Places", None))
    bench._open = PlayedProblem(diary)
    last = bench.run_trial(requests.Trial(units, PRESETS["fast"], False), Diary(diary))
    return last, diary


def test_the_next_config_is_loaded_while_the_samples_run() -> None:
    """Once only: in its turn it is launched at once; the last one has no next."""
    last, diary = measured("a", "b")
    assert last.result.outcome is Outcome.MEASURED
    wanted = ["load a", "launch a", "samples enqueued", "load_next", "load b"]
    assert diary[:5] == wanted
    assert diary[5:] == ["launch a", "launch b", "samples enqueued", "launch b"]


def test_a_config_that_cannot_be_loaded_ahead_is_loaded_in_its_turn() -> None:
    """It may have lacked only the memory that the one before still had."""
    last, diary = measured("a", "heavy")
    assert last.result.outcome is Outcome.MEASURED
    assert diary.count("load heavy") == 2
