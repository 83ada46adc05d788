"""A bench's judging: other processes load and launch configs that are not trusted (:mod:`ktuned.judging`)."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ktuned.backends import Registry
from ktuned.dependencies import ACCESSES
from ktuned.ipc import DamagedArtifact, Places, manifest, requests
from ktuned.judging import Ended, Nursery, PlainUnit, Referee, make_cheating, make_ended_result, make_refusal
from ktuned.measuring import measure_peaks
from ktuned.model import KernelFileError, Phase, TrialResult, choose_peaks
from ktuned.user_directories import NoHomeDirectory, find_user_directories
from ktuned.worker.compile import make_unit
from ktuned.worker.open_problem import OpenProblem
from ktuned.worker.reply import Phases
from ktuned.worker.residues import end_processes, list_children


class Judge:
    """Judges configs of the open problem. The processes that it keeps ready end with :meth:`close`."""

    def __init__(self, registry: Registry, places: Places) -> None:
        self._registry = registry
        self._places = places
        self._nursery: Nursery | None = None
        self._referee: Referee | None = None
        # No kernel file has added its directory yet.
        self._interpreter = tuple(filter(os.path.isdir, (sys.prefix, sys.base_prefix, *sys.path)))

    def judge_config(
        self,
        unit: requests.UnitRef,
        opened: requests.Open,
        problem: OpenProblem,
        request: requests.Trial,
        phases: Phases,
    ) -> TrialResult:
        """Judge a config of the problem that was ``opened``. A damaged artifact gives no outcome."""
        phases.begin_phase(Phase.LOAD)
        artifact = self._places.locate_artifact(unit.key)
        try:
            manifest.verify(artifact, required=self._registry.load(opened.kernel.backend).required_files)
        except DamagedArtifact as error:
            return TrialResult(None, message=str(error))
        made = make_unit(self._registry, self._places, opened.kernel, opened.target, unit)
        plain = PlainUnit.from_unit(made, opened.kernel.backend, artifact.resolve())
        # What the judge itself looks at, such as temporary directories, is not what the config depends on.
        with ACCESSES.pause_recording():
            try:
                referee = self._provide_referee(opened, problem)
            except Ended as ended:
                return make_ended_result(ended, Phase.LOAD)
            children = list_children()
            try:
                result = referee.judge_candidate(plain, phases.begin_phase, request.deadlines, is_quick=request.quick)
                return self.check_limits(result, referee, problem, request) if result.latency_us else result
            finally:
                # Only where the sandbox is not complete can a candidate have started processes.
                end_processes(children)
                referee.prepare_next()

    def check_limits(
        self, result: TrialResult, referee: Referee, problem: OpenProblem, request: requests.Trial
    ) -> TrialResult:
        """Add the kernel file's metrics to the result of a right config, if it is not faster than its device can be.

        If it seems to be, the device's limits are measured again. It has cheated if they stand, nothing has disturbed
        that measurement, and its data do not fit into the cache. Else nothing is proved, and it is refused.
        """
        try:
            metrics = problem.costs.metrics(result.latency_us or math.inf)
        except KernelFileError as error:
            return result.add_facts("profile", metrics_fault=error.message)
        result = replace(result, metrics=metrics)
        peaks = request.peaks
        if peaks is None or not (exceeded := referee.find_exceeded_limits(metrics, peaks)):
            return result
        measured = measure_peaks(problem.device)
        if not (exceeded := referee.find_exceeded_limits(metrics, choose_peaks(peaks, measured))):
            return result
        is_proved = measured.has_figures and not measured.doubt and referee.exceeds_cache
        reason = f"it would be faster than its device: {exceeded[0]}"
        return make_ended_result(make_cheating(reason) if is_proved else make_refusal(reason), Phase.CHECK)

    def _provide_referee(self, opened: requests.Open, problem: OpenProblem) -> Referee:
        """Return the referee of the open problem, with a nursery for its backend.

        Raises:
            Ended: the problem cannot be judged.
        """
        if self._referee is None:
            if self._nursery is None or self._nursery.backend != opened.kernel.backend:
                self.close()
                self._nursery = Nursery(opened.kernel.backend, opened.device)
            self._nursery.directories = self._list_directories(opened.kernel.project)
            self._referee = Referee(problem.data, opened.device, self._nursery, problem.timer)
        return self._referee

    def _list_directories(self, project: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the directories that a candidate's process must not see, and those in them that it may read."""
        hidden = [str(Path(self._places.expected).parent), tempfile.gettempdir(), "/tmp", "/var/tmp", "/run/user"]
        with suppress(NoHomeDirectory):
            directories = find_user_directories()
            hidden += map(str, directories)
        readable = (str(self._places.locate_root(project)), self._places.artifacts, *self._interpreter)
        return tuple(dict.fromkeys(map(os.path.realpath, hidden))), tuple(map(os.path.realpath, readable))

    def close_problem(self) -> None:
        """End what was started for the open problem."""
        if self._referee is not None:
            self._referee.close()
            self._referee = None

    def close(self) -> None:
        """End all processes."""
        self.close_problem()
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None
