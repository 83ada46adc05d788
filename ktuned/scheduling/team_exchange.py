"""Exchange with a team: our final winners are published, others' are looked at, and what is better is tried.

It runs in the background. A winner is published after it was committed; what a team's winner means for a key is the
rule of :func:`ktuned.team.action`, and the work is an ordinary job, which begins with the shared config.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from time import time
from typing import Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import structlog

import ktuned
from ktuned.catalog import Admission, Catalog, check_problem
from ktuned.devices import Machine
from ktuned.model import (
    Context,
    Job,
    KernelInfo,
    KtunedError,
    NotFound,
    Objective,
    Priority,
    Problem,
    StoreError,
    UsageError,
    Winner,
    cost_of,
)
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.team_link import TeamDown, TeamLink, Use
from ktuned.scheduling.team_winners import TeamWinners
from ktuned.store import Artifacts, Store
from ktuned.team import (
    Action,
    Candidate,
    Decided,
    LearnedName,
    Ours,
    SharedWinner,
    action,
    is_published,
    pack,
    write_object,
)

_log = structlog.get_logger()

REASON: Final = "shared by the team"

SWEEP_EVERY_S: Final = 6 * 3600.0
"""Interval of sweeps by one daemon: each lists the whole storage."""

RETRY_S: Final = 5.0
"""Pause after the own store could not be written; the storage's pauses are the link's."""

MIN_PAUSE_S: Final = 0.1
"""Pause where the storage may be tried again at once."""

PART: Final = 100
"""Winners of one step of publishing: what is sent is noted before the next."""

MAX_CONTEXTS: Final = 1_000
"""Contexts of one kernel that are looked at: more problems than any kernel file declares."""


class Place(msgspec.Struct, frozen=True):
    """A key of a kernel as it is now: the whole problem, the present context, the objective."""

    kernel: KernelInfo
    problem: Problem
    context: Context
    objective: Objective


class Pulled(msgspec.Struct, frozen=True):
    """A look at the team's store: how many keys it has winners for, how many of those are fresh here, and the jobs."""

    found: int
    fresh: int
    jobs: tuple[Job, ...]


