"""Trials: the configs of one kernel and problem, loaded, launched, checked and timed on one device.

A bench has at most one open problem. Opening it makes what all configs share: inputs, expected outputs, guards, and a
timer. Then each config goes through these steps, and an exception in any of them is its outcome:

1.  **Load** its artifact and bind it to the tensors. On a GPU this was done while the device timed the config before.
2.  **First launch**, on poisoned outputs. It also counts the cores that the config uses, if that matters.
3.  **Check** the outputs. A wrong config is not timed, unless it only differs from the default config, which may be
    the wrong one. Nor is one that uses more cores than it was given: it will be measured again with all that it needs.
4.  **Time** it as long as it can still win (:mod:`ktuned.worker.race`). Some timed launches are compared with the first
    one. Its energy is measured afterwards, if the objective needs it.
5.  **Check again** after the last launch: outputs, and that no input was overwritten.
6.  **Compare bits**, if exact numerics are wanted (:mod:`ktuned.worker.bits`).
7.  **Look for damage** outside the tensors, however the steps before ended. The next config would be blamed otherwise.

All of it happens in the process state that was read when the problem was opened, and that is put back around each
config (:mod:`ktuned.worker.process_state`). A process whose state cannot be put back, or that has mapped a file which
has changed since, measures nothing any more: its measurement says so (``leftover``), or the request is refused
(:class:`OutdatedWorker`).

On a GPU a launch's fault is reported by whichever call comes next. So an exception of a check may be the launch's.
"""

from __future__ import annotations

import faulthandler
import hashlib
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from ktuned.backends import Backend, Kernel, Launch, Registry, energy_counter
from ktuned.dependencies import ACCESSES, OBSERVER, FreshProcessNeeded
from ktuned.ipc import DamagedArtifact, Places, manifest, replies, requests, stamp
from ktuned.model import (
    BUILT_IN,
    ENERGY,
    LATENCY,
    Device,
    KernelFileError,
    KtunedError,
    Objective,
    Outcome,
    Phase,
    Preset,
    Record,
    TrialDetail,
    TrialResult,
    Unsupported,
    UsageError,
    canonical,
    compute_energy_figures,
    cost_of,
    figure_of,
    needs_metric,
    record,
    strip_numerics,
)
from ktuned.worker.bits import add_bits, is_cheap, launch_inputs
from ktuned.worker.code_trace import CodeTrace
from ktuned.worker.compile import make_unit
from ktuned.worker.contention import CpuWatch, GpuWatch
from ktuned.worker.core_count import CountedLaunch
from ktuned.worker.cuda_timer import EVENTS, GRAPH, GRAPH_BYTES, CudaTimer
from ktuned.worker.default_run import DefaultRun
from ktuned.worker.energy import EnergyMeter
from ktuned.worker.energy_trace import CounterStopped, Energy
from ktuned.worker.fault_reporter import FaultReporter
from ktuned.worker.guards import Guards
from ktuned.worker.inspect import load_kernel
from ktuned.worker.measurement import (
    add_check_errors,
    ends_batch,
    make_contended_result,
    make_damage_measurement,
    make_disputed_result,
    make_failed_result,
    make_raised_result,
    make_timed_result,
)
from ktuned.worker.noise import Noise
from ktuned.worker.problem import CAPTURE_AGAIN, ProblemData
from ktuned.worker.process_state import ProcessState
from ktuned.worker.race import Ending
from ktuned.worker.reply import Phases, Reply, TimedPhases
from ktuned.worker.room import require_room, require_room_for_spare
from ktuned.worker.timed_launches import FINALIST_COMPARED, SURE_COMPARED, TimedLaunches, WrongLaunch
from ktuned.worker.timing import RING_BYTES, HostTimer

if TYPE_CHECKING:
    from ktuned.spec import Kernel as DeclaredKernel


