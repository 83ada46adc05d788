"""One config on its way through the stages, and what is known of a job so far. No IO.

A config is proposed (:class:`~ktuned.ipc.replies.Proposal`), then attempted (:class:`Attempt`, with its trial and its
Build), then :class:`Compiled`, then measured; a :class:`~ktuned.model.TrialResult` ends it at any stage.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Literal

import msgspec

from ktuned.catalog import Admission, Traces
from ktuned.fleet import (
    KILLS_EXCUSED,
    DeadlineExpired,
    Environment,
    NodeLost,
    Output,
    RequestFailed,
    WorkerDied,
    is_outside_kill,
)
from ktuned.ipc import replies, requests
from ktuned.model import (
    ENERGY,
    LATENCY,
    Config,
    Context,
    Device,
    DeviceModel,
    DeviceName,
    EarlierSearch,
    Event,
    Job,
    KernelInfo,
    Life,
    Objective,
    Observation,
    Outcome,
    Phase,
    Preset,
    Problem,
    Scalar,
    Target,
    Trial,
    TrialResult,
    Winner,
    WinnerKey,
    added,
    canonical,
    cost_of,
    with_captured,
)
from ktuned.tuning.shared_lead import Team
from ktuned.tuning.trial_detail import NO_DETAIL, TrialDetail, rounds_name

_COMPILED_IN = frozenset({"defines", "flags"})
"""Fields of Builds that decide an artifact's bytes, and nothing about its call."""


class Compiler(msgspec.Struct, frozen=True):
    """A machine that has the context's toolchain: the workers' environment there, and the sights of its files."""

    environment: Environment
    toolchain: Mapping[str, str]


