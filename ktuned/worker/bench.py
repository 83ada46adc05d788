"""The bench: opens one problem after another on a device, and measures configs of the one that is open.

Opening a problem prepares what all its configs share: inputs, expected outputs, guards, a timer, observers
(:mod:`ktuned.worker.open_problem`). Each config is loaded and bound to the tensors; on a GPU this was done while the
device timed the config before. Then it is launched, checked and timed (:mod:`ktuned.worker.config_run`).

All configs run in the same process state: it is read when the problem is opened, and restored around each config
(:mod:`ktuned.worker.process_state`). A process stops measuring if its state cannot be restored, or if a file that it
has mapped changes on the disk: its last measurement says so (``leftover``). After that a fresh process opens the next
problem (:class:`FreshProcessNeeded`), and a request to measure is refused (:class:`OutdatedWorker`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ktuned.backends import Backend, Kernel, Registry, read_layout
from ktuned.checking import (
    DEFAULT_CONFIG,
    Guards,
    ProblemData,
    require_free_memory,
)
from ktuned.dependencies import ACCESSES, OBSERVER, FreshProcessNeeded
from ktuned.ipc import DamagedArtifact, Places, manifest, replies, requests
from ktuned.measuring import (
    EVENTS,
    Costs,
    CudaTimer,
    HostTimer,
    RaceRules,
    TimedLaunches,
    Timer,
    ends_batch,
    is_device_free,
    make_failed_result,
    make_raised_result,
    make_timed_result,
)
from ktuned.model import (
    Device,
    KtunedError,
    Observation,
    Outcome,
    Phase,
    Problem,
    TrialResult,
    Unsupported,
    UsageError,
    canonical,
    choose_search_objective,
    read_objective,
    strip_numerics,
)
from ktuned.worker.code_trace import CodeTrace
from ktuned.worker.compile import make_unit
from ktuned.worker.config_run import ConfigRun
from ktuned.worker.fault_reporter import FaultReporter
from ktuned.worker.inspect import load_kernel
from ktuned.worker.judge import Judge
from ktuned.worker.open_problem import OpenProblem, make_observers
from ktuned.worker.process_state import ProcessState
from ktuned.worker.reply import Phases, Reply, TimedPhases

if TYPE_CHECKING:
    from ktuned.declaration import Kernel as DeclaredKernel


class OutdatedWorker(KtunedError):
    """A file that this process has mapped has changed on the disk. Another process has to do the request."""

    code = "outdated_worker"


class Bench:
    """Opens one problem after another, and measures configs of the one that is open."""

    def __init__(self, registry: Registry, places: Places) -> None:
        self._registry = registry
        self._places = places
        self._open: OpenProblem | None = None
        self._described: tuple[str, manifest.Tensors] = ("", {})
        self._trace: CodeTrace | None = None
        self._state = ProcessState()
        self._judge = Judge(registry, places)
        self._opened: requests.Open | None = None

    def open_problem(self, request: requests.Open, reply: Reply) -> replies.Opened:
        """Make the inputs and the expected outputs of a problem on a device.

        Returns:
            What the kernel file's code has read, and a digest of everything that decides results. If the expected
            outputs must come from the default config and this cannot be run, the reason instead.

        Raises:
            FreshProcessNeeded: a config has changed this process for good, or a file that it has mapped has changed.
            KernelFileError: the kernel file's code fails, or makes inputs or outputs that cannot be used.
            UsageError: the expected outputs come from the default config, but the request does not name its artifact.
            DeviceCrowded: an application leaves too little memory.
        """
        self._state.begin_problem()
        if self._state.leftover:
            raise FreshProcessNeeded(self._state.leftover)
        outdated = self._state.find_outdated_file()
        if outdated:
            raise FreshProcessNeeded(f"{outdated} has changed since it was mapped")
        ACCESSES.end_run()
        kernel = load_kernel(request.kernel, self._places)
        reply.begin_phase(Phase.LOAD)
        backend = self._registry.load(request.kernel.backend)
        self._open, self._opened = None, request
        self._judge.close_problem()
        reply.begin_phase(Phase.REFERENCE)
        if request.device.kind == "cuda":
            self._require_free_memory(kernel, request)
        # The timer comes first: its GPU warms up while the host makes the inputs.
        timer = _make_timer(kernel, backend, request.device)
        data = self._make_data(kernel, request)
        # Read the baseline after the kernel file's Python, which applies to all configs, but before its reference runs.
        with ACCESSES.pause_recording():
            self._state.read_baseline((self._places.artifacts, self._places.expected))
        load = partial(self._load_artifact, backend, request)
        self._trace = CodeTrace(request.kernel, self._places, is_declared=bool(kernel.depends))
        observed = self._trace.take_new_observations(is_data=True)
        self._trace.begin_run()
        try:
            self._provide_expected_outputs(data, kernel, request, load, timer)
        except (Unsupported, DamagedArtifact) as error:
            return replies.Opened(unusable=str(error), is_damaged=isinstance(error, DamagedArtifact))
        objective = read_objective(request.objective)
        costs = Costs(
            strip_numerics(choose_search_objective(objective)), partial(kernel.evaluate_metrics, request.problem)
        )
        layouts = {name: layout for name, tensor in data.tensors.items() if (layout := read_layout(tensor))}
        self._described = canonical(request.problem), layouts
        self._open = OpenProblem(
            request.device,
            data,
            timer,
            costs,
            make_observers(request.device, backend, timer, costs, objective),
            load,
            FaultReporter(reply.journal_descriptor),
            self._state,
        )
        with ACCESSES.pause_recording():
            self._state.complete_baseline()
            settings = self._state.find_file_settings(OBSERVER.environ)
        identity = _digest_identity(kernel, request.problem, data, settings)
        return replies.Opened(
            (*observed, *self._trace.take_new_observations(is_data=True)), identity, inputs=data.digest_specs()
        )

    def _make_data(self, kernel: DeclaredKernel, request: requests.Open) -> ProblemData:
        return ProblemData(
            kernel,
            request.problem,
            request.device,
            seed=request.seed,
            guards=Guards(is_active=request.guarded),
        )

    def _provide_expected_outputs(
        self,
        data: ProblemData,
        kernel: DeclaredKernel,
        request: requests.Open,
        load: Callable[[requests.UnitRef], Kernel],
        timer: Timer,
    ) -> None:
        """Read the expected outputs, or compute and save them.

        Raises:
            DamagedArtifact: they come from the default config, and its artifact must be compiled again.
            KernelFileError: the reference fails.
            Unsupported: they come from the default config, and the device cannot run it.
            UsageError: they come from the default config, and the request does not name its artifact.
        """
        saved = self._places.locate_reference(request.expected)
        default: Kernel | None = None
        if kernel.expects_default_outputs and not saved.is_file():
            if request.reference is None:
                raise UsageError(f"the default config of {kernel.name} is the reference, and its artifact is not named")
            try:
                default = load(request.reference)
            except (Unsupported, DamagedArtifact):
                raise
            except Exception as error:
                raise kernel.site.make_failure(DEFAULT_CONFIG, error) from error
        data.provide_expected_outputs(saved, default)
        if not timer.returns_early:
            data.save_expected_outputs(saved)
            return
        from concurrent.futures import ThreadPoolExecutor

        # Save them while the GPU loads the kernels that each check needs.
        with ThreadPoolExecutor(1) as executor:
            saving = executor.submit(data.save_expected_outputs, saved)
            data.rehearse_judging()
            saving.result()

    def _load_artifact(self, backend: Backend, request: requests.Open, unit: requests.UnitRef) -> Kernel:
        """Verify a unit's artifact and load its kernel.

        Raises:
            DamagedArtifact: it must be compiled again.
            Unsupported: the device cannot run it.
        """
        artifact = self._places.locate_artifact(unit.key)
        manifest.verify(artifact, required=backend.required_files)
        recipe = make_unit(self._registry, self._places, request.kernel, request.target, unit)
        return backend.load(artifact, recipe, request.device)

    def _require_free_memory(self, kernel: DeclaredKernel, request: requests.Open) -> None:
        """Keep within the memory that an application leaves on the GPU; without an application, lift the limit.

        Raises:
            DeviceCrowded: the application leaves too little.
        """
        import torch

        if request.is_shared:
            torch.cuda.empty_cache()
            require_free_memory(request.device.name, kernel.evaluate_inputs(request.problem))
        elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.set_per_process_memory_fraction(1.0, request.device.name)

    def close_problem(self, request: requests.Close, reply: Reply) -> replies.Empty:
        """Close the open problem, and release the GPU memory that torch has cached, because another worker needs it."""
        was_on_gpu = self._open is not None and self._open.device.kind == "cuda"
        self._open = None
        self._judge.close()
        if was_on_gpu:
            import torch

            torch.cuda.empty_cache()
        return replies.Empty()

    def run_trial(self, request: requests.Trial, reply: Reply) -> replies.Measurement:
        """Measure a batch of configs, up to the first one that must end the batch (:func:`ends_batch`).

        The last result is returned. Those before it are sent as items.

        Raises:
            UsageError: the request names no config, or no problem is open.
            OutdatedWorker: a file that this process has mapped has changed.
        """
        self._require_current_files()
        known_us, taken_s = chain(request.known_us, repeat(None)), 0.0
        for unit, latency_us, following in zip(request.units, known_us, (*request.units[1:], None), strict=False):
            if request.judged:
                measured = self._judge_config(unit, request, reply)
            else:
                measured = self._measure_config(unit, latency_us, following, request, reply)
            taken_s += measured.taken_s or 0.0
            measured = replace(measured, taken_s=None if measured.taken_s is None else taken_s)
            if following is None or ends_batch(measured, request):
                return measured
            incumbent = requests.choose_incumbent(request.incumbent, measured, request.same_bits)
            request = replace(request, incumbent=incumbent)
            # Send a failed config's result at once, so that its printed output is not mixed with that of later configs.
            is_well = measured.result.outcome in (Outcome.MEASURED, Outcome.SLOWER)
            # The next config starts in the phase that the request started in.
            reply.begin_phase(request.first_phase)
            reply.send_item(measured, hold_s=request.hold_s if is_well else 0.0)
        raise UsageError("a trial needs at least one unit")

    def _measure_config(
        self,
        unit: requests.UnitRef,
        known_us: float | None,
        following: requests.UnitRef | None,
        request: requests.Trial,
        reply: Reply,
    ) -> replies.Measurement:
        """Measure one config in the known process state; add how long that took, and what the file's code has read."""
        problem, began = self._require_open_problem(), monotonic()
        self._judge.close()
        phases = TimedPhases(reply, request.first_phase)
        with self._state.isolate_config(unit.key):
            measured = self._run_config(unit, phases, lambda run: run.measure_config(request, known_us, following))
            # Within the isolation, because a metric of the kernel file is user code.
            cost = problem.costs.compute_cost_range(measured.result)
        leftover = self._state.leftover or self._describe_outdated_file()
        return replace(
            measured,
            result=measured.result.add_facts("profile", phase_s=phases.sum_phase_seconds()),
            cost=cost,
            observed=self._take_run_reads(),
            seconds=round(monotonic() - began, 6),
            leftover=leftover,
        )

    def _judge_config(self, unit: requests.UnitRef, request: requests.Trial, reply: Reply) -> replies.Measurement:
        """Judge one config that is not trusted. This process runs no code of it, so nothing is left in it."""
        problem, began = self._require_open_problem(), monotonic()
        assert self._opened is not None
        phases = TimedPhases(reply, request.first_phase)
        # The kernel file's code was observed when the problem was opened; the sandbox's own reads are no part of it.
        with ACCESSES.pause_recording():
            result = self._judge.judge_config(unit, self._opened, problem, request, phases)
        result = result.add_facts("profile", phase_s=phases.sum_phase_seconds())
        seconds = round(monotonic() - began, 6)
        return _charge_time(replies.Measurement(result, seconds=seconds), problem.device, began)

    def check_config(self, request: requests.Check, reply: Reply) -> replies.Measurement:
        """Launch a config once and judge its outputs, without timing it."""
        return self._run_config_alone(request.unit, reply, ConfigRun.check_config)

    def time_finalist(self, request: requests.Time, reply: Reply) -> replies.Measurement:
        """Time a config again in the final round, against the other finalists."""
        return self._run_config_alone(request.unit, reply, lambda run: run.time_finalist(request))

    def _run_config_alone(
        self, unit: requests.UnitRef, reply: Reply, steps: Callable[[ConfigRun], TrialResult]
    ) -> replies.Measurement:
        self._require_current_files()
        self._judge.close()
        with self._state.isolate_config(unit.key):
            measured = self._run_config(unit, reply, steps)
        return replace(measured, observed=self._take_run_reads(), leftover=self._state.leftover)

    def _take_run_reads(self) -> tuple[Observation, ...]:
        """Return what the reference, checks and launches have read since the last call."""
        return () if self._trace is None else self._trace.take_new_observations(is_data=True)

    def _run_config(
        self, unit: requests.UnitRef, phases: Phases, steps: Callable[[ConfigRun], TrialResult]
    ) -> replies.Measurement:
        """Load a config, take it through ``steps``, and look for what it has damaged.

        A damaged artifact gives no outcome: it will be compiled again.
        """
        problem = self._require_open_problem()
        try:
            launch = problem.provide_launch(unit)
        except DamagedArtifact as error:
            return replies.Measurement(TrialResult(None, message=str(error)))
        except Unsupported as error:
            return replies.Measurement(make_failed_result(Outcome.UNSUPPORTED, str(error), Phase.LOAD))
        except Exception as error:
            return replies.Measurement(make_raised_result(error, Phase.LOAD))
        problem.data.reset_tensors()
        run = ConfigRun(problem, unit.key, launch, phases)
        began = monotonic()
        measured = run.check_damage(steps(run))
        if measured.result.outcome is Outcome.MEASURED:
            # Whoever loads the artifact checks by these what it is called with.
            with suppress(OSError):
                manifest.add_tensors(self._places.locate_artifact(unit.key), *self._described)
        return _charge_time(measured, problem.device, began)

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

    def time_reference(self, request: requests.TimeReference, reply: Reply) -> replies.Measurement:
        """Time the reference function in the same way as the configs.

        The result has no latency if there is no reference, or if configs are timed in a graph and the reference cannot
        be captured in one: a time with cold caches must not be compared with times with warm caches.
        """
        problem = self._require_open_problem()
        reply.begin_phase(Phase.REFERENCE)
        self._state.restore_baseline()
        reference = problem.data.make_reference_launch()
        if reference is None:
            return replies.Measurement(TrialResult(None))
        timer = problem.timer
        in_graph = timer.times_in_graph
        if in_graph and problem.data.restores:
            # Configs are then timed by events, too, because a graph would include the restoring between launches.
            timer, in_graph = CudaTimer(problem.device.name, EVENTS), False
        launches = TimedLaunches(problem.observers.begin_config(request, reference))
        problem.observers.begin_samples()
        began = monotonic()
        try:
            race = timer.time_launches(launches, RaceRules(request.preset))
        except Exception as error:
            result = TrialResult(None) if in_graph else make_raised_result(error, Phase.REFERENCE)
        else:
            result = problem.observers.end_samples(make_timed_result(race), race.samples)
        return _charge_time(replies.Measurement(result), problem.device, began)

    def evaluate_metrics(self, request: requests.EvaluateMetrics, reply: Reply) -> replies.Metrics:
        """Return the kernel file's own metrics for some latencies.

        Raises:
            KernelFileError: a metric fails.
        """
        problem = self._require_open_problem()
        self._state.restore_baseline()
        return replies.Metrics(tuple(dict(problem.costs.metrics(latency_us)) for latency_us in request.latencies_us))

    def _require_open_problem(self) -> OpenProblem:
        if self._open is None:
            raise UsageError("no problem is open: `open` comes first")
        return self._open


