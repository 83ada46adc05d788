"""The protocol's methods (docs/protocol.md): each asks the part that knows."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import msgspec
from msgspec.structs import replace

from ktuned.catalog import Catalog, check_problem
from ktuned.devices import Machine
from ktuned.fleet import Applications
from ktuned.lookup import SETTLE_S, Answer, Lookups
from ktuned.model import (
    BitClasses,
    Job,
    KernelInfo,
    KtunedError,
    NotFound,
    Objective,
    Priority,
    Trial,
    UsageError,
    canonical,
    is_nondeterministic,
    read_objective,
)
from ktuned.protocol import (
    CANCEL,
    COMPILE,
    FORGET,
    JOBS,
    LOOKUP,
    LOOKUP_MANY,
    PINS,
    RESULTS,
    TUNE,
    UNPIN,
    CancelParams,
    CompileParams,
    FileError,
    ForgetParams,
    JobParams,
    JobsParams,
    LookupManyParams,
    LookupParams,
    NoParams,
    PinsAnswer,
    ResultsParams,
    TuneParams,
    UnpinAnswer,
    UnpinParams,
)
from ktuned.scheduling import Intake, Jobs, TuningRequest
from ktuned.serve.connection import Connection
from ktuned.serve.events import Events
from ktuned.serve.method import DeferredAnswer, Handler
from ktuned.store import Store

MAX_CONFIGS = 200
"""Configs that one request may name: every map of its job has them, and a larger set is a space of its own."""

MAX_NAMED = 4
"""Kernels that a line about an ambiguous name lists."""

MAX_ROWS = 2_000
MAX_DETAILED_ROWS = 200
"""Trials or jobs in one answer, which must stay below the limit of a message."""


class Methods:
    """Handlers of the protocol's methods."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        machine: Machine,
        intake: Intake,
        lookups: Lookups,
        jobs: Jobs,
        store: Store,
        events: Events,
        applications: Applications,
    ) -> None:
        self._applications = applications
        self._catalog = catalog
        self._machine = machine
        self._intake = intake
        self._lookups = lookups
        self._jobs = jobs
        self._store = store
        self._events = events

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return every method with its handler."""
        return [
            Handler(LOOKUP, self.handle_lookup),
            Handler(LOOKUP_MANY, self.lookup_many),
            Handler(TUNE, self.handle_tune),
            Handler(COMPILE, self.handle_compile),
            Handler(CANCEL, self.handle_cancel),
            Handler(JOBS, self.handle_jobs),
            Handler(RESULTS, self.handle_results),
            Handler(PINS, self.handle_pins),
            Handler(UNPIN, self.handle_unpin),
            Handler(FORGET, self.handle_forget),
        ]

    def handle_lookup(self, wanted: LookupParams, connection: Connection) -> dict[str, Any] | DeferredAnswer:
        """Answer one lookup, from memory; the first of a problem under a pin waits for the disk."""
        return self._look_up(wanted)

    def lookup_many(self, wanted: LookupManyParams, connection: Connection) -> dict[str, Any] | DeferredAnswer:
        """Answer several lookups, in their order; one that is refused has its error in its place."""
        answers = [self._look_up_or_explain(entry) for entry in wanted.lookups]
        if not any(type(answer) is DeferredAnswer for answer in answers):
            return {"answers": answers}

        async def rest() -> dict[str, Any]:
            return {
                "answers": [await answer.rest() if type(answer) is DeferredAnswer else answer for answer in answers]
            }

        return DeferredAnswer(rest)

    def handle_pins(self, nothing: NoParams, connection: Connection) -> PinsAnswer:
        """List the pins, and how many answers each holds since when."""
        return PinsAnswer(tuple(self._lookups.pins.list_pins()))

    async def handle_unpin(self, wanted: UnpinParams, connection: Connection) -> UnpinAnswer:
        """Give up a pin."""
        return UnpinAnswer(wanted.pin, await self._lookups.pins.give_up(wanted.pin))

    def _look_up(self, wanted: LookupParams) -> dict[str, Any] | DeferredAnswer:
        settle_until = monotonic() + min(wanted.settle, SETTLE_S)
        if wanted.pin is not None:
            found = self._lookups.lookup_pinned(
                wanted.pin,
                wanted.kernel,
                wanted.problem,
                wanted.device,
                tune=wanted.tune,
                directory=wanted.directory,
                objective=wanted.objective,
                settle_until=settle_until,
            )
            return found.to_wire() if isinstance(found, Answer) else _answer_later(found)
        look_up = partial(
            self._lookups.find_answer,
            wanted.kernel,
            wanted.problem,
            wanted.device,
            tune=wanted.tune,
            directory=wanted.directory,
            objective=wanted.objective,
        )
        answer = look_up()
        if answer.undecided and wanted.settle > 0:
            return _answer_later(partial(self._lookups.settle_answer, answer, look_up, settle_until))
        return answer.to_wire()

    def _look_up_or_explain(self, wanted: LookupParams) -> dict[str, Any] | DeferredAnswer:
        try:
            return self._look_up(wanted)
        except KtunedError as error:
            return {"error": error.to_wire()}

    async def handle_tune(self, wanted: TuneParams, connection: Connection) -> dict[str, Any]:
        """Ask for a tuning; its progress is to be had by ``subscribe`` since the place that is returned."""
        if wanted.beside is not None:
            self._applications.add_process(wanted.beside)
        request = replace(
            _parse_request(wanted),
            device=wanted.device,
            preset=wanted.preset,
            priority=Priority.REQUESTED if wanted.priority is None else wanted.priority,
            is_fixed=wanted.priority is not None,
            stale_only=wanted.stale_only,
            until=wanted.until,
            configs=_parse_configs(wanted.configs),
            again=wanted.again,
            no_share=wanted.no_share,
            objective=None if wanted.objective is None else read_objective(wanted.objective),
            numerics=wanted.numerics,
            anchor=wanted.anchor,
            anchor_pin=wanted.anchor_pin,
        )
        return await self._take_in(wanted, request)

    async def handle_compile(self, wanted: CompileParams, connection: Connection) -> dict[str, Any]:
        """Request only a space's artifacts; each config is reported by the event ``config_compiled``."""
        if wanted.arch is not None and not wanted.arch.strip():
            raise UsageError("arch is empty", hint="name what to compile for, e.g. sm_90a, or leave it out")
        request = replace(
            _parse_request(wanted),
            # However many follow it: a tuning that is waited for goes first.
            is_fixed=True,
            reason="compile",
            compile_only=True,
            arch=wanted.arch,
        )
        return await self._take_in(wanted, request)

    async def _take_in(self, wanted: JobParams, request: TuningRequest) -> dict[str, Any]:
        """Create jobs for a request; the answer has the place in the event stream from which their events come."""
        place = {"epoch": self._events.epoch, "seq": self._events.seq}
        errors: list[FileError] = []
        known, moves = {kernel.name for kernel in self._catalog.kernels}, self._intake.moves
        watched = {root.path for root in self._catalog.roots}
        live = {job.id for job in self._jobs.list_live_jobs()}
        if wanted.path is not None:
            jobs, errors = await self._intake.tune_path(wanted.path, wanted.python, request, wanted.kernel)
        elif wanted.kernel is not None:
            jobs, errors = await self._intake.tune_named(wanted.kernel, request, wanted.directory)
        else:
            raise UsageError("there is neither a kernel nor a path", hint="name one of them")
        entries = [self._jobs.describe_job(job) for job in jobs]
        notices = [line for line in self._intake.moves if line not in moves]
        notices += [
            f"{root.path} is watched from now on, and saves are tuned; `ktuned remove {root.path}` ends that"
            for root in self._catalog.roots
            if root.path not in watched
        ]
        notices += [self._describe_ambiguity(kernel) for kernel in self._catalog.kernels if kernel.name not in known]
        if wanted.trials is not None or wanted.seconds is not None:
            notices += [_explain_joined_job(job) for job in jobs if job.id in live]
        return {
            "jobs": entries,
            "errors": msgspec.to_builtins(errors),
            "notices": list(filter(None, notices)),
            **place,
        }

    def _describe_ambiguity(self, kernel: KernelInfo) -> str:
        """Return a line about a new kernel whose short name means another project's kernel as well, or nothing."""
        others = [other.name for other in self._catalog.find_namesakes(kernel)]
        if not others:
            return ""
        shown = [kernel.name, *others][:MAX_NAMED]
        rest = 1 + len(others) - len(shown)
        meant = f"{', '.join(shown)} or {rest} more" if rest else f"{', '.join(shown[:-1])} or {shown[-1]}"
        return (
            f"{kernel.kernel!r} alone may mean {meant} now: applications that work outside of their projects must use "
            "the full name"
        )

    async def handle_cancel(self, wanted: CancelParams, connection: Connection) -> dict[str, Any]:
        """Cancel one job, or all of a kernel."""
        if wanted.job is not None:
            return {"jobs": [(await self._jobs.cancel_job(wanted.job)).to_wire()]}
        if wanted.kernel is None:
            raise UsageError("cancel needs a job or a kernel")
        name = self._catalog.resolve_kernel(wanted.kernel, wanted.directory).name
        cancelled = []
        for job in [job for job in self._jobs.list_live_jobs() if job.kernel == name]:
            # It may have ended meanwhile.
            with suppress(NotFound):
                cancelled.append(await self._jobs.cancel_job(job.id))
        return {"jobs": [job.to_wire() for job in cancelled]}

    def handle_jobs(self, wanted: JobsParams, connection: Connection) -> dict[str, Any]:
        """List jobs: what runs and waits in its order, then what has ended, newest first."""
        if wanted.job is not None:
            job = self._jobs.get_job(wanted.job)
            if job is None:
                raise NotFound(f"there is no job {wanted.job}", hint="`ktuned jobs` lists them")
            return {"jobs": [self._jobs.describe_job(job)]}
        if wanted.ids is not None:
            found = (self._jobs.get_job(number) for number in wanted.ids[:MAX_ROWS])
            return {"jobs": [self._jobs.describe_job(job) for job in found if job is not None]}
        name = None if wanted.kernel is None else self._catalog.resolve_kernel(wanted.kernel, wanted.directory).name
        live = self._jobs.list_live_jobs()
        ids = {job.id for job in live}
        states = None if wanted.state is None else [wanted.state]
        stored = self._store.list_jobs(kernel=name, states=states, limit=_bounded_limit(wanted.limit))
        ended = [job for job in stored if job.id not in ids]
        chosen = [
            job
            for job in (*live, *ended)
            if (name is None or job.kernel == name) and (wanted.state is None or job.state is wanted.state)
        ]
        return {"jobs": [self._describe_job(job) for job in chosen[: _bounded_limit(wanted.limit)]]}

    def _describe_job(self, job: Job) -> dict[str, Any]:
        """Return a job's map, with its problem in the declared order while its kernel is known."""
        public = self._jobs.describe_job(job)
        with suppress(NotFound):
            public["problem"] = self._catalog.resolve_kernel(job.kernel).order_problem(job.problem)
        return public

    def handle_results(self, wanted: ResultsParams, connection: Connection) -> dict[str, Any]:
        """List trials; ``detail`` comes with a single one, or where it is asked for."""
        if wanted.trial is not None:
            trial = self._store.get_trial(wanted.trial)
            if trial is None:
                raise NotFound(f"there is no trial {wanted.trial}", hint="`ktuned results KERNEL` lists them")
            won = [winner.objective for winner in self._store.list_winners(trial.kernel) if winner.trial == trial.id]
            public = _trial_to_wire(trial, won)
            with suppress(NotFound):
                known = self._catalog.resolve_kernel(trial.kernel)
                public["config"] = known.order_config(trial.config)
                public["problem"] = known.order_problem(trial.problem)
            return {"trials": [public]}
        if wanted.kernel is None:
            raise UsageError("results needs a kernel or a trial")
        if wanted.order not in ("fastest", "newest"):
            raise UsageError(f"there is no order {wanted.order!r}", hint="there are fastest and newest")
        if wanted.before is not None and wanted.order != "newest":
            raise UsageError("before continues a list in the order newest", hint="give order='newest', too")
        kernel = self._catalog.resolve_kernel(wanted.kernel, wanted.directory)
        problem = None
        if wanted.problem is not None:
            check_problem(kernel, wanted.problem)
            bucket = self._lookups.buckets.known_representative(kernel, wanted.problem)
            problem = canonical(kernel.select_key_values(wanted.problem if bucket is None else bucket.problem))
        device = None if wanted.device is None else self._resolve_model(kernel, wanted.device)
        tried = self._store.list_problems(kernel.name) if wanted.current else []
        digests = {self._machine.digest_kernel(kernel, found) for found in tried} if wanted.current else None
        limit = min(_bounded_limit(wanted.limit), MAX_DETAILED_ROWS if wanted.details else MAX_ROWS)
        chosen = partial(
            self._store.list_trials,
            kernel=kernel.name,
            problem=problem,
            device=device,
            outcome=wanted.outcome,
            job=wanted.job,
            digests=digests,
            before=wanted.before,
        )
        if wanted.order == "newest":
            trials = chosen(limit=limit)
        else:
            timed = chosen(limit=limit, order="fastest")
            # What has no figure stands behind what has one.
            rest = chosen(limit=limit) if len(timed) < limit else []
            trials = timed + [trial for trial in rest if trial.latency_us is None]
        won_by: dict[int, list[Objective]] = {}
        environment = self._catalog.kernel_environment(kernel)
        for winner in self._lookups.served.list_winners(kernel, environment):
            won_by.setdefault(winner.trial, []).append(winner.objective)
        listed = [_trial_to_wire(trial, won_by.get(trial.id, [])) for trial in trials[:limit]]
        for entry in listed:
            entry["config"] = kernel.order_config(entry["config"])
            entry["problem"] = kernel.order_problem(entry["problem"])
            entry["facts"] = _numeric_facts(entry["detail"].get("facts"))
            if not wanted.details:
                del entry["detail"]
        classes = self._load_bit_classes(trials[:limit])
        for trial, entry in zip(trials, listed, strict=False):
            found = classes.get(_context_of(trial))
            entry["class"] = "" if found is None else found.name_class(trial.detail)
        numerics = [
            {"problem": dict(json.loads(problem)), "device": device, "lines": found.describe_classes()}
            for (problem, device, _), found in classes.items()
        ]
        numerics += [
            {"problem": {}, "device": model, "lines": [verdict.describe()]}
            for (model, _), verdicts in self._lookups.served.find_verdicts(kernel, environment).items()
            for verdict in verdicts
        ]
        if not wanted.count:
            return {"trials": listed, "numerics": numerics}
        total = self._store.count_trials(kernel.name, problem, device, wanted.outcome, wanted.job, digests)
        return {"trials": listed, "total": total, "numerics": numerics}

    def _load_bit_classes(self, trials: Sequence[Trial]) -> dict[tuple[str, str, str], BitClasses]:
        """Return the classes of equal bits in the contexts of some trials, where bits were compared."""
        is_known = [bool(trial.detail.get("bits")) or is_nondeterministic(trial.detail) for trial in trials]
        compared = {_context_of(trial): trial.kernel for trial, known in zip(trials, is_known, strict=True) if known}
        found = {}
        for (problem, device, digest), kernel in compared.items():
            known = partial(self._store.list_trials, kernel=kernel, problem=problem, device=device, digests=[digest])
            found[problem, device, digest] = BitClasses.from_trials(known(limit=MAX_ROWS, order="fastest"))
        return found

    def _resolve_model(self, kernel: KernelInfo, device: str) -> str:
        """Return the model of a device that is named as it is here (``cuda:1``); any other word is a model itself."""
        here = self._machine.list_devices(self._catalog.kernel_environment(kernel), kernel.backend)
        return next((found.model for found in here if found.name == device), device)

    async def handle_forget(self, wanted: ForgetParams, connection: Connection) -> dict[str, Any]:
        """Delete a kernel's trials, all or those of one outcome: they may be tried again then."""
        name = self._catalog.resolve_kernel(wanted.kernel, wanted.directory).name
        if wanted.outcome is None:
            await self._jobs.cancel_jobs_of_kernel(name)
        forgotten = await self._store.forget_trials(name, wanted.outcome)
        self._jobs.forget_failures(name)
        self._lookups.results_changed(name)
        return {"kernel": name, "trials": forgotten}