@record
class _OpenProblem(Record):
    """The open problem, and everything that measures its configs.

    Attributes:
        metrics: returns the kernel file's own metrics of a config, by its latency in µs and its energy in J.
        meter: measures energy; ``None`` if the objective does not need it.
        noise: the noise of the configs that were timed in full so far.
    """

    kernel: requests.KernelRef
    target: str
    backend: Backend
    device: Device
    data: ProblemData
    timer: HostTimer | CudaTimer
    faults: FaultReporter
    metrics: Callable[[float, float | None], Mapping[str, float]]
    objective: Objective = LATENCY
    meter: EnergyMeter | None = None
    noise: Noise = field(default_factory=Noise)

    def compute_cost(self, latency_us: float, energy_j: float | None = None) -> float | None:
        """Return what a config costs by the objective; ``None`` if the kernel file's metric fails."""
        known: dict[str, float] = {} if energy_j is None else compute_energy_figures(energy_j, latency_us)
        if self.objective not in BUILT_IN:
            try:
                known |= self.metrics(latency_us, energy_j)
            except KernelFileError:
                return None
        return cost_of(self.objective, figure_of(self.objective, latency_us, known))

    def compute_cost_range(self, result: TrialResult) -> replies.CostRange | None:
        """Return what a measured config costs, with its interval; None if what decides it was not measured now."""
        latency_us, joules, detail = result.latency_us, result.metrics.get(ENERGY), result.detail
        if result.outcome is not Outcome.MEASURED or latency_us is None:
            return None
        ends = [
            self.compute_cost(latency_us, end) if joules is not None else self.compute_cost(end)
            for end in ((detail.low_us, detail.high_us) if joules is None else (detail.energy_low, detail.energy_high))
            if end is not None
        ]
        known = sorted(end for end in ends if end is not None)
        cost = self.compute_cost(latency_us, joules)
        return None if cost is None or not known else replies.CostRange(cost, known[0], known[-1])

    @property
    def races_by_latency(self) -> bool:
        """True if the latency alone decides what a config costs."""
        return self.meter is None


@record
class _TimingRules(Record):
    """How one config is timed.

    Attributes:
        preset: how many samples are wanted, and the time for them.
        judge_contention: whether a timing that other programs disturbed is thrown away.
        stop_above_us: the latency that is hopeless, in µs.
        incumbent: the best config so far, to race against.
        following: the config that is loaded while a GPU works on this one's samples.
        tolerated: processes whose use of the GPU disturbs no short launch.
        known_us: the latency in µs if it is known already: then only energy and metrics are measured.
        first_us: the most that the checked launch has taken, in µs.
        compared: how many launches are compared if the config may win.
    """

    preset: Preset
    judge_contention: bool
    stop_above_us: float | None = None
    incumbent: replies.CostRange | None = None
    following: requests.UnitRef | None = None
    tolerated: Collection[int] = ()
    known_us: float | None = None
    first_us: float | None = None
    compared: int = SURE_COMPARED


class OutdatedWorker(KtunedError):
    """A file that this process has mapped has changed on the disk. Another process has to do the request."""

    code = "outdated_worker"


