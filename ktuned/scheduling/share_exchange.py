"""Exchange with a shared store: our final winners are published there, and better winners from there are tried here.

One pass over a kernel does both. It reads the store's winners at the addresses of our keys, publishes each of our
winners that the store lacks, and queues a job where another's winner deserves a trial. The daemon does not remember
what it has published, because the store itself shows what it lacks. So nothing is lost if a daemon is killed, a pass
fails or a bucket is emptied, and nothing is sent twice. Passes are made over

- a kernel, when one of its jobs has ended: there may be a winner to publish;
- all kernels with winners, every ``pull_s``: others may have found better ones;
- the declared problems of a kernel, on request (``ktuned share pull``).

:mod:`ktuned.sharing.decision` decides whether another's winner deserves a trial. The trial is an ordinary job, which
begins with the shared config (:mod:`ktuned.tuning.shared_lead`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from time import monotonic, time
from typing import Final

import anyio
import anyio.lowlevel
import msgspec
import structlog
from msgspec.structs import replace

from ktuned.catalog import Admission, Catalog, check_problem
from ktuned.devices import Machine
from ktuned.model import (
    Job,
    KernelInfo,
    KtunedError,
    Priority,
    Problem,
    StoreError,
    Winner,
    convert_to_cost,
)
from ktuned.scheduling.due_kernels import DueKernels
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.preparation import find_present_key
from ktuned.scheduling.shared_winners import FIRST_PAUSE_S, SharedWinners, StoreUse, find_address
from ktuned.sharing import (
    Action,
    Candidate,
    Found,
    LearnedName,
    OwnWinner,
    SharedStoreDown,
    SharedWinner,
    ShareSettings,
    StoredWinner,
    WinnerFacts,
    choose_action,
    rank_candidates,
    should_publish,
)
from ktuned.store import Store
from ktuned.tuning import PresentKey

_log = structlog.get_logger()

REASON: Final = "found by others"

TIDY_EVERY_S: Final = 6 * 3600.0
"""Shortest time between two tidyings by one daemon: each lists the whole storage."""

MAX_CONTEXTS: Final = 1_000
"""Most keys in one query to the store."""


class ExchangeResult(msgspec.Struct, frozen=True):
    """The result of passes over some kernels.

    Attributes:
        found: Number of keys for which the store has winners.
        fresh: Number of those keys that also have a winner of the present context here.
        sent: Number of our winners that were published.
        jobs: Jobs that try configs that others have found.
    """

    found: int = 0
    fresh: int = 0
    sent: int = 0
    jobs: tuple[Job, ...] = ()

    def __add__(self, other: ExchangeResult) -> ExchangeResult:
        jobs = {job.id: job for job in (*self.jobs, *other.jobs)}
        return ExchangeResult(
            self.found + other.found, self.fresh + other.fresh, self.sent + other.sent, tuple(jobs.values())
        )


class ShareExchange:
    """Makes the passes: in the background until cancelled, and at once on request.

    Attributes:
        last_look: The time (Unix s) and the result of the last pass over all kernels.
    """

    def __init__(
        self,
        shared: SharedWinners,
        due: DueKernels,
        *,
        admission: Admission,
        catalog: Catalog,
        machine: Machine,
        store: Store,
        jobs: Jobs,
    ) -> None:
        self._shared = shared
        self._due = due
        self._admission = admission
        self._catalog = catalog
        self._machine = machine
        self._store = store
        self._jobs = jobs
        self._lock = anyio.Lock()
        self._tidied_at = 0.0
        self._forget_store()

    def _forget_store(self) -> None:
        """Forget the passes made so far: the store may be another one."""
        self.last_look: tuple[float, ExchangeResult] | None = None
        self._next_look = 0.0

    def apply_settings(self, settings: ShareSettings) -> None:
        """Use other settings at once."""
        if settings != self._shared.settings:
            self._shared.apply_settings(settings)
            self._forget_store()
            self._due.wake_up()

    async def run_until_cancelled(self) -> None:
        """Make passes in the background until cancelled."""
        while True:
            await self._due.wait_for_kernel(await self._exchange_due_winners() if self._shared.settings.is_on else None)

    async def _exchange_due_winners(self) -> float:
        """Make the pass that is due, if any; return the seconds until the next one."""
        if pause_s := self._shared.pause_s(StoreUse.READ):
            return pause_s
        due = self._due.take_kernels()
        try:
            if monotonic() >= self._next_look:
                await self.exchange_all_winners()
            elif due:
                await self._exchange_keys(self._list_won_keys(due), Priority.VERIFY)
        except (SharedStoreDown, StoreError) as error:
            _log.info("shared_store_not_looked_at", reason=error.message)
            # The next pass goes over all kernels, and so does the rest of this one's work.
            self._next_look = 0.0
            return self._shared.pause_s(StoreUse.READ) or FIRST_PAUSE_S
        return max(0.0, self._next_look - monotonic())

    async def exchange_all_winners(self) -> ExchangeResult:
        """Make a pass over all kernels with winners.

        Raises:
            SharedStoreDown: The store cannot be read now.
            StoreError: A job cannot be recorded.
        """
        self._next_look = monotonic() + self._shared.settings.pull_s
        exchanged = await self._exchange_keys(self._list_won_keys(), Priority.VERIFY)
        self.last_look = (time(), exchanged)
        return exchanged

    async def publish_all(self) -> int:
        """Publish all winners that the store lacks; return how many were sent.

        Raises:
            SharedStoreDown: The store cannot be used now; winners that were sent before the failure are there.
        """
        exchanged = await self._exchange_keys(self._list_won_keys(), None)
        if self._shared.pause_s(StoreUse.WRITE):
            raise SharedStoreDown(self._shared.fault)
        return exchanged.sent

    async def pull_winners(self, kernels: Iterable[KernelInfo]) -> ExchangeResult:
        """Make a pass over all declared problems of kernels.

        Raises:
            SharedStoreDown: The store cannot be read now.
            StoreError: A job cannot be recorded.
        """
        return await self._exchange_keys(map(self._list_declared_keys, kernels), Priority.REQUESTED)

    async def _exchange_keys(
        self, kernels: Iterable[Sequence[PresentKey]], priority: Priority | None
    ) -> ExchangeResult:
        """Make a pass over the keys of some kernels; with ``None`` for the priority, no job is queued."""
        result = ExchangeResult()
        async with self._lock:
            await self._shared.open_store()
            for keys in kernels:
                await anyio.lowlevel.checkpoint()
                for start in range(0, len(keys), MAX_CONTEXTS):
                    part = keys[start : start + MAX_CONTEXTS]
                    there = await self._shared.find_winners(part[0].kernel, part)
                    for key in part:
                        result += await self._exchange_key(key, there, priority)
            if result.sent and time() - self._tidied_at > TIDY_EVERY_S:
                await self._tidy_store()
        return result

    async def _exchange_key(self, key: PresentKey, there: Found, priority: Priority | None) -> ExchangeResult:
        """Publish our winner of a key if the store lacks it, and queue a job if another's deserves a trial."""
        matching = await self._shared.match_contexts(key, there)
        # Matching may have learned names, which changes contexts.
        now = self._make_key(key.kernel.name, key.problem, key.context.device, key.objective)
        if now is None:
            return ExchangeResult()
        sent = int(await self._publish_winner(now, matching))
        if not matching:
            return ExchangeResult(sent=sent)
        ours = self._find_local_winner(now)
        is_fresh = ours is not None and ours.is_current
        best = rank_candidates(one.winner for one in matching)[0]
        job = None if priority is None else await self._queue_trial(now, best, ours, priority)
        return ExchangeResult(1, int(is_fresh), sent, () if job is None else (job,))

    async def _tidy_store(self) -> None:
        """Tidy the store. A failure only leads to a notice, because the winners are published already."""
        self._tidied_at = time()
        try:
            await self._shared.call_store(StoreUse.TIDY, lambda store: store.tidy())
        except SharedStoreDown as error:
            _log.info("shared_store_not_tidied", reason=error.message)

    async def _publish_winner(self, key: PresentKey, matching: Sequence[StoredWinner]) -> bool:
        """Publish our winner of a key if the store lacks it; return whether it was sent.

        A store that cannot be written may still be read. A failure leads to a notice, and a new pass after the pause.
        """
        settings = self._shared.settings
        winner = self._store.get_winner(key.winner_key)
        cost = None if winner is None else convert_to_cost(winner.objective, winner.figure)
        if winner is None or cost is None or settings.read_only:
            return False
        # A winner that still holds is sent again after half of the time after which the store removes it.
        half_way = time() - settings.retention_s / 2 if settings.retention_s else 0.0
        known = rank_candidates(one.winner for one in matching if one.written >= half_way)
        if not should_publish(self._find_facts(winner, key), cost, winner.config, known):
            return False
        shared = _to_shared_winner(winner, key)
        try:
            await self._shared.call_store(StoreUse.WRITE, lambda store: store.publish(find_address(key), shared))
        except SharedStoreDown:
            self._next_look = min(self._next_look, monotonic() + self._shared.pause_s(StoreUse.WRITE))
            return False
        _log.info("winner_shared", kernel=shared.kernel, problem=key.context.problem)
        return True

    def _find_facts(self, winner: Winner, key: PresentKey) -> WinnerFacts:
        trial, job = self._store.get_trial(winner.trial), self._store.find_job_of_winner(winner)
        return WinnerFacts(
            is_final=winner.is_final,
            is_current=winner.context == key.context and not key.kernel.unobserved,
            is_imported=trial is None or trial.detail.phase == "import",
            is_withheld=job is None or job.plan.no_share,
        )

    async def _queue_trial(
        self, key: PresentKey, candidate: Candidate, ours: OwnWinner | None, priority: Priority
    ) -> Job | None:
        """Queue the job that a candidate deserves, or join an open one; return it, or ``None`` if none is needed."""
        known = self._store.find_trial(key.context, candidate.config)
        wanted = choose_action(
            candidate,
            ours,
            is_tried=known is not None and known.outcome is not None,
            is_open=any(job.key == key.winner_key for job in self._jobs.list_live_jobs()),
        )
        if wanted is Action.NOTHING:
            return None
        kernel, plan = key.kernel, key.kernel.plan
        try:
            (is_admitted,) = await self._admission.check_configs(kernel, key.problem, [candidate.config])
        except KtunedError as error:
            _log.info("shared_config_not_asked", kernel=kernel.name, reason=error.message)
            return None
        if not is_admitted:
            return None
        if wanted is Action.COMPETE:
            plan = replace(plan, configs=(candidate.config,))
        arrival = await self._jobs.submit_job(
            key.winner_key, key.problem, priority=priority, reason=REASON, plan=plan, any_plan=wanted is Action.VERIFY
        )
        return arrival.job

    def _find_local_winner(self, key: PresentKey) -> OwnWinner | None:
        winner = self._store.get_winner(key.winner_key)
        if winner is None or self._admission.find_known_verdict(key.kernel, key.problem, winner.config) is False:
            return None
        return OwnWinner(convert_to_cost(winner.objective, winner.figure), winner.context == key.context)

    def _list_won_keys(self, kernels: Iterable[str] | None = None) -> Iterator[list[PresentKey]]:
        """Yield the present keys of our winners, one list for each kernel: of some kernels, or of all."""
        if kernels is None:
            kernels = dict.fromkeys(winner.context.kernel for winner in self._store.list_winners())
        for name in kernels:
            yield list(filter(None, map(self._find_key, self._store.list_winners(name))))

    def _find_key(self, winner: Winner) -> PresentKey | None:
        """Return the present key of a winner; ``None`` if it cannot be tuned now."""
        job = self._store.find_job_of_winner(winner)
        problem = winner.problem if job is None or not job.problem else job.problem
        return self._make_key(winner.context.kernel, problem, winner.context.device, winner.objective)

    def _list_declared_keys(self, kernel: KernelInfo) -> list[PresentKey]:
        environment, objective = self._catalog.find_kernel_environment(kernel), kernel.objective(None)
        models = dict.fromkeys(device.model for device in self._machine.list_devices(environment, kernel.backend))
        declared = product(kernel.problems, models)
        keys = [self._make_key(kernel.name, problem, model, objective) for problem, model in declared]
        return list(filter(None, keys))

    def _make_key(self, name: str, problem: Problem, model: str, objective: str) -> PresentKey | None:
        """Return the key for the kernel's present state; ``None`` if it cannot be tuned now."""
        try:
            kernel = self._catalog.resolve_kernel(name)
            check_problem(kernel, problem)
            return find_present_key(self._catalog, self._machine, kernel, problem, model, kernel.objective(objective))
        except KtunedError:
            return None


def _to_shared_winner(winner: Winner, key: PresentKey) -> SharedWinner:
    """Return one of our winners in the form in which it is shared."""
    context = key.context
    return SharedWinner(
        kernel=context.kernel,
        problem=dict(winner.problem),
        device=context.device,
        digest=context.digest,
        toolchain=context.toolchain,
        device_fingerprint=context.device_fingerprint,
        measuring_version=context.measuring_version,
        config=dict(winner.config),
        latency_us=winner.latency_us,
        spread_us=winner.spread_us,
        decided=winner.decided,
        objective=winner.objective,
        metrics=dict(winner.metrics),
        names=tuple(LearnedName(one.name, one.is_source, one.is_data) for one in key.kernel.learned.values()),
    )