class Work(msgspec.Struct, eq=False, weakref=True):
    """Everything that a job needs to know before it begins.

    While it runs, nothing of it changes but what ``traces`` learns of its kernel: that is the digests' part from then
    on, and with it the context's. Then all results in the store have the new context, too.

    ``captured`` is the digest of the inputs that an application handed over for the problem; empty without any.
    Without ``devices`` its configs are only compiled, for ``target``; ``absence`` then says why nothing is measured, if
    measuring was asked for. ``compilers`` are where the context's toolchain is, this machine first. ``toolchain`` are
    the sights of the files by which it is known there.
    ``team`` is asked what others share, if anything may be used of it. ``served`` returns the winners that the kernel's
    lookups are answered with.
    """

    job: Job
    kernel: KernelInfo
    problem: Problem
    devices: tuple[Device, ...]
    target: str
    context: Context
    environment: Environment
    preset: Preset
    deadlines: Mapping[str, float]
    judge_contention: bool
    admission: Admission
    traces: Traces
    served: Callable[[], Sequence[Winner]]
    group_size: int = 1
    lowers: bool = False
    absence: str = ""
    captured: str = ""
    toolchain: Mapping[str, str] = msgspec.field(default_factory=dict)
    team: Team | None = None
    compilers: tuple[Compiler, ...] = ()
    _named: requests.KernelRef | None = None

    def __post_init__(self) -> None:
        self._named = None
        self.compilers = self.compilers or (Compiler(self.environment, self.toolchain),)

    def environment_on(self, device: Device) -> Environment:
        """Return the environment of the workers that measure on a device."""
        return msgspec.structs.replace(self.environment, node=device.node) if device.node else self.environment

    @property
    def kernel_ref(self) -> requests.KernelRef:
        """The kernel as requests name it."""
        if self._named is None:
            self._named = requests.KernelRef.of(self.kernel, self.environment.project, self.environment.cwd)
        return self._named

    def follow(self, kernel: KernelInfo) -> None:
        """Take in what was learned of the kernel since."""
        self.kernel = kernel
        self._named = None
        self.context = replace(self.context, digest=with_captured(kernel.digest, self.captured))

    async def learn(self, observed: Sequence[Observation]) -> None:
        """Have names that a worker has observed belong to the kernel.

        Raises:
            SourceChanged: what it read is not what the kernel is known by now.
            StoreError: it cannot be recorded.
        """
        if observed:
            await self.traces.learn(self.kernel, observed)

    @property
    def specialized(self) -> dict[str, Scalar]:
        """The part of the problem that enters the key."""
        return self.kernel.specialized(self.problem)

    @property
    def objective(self) -> Objective:
        """The figure by which configs are judged."""
        return self.job.objective

    @property
    def key(self) -> WinnerKey:
        """The key of the winner that the job looks for."""
        return self.context.key_for(self.objective)

    @property
    def needs_energy(self) -> bool:
        """True if a config is judged by what its launches take."""
        return self.kernel.needs_energy(self.objective)

    @property
    def rounds_name(self) -> str:
        """The detail that counts a finalist's rounds."""
        return rounds_name(self.kernel, self.objective)

    def lacks_figure(self, trial: Trial) -> bool:
        """Return whether a trial was measured, but not what its launches take, which decides here."""
        return trial.outcome is Outcome.MEASURED and self.needs_energy and ENERGY not in trial.metrics

    def cost(self, trial: Trial | TrialResult) -> float | None:
        """Return what the figure of a measured trial costs; ``None`` if it has none."""
        return cost_of(self.objective, trial.figure(self.objective))

    async def admitted(self, configs: Sequence[Config]) -> list[bool]:
        """Return whether the kernel's space holds each config for the job's problem; see :meth:`Admission.ask`."""
        return await self.admission.ask(self.kernel, self.problem, configs)

    def explore_request(
        self,
        first: Iterable[Config] = (),
        last: Iterable[Config] = (),
        earlier: Iterable[EarlierSearch] = (),
        *,
        served: Iterable[Config] = (),
    ) -> requests.Explore:
        """Return the request that begins an exploration: which configs come first, and which are left for last.

        ``earlier`` are similar searches, the most similar first. A job for some configs alone tries those that lookups
        are ``served`` as well: they are to give way to nothing worse.
        """
        device = self.devices[0] if self.devices else Device(DeviceName(""), DeviceModel(""), Target(self.target))
        plan = self.job.plan
        if plan.configs:
            wanted = {canonical(config): config for config in (*served, *plan.configs)}
            plan = replace(plan, configs=tuple(wanted.values()))
        return requests.Explore(self.kernel_ref, self.problem, plan, tuple(first), tuple(last), device, tuple(earlier))

    def unit(self, build: Mapping[str, Any]) -> requests.UnitRef:
        """Return a Build with its artifact's key: a digest of all that decides the artifact's bytes.

        The sources' part is added, so that a worker can add that of names which only compiling shows.
        """
        parts = {
            "backend": self.kernel.backend,
            "toolchain": self.context.toolchain,
            "target": self.target,
            "build": build,
        }
        made = hashlib.sha256(canonical(parts).encode()).hexdigest()
        return requests.UnitRef(added(made, self.kernel.source_digest), build)

    def measured_content(self, build: Mapping[str, Any], files: str) -> str:
        """Return the identity of a measurement: SHA-256 over all that decides the figure of an artifact with ``files``.

        Sources, toolchain, macros and flags are not part of it: they decide the bytes, and those are the same.
        """
        parts = {
            # Inputs are drawn from the short name: in another checkout of the project they are the same.
            "kernel": self.kernel.kernel,
            "problem": dict(self.problem),
            "device": self.context.device,
            "driver": self.context.device_fingerprint,
            "measuring": self.context.measuring_version,
            "data": f"{self.kernel.data_digest} {self.captured}",
            "build": {name: value for name, value in build.items() if name not in _COMPILED_IN},
            "files": files,
        }
        return hashlib.sha256(canonical(parts).encode()).hexdigest()


