"""The methods about jobs: ``tune``, ``compile``, ``cancel``, ``jobs``, ``pause`` and ``resume``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import asdict, replace

from ktuned.answers import Knowledge
from ktuned.fleet import Applications
from ktuned.model import Config, FrozenStruct, KernelInfo, NotFound, UsageError, canonical, read_objective
from ktuned.protocol import (
    CANCEL,
    COMPILE,
    JOBS,
    PAUSE,
    RESUME,
    TUNE,
    CancelParams,
    CompileParams,
    FileError,
    Job,
    JobInfo,
    JobParams,
    JobsAnswer,
    JobsParams,
    JudgeParams,
    PauseAnswer,
    PauseParams,
    TuneAnswer,
    TuneParams,
)
from ktuned.scheduling import EVERYTHING, Intake, Jobs, TuningRequest
from ktuned.serve.events import Events
from ktuned.serve.method import MAX_ROWS, Handler, Peer, bound_limit

MAX_CONFIGS = 200
"""Configs that one request may name: each message about its job has them all, and more should be a space of their own.
"""

MAX_NAMED = 4
"""Kernels that a notice about an ambiguous name lists."""


class JobMethods(FrozenStruct, kw_only=True):
    """Handles clients' requests for jobs and about jobs."""

    known: Knowledge
    applications: Applications
    events: Events
    intake: Intake
    jobs: Jobs

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [
            Handler(TUNE, self.handle_tune),
            Handler(COMPILE, self.handle_compile),
            Handler(CANCEL, self.handle_cancel),
            Handler(JOBS, self.handle_jobs),
            Handler(PAUSE, self.handle_pause),
            Handler(RESUME, self.handle_resume),
        ]

    async def handle_tune(self, params: TuneParams, peer: Peer) -> TuneAnswer:
        """Request a tuning; ``subscribe`` with the returned position reports its progress."""
        if params.beside is not None:
            self.applications.add_process(params.beside)
        options: dict[str, Any] = {"configs": parse_configs(params.configs), "is_fixed": params.priority is not None}
        if params.objective is not None:
            options["objective"] = read_objective(params.objective)
        request = _parse_request(params, **options)
        return await self._create_jobs(params, request)

    async def handle_compile(self, params: CompileParams, peer: Peer) -> TuneAnswer:
        """Request only a space's artifacts; each config is reported by the event ``config_compiled``."""
        if params.arch is not None and not params.arch.strip():
            raise UsageError("arch is empty", hint="name what to compile for, e.g. sm_90a, or leave it out")
        # The priority stays the same however many clients follow the job, so that tunings with clients go first.
        request = _parse_request(params, is_fixed=True, reason="compile", compile_only=True)
        return await self._create_jobs(params, request)

    async def _create_jobs(self, params: JobParams, request: TuningRequest) -> TuneAnswer:
        """Create jobs for a request; the answer has the stream's position before their first events."""
        position = self.events.position
        known = {kernel.name for kernel in self.known.catalog.kernels}
        watched = {root.path for root in self.known.catalog.roots}
        live = {job.id for job in self.jobs.list_live_jobs()}
        jobs, errors = await submit_request(self.intake, params, request)
        described = tuple(map(self.jobs.describe_job, jobs))
        now_watched = {root.path for root in self.known.catalog.roots}
        notices = [f"{path} is gone, and is no longer watched" for path in sorted(watched - now_watched)]
        notices += [
            f"{path} is watched from now on, and saves are tuned; `ktuned remove {path}` ends that"
            for path in sorted(now_watched - watched)
        ]
        notices += [
            self._describe_ambiguity(kernel) for kernel in self.known.catalog.kernels if kernel.name not in known
        ]
        if params.trials is not None or params.time_limit_s is not None:
            notices += [_explain_joined_job(job) for job in jobs if job.id in live]
        return TuneAnswer(position.epoch, position.seq, described, tuple(errors), tuple(filter(None, notices)))

    def _describe_ambiguity(self, kernel: KernelInfo) -> str:
        """Return a notice if a new kernel's short name may also mean another project's kernel; empty otherwise."""
        others = [other.name for other in self.known.catalog.find_namesakes(kernel)]
        if not others:
            return ""
        shown = [kernel.name, *others][:MAX_NAMED]
        rest = 1 + len(others) - len(shown)
        meant = f"{', '.join(shown)} or {rest} more" if rest else f"{', '.join(shown[:-1])} or {shown[-1]}"
        return (
            f"{kernel.kernel!r} alone may mean {meant} now: applications that work outside of their projects must use "
            "the full name"
        )

    async def handle_cancel(self, params: CancelParams, peer: Peer) -> JobsAnswer:
        """Cancel one job, or all jobs of a kernel."""
        if params.job is not None:
            return self._describe_jobs([await self.jobs.cancel_job(params.job)])
        if params.kernel is None:
            raise UsageError("cancel needs a job or a kernel")
        name = self.known.catalog.resolve_kernel(params.kernel, params.directory).name
        cancelled = []
        for job in [job for job in self.jobs.list_live_jobs() if job.kernel == name]:
            # It may have ended meanwhile.
            with suppress(NotFound):
                cancelled.append(await self.jobs.cancel_job(job.id))
        return self._describe_jobs(cancelled)

    async def handle_pause(self, params: PauseParams, peer: Peer) -> PauseAnswer:
        """Pause a job, a kernel, a device or everything until it is resumed, even across restarts of the daemon."""
        return await self._change_pause(params, self.jobs.pause_job, is_paused=True)

    async def handle_resume(self, params: PauseParams, peer: Peer) -> PauseAnswer:
        """Undo a pause. Resuming a device does not resume a job that was paused by its id."""
        return await self._change_pause(params, self.jobs.resume_job, is_paused=False)

    async def _change_pause(
        self, params: PauseParams, act: Callable[[int], Awaitable[Job]], *, is_paused: bool
    ) -> PauseAnswer:
        if sum(given is not None for given in (params.job, params.kernel, params.device)) > 1:
            raise UsageError("more than one of job, kernel and device is given", hint="name one of them, or none")
        changed: list[Job] = []
        if params.job is not None:
            changed = [await act(params.job)]
        elif params.kernel is not None:
            name = self.known.catalog.resolve_kernel(params.kernel, params.directory).name
            live = [job for job in self.jobs.list_live_jobs() if job.kernel == name]
            for job in [job for job in live if is_paused or self.jobs.is_paused(job)]:
                # It may have ended meanwhile.
                with suppress(NotFound):
                    changed.append(await act(job.id))
        else:
            devices = {EVERYTHING} if params.device is None else self._resolve_models(params.device)
            await self.jobs.pause_devices(devices, is_paused=is_paused)
        return PauseAnswer(tuple(map(self.jobs.describe_job, changed)), tuple(sorted(self.jobs.pauses)))

    def _resolve_models(self, device: str) -> set[str]:
        """Return the models of a device, given its name (``cuda:1``) or one of them."""
        models = self.known.machine.list_device_models()
        if any(device in known for known in models.values()) or device in self.jobs.pauses:
            return {device}
        if device not in models:
            lines = ", ".join(f"{name} ({', '.join(sorted(known))})" for name, known in sorted(models.items()))
            raise NotFound(f"there is no device {device!r}", hint=f"known are: {lines or 'none'}")
        return models[device]

    def handle_jobs(self, params: JobsParams, peer: Peer) -> JobsAnswer:
        """List jobs: those that run or wait, in their order, then those that have ended, newest first."""
        if params.job is not None:
            job = self.jobs.get_job(params.job)
            if job is None:
                raise NotFound(f"there is no job {params.job}", hint="`ktuned jobs` lists them")
            return self._describe_jobs([job])
        if params.ids is not None:
            found = (self.jobs.get_job(number) for number in params.ids[:MAX_ROWS])
            return self._describe_jobs(job for job in found if job is not None)
        name = (
            None if params.kernel is None else self.known.catalog.resolve_kernel(params.kernel, params.directory).name
        )
        limit = bound_limit(params.limit)
        live = self.jobs.list_live_jobs()
        ids = {job.id for job in live}
        states = None if params.state is None else [params.state]
        stored = self.known.store.list_jobs(kernel=name, states=states, limit=limit)
        ended = [job for job in stored if job.id not in ids]
        chosen = [
            job
            for job in (*live, *ended)
            if (name is None or job.kernel == name) and (params.state is None or job.state is params.state)
        ]
        return JobsAnswer(tuple(map(self._describe_job_in_order, chosen[:limit])))

    def _describe_jobs(self, jobs: Iterable[Job]) -> JobsAnswer:
        return JobsAnswer(tuple(map(self.jobs.describe_job, jobs)))

    def _describe_job_in_order(self, job: Job) -> JobInfo:
        """Return a job; if its kernel is known, its problem is in the declared order."""
        described = self.jobs.describe_job(job)
        with suppress(NotFound):
            problem = self.known.catalog.resolve_kernel(job.kernel).order_problem(job.problem)
            return replace(described, problem=problem)
        return described