def _trial_to_wire(trial: Trial, won: Sequence[Objective]) -> dict[str, Any]:
    """Return a trial's map with its metrics, and the objectives that it is the winner by."""
    return {**trial.to_wire(), "winner": bool(won), "objectives": list(won), "metrics": dict(trial.metrics)}


def _context_of(trial: Trial) -> tuple[str, str, str]:
    """Return what tells a trial's context from others of its kernel."""
    return canonical(trial.problem), trial.device, trial.digest


def _explain_joined_job(job: Job) -> str:
    """Return a line about a request that became part of an older job, whose budget may be larger."""
    seconds = "" if job.plan.seconds is None else f" within {job.plan.seconds:g} s"
    return f"joined job {job.id}, which does this already and tries up to {job.plan.trials:,} configs{seconds}"


def _parse_configs(wanted: list[dict[str, Any]] | None) -> tuple[dict[str, Any], ...]:
    """Return the configs that a request names.

    Raises:
        UsageError: they are none, or too many.
    """
    if wanted is None:
        return ()
    if not 0 < len(wanted) <= MAX_CONFIGS:
        raise UsageError(f"configs has {len(wanted)} configs", hint=f"give 1 to {MAX_CONFIGS}")
    return tuple({canonical(config): config for config in wanted}.values())


def _numeric_facts(facts: object) -> dict[str, float]:
    """Return the facts of a backend that are numbers: registers, spills, shared memory."""
    found = facts if isinstance(facts, dict) else {}
    return {name: value for name, value in found.items() if type(value) in (int, float)}


def _bounded_limit(limit: int) -> int:
    if limit < 1:
        raise UsageError(f"limit is {limit}", hint="give at least 1")
    return min(limit, MAX_ROWS)


def _parse_request(wanted: JobParams) -> TuningRequest:
    return TuningRequest(
        problem=wanted.problem,
        trials=wanted.trials,
        seconds=wanted.seconds,
        strategy=wanted.strategy,
        seed=wanted.seed,
        keep_going=wanted.keep_going,
    )


def _answer_later(find: Callable[[], Awaitable[Answer]]) -> DeferredAnswer:
    async def rest() -> dict[str, Any]:
        return (await find()).to_wire()

    return DeferredAnswer(rest)
