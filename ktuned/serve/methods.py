"""The protocol's methods (docs/protocol.md): each asks the part that knows."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import msgspec

import ktuned
from ktuned.catalog import Catalog, check_problem
from ktuned.devices import Machine
from ktuned.lookup import SETTLE_S, Answer, Lookups
from ktuned.model import (
    BitClasses,
    KernelInfo,
    KtunedError,
    NotFound,
    Objective,
    Trial,
    UsageError,
    canonical,
    is_nondeterministic,
)
from ktuned.protocol import (
    BACKENDS,
    FORGET,
    HELLO,
    KERNELS,
    LOOKUP,
    LOOKUP_MANY,
    PINS,
    RESULTS,
    SHUTDOWN,
    STATUS,
    UNPIN,
    ForgetParams,
    KernelsParams,
    LookupManyParams,
    LookupParams,
    NoParams,
    PinsAnswer,
    ResultsParams,
    UnpinAnswer,
    UnpinParams,
)
from ktuned.scheduling import Jobs
from ktuned.serve.connection import Connection
from ktuned.serve.events import Events
from ktuned.serve.method import MAX_ROWS, DeferredAnswer, Handler, bound_limit
from ktuned.store import Store
from ktuned_client.wire import PROTOCOL_VERSION

CAPABILITIES = ("lookup", "tune", "subscribe", "pin", "capture", "export")
"""Features that a client may rely on besides the protocol's version."""

MAX_DETAILED_ROWS = 200
"""Trials with their details in one answer, which must stay below the limit of a message."""


class Methods:
    """Handlers of the protocol's methods; ``status`` and ``stop`` are the daemon's."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        machine: Machine,
        lookups: Lookups,
        jobs: Jobs,
        store: Store,
        events: Events,
        explain: Callable[[KernelInfo], list[dict[str, Any]]],
        status: Callable[[], dict[str, Any]],
        probe: Callable[[], Awaitable[list[dict[str, Any]]]],
        stop: Callable[[], None],
    ) -> None:
        self._catalog = catalog
        self._machine = machine
        self._lookups = lookups
        self._jobs = jobs
        self._store = store
        self._events = events
        self._explain = explain
        self._status = status
        self._probe = probe
        self._stop = stop

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return every method with its handler."""
        return [
            Handler(HELLO, self.handle_hello),
            Handler(LOOKUP, self.handle_lookup),
            Handler(LOOKUP_MANY, self.lookup_many),
            Handler(KERNELS, self.handle_kernels),
            Handler(RESULTS, self.handle_results),
            Handler(PINS, self.handle_pins),
            Handler(UNPIN, self.handle_unpin),
            Handler(FORGET, self.handle_forget),
            Handler(BACKENDS, self.handle_backends),
            Handler(STATUS, self.handle_status),
            Handler(SHUTDOWN, self.handle_shutdown),
        ]

    def handle_hello(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Say who serves here."""
        return {
            "protocol": PROTOCOL_VERSION,
            "build": ktuned.__version__,
            "capabilities": list(CAPABILITIES),
            "epoch": self._events.epoch,
            "table": self._lookups.table.path,
            "pid": os.getpid(),
        }

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

    def handle_kernels(self, wanted: KernelsParams, connection: Connection) -> dict[str, Any]:
        """List kernels, errors in kernel files, and roots."""
        kernels, errors = self._catalog.kernels, self._catalog.errors
        if wanted.path is not None:
            place = os.path.realpath(wanted.path)
            kernels, errors = self._catalog.kernels_below(place), self._catalog.errors_below(place)
        if wanted.kernel is not None:
            kernels, errors = [self._catalog.resolve_kernel(wanted.kernel, wanted.directory)], []
        entries = [{"name": kernel.name, **kernel.to_wire()} for kernel in kernels]
        if wanted.why:
            entries = [{**entry, "why": self._explain(kernel)} for entry, kernel in zip(entries, kernels, strict=True)]
        return {
            "kernels": entries,
            "errors": msgspec.to_builtins(errors),
            "roots": [root.to_wire() for root in self._catalog.roots],
        }

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
        limit = min(bound_limit(wanted.limit), MAX_DETAILED_ROWS if wanted.details else MAX_ROWS)
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

    async def handle_backends(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Say what every environment's backends are and can do, asking those that have not been asked yet."""
        return {"environments": await self._probe()}

    def handle_status(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Say how every part does."""
        return self._status()

    def handle_shutdown(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Stop the daemon; the next one continues unfinished jobs."""
        self._stop()
        return {}


def _trial_to_wire(trial: Trial, won: Sequence[Objective]) -> dict[str, Any]:
    """Return a trial's map with its metrics, and the objectives that it is the winner by."""
    return {**trial.to_wire(), "winner": bool(won), "objectives": list(won), "metrics": dict(trial.metrics)}


def _context_of(trial: Trial) -> tuple[str, str, str]:
    """Return what tells a trial's context from others of its kernel."""
    return canonical(trial.problem), trial.device, trial.digest


def _numeric_facts(facts: object) -> dict[str, float]:
    """Return the facts of a backend that are numbers: registers, spills, shared memory."""
    found = facts if isinstance(facts, dict) else {}
    return {name: value for name, value in found.items() if type(value) in (int, float)}


def _answer_later(find: Callable[[], Awaitable[Answer]]) -> DeferredAnswer:
    async def rest() -> dict[str, Any]:
        return (await find()).to_wire()

    return DeferredAnswer(rest)
