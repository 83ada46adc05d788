"""Requests for jobs: a request to tune a kernel becomes a job for each of its problems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ktuned.answers import Knowledge
from ktuned.catalog import complete_config, read_problem
from ktuned.model import (
    EXACT,
    JUDGED,
    LATENCY,
    PRESETS,
    UNTIL,
    BackendError,
    Config,
    DeviceModel,
    FrozenStruct,
    KernelInfo,
    Objective,
    Plan,
    Problem,
    UsageError,
    WinnerKey,
    WorkerError,
    canonical,
    spell_values,
    with_numerics,
)
from ktuned.protocol import MAX_PRIORITY, WINNER, Job, Priority
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.preparation import find_judged_trial, find_present_key


class TuningRequest(FrozenStruct):
    """The options of a request to tune a kernel; ``None`` leaves an option to the kernel file.

    With ``is_judged``, configs are judged (:mod:`ktuned.tuning.judging_job`): the given ones, or else the default, or
    else the first of the space. What they are compared ``against`` is judged, too: a config, or the winner
    (:data:`~ktuned.protocol.WINNER`). So is the default, unless it was before.
    """

    problem: Problem | None = None
    device: str | None = None
    preset: str | None = None
    trials: int | None = None
    time_limit_s: float | None = None
    strategy: str | None = None
    until: str | None = None
    objective: Objective | None = None
    numerics: str | None = None
    anchor: Config | None = None
    seed: int | None = None
    priority: int = Priority.REQUESTED
    is_fixed: bool = False
    reason: str = "asked for"
    stale_only: bool = False
    any_plan: bool = False
    compile_only: bool = False
    arch: str | None = None
    configs: tuple[Config, ...] = ()
    again: bool = False
    is_judged: bool = False
    against: str | Config | None = None

    def apply_to_plan(self, declared: Plan) -> Plan:
        """Return the declared plan with the options of this request.

        Raises:
            UsageError: An option is not valid; the error names it.
        """
        if not 0 <= self.priority <= MAX_PRIORITY:
            raise UsageError(f"priority is {self.priority}", hint=f"give 0 to {MAX_PRIORITY}")
        if self.preset is not None and self.preset not in PRESETS:
            raise UsageError(f"there is no preset {self.preset!r}", hint=f"there are {', '.join(PRESETS)}")
        if self.until is not None and self.until not in UNTIL:
            raise UsageError(f"until is {self.until!r}", hint=f"give {' or '.join(UNTIL)}")
        if self.trials is not None and self.trials < 1:
            raise UsageError(f"trials is {self.trials}", hint="give at least 1")
        if self.time_limit_s is not None and not 0 < self.time_limit_s < math.inf:
            raise UsageError(f"time_limit_s is {self.time_limit_s}", hint="give more than 0")
        names = ("preset", "trials", "time_limit_s", "strategy", "until", "seed")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        given |= {"configs": self.configs, "again": self.again}
        if self.is_judged:
            # Nothing is searched, so only the preset is left of the declared plan.
            preset = declared.preset if self.preset is None else self.preset
            return Plan("exhaustive", preset=preset, deadlines=declared.deadlines, objective=JUDGED)
        # Compiling does not depend on the objective.
        objective = LATENCY if self.compile_only else declared.objective if self.objective is None else self.objective
        has_anchor = self.anchor is not None
        if has_anchor and self.numerics not in (None, EXACT):
            raise UsageError(f"an anchor needs numerics={EXACT!r}, not {self.numerics!r}", hint="leave one of them out")
        # Choosing an anchor implies exact numerics.
        objective = with_numerics(objective, EXACT if has_anchor else self.numerics)
        return replace(declared, **given, objective=objective, compile_only=self.compile_only)


def _check_knobs(kernel: KernelInfo, config: Config) -> None:
    """Check that a config has exactly the kernel's knobs.

    Raises:
        UsageError: It has others, or lacks one.
    """
    strange = [knob for knob in config if kernel.knobs and knob not in kernel.knobs]
    missing = [knob for knob in kernel.knobs if knob not in config]
    if strange or missing:
        why = f"there is no knob {strange[0]!r}" if strange else f"it lacks {', '.join(missing)}"
        raise _make_config_error(kernel, config, why)


def _make_config_error(kernel: KernelInfo, config: Config, why: str) -> UsageError:
    knobs = f", with {','.join(kernel.knobs)}" if kernel.knobs else ""
    message = f"{kernel.name} cannot try {spell_values(config)}: {why}"
    return UsageError(message, hint=f"give a config of its space{knobs}")


class PlannedJob(FrozenStruct):
    """A job that a request asks for.

    Attributes:
        key: The key whose winner the job finds.
        problem: The problem that it measures, of which the key may hold a part.
        plan: Its plan.
        fault: Why there is no device for the job, if there is none. The key then names no device.
    """

    key: WinnerKey
    problem: Problem
    plan: Plan
    fault: BackendError | None = None


class JobRequests(FrozenStruct):
    """Turns requests for one kernel into jobs, once the catalog knows the present state of the kernel's files."""

    known: Knowledge
    jobs: Jobs

    async def request_jobs(self, kernel: KernelInfo, request: TuningRequest) -> list[Job]:
        """Tune or only compile one kernel, for the given problem or for all problems that it declares.

        Raises:
            UsageError, NotFound: As :meth:`plan_jobs`.
            StoreError: A job cannot be recorded.
        """
        return await self.submit_jobs(await self.plan_jobs(kernel, request), request)

    async def plan_jobs(self, kernel: KernelInfo, request: TuningRequest) -> list[PlannedJob]:
        """Return the jobs that a request asks for, without submitting them.

        Raises:
            UsageError: The kernel declares no problems and none was given, or an option of the request is not valid.
            NotFound: There is no such device.
        """
        plan, problems = await self._resolve_request(kernel, request)
        objective = JUDGED if request.is_judged else kernel.objective(plan.objective)
        model, fault = "", None
        try:
            model = self._find_target_model(kernel, request)
        except BackendError as error:
            fault = error
        planned = []
        for problem in problems:
            key = kernel.make_winner_key(problem, DeviceModel(model), objective)
            if request.is_judged:
                configs = self._choose_judged_configs(kernel, problem, key, request)
                judged = replace(plan, configs=configs, trials=len(configs) or 1)
                planned.append(PlannedJob(key, problem, judged, fault))
                continue
            await self._check_configs(kernel, problem, plan.configs)
            job = PlannedJob(key, problem, plan, fault)
            if fault is None:
                anchor = await self._resolve_anchor(kernel, problem, request)
                job = msgspec.structs.replace(job, plan=replace(plan, anchor=anchor or plan.anchor))
                if request.stale_only and await self._has_fresh_winner(kernel, problem, request, objective):
                    continue
            planned.append(job)
        return planned

    async def submit_jobs(self, planned: Sequence[PlannedJob], request: TuningRequest) -> list[Job]:
        """Submit planned jobs; problems with the same key become one job.

        Raises:
            StoreError: A job cannot be recorded.
        """
        jobs: dict[int, Job] = {}
        for one in planned:
            if one.fault is not None:
                job = await self.jobs.record_failed_job(
                    one.key,
                    one.problem,
                    reason=request.reason,
                    plan=one.plan,
                    priority=request.priority,
                    error=one.fault,
                )
            else:
                arrival = await self.jobs.submit_job(
                    one.key,
                    one.problem,
                    priority=request.priority,
                    reason=request.reason,
                    plan=one.plan,
                    is_fixed=request.is_fixed,
                    any_plan=request.any_plan,
                )
                job = arrival.job
            jobs[job.id] = job
        return list(jobs.values())

    async def _resolve_request(self, kernel: KernelInfo, request: TuningRequest) -> tuple[Plan, Sequence[Problem]]:
        """Return the plan and the problems of a request; afterwards the devices are known.

        Raises:
            UsageError: The kernel declares no problems and none was given, or an option of the request is not valid.
        """
        plan = request.apply_to_plan(kernel.plan)
        if not request.is_judged:
            kernel.objective(plan.objective)
        if request.problem is None:
            problems = kernel.problems
        else:
            problems = (kernel.choose_representative(read_problem(kernel, request.problem)),)
        if not problems:
            raise UsageError(f"{kernel.name} declares no problems", hint="name one: `-p M=1024 …`")
        environment = self.known.catalog.find_kernel_environment(kernel)
        if not request.compile_only:
            self.known.machine.environments.prepare_first_job(environment, kernel.backend)
        await self.known.machine.environments.probe_environment(environment)
        await self.known.machine.environments.check_strategy(environment, plan.strategy)
        if not request.compile_only and not self.known.machine.has_device(environment, kernel.backend, request.device):
            await self.known.machine.environments.probe_hosts(environment)
        if not self.known.machine.list_devices(environment, kernel.backend):
            # The missing device or software may have been installed since the last probe.
            await self.known.machine.environments.probe_environment(environment, again=True)
        return plan, problems

    async def _check_configs(self, kernel: KernelInfo, problem: Problem, configs: Sequence[Config]) -> None:
        """Check that the space holds the configs that a request names.

        Raises:
            UsageError: The space does not hold one of them.
        """
        admitted = await self.known.admission.check_configs(kernel, problem, configs) if configs else []
        for config, is_admitted in zip(configs, admitted, strict=True):
            if not is_admitted:
                _check_knobs(kernel, config)
                raise _make_config_error(kernel, config, "it is not in the space for this problem")

    def _choose_judged_configs(
        self, kernel: KernelInfo, problem: Problem, key: WinnerKey, request: TuningRequest
    ) -> tuple[Config, ...]:
        """Return the candidates, and what they are compared with; nothing stands for the first config of the space.

        A config that the space does not hold for this problem is left to the job, because it may be right for others.

        Raises:
            UsageError: A config has other knobs than the kernel, or there is no candidate to compare.
        """
        default, bases = kernel.default, list[Config]()
        candidates = request.configs or (() if default is None else (default,))
        if request.against == WINNER:
            winner = self.known.store.get_winner(key._replace(objective=kernel.objective(None)))
            bases += [] if winner is None else [complete_config(kernel, winner.config)]
        elif isinstance(request.against, Mapping):
            bases.append(request.against)
        if bases and not candidates:
            raise UsageError(f"{kernel.name} has no default to compare", hint="name the candidates: `--config …`")
        for config in (*candidates, *bases):
            _check_knobs(kernel, config)
        if default is not None and key.device:
            known = find_judged_trial(self.known, kernel, problem, key.device, default)
            bases += [default] if known is None or known.latency_us is None else []
        return tuple({canonical(config): config for config in (*candidates, *bases)}.values())

    async def _resolve_anchor(self, kernel: KernelInfo, problem: Problem, request: TuningRequest) -> Config | None:
        """Return the requested anchor, if there is one, with the default's values for knobs that it leaves out.

        Raises:
            UsageError: The space does not hold the anchor.
        """
        asked = request.anchor
        if asked is None:
            return None
        anchor = {**(kernel.default or {}), **asked}
        try:
            await self._check_configs(kernel, problem, [anchor])
        except UsageError as error:
            words = spell_values(asked)
            raise UsageError(f"{words} cannot be the anchor: {error.message}", hint=error.hint) from error
        return anchor

    async def _has_fresh_winner(
        self, kernel: KernelInfo, problem: Problem, request: TuningRequest, objective: Objective
    ) -> bool:
        """Return whether a problem's winner holds in the present context, and no job works on a better one."""
        environment = self.known.catalog.find_kernel_environment(kernel)
        if not self.known.machine.list_devices(environment, kernel.backend):
            return False
        present = find_present_key(self.known.catalog, self.known.machine, kernel, problem, request.device, objective)
        winner = self.known.store.get_winner(present.winner_key)
        is_open = any(job.key == present.winner_key for job in self.jobs.list_live_jobs())
        if winner is None or winner.context != present.context or is_open:
            return False
        try:
            (is_admitted,) = await self.known.admission.check_configs(kernel, problem, [winner.config])
        except WorkerError:
            return False
        return is_admitted

    def _find_target_model(self, kernel: KernelInfo, request: TuningRequest) -> str:
        """Return the model of the requested device, or the target to compile for if no device is used.

        Raises:
            BackendError: There is no device, and no target.
            NotFound: There are devices, but not the requested one.
            UsageError: The backend does not compile for the target.
        """
        environment = self.known.catalog.find_kernel_environment(kernel)
        if request.compile_only and request.arch is not None:
            self.known.machine.check_target(environment, kernel.backend, request.arch)
            return request.arch
        if request.compile_only or not self.known.machine.list_devices(environment, kernel.backend):
            return self.known.machine.choose_target(environment, kernel.backend)
        return self.known.machine.find_device(environment, kernel.backend, request.device).model