class Bench:
    """Opens one problem after another, and measures configs of the one that is open."""

    def __init__(self, registry: Registry, places: Places) -> None:
        self._registry = registry
        self._places = places
        self._open: _OpenProblem | None = None
        # The config at hand and the one that was loaded ahead: artifact's key, launch and kernel.
        self._bound: tuple[str, Launch, Kernel] | None = None
        self._loaded_ahead: tuple[str, Launch, Kernel] | None = None
        self._trace: CodeTrace | None = None
        # Launches of each config that were compared so far, by its artifact's key.
        self._compared: dict[str, int] = {}
        self._state = ProcessState()

    def open_problem(self, request: requests.Open, reply: Reply) -> replies.Opened:
        """Make the inputs and the expected outputs of a problem on a device.

        Returns:
            What the code has read, and a digest of everything that decides results; or why the default config, whose
            outputs are expected, cannot be run.

        Raises:
            FreshProcessNeeded: this process is not as a new one would be.
            KernelFileError: the kernel file's code fails, or makes what cannot be measured.
            DeviceCrowded: an application leaves too little memory.
        """
        self._state.begin_problem()
        if self._state.leftover or self._state.find_outdated_file():
            raise FreshProcessNeeded
        kernel = load_kernel(request.kernel, self._places)
        reply.begin_phase(Phase.LOAD)
        backend = self._registry.load(request.kernel.backend)
        self._open = self._bound = self._loaded_ahead = None
        reply.begin_phase(Phase.REFERENCE)
        if request.device.kind == "cuda":
            self._require_room(kernel, request)
        captured = self._find_captured_file(request.captured) if request.captured else None
        expected = self._places.locate_reference(request.expected)
        default = self._prepare_default_run(kernel, backend, request)
        timer: HostTimer | CudaTimer = HostTimer()
        if request.device.kind == "cuda" and not backend.times_on_host:
            timer = CudaTimer(request.device.name, kernel.timing)
            # In parallel: this also loads the GPU's library of matrix products, which takes as long as the inputs.
            timer.begin_warm_up()
        data = ProblemData(
            kernel,
            request.problem,
            request.device,
            captured=captured,
            seed=request.seed,
            guards=Guards(is_active=request.guarded),
            run_default=default,
        )
        # The baseline is read here: after the kernel file's Python, which applies to all configs, before its reference.
        self._compared.clear()
        with ACCESSES.pause_recording():
            self._state.take_baseline((self._places.artifacts, self._places.expected))
        if default is not None and not expected.is_file():
            try:
                default.load_kernel()
            except (Unsupported, DamagedArtifact) as error:
                return replies.Opened(unusable=str(error), is_damaged=isinstance(error, DamagedArtifact))
            except Exception as error:
                raise kernel.site.make_failure("reference='default': the default config", error) from error
        data.provide_expected_outputs(expected)
        if isinstance(timer, CudaTimer):
            from concurrent.futures import ThreadPoolExecutor

            # Save the expected outputs while the GPU loads the kernels that each check needs.
            with ThreadPoolExecutor(1) as executor:
                saved = executor.submit(data.save_expected, expected)
                data.rehearse_judging()
                saved.result()
        else:
            data.save_expected(expected)
        self._open = _OpenProblem(
            request.kernel,
            request.target,
            backend,
            request.device,
            data,
            timer,
            FaultReporter(reply.descriptor),
            partial(kernel.evaluate_metrics, request.problem),
            strip_numerics(request.objective),
            self._make_meter(backend, request, timer) if request.needs_energy else None,
        )
        self._trace = CodeTrace(request.kernel, self._places, is_declared=bool(kernel.depends))
        with ACCESSES.pause_recording():
            self._state.complete_baseline()
            settings = self._state.find_settings(OBSERVER.environ)
        work = repr(kernel.evaluate_work(request.problem))
        identity = canonical({"bits": data.digest_problem(), "work": work, "settings": settings})
        return replies.Opened(
            self._trace.take_new_observations(is_data=True), hashlib.sha256(identity.encode()).hexdigest()
        )

    def _prepare_default_run(
        self, kernel: DeclaredKernel, backend: Backend, request: requests.Open
    ) -> DefaultRun | None:
        """Return what runs the default config if its outputs are the reference; else ``None``.

        Raises:
            UsageError: the request does not name the default config's artifact.
        """
        if not kernel.expects_default_outputs:
            return None
        if request.reference is None:
            raise UsageError(f"the default config of {kernel.name} is the reference, and no artifact of it is named")
        load = partial(self._load_artifact, backend, request.kernel, request.target, request.reference, request.device)
        return DefaultRun(kernel, load, request.device)

    def _load_artifact(
        self, backend: Backend, kernel: requests.KernelRef, target: str, unit: requests.UnitRef, device: Device
    ) -> Kernel:
        """Verify a unit's artifact and load its kernel.

        Raises:
            DamagedArtifact: it must be compiled again.
            Unsupported: the device cannot run it.
        """
        artifact = self._places.locate_artifact(unit.key)
        manifest.verify(artifact, required=backend.required_files)
        return backend.load(artifact, make_unit(self._registry, self._places, kernel, target, unit), device)

    def _find_captured_file(self, digest: str) -> Path:
        """Return the file of captured inputs with this digest, which is a part of the context.

        Raises:
            UsageError: the file is gone, or its content has another digest.
        """
        path = self._places.locate_capture(digest)
        if stamp(path) != digest:
            raise UsageError(f"the captured inputs in {path} are damaged or gone", hint=CAPTURE_AGAIN)
        return path

    def _require_room(self, kernel: DeclaredKernel, request: requests.Open) -> None:
        """Keep within the memory that an application leaves on the GPU; without an application, lift the limit.

        Raises:
            DeviceCrowded: the application leaves too little.
        """
        import torch

        if request.is_shared:
            torch.cuda.empty_cache()
            require_room(request.device.name, kernel.evaluate_inputs(request.problem))
        elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.set_per_process_memory_fraction(1.0, request.device.name)

    def _make_meter(self, backend: Backend, request: requests.Open, timer: HostTimer | CudaTimer) -> EnergyMeter:
        """Return the meter for the energy of launches.

        Raises:
            Unsupported: the device's energy cannot be measured.
        """
        device = request.device
        try:
            counter = energy_counter(backend, device)
        except Unsupported as error:
            raise Unsupported(f"the energy of {device.name} ({device.model}): {error.message}") from error
        return EnergyMeter(counter, device.name if isinstance(timer, CudaTimer) else "")

    def close_problem(self, request: requests.Close, reply: Reply) -> replies.Empty:
        """Close the open problem, and free the GPU memory that torch keeps of it: another worker needs it."""
        was_on_gpu = self._open is not None and self._open.device.kind == "cuda"
        self._open = self._bound = self._loaded_ahead = None
        if was_on_gpu:
            import torch

            torch.cuda.empty_cache()
        return replies.Empty()

    def run_trial(self, request: requests.Trial, reply: Reply) -> replies.Measurement:
        """Measure a batch of configs, up to the first that must end it. All results but the last are sent as items.

        Raises:
            UsageError: the request names no config, or no problem is open.
            OutdatedWorker: a file that this process has mapped has changed.
        """
        if not request.units:
            raise UsageError("a trial needs at least one unit")
        self._require_current_files()
        *others, (last, last_us) = zip_longest(request.units, request.known_us[: len(request.units)])
        following = [*request.units[1:]]
        for (unit, known_us), after in zip(others, following, strict=True):
            measured = self._measure_unit(unit, known_us, request, reply, after)
            if ends_batch(measured, request):
                return measured
            incumbent = requests.choose_incumbent(request.incumbent, measured, request.same_bits)
            request = replace(request, incumbent=incumbent)
            # A failed config's result is sent at once, with what it has printed, and not mixed with what others print.
            is_well = measured.result.outcome in (Outcome.MEASURED, Outcome.SLOWER)
            # The next config starts in the phase that the request started in.
            reply.begin_phase(request.first_phase)
            reply.send_item(measured, hold_s=request.hold_s if is_well else 0.0)
        return self._measure_unit(last, last_us, request, reply)

    def _measure_unit(
        self,
        unit: requests.UnitRef,
        known_us: float | None,
        request: requests.Trial,
        reply: Reply,
        following: requests.UnitRef | None = None,
    ) -> replies.Measurement:
        """Measure one config in the known process state; add how long that took, and what the file's code has read."""
        opened, began = self._require_open_problem(), monotonic()
        phases = TimedPhases(reply, request.first_phase)
        with self._state.isolate_config(unit.key):
            result = self._check_and_time(opened, unit, known_us, request, phases, following)
            measured = self._look_for_damage(result, phases)
            # Here, because a metric of the kernel file is user code.
            cost = opened.compute_cost_range(measured.result)
        leftover = self._state.leftover or self._describe_outdated_file()
        observed = () if self._trace is None else self._trace.take_new_observations(is_data=True)
        return replace(
            measured,
            result=measured.result.add_details(phase_s=phases.sum_phase_seconds()),
            cost=cost,
            observed=observed,
            seconds=round(monotonic() - began, 6),
            leftover=leftover,
        )

    def _require_current_files(self) -> None:
        """Check that the files that this process has mapped are still those on the disk.

        Raises:
            OutdatedWorker: one has changed.
        """
        if outdated := self._describe_outdated_file():
            raise OutdatedWorker(outdated)

    def _describe_outdated_file(self) -> str:
        name = self._state.find_outdated_file()
        return f"{name} has changed since it was loaded" if name else ""

    def _check_and_time(
        self,
        opened: _OpenProblem,
        unit: requests.UnitRef,
        known_us: float | None,
        request: requests.Trial,
        reply: Phases,
        following: requests.UnitRef | None = None,
    ) -> TrialResult:
        """Take a config through the steps from loading to comparing bits; see the module.

        A damaged artifact gives no outcome: it will be compiled again.
        """
        # Load, and launch once on poisoned outputs.
        launch = self._try_to_load(opened, unit)
        if isinstance(launch, TrialResult):
            return launch
        opened.data.begin_trial()
        counted = None if request.cores is None else CountedLaunch(launch)
        first_us = self._launch_once(opened, counted or launch, reply, Phase.FIRST_LAUNCH)
        if isinstance(first_us, TrialResult):
            return first_us
        # Check. If nothing decides what is right, this is the only look at the inputs.
        first = self._judge_last_launch(opened, reply, is_last=not opened.data.is_judged)
        if first.outcome is not Outcome.MEASURED and first.detail.undisputed is None:
            return first
        cores = None if counted is None else counted.cores
        if cores is not None and request.cores is not None and cores > request.cores:
            return TrialResult(None, detail=TrialDetail(phase=Phase.TIMING, cores=cores))
        # Digest the outputs before timing poisons them.
        compares_bits = request.same_bits is not None and opened.data.has_outputs
        began = perf_counter()
        own_digests = [opened.data.digest_outputs()] if compares_bits else []
        digest_us = (perf_counter() - began) * 1e6
        launches = self._make_timed_launches(opened, unit.key, launch, first)
        rules = _TimingRules(
            request.preset,
            request.judge_contention,
            request.stop_above_us,
            request.incumbent,
            following,
            request.tolerated,
            known_us,
            first_us,
        )
        timed, ends_checked = self._time_launches(opened, launches, rules, reply)
        if first.detail.undisputed is not None:
            return make_disputed_result(timed, first)
        last = first
        if timed.outcome is Outcome.MEASURED and opened.data.is_judged:
            # Check again, the inputs too; events leave the last timed launch's outputs in place, a graph does not.
            relaunched = None if ends_checked else self._launch_once(opened, launch, reply, Phase.CHECK)
            last = relaunched if isinstance(relaunched, TrialResult) else self._judge_last_launch(opened, reply)
            if last.outcome is not Outcome.MEASURED:
                return replace(last, message=f"the first launch was right, a later one was not: {last.message}")
            own_digests += [opened.data.digest_outputs()] if compares_bits else []
        if compares_bits and timed.outcome in (Outcome.MEASURED, Outcome.SLOWER):
            timed = self._compare_bits(opened, launch, timed, own_digests, digest_us, request, reply)
        return timed.add_details(
            max_error=first.detail.max_error,
            mismatched_ratio=first.detail.mismatched_ratio,
            overwritten=last.detail.overwritten,
            cores=cores,
        )

    def _compare_bits(
        self,
        opened: _OpenProblem,
        launch: Launch,
        timed: TrialResult,
        own_digests: Sequence[Any],
        digest_us: float,
        request: requests.Trial,
        reply: Phases,
    ) -> TrialResult:
        """Add the bits that a timed config leaves: on all inputs if that is wanted, or costs next to no time.

        ``own`` are digests of what it has left on the problem's own inputs; one digest takes ``digest_us``.
        """
        wanted = request.same_bits
        assert wanted is not None
        inputs = wanted.inputs
        try:
            if not wanted.on_all_inputs and not is_cheap(timed, digest_us, inputs):
                inputs = 1
            digests = launch_inputs(
                opened.data,
                launch,
                opened.timer.synchronize,
                own_digests,
                inputs,
                lambda: reply.begin_phase(Phase.CHECK),
            )
        except Exception as error:
            failed = make_raised_result(error, Phase.CHECK)
            return replace(failed, message=f"on inputs that compare bits: {failed.message}")
        return add_bits(timed, digests, wanted)

    def _try_to_load(self, opened: _OpenProblem, unit: requests.UnitRef) -> Launch | TrialResult:
        """Return the bound launch of a unit, or its result if it cannot be loaded."""
        try:
            return self._find_launch(opened, unit)
        except DamagedArtifact as error:
            return TrialResult(None, message=str(error))
        except Unsupported as error:
            return make_failed_result(Outcome.UNSUPPORTED, str(error), Phase.LOAD)
        except Exception as error:
            return make_raised_result(error, Phase.LOAD)

    def _launch_once(self, opened: _OpenProblem, launch: Launch, reply: Phases, phase: Phase) -> float | TrialResult:
        """Launch once on poisoned outputs; return how long it took at most, in µs, or its result if it failed."""
        reply.begin_phase(phase)
        try:
            began = perf_counter()
            opened.data.begin_checked_launch()
            launch()
            opened.timer.synchronize()
        except Unsupported as error:
            return make_failed_result(Outcome.UNSUPPORTED, str(error), phase)
        except Exception as error:
            return make_raised_result(error, phase)
        return (perf_counter() - began) * 1e6

    def _look_for_damage(self, result: TrialResult, reply: Phases) -> replies.Measurement:
        """Return a config's measurement, or one that says where it wrote outside its tensors."""
        # A config that was not loaded has launched nothing.
        if result.detail.phase == Phase.LOAD or self._open is None:
            return replies.Measurement(result)
        reply.begin_phase(Phase.CHECK)
        try:
            damage = self._open.data.find_damage()
        except RuntimeError as error:
            is_known = result.outcome is Outcome.LAUNCH_ERROR
            return replies.Measurement(result if is_known else make_raised_result(error, Phase.CHECK))
        return make_damage_measurement(damage, Phase.CHECK) if damage else replies.Measurement(result)

    def _judge_last_launch(self, opened: _OpenProblem, reply: Phases, *, is_last: bool = True) -> TrialResult:
        """Judge the outputs; return a result without a latency.

        With ``is_last``, inputs are compared, too: once per config, and after a wrong launch, is enough.
        """
        reply.begin_phase(Phase.CHECK)
        with self._state.use_known_arithmetic():
            return self._judge_outputs(opened.data, is_last=is_last)

    def _judge_outputs(self, data: ProblemData, *, is_last: bool) -> TrialResult:
        try:
            if data.is_surely_right(is_last=is_last):
                return TrialResult(Outcome.MEASURED, detail=TrialDetail(max_error=0.0, mismatched_ratio=0.0))
            verdict = data.check_outputs()
            overwritten = data.find_overwritten_inputs() if is_last or not verdict.ok else ()
        except Exception as error:
            return make_raised_result(error, Phase.CHECK)
        judged = TrialResult(Outcome.MEASURED)
        if not verdict.ok:
            message = "; ".join((verdict.message, *(f"the kernel overwrites its input {name}" for name in overwritten)))
            undisputed = Outcome.MEASURED if verdict.is_dissent else None
            judged = make_failed_result(Outcome.MISMATCH, message, Phase.CHECK).add_details(undisputed=undisputed)
        return add_check_errors(judged, verdict).add_details(overwritten=overwritten or None)

    def check_config(self, request: requests.Check, reply: Reply) -> replies.Measurement:
        """Launch a config once and judge its outputs, without timing it."""
        self._require_current_files()
        with self._state.isolate_config(request.unit.key):
            measured = self._launch_and_judge(request, reply)
        return replace(measured, leftover=self._state.leftover)

    def _launch_and_judge(self, request: requests.Check, reply: Reply) -> replies.Measurement:
        opened = self._require_open_problem()
        launch = self._try_to_load(opened, request.unit)
        if isinstance(launch, TrialResult):
            return replies.Measurement(launch)
        opened.data.begin_trial()
        launched = self._launch_once(opened, launch, reply, Phase.FIRST_LAUNCH)
        judged = launched if isinstance(launched, TrialResult) else self._judge_last_launch(opened, reply)
        return self._look_for_damage(judged, reply)

    def time_finalist(self, request: requests.Time, reply: Reply) -> replies.Measurement:
        """Time a config again in the final round, against the other finalists."""
        self._require_current_files()
        with self._state.isolate_config(request.unit.key):
            measured = self._check_and_time_again(request, reply)
        return replace(measured, leftover=self._state.leftover)

    def _check_and_time_again(self, request: requests.Time, reply: Reply) -> replies.Measurement:
        opened = self._require_open_problem()
        launch = self._try_to_load(opened, request.unit)
        if isinstance(launch, TrialResult):
            return replies.Measurement(launch)
        opened.data.begin_trial()
        launched = self._launch_once(opened, launch, reply, Phase.FIRST_LAUNCH)
        first = launched if isinstance(launched, TrialResult) else self._judge_last_launch(opened, reply)
        if first.outcome is not Outcome.MEASURED and first.detail.undisputed is None:
            return self._look_for_damage(first, reply)
        launches = self._make_timed_launches(opened, request.unit.key, launch, first)
        rules = _TimingRules(
            request.preset, request.judge_contention, known_us=request.known_us, compared=FINALIST_COMPARED
        )
        timed, _ = self._time_launches(opened, launches, rules, reply)
        return self._look_for_damage(timed, reply)

    def _make_timed_launches(self, opened: _OpenProblem, key: str, launch: Launch, first: TrialResult) -> TimedLaunches:
        """Return a config's launches for the timer, after its first launch was judged."""
        data = opened.data
        is_graph = isinstance(opened.timer, CudaTimer)
        judged = data.remember_judged_outputs(
            is_judged=data.is_judged and first.detail.undisputed is None,
            arithmetic=self._state.use_known_arithmetic,
        )
        launches = TimedLaunches(
            launch,
            restore=data.restore_inputs if data.restores else None,
            judged=judged,
            bind=partial(self._bind_copy, opened),
            most_copies=data.count_affordable_copies(GRAPH_BYTES if is_graph else RING_BYTES),
            key=key,
        )
        launches.compared = self._compared.get(key, 0)
        return launches

    def _bind_copy(self, opened: _OpenProblem, number: int) -> Launch:
        """Return the bound config's launch on a copy of the outputs."""
        assert self._bound is not None
        launch = self._bound[2].bind(opened.data.provide_output_copy(number))
        self._watch_faults(opened)
        return launch

    def run_canary(self, request: requests.Canary, reply: Reply) -> replies.Empty:
        """Run something tiny on a device, to see that it still works after a worker on it was killed.

        A CPU needs no more than the answer.
        """
        if request.device.kind == "cpu":
            return replies.Empty()
        if request.warms_up:
            require_room_for_spare(request.device.name)
        import torch

        numbers = torch.arange(8, device=request.device.name)
        total = int(numbers.sum())
        if total != 28:
            raise RuntimeError(f"{request.device.name} counts 0 + … + 7 as {total}")
        if request.warms_up:
            from ktuned.worker.rehearsal import rehearse_problem

            rehearse_problem(request.device)
        return replies.Empty()

    def time_reference(self, request: requests.TimeReference, reply: Reply) -> replies.Measurement:
        """Time the reference function as the configs are timed. Without a reference there is no latency.

        There is none either if configs are timed in a graph and the reference cannot be captured in one: a figure with
        cold caches must not be compared with warm ones.
        """
        opened = self._require_open_problem()
        reply.begin_phase(Phase.REFERENCE)
        self._state.restore_baseline()
        reference = opened.data.make_reference_launch()
        if reference is None:
            return replies.Measurement(TrialResult(None))
        timer = opened.timer
        in_graph = isinstance(timer, CudaTimer) and timer.method == GRAPH
        if in_graph and opened.data.restores:
            # Configs are timed by events then, too: what is restored before each launch is in no graph.
            timer, in_graph = CudaTimer(opened.device.name, EVENTS), False
        watch = _watch_contention(opened.device, request.judge_contention)
        try:
            timing = timer.time_launches(reference, request.preset)
        except Exception as error:
            return replies.Measurement(TrialResult(None) if in_graph else make_raised_result(error, Phase.REFERENCE))
        if watch is not None and watch.is_contended(timing.samples):
            return replies.Measurement(make_contended_result(opened.device, Phase.REFERENCE))
        return replies.Measurement(make_timed_result(timing))

    def _require_open_problem(self) -> _OpenProblem:
        if self._open is None:
            raise UsageError("no problem is open: `open` comes first")
        return self._open

    def _find_launch(self, opened: _OpenProblem, unit: requests.UnitRef) -> Launch:
        """Return a unit's bound launch: the one at hand, the one loaded ahead, or a new one."""
        # A config may have resized a tensor: then no launch is bound to the tensors that there are now.
        if opened.data.recreate_changed_tensors():
            self._bound = self._loaded_ahead = None
        for ready in (self._bound, self._loaded_ahead):
            if ready is not None and ready[0] == unit.key:
                self._bound, self._loaded_ahead = ready, None
                return ready[1]
        self._bound = self._loaded_ahead = None
        with self._state.learn_while_loading(unit.key):
            self._bound = (unit.key, *self._load_and_bind(opened, unit))
        return self._bound[1]

    def _load_next(self, opened: _OpenProblem, unit: requests.UnitRef, reply: Phases) -> None:
        """Load the config that follows. If that fails, it is loaded again in its turn, which gives it its outcome."""
        reply.begin_phase(Phase.LOAD_NEXT)
        try:
            with ACCESSES.resume_recording(), self._state.learn_while_loading_ahead(unit.key):
                self._loaded_ahead = (unit.key, *self._load_and_bind(opened, unit))
        except Exception:
            # It may only have lacked the memory that this config holds.
            self._loaded_ahead = None
        reply.begin_phase(Phase.TIMING)

    def _load_and_bind(self, opened: _OpenProblem, unit: requests.UnitRef) -> tuple[Launch, Kernel]:
        loaded = self._load_artifact(opened.backend, opened.kernel, opened.target, unit, opened.device)
        launch = loaded.bind(opened.data.tensors)
        self._watch_faults(opened)
        return launch, loaded

    def _watch_faults(self, opened: _OpenProblem) -> None:
        """Install the fault reporter again: loading a library may have installed other handlers."""
        restore_default_signals()
        opened.faults.name_regions(opened.data.list_regions())
        opened.faults.install_handlers()

    def _time_launches(
        self, opened: _OpenProblem, launches: TimedLaunches, rules: _TimingRules, reply: Phases
    ) -> tuple[TrialResult, bool]:
        """Time launches and measure their energy; a wrong launch among them makes a mismatch.

        Returns:
            The result, and whether the last launch's outputs can be judged without launching again.
        """
        before = launches.compared
        try:
            timed, ends_checked = self._race_and_meter(opened, launches, rules, reply)
        except WrongLaunch as wrong:
            # If the outputs are compared with the default's, this is no more than a difference.
            message = f"the first launch was right, a later one was not: {wrong.verdict.message}"
            failed, ends_checked = make_failed_result(Outcome.MISMATCH, message, Phase.CHECK), False
            timed = add_check_errors(failed, wrong.verdict)
        self._compared[launches.key] = launches.compared
        compared = launches.compared - before or None
        return timed.add_details(nondeterministic=launches.has_differed or None, compared=compared), ends_checked

    def _race_and_meter(
        self, opened: _OpenProblem, launches: TimedLaunches, rules: _TimingRules, reply: Phases
    ) -> tuple[TrialResult, bool]:
        reply.begin_phase(Phase.TIMING)
        if isinstance(opened.timer, CudaTimer):
            following = rules.following
            opened.timer.on_batch_enqueued = (
                None if following is None else partial(self._load_next, opened, following, reply)
            )
        watch = _watch_contention(opened.device, rules.judge_contention, rules.tolerated)
        try:
            timed = TrialResult(Outcome.MEASURED, rules.known_us)
            is_contended = ends_checked = False
            if rules.known_us is None:
                # The first launch has shown already what the config reads.
                with ACCESSES.pause_recording():
                    timing = opened.timer.time_launches(
                        launches,
                        rules.preset,
                        stop_above_us=rules.stop_above_us,
                        incumbent=rules.incumbent if opened.races_by_latency else None,
                        cost=opened.compute_cost if needs_metric(opened.objective) else None,
                        first_us=rules.first_us,
                        noise=opened.noise,
                    )
                ends_checked = timing.ends_checked
                timed = make_timed_result(timing)
                is_contended = watch is not None and not timing.stopped_early and watch.is_contended(timing.samples)
                if timing.is_full and not is_contended:
                    opened.noise.add_config(timing.samples, rules.first_us)
                if timed.outcome is Outcome.MEASURED and _may_win(timed, rules.incumbent):
                    launches.top_up_comparisons(rules.compared, rules.preset.timing_s, opened.timer.synchronize)
            energy: Energy | None = None
            if opened.meter is not None and not is_contended and timed.latency_us is not None:
                latency_us = timed.latency_us
                reply.begin_phase(Phase.TIMING)
                energy, trace = opened.meter.measure_energy(
                    launches.ring[0],
                    rules.preset,
                    latency_us,
                    restore=opened.data.restore_inputs if opened.data.restores else None,
                    incumbent=rules.incumbent,
                    cost=partial(opened.compute_cost, latency_us),
                )
                is_contended = watch is not None and watch.is_shared()
                if trace.ending is Ending.BEATEN:
                    message = f"cannot win: {energy.low:.4g} to {energy.high:.4g} J"
                    timed = replace(timed, message=message).add_details(beaten=True)
        except WrongLaunch:
            raise
        except CounterStopped as error:
            # This says nothing about the config: it is tried again.
            message = f"the energy counter of {opened.device.name}: {error}"
            return make_failed_result(Outcome.CONTENDED, message, Phase.TIMING), False
        except Exception as error:
            return make_raised_result(error, Phase.TIMING), False
        if is_contended:
            return make_contended_result(opened.device, Phase.TIMING), False
        absence = watch.absence if isinstance(watch, GpuWatch) else ""
        timed = timed.add_details(contention=f"not judged: {absence}" if absence else None)
        return _add_metrics(timed, opened, energy), ends_checked