class Attempt(msgspec.Struct):
    """One trial under way: its config, its Build, its place in a trial's life, and what it has cost.

    ``unit`` has no key where the kernel function gave no Build. ``disturbed`` and ``killed`` count what is excused,
    ``given_back`` is whether its device failed once, ``doubted`` whether it failed once in a worker that the config
    before may have damaged. ``known`` is its trial as it stands, where that lacks a figure alone. ``cores`` is how many
    the config uses on a CPU, once that is known: its kernel file ``declares_cores``, or its first launch has shown it.
    ``spans`` say where it was last, and since when.
    """

    trial: int
    config: Config
    unit: requests.UnitRef
    life: Life = msgspec.field(default_factory=Life)
    compile_s: float = 0.0
    lane_s: float = 0.0
    open_s: float = 0.0
    disturbed: int = 0
    killed: int = 0
    given_back: bool = False
    doubted: bool = False
    cores: int | None = None
    declares_cores: bool = False
    spans: dict[str, tuple[str, float]] = msgspec.field(default_factory=dict)
    known: Trial | None = None

    @property
    def known_us(self) -> float | None:
        """The latency of a config that was measured already, and lacks another figure alone."""
        return None if self.known is None else self.known.latency_us

    def worked(self, kind: Literal["compile", "lane"], place: str, began: float) -> None:
        """Note that the attempt was in a slot (``compile``) or a ``lane``, and since when (Unix s)."""
        self.spans[kind] = place, round(began, 3)

    def doubt(self, *, is_doubtful: bool) -> bool:
        """Move the attempt back, once, after a failure in a worker that may have been damaged; return whether."""
        if not is_doubtful or self.doubted:
            return False
        self.doubted = True
        self.life.tell(Event.DOUBTED)
        return True

    @classmethod
    def again(cls, trial: Trial, unit: requests.UnitRef) -> Attempt:
        """Return a measured trial as one under way again, as a finalist."""
        attempt = cls(trial.id, trial.config, unit, compile_s=trial.compile_s, lane_s=trial.lane_s)
        attempt.life = Life(Outcome.MEASURED)
        attempt.life.tell(Event.CHOSEN)
        return attempt

    def excuse_kill(self, error: Exception) -> bool:
        """Move the attempt back after an excused kill from outside; return whether ``error`` is one.

        A few kills say nothing about the config; one whose workers are killed each time is believed to be the reason.
        """
        if isinstance(error, NodeLost):
            # Nothing of that is the config's doing, however often it happens.
            self.life.tell(Event.KILLED)
            return True
        if not is_outside_kill(error) or self.killed == KILLS_EXCUSED:
            return False
        self.killed += 1
        self.life.tell(Event.KILLED)
        return True

    def result(
        self,
        event: Event,
        message: str = "",
        *,
        latency_us: float | None = None,
        spread_us: float | None = None,
        detail: TrialDetail = NO_DETAIL,
        output: Output | None = None,
    ) -> TrialResult:
        """Make the last move, and return the result that it leads to."""
        self.life.tell(event)
        outcome = self.life.outcome
        assert outcome is not None
        failed = outcome is not Outcome.MEASURED
        detail = replace(
            detail,
            build=self.unit.build or None,
            open_s=round(self.open_s, 3) if self.open_s else None,
            spans=tuple((kind, *span) for kind, span in self.spans.items()) or None,
            story=tuple(map(str, self.life.story)) if failed or self.killed or self.disturbed or self.doubted else None,
            stdout=(output.stdout or None) if failed and output is not None else None,
            stderr=(output.stderr or None) if failed and output is not None else None,
        )
        return TrialResult(
            outcome,
            latency_us,
            spread_us,
            self.compile_s,
            self.lane_s,
            message,
            self.unit.key or None,
            detail.to_json(),
        )

    def failure(
        self,
        error: WorkerDied | DeadlineExpired | RequestFailed,
        *,
        expired: Event,
        refused: Event,
        detail: TrialDetail = NO_DETAIL,
    ) -> TrialResult:
        """Make the last move that a failed request means, and return its result.

        ``expired`` is the move where a deadline passed, ``refused`` where the worker answered that it cannot.
        """
        event, detail = refused, replace(detail, phase=error.phase)
        if isinstance(error, WorkerDied):
            event, detail = Event.DIED, replace(detail, signal=error.signal)
        elif isinstance(error, DeadlineExpired):
            event, detail = expired, replace(detail, after_s=error.deadline_s)
        return self.result(event, error.message, detail=detail, output=error.output)

    def unbuilt(self, proposal: replies.Proposal) -> TrialResult:
        """Make the last move of a config that the kernel function gives no Build for, and return its result."""
        event = Event.CANNOT_RUN if proposal.outcome is Outcome.UNSUPPORTED else Event.REFUSED
        return self.result(event, proposal.message, detail=TrialDetail(phase=Phase.BUILD))


class Compiled(msgspec.Struct, frozen=True):
    """An attempt that has its sealed artifact.

    ``facts`` are the backend's, ``content`` identifies its measurement; empty where other code decides it, too.
    """

    attempt: Attempt
    facts: Mapping[str, Any]
    content: str

    def detail(self, detail: TrialDetail = NO_DETAIL) -> TrialDetail:
        """Return a detail with what compiling found."""
        return replace(detail, facts=self.facts or None, content=self.content or None)


class Ended(msgspec.Struct, frozen=True):
    """An attempt that has its outcome."""

    attempt: Attempt
    result: TrialResult


def time_left_s(*, tried: int, left: int | None, elapsed_s: float, budget_s: float | None) -> float | None:
    """Estimate the seconds until a job's last trial, from the pace so far; its budget is a cap.

    ``tried`` are the configs that took time, ``left`` those still to come; ``None`` when nothing can be said.
    """
    of_budget = None if budget_s is None else max(0.0, budget_s - elapsed_s)
    if left is None or tried <= 0:
        return of_budget
    by_pace = max(0, left) * elapsed_s / tried
    return by_pace if of_budget is None else min(by_pace, of_budget)