def _explain_joined_job(job: Job) -> str:
    """Return a notice that a request has joined an older job, whose budget may be larger."""
    seconds = "" if job.plan.time_limit_s is None else f" within {job.plan.time_limit_s:g} s"
    return f"joined job {job.id}, which already does this work and tries up to {job.plan.trials:,} configs{seconds}"


async def submit_request(
    intake: Intake, params: JobParams | JudgeParams, request: TuningRequest
) -> tuple[list[Job], list[FileError]]:
    """Tune the kernel, or all kernels at the path, that params name; return the jobs, and errors in kernel files.

    Raises:
        UsageError: They name neither.
    """
    if params.path is not None:
        return await intake.tune_path(params.path, params.python, request, params.kernel)
    if params.kernel is not None:
        return await intake.tune_named(params.kernel, request, params.directory)
    raise UsageError("neither a kernel nor a path is given", hint="name one of them")


def parse_configs(configs: Sequence[Config] | None) -> tuple[Config, ...]:
    """Return the configs that a request names, without duplicates.

    Raises:
        UsageError: the list is empty or too long.
    """
    if configs is None:
        return ()
    if not 0 < len(configs) <= MAX_CONFIGS:
        raise UsageError(f"{len(configs)} configs are given", hint=f"give 1 to {MAX_CONFIGS}")
    return tuple({canonical(config): config for config in configs}.values())


def _parse_request(params: JobParams, **options: Any) -> TuningRequest:
    """Return the request that params stand for, with further options."""
    given = {
        name: value
        for name, value in asdict(params).items()
        if value is not None and name in TuningRequest.__struct_fields__
    }
    return TuningRequest(**(given | options))
