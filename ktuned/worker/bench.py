"""Measures trials of one kernel and problem on one device: load, first launch, check, timing."""

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
    LATENCY,
    Device,
    KernelFileError,
    KtunedError,
    Objective,
    Outcome,
    Phase,
    Preset,
    Record,
    Unsupported,
    UsageError,
    canonical,
    compute_energy_figures,
    cost_of,
    figure_of,
    record,
    strip_numerics,
)
from ktuned.worker.bits import add_bits, is_cheap, launch_inputs
from ktuned.worker.code_trace import CodeTrace
from ktuned.worker.compile import unit_of
from ktuned.worker.contention import CpuWatch, GpuWatch
from ktuned.worker.core_count import CountedLaunch
from ktuned.worker.cuda_timer import EVENTS, GRAPH, GRAPH_BYTES, CudaTimer
from ktuned.worker.default_run import DefaultRun
from ktuned.worker.energy import EnergyMeter
from ktuned.worker.energy_trace import CounterStopped, Energy
from ktuned.worker.fault_reporter import FaultReporter
from ktuned.worker.guards import Guards
from ktuned.worker.inspect import load_kernel
from ktuned.worker.measurement import contended, disputed, ends_batch, from_timing, guilty, judged, raised
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
class _Opened(Record):
    """The problem that is measured: its kernel, its data, the device, what times it, and what it is judged by.

    ``metrics`` are a config's, by its latency in µs and its energy in J; without a ``meter`` that is not measured.
    ``noise`` is that of the configs that were timed in full.
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

    def cost(self, latency_us: float, energy_j: float | None = None) -> float | None:
        """Return what a config costs by the objective; ``None`` where its figure cannot be made."""
        known: dict[str, float] = {} if energy_j is None else compute_energy_figures(energy_j, latency_us)
        if self.objective not in BUILT_IN:
            try:
                known |= self.metrics(latency_us, energy_j)
            except KernelFileError:
                return None
        return cost_of(self.objective, figure_of(self.objective, latency_us, known))

    @property
    def races_by_latency(self) -> bool:
        """True if a latency alone shows what a config costs."""
        return self.meter is None


class OutdatedWorker(KtunedError):
    """This process has mapped a file that has another content by now: another process is to do the request."""

    code = "outdated_worker"


class Bench:
    """Opens one problem after another, and measures configs of the one that is open."""

    def __init__(self, registry: Registry, places: Places) -> None:
        self._registry = registry
        self._places = places
        self._open: _Opened | None = None
        self._bound: tuple[str, Launch, Kernel] | None = None
        self._trace: CodeTrace | None = None
        self._ahead: tuple[str, Launch, Kernel] | None = None
        self._compared: dict[str, int] = {}
        self._state = ProcessState()

    def open(self, request: requests.Open, reply: Reply) -> replies.Opened:
        """Make the inputs and the expected outputs of a problem on a device, unless its reference is unusable."""
        self._state.begin()
        if self._state.leftover or self._state.find_outdated_file():
            raise FreshProcessNeeded
        kernel = load_kernel(request.kernel, self._places)
        reply.phase(Phase.LOAD)
        backend = self._registry.load(request.kernel.backend)
        self._open = self._bound = self._ahead = None
        reply.phase(Phase.REFERENCE)
        if request.device.kind == "cuda":
            self._make_room(kernel, request)
        captured = self._captured(request.captured) if request.captured else None
        expected = self._places.locate_reference(request.expected)
        default = self._default_run(kernel, backend, request)
        timer: HostTimer | CudaTimer = HostTimer()
        if request.device.kind == "cuda" and not backend.times_on_host:
            timer = CudaTimer(request.device.name, kernel.timing)
            # It loads the GPU's library of matrix products, too, which takes as long as making the inputs.
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
        # After the kernel file's own Python, which all configs have in common, and before its references.
        self._compared.clear()
        with ACCESSES.pause_recording():
            self._state.take_baseline((self._places.artifacts, self._places.expected))
        if default is not None and not expected.is_file():
            try:
                default.load()
            except (Unsupported, DamagedArtifact) as error:
                return replies.Opened(unusable=str(error), is_damaged=isinstance(error, DamagedArtifact))
            except Exception as error:
                raise kernel.site.make_failure("reference='default': the default config", error) from error
        data.expect(expected)
        if isinstance(timer, CudaTimer):
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(1) as beside:
                saved = beside.submit(data.save_expected, expected)
                data.rehearse()
                saved.result()
        else:
            data.save_expected(expected)
        self._open = _Opened(
            request.kernel,
            request.target,
            backend,
            request.device,
            data,
            timer,
            FaultReporter(reply.descriptor),
            partial(kernel.evaluate_metrics, request.problem),
            strip_numerics(request.objective),
            self._meter(backend, request, timer) if request.needs_energy else None,
        )
        self._trace = CodeTrace(request.kernel, self._places, is_declared=bool(kernel.depends))
        with ACCESSES.pause_recording():
            self._state.complete_baseline()
            settings = self._state.find_settings(OBSERVER.environ)
        work = repr(kernel.evaluate_work(request.problem))
        identity = canonical({"bits": data.identify(), "work": work, "settings": settings})
        return replies.Opened(self._trace.fresh(is_data=True), hashlib.sha256(identity.encode()).hexdigest())

    def _default_run(self, kernel: DeclaredKernel, backend: Backend, request: requests.Open) -> DefaultRun | None:
        """Return what runs the default config, where its outputs are expected.

        Raises:
            UsageError: the request does not name its artifact.
        """
        if not kernel.expects_default_outputs:
            return None
        if request.reference is None:
            raise UsageError(f"the default config of {kernel.name} is the reference, and no artifact of it is named")
        reference = request.reference

        def load() -> Kernel:
            return self._load_artifact(backend, request.kernel, request.target, reference, request.device)

        return DefaultRun(kernel, load, request.device)

    def _load_artifact(
        self, backend: Backend, kernel: requests.KernelRef, target: str, unit: requests.UnitRef, device: Device
    ) -> Kernel:
        """Return the kernel of a unit's artifact.

        Raises:
            DamagedArtifact: it is to be compiled again.
            Unsupported: the device cannot run it.
        """
        artifact = self._places.locate_artifact(unit.key)
        manifest.verify(artifact, required=backend.required_files)
        return backend.load(artifact, unit_of(self._registry, self._places, kernel, target, unit), device)

    def _captured(self, digest: str) -> Path:
        """Return the file of captured inputs, which are a part of the context by their digest.

        Raises:
            UsageError: it holds something else, or is gone.
        """
        path = self._places.locate_capture(digest)
        if stamp(path) != digest:
            raise UsageError(f"the captured inputs in {path} are damaged, or gone", hint=CAPTURE_AGAIN)
        return path

    def _make_room(self, kernel: DeclaredKernel, request: requests.Open) -> None:
        """Check that there is room beside an application; without one all of the device may be used again.

        Raises:
            DeviceCrowded: there is none.
        """
        import torch

        if request.is_shared:
            torch.cuda.empty_cache()
            require_room(request.device.name, kernel.evaluate_inputs(request.problem))
        elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.set_per_process_memory_fraction(1.0, request.device.name)

    def _meter(self, backend: Backend, request: requests.Open, timer: HostTimer | CudaTimer) -> EnergyMeter:
        """Return what measures the energy of launches.

        Raises:
            Unsupported: the device's energy cannot be measured.
        """
        device = request.device
        try:
            counter = energy_counter(backend, device)
        except Unsupported as error:
            raise Unsupported(f"the energy of {device.name} ({device.model}): {error.message}") from error
        return EnergyMeter(counter, device.name if isinstance(timer, CudaTimer) else "")

    def close(self, request: requests.Close, reply: Reply) -> replies.Empty:
        """Give up the open problem, and what torch keeps of its memory: another worker needs it on this device."""
        was_on_gpu = self._open is not None and self._open.device.kind == "cuda"
        self._open = self._bound = self._ahead = None
        if was_on_gpu:
            import torch

            torch.cuda.empty_cache()
        return replies.Empty()

    def trial(self, request: requests.Trial, reply: Reply) -> replies.Measurement:
        """Measure configs from their artifacts, up to the first that raises; all results but the last are items.

        Raises:
            UsageError: the request names no config, or no problem is open.
        """
        if not request.units:
            raise UsageError("a trial needs at least one unit")
        self._require_current_files()
        *others, (last, last_us) = zip_longest(request.units, request.known_us[: len(request.units)])
        following = [*request.units[1:]]
        for (unit, known_us), after in zip(others, following, strict=True):
            measured = self._timed_measure(unit, known_us, request, reply, after)
            if ends_batch(measured, request):
                return measured
            incumbent = requests.Incumbent.choose_lower(request.incumbent, measured, request.same_bits)
            request = replace(request, incumbent=incumbent)
            # What is printed goes with a result only where that failed: it is not to be mixed with that of others.
            is_well = measured.outcome in (Outcome.MEASURED, Outcome.SLOWER)
            # The next config begins where this request began.
            reply.phase(request.first_phase)
            reply.item(measured, hold_s=request.hold_s if is_well else 0.0)
        return self._timed_measure(last, last_us, request, reply)

    def _timed_measure(
        self,
        unit: requests.UnitRef,
        known_us: float | None,
        request: requests.Trial,
        reply: Reply,
        following: requests.UnitRef | None = None,
    ) -> replies.Measurement:
        """Measure one config; add its time, and what the kernel file's code has reached meanwhile: its check, say."""
        began = monotonic()
        phases = TimedPhases(reply, request.first_phase)
        with self._state.around(unit.key):
            measured = self._convicted(self._measure(unit, known_us, request, phases, following), phases)
        leftover = self._state.leftover or self._describe_outdated_file()
        observed = () if self._trace is None else self._trace.fresh(is_data=True)
        seconds = round(monotonic() - began, 6)
        return replace(measured, observed=observed, seconds=seconds, phase_s=phases.seconds(), leftover=leftover)

    def _require_current_files(self) -> None:
        """Refuse to launch anything in a process that has mapped a file which is another one by now.

        Raises:
            OutdatedWorker: it has.
        """
        if outdated := self._describe_outdated_file():
            raise OutdatedWorker(outdated)

    def _describe_outdated_file(self) -> str:
        name = self._state.find_outdated_file()
        return f"{name} has changed since it was loaded" if name else ""

    def _measure(
        self,
        unit: requests.UnitRef,
        known_us: float | None,
        request: requests.Trial,
        reply: Phases,
        following: requests.UnitRef | None = None,
    ) -> replies.Measurement:
        """Measure one config; a damaged artifact gives no outcome, because it is to be compiled again.

        The ``following`` one is loaded while a GPU works on this one's samples.
        """
        opened = self._opened()
        launch = self._loaded_launch(opened, unit)
        if isinstance(launch, replies.Measurement):
            return launch
        opened.data.begin_trial()
        counted = None if request.cores is None else CountedLaunch(launch)
        first_us = self._launch_once(opened, counted or launch, reply, Phase.FIRST_LAUNCH)
        if isinstance(first_us, replies.Measurement):
            return first_us
        first = self._judge(opened, reply, is_last=not opened.data.is_judged)
        if first.outcome is not Outcome.MEASURED and first.undisputed is None:
            return first
        cores = None if counted is None else counted.cores
        if cores is not None and request.cores is not None and cores > request.cores:
            return replies.Measurement(None, phase=Phase.TIMING, cores=cores)
        compares_bits = request.same_bits is not None and opened.data.has_outputs
        began = perf_counter()
        own = [opened.data.digest_outputs()] if compares_bits else []
        digest_us = (perf_counter() - began) * 1e6
        launches = self._timed_launches(opened, unit.key, launch, first)
        timed, ends_checked = self._time(
            opened,
            launches,
            request.preset,
            request.judge_contention,
            reply,
            stop_above_us=request.stop_above_us,
            incumbent=request.incumbent,
            following=following,
            tolerated=request.tolerated,
            known_us=known_us,
            first_us=first_us,
        )
        if first.undisputed is not None:
            return disputed(timed, first)
        last = first
        if timed.outcome is Outcome.MEASURED and opened.data.is_judged:
            # The inputs and the guards are looked at after the last launch.
            relaunched = None if ends_checked else self._launch_once(opened, launch, reply, Phase.CHECK)
            last = relaunched if isinstance(relaunched, replies.Measurement) else self._judge(opened, reply)
            if last.outcome is not Outcome.MEASURED:
                return replace(last, message=f"the first launch was right, a later one was not: {last.message}")
            own += [opened.data.digest_outputs()] if compares_bits else []
        if compares_bits and timed.outcome in (Outcome.MEASURED, Outcome.SLOWER):
            timed = self._with_bits(opened, launch, timed, own, digest_us, request, reply)
        return replace(
            timed,
            max_error=first.max_error,
            mismatched_ratio=first.mismatched_ratio,
            overwritten=last.overwritten,
            cores=cores,
        )

    def _with_bits(
        self,
        opened: _Opened,
        launch: Launch,
        timed: replies.Measurement,
        own: Sequence[Any],
        digest_us: float,
        request: requests.Trial,
        reply: Phases,
    ) -> replies.Measurement:
        """Add the bits that a timed config leaves: on all inputs if that is wanted, or takes no time."""
        wanted = request.same_bits
        assert wanted is not None
        inputs = wanted.inputs
        try:
            if not wanted.on_all_inputs and not is_cheap(timed, digest_us, inputs):
                inputs = 1
            found = launch_inputs(
                opened.data, launch, opened.timer.synchronize, own, inputs, lambda: reply.phase(Phase.CHECK)
            )
        except Exception as error:
            failed = raised(error, Phase.CHECK)
            return replace(failed, message=f"on inputs that compare bits: {failed.message}")
        return add_bits(timed, found, wanted)

    def _loaded_launch(self, opened: _Opened, unit: requests.UnitRef) -> Launch | replies.Measurement:
        """Return the bound launch of a unit, or the measurement of one that cannot be loaded."""
        try:
            return self._launch(opened, unit)
        except DamagedArtifact as error:
            return replies.Measurement(None, str(error))
        except Unsupported as error:
            return replies.Measurement(Outcome.UNSUPPORTED, str(error), Phase.LOAD)
        except Exception as error:
            return raised(error, Phase.LOAD)

    def _launch_once(self, opened: _Opened, launch: Launch, reply: Phases, phase: Phase) -> float | replies.Measurement:
        """Launch once, on poisoned outputs; return the most that it may have taken in µs, or what came of it."""
        reply.phase(phase)
        try:
            began = perf_counter()
            opened.data.begin_checked_launch()
            launch()
            opened.timer.synchronize()
        except Unsupported as error:
            return replies.Measurement(Outcome.UNSUPPORTED, str(error), phase)
        except Exception as error:
            return raised(error, phase)
        return (perf_counter() - began) * 1e6

    def _convicted(self, measured: replies.Measurement, reply: Phases) -> replies.Measurement:
        """Return a config's measurement, or that it wrote outside its tensors: this is looked at after its last launch,
        however that ended. Else the next config would be found guilty of it.
        """
        if measured.phase is Phase.LOAD or self._open is None:
            return measured
        reply.phase(Phase.CHECK)
        try:
            damage = self._open.data.damage()
        except RuntimeError as error:
            # A GPU reports a launch's fault to whichever call comes next.
            return measured if measured.outcome is Outcome.LAUNCH_ERROR else raised(error, Phase.CHECK)
        return guilty(damage, Phase.CHECK) if damage else measured

    def _judge(self, opened: _Opened, reply: Phases, *, is_last: bool = True) -> replies.Measurement:
        """Judge what the launches since the outputs were poisoned left; the measurement of a right one has no latency.

        The inputs are looked at after the last launch that is judged, and after one that was wrong.
        """
        reply.phase(Phase.CHECK)
        with self._state.known_arithmetic():
            return self._judge_outputs(opened.data, is_last=is_last)

    def _judge_outputs(self, data: ProblemData, *, is_last: bool) -> replies.Measurement:
        try:
            if data.is_surely_right(is_last=is_last):
                return replies.Measurement(Outcome.MEASURED, max_error=0.0, mismatched_ratio=0.0)
            verdict = data.check()
            overwritten = data.overwritten() if is_last or not verdict.ok else ()
        except Exception as error:
            # A GPU reports a launch's fault to whichever call comes next.
            return raised(error, Phase.CHECK)
        measured = replies.Measurement(Outcome.MEASURED)
        if not verdict.ok:
            message = "; ".join((verdict.message, *(f"the kernel overwrites its input {name}" for name in overwritten)))
            undisputed = Outcome.MEASURED if verdict.is_dissent else None
            measured = replies.Measurement(Outcome.MISMATCH, message, Phase.CHECK, undisputed=undisputed)
        return replace(judged(measured, verdict), overwritten=overwritten or None)

    def check(self, request: requests.Check, reply: Reply) -> replies.Measurement:
        """Launch a config once, as before its timing, and judge its outputs."""
        self._require_current_files()
        with self._state.around(request.unit.key):
            measured = self._check(request, reply)
        return replace(measured, leftover=self._state.leftover)

    def _check(self, request: requests.Check, reply: Reply) -> replies.Measurement:
        opened = self._opened()
        launch = self._loaded_launch(opened, request.unit)
        if isinstance(launch, replies.Measurement):
            return launch
        opened.data.begin_trial()
        launched = self._launch_once(opened, launch, reply, Phase.FIRST_LAUNCH)
        judged = launched if isinstance(launched, replies.Measurement) else self._judge(opened, reply)
        return self._convicted(judged, reply)

    def time(self, request: requests.Time, reply: Reply) -> replies.Measurement:
        """Time a finalist again; it was checked when it was tried."""
        self._require_current_files()
        with self._state.around(request.unit.key):
            measured = self._time_again(request, reply)
        return replace(measured, leftover=self._state.leftover)

    def _time_again(self, request: requests.Time, reply: Reply) -> replies.Measurement:
        opened = self._opened()
        launch = self._loaded_launch(opened, request.unit)
        if isinstance(launch, replies.Measurement):
            return launch
        opened.data.begin_trial()
        launched = self._launch_once(opened, launch, reply, Phase.FIRST_LAUNCH)
        first = launched if isinstance(launched, replies.Measurement) else self._judge(opened, reply)
        if first.outcome is not Outcome.MEASURED and first.undisputed is None:
            return self._convicted(first, reply)
        launches = self._timed_launches(opened, request.unit.key, launch, first)
        timed, _ = self._time(
            opened,
            launches,
            request.preset,
            request.judge_contention,
            reply,
            known_us=request.known_us,
            wanted_compared=FINALIST_COMPARED,
        )
        return self._convicted(timed, reply)

    def _timed_launches(self, opened: _Opened, key: str, launch: Launch, first: replies.Measurement) -> TimedLaunches:
        """Return a config's launches as they are timed, after the first of them was judged."""
        data = opened.data
        is_graph = isinstance(opened.timer, CudaTimer)
        judged = data.judged_outputs(
            is_judged=data.is_judged and first.undisputed is None,
            arithmetic=self._state.known_arithmetic,
        )
        launches = TimedLaunches(
            launch,
            restore=data.restore if data.restores else None,
            judged=judged,
            bind=partial(self._bind_copy, opened),
            most_copies=data.most_copies(GRAPH_BYTES if is_graph else RING_BYTES),
            key=key,
        )
        launches.compared = self._compared.get(key, 0)
        return launches

    def _bind_copy(self, opened: _Opened, number: int) -> Launch:
        """Return the bound config's launch on a copy of the outputs."""
        assert self._bound is not None
        launch = self._bound[2].bind(opened.data.copy_of_outputs(number))
        self._watch_faults(opened)
        return launch

    def canary(self, request: requests.Canary, reply: Reply) -> replies.Empty:
        """Run something tiny on a device, to see that it still works after a worker on it was killed.

        That a CPU works is seen by the answer.
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
            from ktuned.worker.rehearsal import rehearse

            rehearse(request.device)
        return replies.Empty()

    def time_reference(self, request: requests.TimeReference, reply: Reply) -> replies.Measurement:
        """Time the reference function by the same timer as the kernels; without one there is no latency.

        Nor is there one where configs are timed in a graph, and the reference has operations that cannot be captured:
        warm launches are not compared with cold ones.
        """
        opened = self._opened()
        reply.phase(Phase.REFERENCE)
        self._state.restore()
        reference = opened.data.reference_launch()
        if reference is None:
            return replies.Measurement(None)
        timer = opened.timer
        in_graph = isinstance(timer, CudaTimer) and timer.method == GRAPH
        if in_graph and opened.data.restores:
            # As the configs are: what has to be restored before each launch is in no graph.
            timer, in_graph = CudaTimer(opened.device.name, EVENTS), False
        watch = _watch_bench(opened.device, request.judge_contention)
        try:
            timing = timer.time(reference, request.preset)
        except Exception as error:
            return replies.Measurement(None) if in_graph else raised(error, Phase.REFERENCE)
        if watch is not None and watch.is_contended(timing.samples):
            return contended(opened.device, Phase.REFERENCE)
        return from_timing(timing)

    def _opened(self) -> _Opened:
        if self._open is None:
            raise UsageError("no problem is open: `open` comes first")
        return self._open

    def _launch(self, opened: _Opened, unit: requests.UnitRef) -> Launch:
        """Return the bound launch of a unit's artifact; the last one is kept for the finalists' rounds."""
        if opened.data.renew():
            self._bound = self._ahead = None
        for ready in (self._bound, self._ahead):
            if ready is not None and ready[0] == unit.key:
                self._bound, self._ahead = ready, None
                return ready[1]
        self._bound = self._ahead = None
        with self._state.loading(unit.key):
            self._bound = (unit.key, *self._load(opened, unit))
        return self._bound[1]

    def _prepare(self, opened: _Opened, unit: requests.UnitRef, reply: Phases) -> None:
        """Load the config that follows; one that fails is loaded again in its turn, where it has its own outcome."""
        reply.phase(Phase.LOAD_NEXT)
        try:
            with ACCESSES.resume_recording(), self._state.loading_ahead(unit.key):
                self._ahead = (unit.key, *self._load(opened, unit))
        except Exception:
            # This one's memory may have been what it lacked.
            self._ahead = None
        reply.phase(Phase.TIMING)

    def _load(self, opened: _Opened, unit: requests.UnitRef) -> tuple[Launch, Kernel]:
        loaded = self._load_artifact(opened.backend, opened.kernel, opened.target, unit, opened.device)
        launch = loaded.bind(opened.data.tensors)
        self._watch_faults(opened)
        return launch, loaded

    def _watch_faults(self, opened: _Opened) -> None:
        """Have faults of memory reported; what was loaded may have handlers of its own."""
        crash_at_once()
        opened.faults.know(opened.data.regions())
        opened.faults.arm()

    def _time(
        self,
        opened: _Opened,
        launches: TimedLaunches,
        preset: Preset,
        judge_contention: bool,
        reply: Phases,
        *,
        stop_above_us: float | None = None,
        incumbent: requests.Incumbent | None = None,
        following: requests.UnitRef | None = None,
        tolerated: Collection[int] = (),
        known_us: float | None = None,
        first_us: float | None = None,
        wanted_compared: int = SURE_COMPARED,
    ) -> tuple[replies.Measurement, bool]:
        """Time launches, unless their latency is known, and measure their energy where that is wanted.

        Of a config that may win so many launches as are ``wanted`` are compared. Return also whether the outputs of
        the last launch can be judged once more.
        """
        before = launches.compared
        try:
            measured, ends_checked = self._time_launches(
                opened,
                launches,
                preset,
                judge_contention,
                reply,
                stop_above_us=stop_above_us,
                incumbent=incumbent,
                following=following,
                tolerated=tolerated,
                known_us=known_us,
                first_us=first_us,
                wanted_compared=wanted_compared,
            )
        except WrongLaunch as wrong:
            # Where it was the first that differs from the default, that is no more than a difference.
            message = f"the first launch was right, a later one was not: {wrong.verdict.message}"
            measured, ends_checked = replies.Measurement(Outcome.MISMATCH, message, Phase.CHECK), False
            measured = judged(measured, wrong.verdict)
        self._compared[launches.key] = launches.compared
        measured = replace(measured, nondeterministic=launches.has_differed or None)
        return replace(measured, compared=launches.compared - before or None), ends_checked

    def _time_launches(
        self,
        opened: _Opened,
        launches: TimedLaunches,
        preset: Preset,
        judge_contention: bool,
        reply: Phases,
        *,
        stop_above_us: float | None,
        incumbent: requests.Incumbent | None,
        following: requests.UnitRef | None,
        tolerated: Collection[int],
        known_us: float | None,
        first_us: float | None,
        wanted_compared: int,
    ) -> tuple[replies.Measurement, bool]:
        reply.phase(Phase.TIMING)
        if isinstance(opened.timer, CudaTimer):
            opened.timer.meanwhile = None if following is None else partial(self._prepare, opened, following, reply)
        watch = _watch_bench(opened.device, judge_contention, tolerated)
        try:
            restore = opened.data.restore if opened.data.restores else None
            measured = replies.Measurement(Outcome.MEASURED, latency_us=known_us)
            is_contended = ends_checked = False
            if known_us is None:
                # It was launched before, and has shown then what it reads.
                with ACCESSES.pause_recording():
                    timing = opened.timer.time(
                        launches,
                        preset,
                        stop_above_us=stop_above_us,
                        incumbent=incumbent if opened.races_by_latency else None,
                        cost=None if opened.objective == LATENCY else opened.cost,
                        first_us=first_us,
                        noise=opened.noise,
                    )
                ends_checked = timing.ends_checked
                measured = from_timing(timing)
                is_contended = watch is not None and not timing.stopped_early and watch.is_contended(timing.samples)
                if timing.is_full and not is_contended:
                    opened.noise.learn(timing.samples, first_us)
                if measured.outcome is Outcome.MEASURED and _may_win(measured, incumbent):
                    launches.top_up(wanted_compared, preset.timing_s, opened.timer.synchronize)
            energy: Energy | None = None
            if opened.meter is not None and not is_contended and measured.latency_us is not None:
                latency_us = measured.latency_us
                reply.phase(Phase.TIMING)
                energy, trace = opened.meter.measure(
                    launches.ring[0],
                    preset,
                    latency_us,
                    restore=restore,
                    incumbent=incumbent,
                    cost=partial(opened.cost, latency_us),
                )
                is_contended = watch is not None and watch.is_shared()
                if trace.ending is Ending.BEATEN:
                    message = f"cannot win: {energy.low:.4g} to {energy.high:.4g} J"
                    measured = replace(measured, message=message, beaten=True)
        except WrongLaunch:
            raise
        except CounterStopped as error:
            # It says nothing of the config, which is tried again.
            message = f"the energy counter of {opened.device.name}: {error}"
            return replies.Measurement(Outcome.CONTENDED, message, Phase.TIMING), False
        except Exception as error:
            return raised(error, Phase.TIMING), False
        if is_contended:
            return contended(opened.device, Phase.TIMING), False
        absence = watch.absence if isinstance(watch, GpuWatch) else ""
        measured = replace(measured, contention=f"not judged: {absence}" if absence else None)
        return _with_metrics(measured, opened, energy), ends_checked


def _may_win(measured: replies.Measurement, incumbent: requests.Incumbent | None) -> bool:
    """Return whether a config is not known to be slower than the fastest so far."""
    if measured.beaten:
        return False
    return incumbent is None or measured.low_us is None or measured.low_us <= incumbent.high


def _with_metrics(measured: replies.Measurement, opened: _Opened, energy: Energy | None) -> replies.Measurement:
    """Add the energy, the kernel file's own metrics, and what all that costs by the objective.

    Where a metric fails, the file's are left out, and the message says why.
    """
    latency_us = measured.latency_us
    if measured.outcome is not Outcome.MEASURED or latency_us is None:
        return measured
    joules = None if energy is None else energy.joules
    metrics = {} if joules is None else compute_energy_figures(joules, latency_us)
    try:
        metrics |= opened.metrics(latency_us, joules)
    except KernelFileError as error:
        measured = replace(measured, message=error.message, metrics_fault=error.message)
    measured = replace(measured, metrics=metrics or None)
    if energy is not None:
        measured = replace(measured, energy_low=energy.low, energy_high=energy.high)
        ends = [opened.cost(latency_us, joules) for joules in (energy.low, energy.high)]
    else:
        ends = [opened.cost(end) for end in (measured.low_us or latency_us, measured.high_us or latency_us)]
    cost = opened.cost(latency_us, joules)
    known = sorted(end for end in ends if end is not None)
    if opened.objective == LATENCY or cost is None or not known:
        return measured
    return replace(measured, cost=cost, cost_low=known[0], cost_high=known[-1])


def _watch_bench(device: Device, judge_contention: bool, tolerated: Collection[int] = ()) -> CpuWatch | GpuWatch | None:
    """Return what watches a bench's device for other programs' work from now on."""
    if not judge_contention:
        return None
    if device.kind != "cuda":
        return CpuWatch()
    import torch

    return GpuWatch(str(torch.cuda.get_device_properties(device.name).uuid), tolerated)


def crash_at_once() -> None:
    """Let a fatal signal end the process after a short stack dump.

    Libraries install handlers that symbolise a backtrace (apache-tvm-ffi does): for seconds, and where the heap is
    broken without end, so that a crash looks like a hang, or like the handler's own. faulthandler hands over to
    whichever was there before it.
    """
    faulthandler.disable()
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(all_threads=False)
