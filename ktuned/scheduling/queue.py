"""The queue: which waiting job runs next on a device. No IO.

Order: the higher rank first. Among equal ranks, first the job whose key costs
applications the most time, then the one with the most lookups, then the oldest. Paused jobs come last, so that lists
show them there.

One job serves all requests for a key: another request joins the waiting job if one plan can do the work of both
(:func:`extend_plan`), and can only raise its rank.

A job in the queue may not be allowed to run: it or its device is paused, its files are being inspected (*held*), or the
policy refuses it. :meth:`JobQueue.explain_wait` gives the reason, which users see.

*Ranks.* A job's *level* follows from the reason why it is wanted: a client waits for it, its file was just saved, or
lookups asked for it. Its *rank* rises above the level while it waits, without a limit, so that every job gets its turn
in the end. It keeps the gained rank for the length of that turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator
from time import monotonic

import msgspec
from msgspec.structs import replace

from ktuned.fleet import age_rank
from ktuned.model import LATENCY, FrozenStruct, Plan, WinnerKey
from ktuned.protocol import Job, JobState, Priority

AGE_S = 600.0
"""A job that has waited this long gains one level. A job of default size takes some minutes."""

TURN_S = 60.0
"""For this long a job keeps the rank that it gained by waiting, so that no newcomer interrupts it. This is enough for
some compiles and measurements, whose results are kept when it makes way again."""

HALF_LIFE_S = 300.0
"""After this long a lookup counts half. So if two jobs had many lookups, the one with recent lookups goes first."""


class Standing(msgspec.Struct):
    """The standing of a job. Times are in seconds of the queue's clock.

    Attributes:
        base: The highest priority of its requests.
        since: When its wait began.
        is_fixed: Whether the priority also holds while clients wait for the job.
        waiters: The clients that wait for it.
        began: When its turn began; ``None`` while it waits.
    """

    base: int
    since: float
    is_fixed: bool = False
    waiters: set[Hashable] = set()
    began: float | None = None
    _lift: int = 0
    _heat: float = 0.0
    _heated: float = 0.0

    def find_level(self) -> int:
        """Return the job's level now. It falls back to ``base`` when the last client leaves."""
        return max(self.base, Priority.WAITED_FOR) if self.waiters and not self.is_fixed else self.base

    def compute_rank(self, now: float) -> int:
        """Return the level, lifted by this wait, or during a turn by the wait before it."""
        if self.began is None:
            return age_rank(self.find_level(), now - self.since, AGE_S)
        return self.find_level() + self._lift if now - self.began < TURN_S else self.find_level()

    def raise_to(self, base: int, *, is_fixed: bool) -> bool:
        """Raise the priority to another request's if that is higher; return whether it was."""
        self.is_fixed = self.is_fixed and is_fixed
        if base <= self.base:
            return False
        self.base = base
        return True

    def count_lookups(self, now: float, times: int = 1) -> None:
        """Count lookups that would have been served better if the job were done."""
        self._heat, self._heated = self.compute_lookup_heat(now) + times, now

    def compute_lookup_heat(self, now: float) -> float:
        """Return the number of lookups, each of which counts half after :data:`HALF_LIFE_S`."""
        return self._heat * float(0.5 ** (max(0.0, now - self._heated) / HALF_LIFE_S)) if self._heat else 0.0

    def begin_turn(self, now: float) -> None:
        """Start the job's turn, for which it keeps the rank that it gained by waiting."""
        self._lift, self.began = self.compute_rank(now) - self.find_level(), now

    def make_way(self, now: float) -> None:
        """End the turn; the job waits again. Its wait starts anew only if the turn lasted :data:`TURN_S`."""
        if self.began is not None and now - self.began >= TURN_S:
            self.since = now
        self.began = None

    def begin_wait(self, now: float) -> None:
        """Start the wait anew: time in which the job could not have run does not count."""
        self.since = now


EVERYTHING = ""
"""As the name of a paused device model: all of them."""

MAX_USES = 10_000
"""Most keys whose launches count, as many as jobs may wait. Beyond them, the key noted longest ago is forgotten."""

Refusal = Callable[[Job, int], str]
"""Returns why a job of this level must not run now, even on a free device; empty if it may."""