class TeamExchange:
    """Publishes and looks around, until cancelled; ``in_use`` returns kernels that are in use besides tuned ones."""

    def __init__(
        self,
        link: TeamLink,
        winners: TeamWinners,
        *,
        admission: Admission,
        artifacts: Artifacts,
        catalog: Catalog,
        machine: Machine,
        store: Store,
        jobs: Jobs,
        in_use: Callable[[], Collection[str]],
    ) -> None:
        self._link = link
        self._winners = winners
        self._admission = admission
        self._artifacts = artifacts
        self._catalog = catalog
        self._machine = machine
        self._store = store
        self._jobs = jobs
        self._in_use = in_use
        self._publishing = anyio.Lock()
        self._began = time()
        self._swept = 0.0
        self._looked: float | None = None

    @property
    def looked(self) -> float | None:
        """The time of the last look at the storage (Unix seconds)."""
        return self._looked

    async def push(self) -> int:
        """Publish what the storage lacks, also what was left out before, and sweep it once; return how many were sent.

        Raises:
            TeamDown: the storage cannot be used now; what was sent is noted.
            StoreError: that cannot be recorded.
        """
        return await self.publish(time(), seen_before=time())

    def counts(self) -> tuple[int, int]:
        """Return how many of the present winners the storage has, and how many it does not have yet."""
        return self._store.published.count(self._link.settings.identity)

    async def run(self) -> None:
        """Exchange in the background until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._publish_always)
            tasks.start_soon(self._look_always)

    async def _publish_always(self) -> None:
        looked_up_before = self._began
        while True:
            settings = self._link.settings
            try:
                if settings.is_on and not settings.read_only:
                    await self.publish(looked_up_before, seen_before=looked_up_before)
                    looked_up_before = 0.0
                await self._link.await_winner()
            except TeamDown:
                await anyio.sleep(max(self._link.pause_s(Use.READ, Use.WRITE), MIN_PAUSE_S))
            except StoreError as error:
                _log.warning("team_not_recorded", reason=error.message)
                await anyio.sleep(RETRY_S)

    async def _look_always(self) -> None:
        while True:
            wait_s = None
            if self._link.settings.is_on:
                try:
                    await self.look_around()
                except (TeamDown, StoreError) as error:
                    _log.info("team_not_looked_at", reason=error.message)
                wait_s = self._link.pause_s(Use.READ) or self._link.settings.pull_s
            await self._link.await_change(wait_s)

    async def publish(self, left_before: float, *, seen_before: float = 0.0) -> int:
        """Publish what the storage lacks; return how many winners that were.

        Those that were left out before ``left_before`` (Unix seconds), and those that were last seen there before
        ``seen_before``, are looked at again.

        Raises:
            TeamDown: the storage cannot be used now; what was sent is noted.
            StoreError: that cannot be recorded.
        """
        settings = self._link.settings
        count = 0
        async with self._publishing:
            await self._store.published.tidy()
            # Half way to its removal a winner that still holds is sent again.
            half_way = time() - settings.retention_s / 2 if settings.retention_s else 0.0
            while part := self._store.published.due(
                settings.identity, there_before=max(half_way, seen_before), left_before=left_before, limit=PART
            ):
                for name in dict.fromkeys(winner.context.kernel for winner in part):
                    mine = [winner for winner in part if winner.context.kernel == name]
                    # A clock that is set back must not have the same ones looked at again and again.
                    now = max(time(), left_before, seen_before)
                    count += await self._publish_of(name, mine, settings.identity, half_way, now)
            if count and time() - self._swept > SWEEP_EVERY_S:
                await self._sweep()
        return count

    async def _sweep(self) -> None:
        """Sweep the storage; if that is refused there is a notice, and what was published is there nevertheless."""
        self._swept = time()
        try:
            swept = await self._link.sweep()
        except TeamDown as error:
            _log.info("team_store_not_swept", reason=error.message)
            return
        _log.info("team_store_swept", removed=swept.removed, left=swept.left, bytes=swept.left_bytes)

    async def _publish_of(self, name: str, winners: Sequence[Winner], storage: str, half_way: float, now: float) -> int:
        places = {winner.trial: place for winner in winners if (place := self._place_of(name, winner)) is not None}
        if places:
            await self._look([*places.values()])
        sent = 0
        for due in winners:
            # Matching may learn names, which renames contexts.
            known = await self._matching(places[due.trial], half_way) if due.trial in places else []
            winner = self._store.winner(due.key) or due
            place = self._place_of(name, winner)
            shared = None if place is None else self._shared(winner, place)
            if place is None or shared is None:
                await self._store.published.note(storage, [due], is_there=False, now=now)
                continue
            if is_published(self._decided(winner, place), shared.cost, winner.config, known):
                shared = replace(shared, artifact=await self._store_artifact(winner))
                await self._link.store(*write_object(shared, self._address(place)))
                _log.info("team_published", kernel=name, problem=winner.context.problem, config=dict(winner.config))
                sent += 1
            await self._store.published.note(storage, [due], is_there=True, now=now)
        return sent

    async def _store_artifact(self, winner: Winner) -> str:
        """Store a winner's compiled kernel where artifacts are shared; return its object's name, if it has one."""
        path = None if winner.artifact is None else self._artifacts.find(winner.artifact)
        if path is None or winner.artifact is None or not self._link.settings.trust_artifacts:
            return ""
        packed = await anyio.to_thread.run_sync(pack, winner.artifact, path)
        if packed is None:
            return ""
        await self._link.store(*packed)
        return packed[0]

    async def _matching(self, place: Place, written_after: float = 0.0) -> list[Candidate]:
        return await self._winners.match(place.kernel, place.context, place.objective, written_after)

    def _address(self, place: Place) -> str:
        return self._winners.address(place.kernel, place.context, place.objective)

    def _decided(self, winner: Winner, place: Place) -> Decided:
        trial = self._store.trial(winner.trial)
        job = None if trial is None else self._store.job(trial.job)
        return Decided(
            is_final=winner.is_final,
            is_current=winner.context == place.context and not place.kernel.unobserved,
            is_imported=trial is None or trial.detail.get("phase") == "import",
            is_withheld=job is None or job.plan.no_team,
        )

    def _shared(self, winner: Winner, place: Place) -> SharedWinner | None:
        """Return a winner as others read it; ``None`` for one that is not published."""
        kernel, context = place.kernel, place.context
        cost = cost_of(winner.objective, winner.figure)
        if cost is None or not is_published(self._decided(winner, place), cost, winner.config, ()):
            return None
        tried = self._store.count_trials(context.kernel, context.problem, context.device, None, None, [context.digest])
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
            names=tuple(LearnedName(one.name, one.is_source, one.is_data) for one in kernel.learned.values()),
            trials=tried,
            ktuned=ktuned.__version__,
        )

    async def look_around(self) -> Pulled:
        """Look at what others have found for the kernels in use, and have tried what is better than ours.

        Raises:
            TeamDown: the storage cannot be used now.
            StoreError: a job cannot be recorded.
        """
        used = {*self._in_use(), *(job.kernel for job in self._jobs.live())}
        found: list[Pulled] = []
        for kernel in list(self._catalog.kernels):
            await anyio.lowlevel.checkpoint()
            winners = self._store.winners(kernel.name)
            if not winners and kernel.name not in used:
                continue
            places = [place for winner in winners if (place := self._place_of(kernel.name, winner)) is not None]
            found.append(await self._pull(places, Priority.VERIFY))
        self._looked = time()
        return _sum(found)

    async def pull(self, kernels: Iterable[KernelInfo]) -> Pulled:
        """Look at what others have found for all declared problems of kernels, and verify it here.

        Raises:
            TeamDown: the storage cannot be used now.
            StoreError: a job cannot be recorded.
        """
        found = [await self._pull(list(self._declared(kernel)), Priority.REQUESTED) for kernel in kernels]
        self._looked = time()
        return _sum(found)

    async def _pull(self, places: Sequence[Place], priority: Priority) -> Pulled:
        if not places:
            return Pulled(0, 0, ())
        await self._look(places)
        jobs: dict[int, Job] = {}
        lost: list[Winner] = []
        found = fresh = 0
        for looked_at in places:
            matching = await self._matching(looked_at)
            # Matching may have learned names, which renames contexts.
            place = self._again(looked_at)
            if place is None:
                continue
            if not matching:
                mine = self._store.winner(place.context.key_for(place.objective))
                lost += [mine] if mine is not None and mine.context == place.context else []
                continue
            found += 1
            ours = self._ours(place)
            fresh += ours is not None and ours.is_current
            job = await self._try(place, matching[0], ours, priority)
            if job is not None:
                jobs[job.id] = job
        if lost and await self._store.published.forget(self._link.settings.identity, lost):
            # The storage was emptied, or has evicted them.
            self._link.winner_decided()
        return Pulled(found, fresh, tuple(jobs.values()))

    async def _try(self, place: Place, candidate: Candidate, ours: Ours | None, priority: Priority) -> Job | None:
        """Queue the job that a candidate calls for; return it, or the one that is open."""
        key = place.context.key_for(place.objective)
        known = self._store.known_trial(place.context, candidate.config)
        wanted = action(
            candidate,
            ours,
            is_tried=known is not None and known.outcome is not None,
            is_open=any(job.key == key for job in self._jobs.live()),
        )
        if wanted is Action.NOTHING:
            return None
        kernel, plan = place.kernel, place.kernel.plan
        try:
            (is_admitted,) = await self._admission.ask(kernel, place.problem, [candidate.config])
        except KtunedError as error:
            _log.info("team_config_not_asked", kernel=kernel.name, reason=error.message)
            return None
        if not is_admitted:
            return None
        if wanted is Action.COMPETE:
            plan = replace(plan, configs=(candidate.config,))
        arrival = await self._jobs.submit(
            key, place.problem, priority=priority, reason=REASON, plan=plan, any_plan=wanted is Action.VERIFY
        )
        return arrival.job

    def _ours(self, place: Place) -> Ours | None:
        winner = self._store.winner(place.context.key_for(place.objective))
        if winner is None or self._admission.known(place.kernel, place.problem, winner.config) is False:
            return None
        return Ours(cost_of(winner.objective, winner.figure), winner.context == place.context)

    async def _look(self, places: Sequence[Place]) -> None:
        """Read what others have for some keys of one kernel.

        Raises:
            TeamDown: the storage cannot be used now.
        """
        contexts = [(place.context, place.objective) for place in places[:MAX_CONTEXTS]]
        await self._winners.look(places[0].kernel, contexts)

    def _place_of(self, name: str, winner: Winner) -> Place | None:
        """Return a winner's key as it is now; ``None`` where it cannot be tuned."""
        trial = self._store.trial(winner.trial)
        # A winner keeps only what enters its key; the whole problem is to be had from the job that measured it.
        job = None if trial is None else self._store.job(trial.job)
        try:
            kernel = self._catalog.resolve(name)
            problem = winner.problem if job is None or not job.problem else job.problem
            check_problem(kernel, problem)
            return self._place(kernel, problem, winner.context.device, winner.objective)
        except (NotFound, UsageError):
            return None

    def _declared(self, kernel: KernelInfo) -> Iterator[Place]:
        environment = self._catalog.environment(kernel)
        models = dict.fromkeys(device.model for device in self._machine.devices(environment, kernel.backend))
        for problem in kernel.problems:
            for model in models:
                place = self._place(kernel, problem, model, kernel.objective(None))
                if place is not None:
                    yield place

    def _again(self, place: Place) -> Place | None:
        try:
            kernel = self._catalog.resolve(place.kernel.name)
        except NotFound:
            return None
        return self._place(kernel, place.problem, place.context.device, place.objective)

    def _place(self, kernel: KernelInfo, problem: Problem, model: str, objective: str) -> Place | None:
        environment = self._catalog.environment(kernel)
        try:
            device = self._machine.device(environment, kernel.backend, model)
            context = self._machine.context(kernel, environment, problem, device)
            return Place(kernel, problem, context, kernel.objective(objective))
        except KtunedError:
            return None


def _sum(parts: Iterable[Pulled]) -> Pulled:
    total = Pulled(0, 0, ())
    for part in parts:
        total = Pulled(total.found + part.found, total.fresh + part.fresh, total.jobs + part.jobs)
    return total