def _make_timer(kernel: DeclaredKernel, backend: Backend, device: Device) -> Timer:
    """Return the timer for a device. A GPU's begins to warm up, unless another program keeps it warm.

    The warm-up also loads the GPU's matrix-product library, which takes about as long as making the inputs.
    """
    is_returned = kernel.timing == "returned"
    if device.kind != "cuda" or backend.times_on_host or is_returned:
        return HostTimer(believes_reports=is_returned or backend.reports_time)
    timer = CudaTimer(device.name, kernel.timing)
    if is_device_free(device.name):
        timer.begin_warm_up()
    return timer


def _charge_time(measured: replies.Measurement, device: Device, began: float) -> replies.Measurement:
    """Return a measurement with the time since ``began`` as taken, or 0 if no other program works on the device now."""
    seconds = monotonic() - began
    return replace(measured, taken_s=0.0 if is_device_free(device.name) else round(seconds, 6))


def _digest_identity(kernel: DeclaredKernel, problem: Problem, data: ProblemData, settings: Mapping[str, str]) -> str:
    """Return a digest of everything that decides the results of configs besides their artifacts."""
    work = repr(kernel.evaluate_work(problem))
    identity = canonical({"bits": data.digest_problem(), "work": work, "settings": settings})
    return hashlib.sha256(identity.encode()).hexdigest()