class Progress(msgspec.Struct):
    """A job's figures so far; ``stamp`` puts them into the job's public value.

    The best config is that by ``objective``: ``best_us`` is its latency, ``best_figure`` the figure that it is best by
    (``None`` where that is the latency), and likewise for the default. ``compiled`` counts the configs of a job that
    only compiles which have their artifact: an end, but no outcome. ``lost`` is why the first config was lost that had
    been measured. ``budget_s`` is the plan's time limit, ``began`` when the job started, by ``monotonic``.
    """

    objective: Objective = LATENCY
    total: int | None = None
    outcomes: Counter[Outcome] = msgspec.field(default_factory=Counter)
    compiled: int = 0
    best_us: float | None = None
    best_spread_us: float | None = None
    best_figure: float | None = None
    default_us: float | None = None
    default_spread_us: float | None = None
    default_figure: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None
    reused: int = 0
    cost: dict[str, float] = msgspec.field(default_factory=dict)
    budget_s: float | None = None
    lost: str = ""
    began: float = msgspec.field(default_factory=monotonic)

    @property
    def done(self) -> int:
        """The number of configs that have their outcome, or only their artifact if no more was wanted."""
        return self.compiled + sum(self.outcomes.values())

    @property
    def left_s(self) -> float | None:
        """The time in s that the job is still likely to take."""
        return time_left_s(
            tried=self.done - self.reused,
            left=None if self.total is None else self.total - self.done,
            elapsed_s=monotonic() - self.began,
            budget_s=self.budget_s,
        )

    @property
    def has_measured(self) -> bool:
        """True if this job has used a lane: configs that were known, or carried over, need none."""
        return self.cost.get("lane_s", 0.0) > 0

    @property
    def best(self) -> float | None:
        """The best config's figure."""
        return self.best_us if self.objective == LATENCY else self.best_figure

    @property
    def best_cost(self) -> float | None:
        """The cost of the best config's figure."""
        return cost_of(self.objective, self.best)

    def count(self, trial: Trial | TrialResult, *, is_default: bool) -> None:
        """Take one config's outcome into account."""
        assert trial.outcome is not None
        self.outcomes[trial.outcome] += 1
        cost = cost_of(self.objective, trial.figure(self.objective))
        if trial.outcome is not Outcome.MEASURED or cost is None:
            return
        if self.best_cost is None or cost < self.best_cost:
            self.lead(trial)
        if is_default:
            self.compare_with(trial)

    def lead(self, trial: Trial | TrialResult | None) -> None:
        """Take a measured config for the best one; ``None`` if there is none any more."""
        self.best_us, self.best_spread_us, self.best_figure = self._figures(trial)

    def compare_with(self, default: Trial | TrialResult) -> None:
        """Take the figures of the declared default."""
        self.default_us, self.default_spread_us, self.default_figure = self._figures(default)

    def _figures(self, trial: Trial | TrialResult | None) -> tuple[float | None, float | None, float | None]:
        if trial is None:
            return None, None, None
        figure = None if self.objective == LATENCY else trial.figure(self.objective)
        return trial.latency_us, trial.spread_us, figure

    def lose(self, result: TrialResult, best: Trial | None) -> None:
        """Take into account that a measured config is wrong; ``best`` is the best trial that is left."""
        self.outcomes[Outcome.MEASURED] -= 1
        self.outcomes[result.outcome] += 1
        self.lead(best)
        self.lost = self.lost or f"{result.outcome}: {result.message}"

    def acquit(self, result: TrialResult) -> None:
        """Take into account that a mismatch is none."""
        self.outcomes[Outcome.MISMATCH] -= 1
        self.count(result, is_default=False)

    def spend(self, what: str, seconds: float) -> None:
        """Add to the job's cost: ``compile_s``, ``open_s``, ``lane_s``, ``finalists_s``, ``wall_s``."""
        self.cost[what] = self.cost.get(what, 0.0) + seconds

    def to_wire(self) -> dict[str, Any]:
        """Return the fields that a ``trial_done`` event carries."""
        outcomes = {str(outcome): count for outcome, count in self.outcomes.items()}
        return {
            "done": self.done,
            "total": self.total,
            "outcomes": {"compiled": self.compiled, **outcomes} if self.compiled else outcomes,
            "best_us": self.best_us,
            "best_spread_us": self.best_spread_us,
            "default_us": self.default_us,
            "default_spread_us": self.default_spread_us,
            "best_figure": self.best_figure,
            "default_figure": self.default_figure,
            "reference_us": self.reference_us,
            "reference_spread_us": self.reference_spread_us,
        }

    def stamp(self, job: Job, **changes: Any) -> Job:
        """Return the job with these figures."""
        cost = {name: round(value, 3) for name, value in self.cost.items()}
        return replace(job, **self.to_wire(), cost=cost, **changes)