def _may_win(timed: TrialResult, incumbent: replies.CostRange | None) -> bool:
    """Return whether a config may still be as fast as the best one so far."""
    low_us = timed.detail.low_us
    return not timed.detail.beaten and (incumbent is None or low_us is None or low_us <= incumbent.high)


def _add_metrics(timed: TrialResult, opened: _OpenProblem, energy: Energy | None) -> TrialResult:
    """Add the energy and the kernel file's own metrics.

    If a metric fails, all of the file's metrics are left out, and the message says why.
    """
    latency_us = timed.latency_us
    if timed.outcome is not Outcome.MEASURED or latency_us is None:
        return timed
    joules = None if energy is None else energy.joules
    if energy is not None:
        timed = timed.add_details(energy_low=energy.low, energy_high=energy.high)
    metrics = {} if joules is None else compute_energy_figures(joules, latency_us)
    try:
        metrics |= opened.metrics(latency_us, joules)
    except KernelFileError as error:
        timed = replace(timed, message=error.message).add_details(metrics_fault=error.message)
    return replace(timed, metrics=metrics)


def _watch_contention(
    device: Device, judge_contention: bool, tolerated: Collection[int] = ()
) -> CpuWatch | GpuWatch | None:
    """Return a watch for other programs' use of a device from now on; ``None`` if that is not judged."""
    if not judge_contention:
        return None
    if device.kind != "cuda":
        return CpuWatch()
    import torch

    return GpuWatch(str(torch.cuda.get_device_properties(device.name).uuid), tolerated)


def restore_default_signals() -> None:
    """Let a fatal signal end the process after a short stack dump, whatever handlers libraries have installed.

    Some symbolise a backtrace (apache-tvm-ffi does). That takes seconds, and with a broken heap it never ends, so that
    a crash looks like a hang. The defaults must be put back before faulthandler is enabled: it hands over to the
    handler that it found.
    """
    faulthandler.disable()
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(all_threads=False)