def extend_plan(plan: Plan, asked: Plan) -> Plan | None:
    """Return one plan with the larger of two budgets; ``None`` if the plans differ in anything but their budgets.

    The other fields, such as the strategy or the preset, decide which configs are tried and how well they are measured.
    """
    if replace(asked, trials=plan.trials, time_limit_s=plan.time_limit_s) != plan:
        return None
    time_limit_s = (
        None if plan.time_limit_s is None or asked.time_limit_s is None else max(plan.time_limit_s, asked.time_limit_s)
    )
    return replace(plan, trials=max(plan.trials, asked.trials), time_limit_s=time_limit_s)


class Arrival(FrozenStruct):
    """The result of a request: the job that does the work, and whether that job is new."""

    job: Job
    is_new: bool


class LaunchCost(FrozenStruct):
    """Applications' launches of a key, and their time in s by the latency known so far."""

    launches: int
    cost_s: float


_NO_USE = LaunchCost(0, 0.0)


class JobQueue:
    """The waiting jobs in their order, and the standing of all live jobs, including those that were taken out to run.

    Args:
        jobs: The jobs that wait from the start.
        clock: Returns a time in seconds that never goes back.
        refuse: The policy: returns why a job must not run now.

    Attributes:
        pauses: The device models that are paused.
    """

    def __init__(
        self,
        jobs: Iterable[Job] = (),
        *,
        clock: Callable[[], float] = monotonic,
        refuse: Refusal = lambda job, level: "",
    ) -> None:
        self.pauses: set[str] = set()
        self._clock = clock
        self._refuse = refuse
        self._waiting: dict[int, Job] = {}
        self._ids_by_key: dict[WinnerKey, set[int]] = {}
        self._standings: dict[int, Standing] = {}
        self._awaiting_inspection: set[int] = set()
        self._launch_costs: dict[WinnerKey, LaunchCost] = {}
        for job in jobs:
            self.add_job(job)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Job]:
        now = self._clock()
        return iter(sorted(self._waiting.values(), key=lambda job: self._sort_key(job, now)))

    def add_job(self, job: Job, *, is_fixed: bool = False) -> None:
        """Add a waiting job. If it had been taken out to run, its turn ends."""
        now = self._clock()
        self._waiting[job.id] = job
        self._ids_by_key.setdefault(job.key, set()).add(job.id)
        known = self._standings.get(job.id)
        if known is None:
            self._standings[job.id] = Standing(job.priority, now, is_fixed)
        else:
            known.make_way(now)
            known.raise_to(job.priority, is_fixed=known.is_fixed)

    def find_matching_job(
        self, wanted: WinnerKey, plan: Plan | None = None, excluded: Container[int] = ()
    ) -> Job | None:
        """Return a waiting job for a key that follows a plan, or would with a larger budget; ``None`` is any plan."""
        for job_id in sorted(self._ids_by_key.get(wanted, ())):
            job = self._waiting[job_id]
            if job_id not in excluded and (plan is None or extend_plan(job.plan, plan) is not None):
                return job
        return None

    def get_job(self, job_id: int) -> Job | None:
        """Return a waiting job by its id."""
        return self._waiting.get(job_id)

    def replace_job(self, job: Job) -> None:
        """Replace a waiting job by a newer value of it; its standing stays."""
        self._waiting[job.id] = job

    def raise_job_priority(self, job: Job, priority: int, reason: str, *, is_fixed: bool = False) -> Job:
        """Raise a waiting or running job to another request's priority, if that is higher; return the job."""
        if self._standings[job.id].raise_to(priority, is_fixed=is_fixed):
            job = replace(job, priority=priority, reason=reason)
        if job.id in self._waiting:
            self._waiting[job.id] = job
        return job

    def count_lookups(self, wanted: WinnerKey, times: int = 1) -> None:
        """Count lookups that a waiting job would serve."""
        job = self.find_matching_job(wanted)
        if job is not None:
            self._standings[job.id].count_lookups(self._clock(), times)

    def record_launch_cost(self, key: WinnerKey, use: LaunchCost) -> None:
        """Note how much time launches of a key cost applications, regardless of the key's objective."""
        self._launch_costs.pop(key := _remove_objective(key), None)
        self._launch_costs[key] = use
        if len(self._launch_costs) > MAX_USES:
            del self._launch_costs[next(iter(self._launch_costs))]

    def find_launch_cost(self, key: WinnerKey) -> LaunchCost:
        """Return how much time launches of a key cost applications."""
        return self._launch_costs.get(_remove_objective(key), _NO_USE)

    def add_waiter(self, waiter: Hashable, jobs: Collection[int]) -> None:
        """Note that a client waits for jobs, which may be queued or running."""
        for job_id in jobs:
            if job_id in self._standings:
                self._standings[job_id].waiters.add(waiter)

    def remove_waiter(self, waiter: Hashable) -> None:
        """Note that a client waits no longer: its jobs fall back to their own priority."""
        for standing in self._standings.values():
            standing.waiters.discard(waiter)

    def remove_job(self, job_id: int) -> Job | None:
        """Take a job out of the queue; return it if it was in there."""
        self._awaiting_inspection.discard(job_id)
        job = self._waiting.pop(job_id, None)
        if job is not None:
            alike = self._ids_by_key[job.key]
            alike.discard(job_id)
            if not alike:
                del self._ids_by_key[job.key]
        return job

    def begin_turn(self, job_id: int) -> None:
        """Start the turn of a running job: it measures from now on, so its wait ends."""
        self._standings[job_id].begin_turn(self._clock())

    def end_turn(self, job_id: int) -> None:
        """End the turn of a running job: another job measures, and this one waits again."""
        self._standings[job_id].make_way(self._clock())

    def forget_job(self, job_id: int) -> None:
        """Forget the standing of a job that has ended."""
        self._standings.pop(job_id, None)

    def hold_until_inspected(self, job_id: int) -> None:
        """Keep a job from running until its kernel is released."""
        self._awaiting_inspection.add(job_id)

    def awaits_inspection(self, job_id: int) -> bool:
        """Return whether a job waits for its kernel to be released."""
        return job_id in self._awaiting_inspection

    def release_jobs_of_kernel(self, kernel: str) -> None:
        """Let a kernel's held jobs run again."""
        self._awaiting_inspection -= {job.id for job in self._waiting.values() if job.kernel == kernel}

    def pause_job(self, job_id: int) -> Job:
        """Pause a waiting job; return it."""
        job = self._waiting[job_id] = replace(self._waiting[job_id], state=JobState.PAUSED, message="")
        return job

    def resume_job(self, job_id: int) -> Job:
        """Resume a paused job; return it. Its wait counts from now on."""
        job = self._waiting[job_id] = replace(self._waiting[job_id], state=JobState.QUEUED, message="")
        self._standings[job_id].begin_wait(self._clock())
        return job

    def find_level(self, job_id: int) -> int:
        """Return how important a job is now."""
        return self._standings[job_id].find_level() if job_id in self._standings else 0

    def find_rank(self, job_id: int) -> int:
        """Return a job's rank now; an unknown job has the lowest."""
        return self._standings[job_id].compute_rank(self._clock()) if job_id in self._standings else 0

    def count_waiters(self, job_id: int) -> int:
        """Return how many clients wait for a job."""
        return len(self._standings[job_id].waiters) if job_id in self._standings else 0

    def explain_wait(self, job: Job) -> str:
        """Return why a job must not run now, even on a free device; empty if it may."""
        if job.state is JobState.PAUSED:
            return job.message or "it is paused"
        if EVERYTHING in self.pauses:
            return "all tuning is paused"
        if job.device in self.pauses:
            return "its device is paused"
        if job.id in self._awaiting_inspection:
            return "its files are being inspected"
        return self._refuse(job, self.find_level(job.id))

    def choose_next_job(self, device: str, may_run: Callable[[Job], bool] = lambda job: True) -> Job | None:
        """Return the job that a device model should run next, among those that ``may_run``. It stays in the queue."""
        now = self._clock()
        able = (
            job
            for job in self._waiting.values()
            if job.device == device and not self.explain_wait(job) and may_run(job)
        )
        return min(able, key=lambda job: self._sort_key(job, now), default=None)

    @property
    def devices(self) -> set[str]:
        """The device models of waiting jobs."""
        return {job.device for job in self._waiting.values()}

    def _sort_key(self, job: Job, now: float) -> tuple[bool, int, float, float, float, int]:
        standing = self._standings[job.id]
        cost_s = self.find_launch_cost(job.key).cost_s if self._launch_costs else 0.0
        return (
            job.state is JobState.PAUSED,
            -standing.compute_rank(now),
            -cost_s,
            -standing.compute_lookup_heat(now),
            job.created,
            job.id,
        )


def _remove_objective(key: WinnerKey) -> WinnerKey:
    return key._replace(objective=LATENCY)
