"""The open problem of a bench: its data, the configs that are loaded for it, and the timer and observers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ktuned.backends import Backend, Kernel, Launch, energy_counter
from ktuned.checking import ProblemData
from ktuned.dependencies import ACCESSES
from ktuned.ipc import requests
from ktuned.measuring import (
    ContentionWatch,
    CoreCounter,
    Costs,
    EnergyMeter,
    FileMetrics,
    LaunchObserver,
    Noise,
    ObserverGroup,
    RaceRules,
    Timer,
)
from ktuned.model import Device, Objective, Phase, Unsupported, needs_own_launches
from ktuned.worker.fault_reporter import FaultReporter
from ktuned.worker.process_state import ProcessState
from ktuned.worker.reply import Phases


def make_observers(device: Device, backend: Backend, timer: Timer, costs: Costs, objective: Objective) -> ObserverGroup:
    """Return the observers of a problem's configs, in the order in which they act.

    Raises:
        Unsupported: the energy is needed, but cannot be measured on this device.
    """
    observers: list[LaunchObserver] = [CoreCounter()]
    if needs_own_launches(objective):
        try:
            counter = energy_counter(backend, device)
        except Unsupported as error:
            raise Unsupported(f"the energy of {device.name} ({device.model}): {error.message}") from error
        observers.append(EnergyMeter(counter, device.name, returns_early=timer.returns_early))
    # Contention comes after the energy, which other programs disturb, too.
    return ObserverGroup([*observers, ContentionWatch(device), FileMetrics(costs)])


class LoadedConfig(NamedTuple):
    """A config that is loaded and bound to the problem's tensors, by its artifact's key."""

    key: str
    launch: Launch
    kernel: Kernel


class OpenProblem(msgspec.Struct, eq=False):
    """The open problem, and the configs that are loaded for it: the current one, and perhaps the next one.

    Args:
        device: where the problem's data are.
        data: the problem's data.
        timer: times launches.
        costs: computes what configs cost.
        observers: measure everything but the time of a config's launches.
        load: verifies and loads a unit's artifact.
        faults: reports the address of a fault.
        state: the state of this process.

    Attributes:
        noise: the noise of the configs that were timed in full so far.
        compared: how many launches of each config were compared so far, by its artifact's key.
    """

    device: Device
    data: ProblemData
    timer: Timer
    costs: Costs
    observers: LaunchObserver
    load: Callable[[requests.UnitRef], Kernel]
    faults: FaultReporter
    state: ProcessState
    noise: Noise = msgspec.field(default_factory=Noise)
    compared: dict[str, int] = {}
    _current: LoadedConfig | None = None
    _next: LoadedConfig | None = None

    def make_race_rules(self, request: requests.Trial | requests.Time, first_us: float | None) -> RaceRules:
        """Return the rules by which a config of a request is sampled, after a checked launch of ``first_us``."""
        rules = RaceRules(request.preset, cost=self.costs.by_latency, first_us=first_us, noise=self.noise)
        if not isinstance(request, requests.Trial):
            return rules
        return replace(
            rules,
            incumbent=request.incumbent,
            stop_above_us=math.inf if request.stop_above_us is None else request.stop_above_us,
        )

    def provide_launch(self, unit: requests.UnitRef) -> Launch:
        """Return a unit's bound launch: the current one, the one loaded ahead, or a new one."""
        # A config may have resized a tensor. Then the bound launches refer to tensors that are gone.
        if self.data.replace_changed_tensors():
            self._current = self._next = None
        for loaded in (self._current, self._next):
            if loaded is not None and loaded.key == unit.key:
                self._current, self._next = loaded, None
                return loaded.launch
        self._current = self._next = None
        with self.state.remember_changes_by_loading(unit.key):
            self._current = self._load_and_bind(unit)
        return self._current.launch

    def load_next_config(self, unit: requests.UnitRef, phases: Phases) -> None:
        """Load the config that follows. If that fails, it is loaded again in its turn, which gives it its outcome."""
        phases.begin_phase(Phase.LOAD_NEXT)
        try:
            with ACCESSES.resume_recording(), self.state.record_loaded_state_ahead(unit.key):
                self._next = self._load_and_bind(unit)
        except Exception:
            # This config may hold the memory that the next one lacked.
            self._next = None
        phases.begin_phase(Phase.TIMING)

    def bind_to_output_copy(self, number: int) -> Launch:
        """Return the current config's launch on a copy of the outputs, by the copy's number."""
        assert self._current is not None
        launch = self._current.kernel.bind(self.data.provide_output_copy(number))
        self.faults.watch_regions(self.data.list_guarded_regions())
        return launch

    def _load_and_bind(self, unit: requests.UnitRef) -> LoadedConfig:
        kernel = self.load(unit)
        launch = kernel.bind(self.data.tensors)
        self.faults.watch_regions(self.data.list_guarded_regions())
        return LoadedConfig(unit.key, launch, kernel)
