"""The brief of a job: the facts that it needs before it begins, and that all its trials share.

``ktuned.scheduling.preparation`` makes the brief when the job starts. The brief also has the rules that follow from
these facts alone: the cost of a config, the identity of an artifact and of a measurement, the figures that a known
trial lacks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ktuned.catalog import Admission, Traces
from ktuned.fleet import Environment
from ktuned.ipc import requests
from ktuned.model import (
    LATENCY,
    Config,
    Device,
    DeviceModel,
    DeviceName,
    FrozenStruct,
    KernelInfo,
    Objective,
    Observation,
    Outcome,
    Preset,
    Problem,
    Scalar,
    Target,
    TrialResult,
    WinnerKey,
    add_digests,
    canonical,
    choose_search_objective,
    convert_to_cost,
    is_exact,
    strip_numerics,
)
from ktuned.protocol import Job, Trial
from ktuned.store import Context, InHand, Winner
from ktuned.tuning.evidence import Grants
from ktuned.tuning.judgements import Anchor
from ktuned.tuning.trial_machine import TrialMachine

_COMPILED_IN = frozenset({"defines", "flags", "library", "source", "cache_key", "globals_read"})
"""Fields of a Build that decide an artifact's bytes, but not how it is called."""


class PresentKey(FrozenStruct):
    """A winner key in the present state of kernel and machine, with the facts behind it.

    Attributes:
        kernel: The kernel, as it was last inspected.
        problem: The whole problem, of which the key may hold a part.
        context: The context of a measurement now.
        objective: The figure by which configs are judged.
    """

    kernel: KernelInfo
    problem: Problem
    context: Context
    objective: Objective

    @property
    def winner_key(self) -> WinnerKey:
        """The key by which the store has the winner."""
        return self.context.key_for(self.objective)


AwaitShared = Callable[[PresentKey], Awaitable[bool]]
"""Waits until others' winners of a key were imported, if there is a team's store, and returns whether there is one;
takes bounded time, and raises nothing."""


class Compiler(FrozenStruct):
    """A machine that has the context's toolchain.

    Attributes:
        environment: The environment of its workers.
        toolchain: The toolchain's files as seen on that machine.
    """

    environment: Environment
    toolchain: Mapping[str, str]


class JobBrief(msgspec.Struct, eq=False, weakref=True):
    """Everything that a job needs to know before it begins.

    While the job runs, only what ``traces`` learns of its kernel changes: new names become a part of the kernel's
    digest, and so of the context. The results in the store then have the new context, too.

    Attributes:
        job: The job.
        kernel: Its kernel, with the names that are known by now.
        problem: The whole problem, of which the key may hold a part.
        devices: The devices on which configs are measured. Without any, configs are only compiled.
        target: The target for which configs are compiled.
        context: The context of the job's measurements.
        environment: The environment of the workers on this machine.
        preset: How precisely configs are measured.
        deadlines: Seconds by phase.
        judge_contention: Whether load by other programs makes a measurement ``contended``.
        admission: Knows which configs the kernel's space holds.
        traces: Learns the names that workers have read.
        served: Returns the winners with which the kernel's lookups are answered.
        group_size: The most configs that the backend compiles as one program.
        lowers: Whether the backend has a front end translate functions before they are compiled.
        absence: The reason why there are no devices, if the job was to measure.
        toolchain: The files that identify the context's toolchain, as seen on this machine.
        await_shared: Waits for others' winners of the job's key.
        compilers: The machines that have the context's toolchain, this one first.
        anchor: The config whose bits decide, if numerics are exact. The kernel's default is then the anchor.
        declared_default: The default that the kernel file declares, if the kernel's default is the anchor.
        grants: What configs are granted.
        learns: Whether what is read becomes part of the kernel; not if configs are compiled otherwise than for use.
        in_hand: Records which trials workers have in hand.
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
    served: Callable[[], Collection[Winner]]
    group_size: int = 1
    lowers: bool = False
    absence: str = ""
    toolchain: Mapping[str, str] = {}
    await_shared: AwaitShared | None = None
    compilers: tuple[Compiler, ...] = ()
    anchor: Anchor | None = None
    declared_default: Config | None = None
    grants: Grants = Grants({})
    learns: bool = True
    in_hand: InHand = msgspec.field(default_factory=InHand)
    _named: requests.KernelRef | None = None

    def __post_init__(self) -> None:
        self._named = None
        self.compilers = self.compilers or (Compiler(self.environment, self.toolchain),)
        if self.anchor is None and is_exact(self.objective) and self.kernel.default is not None:
            self.anchor = Anchor(self.kernel.default, self.preset.inputs)

    def find_environment(self, device: Device) -> Environment:
        """Return the environment of workers that measure on a device."""
        return self.environment.with_host_of(device)

    @property
    def kernel_ref(self) -> requests.KernelRef:
        """The kernel as requests name it."""
        if self._named is None:
            self._named = requests.KernelRef.from_kernel(self.kernel, self.environment.project, self.environment.cwd)
        return self._named

    def adopt_learned_names(self, kernel: KernelInfo) -> None:
        """Replace the kernel by its newer state, with the names that were learned."""
        self.kernel = kernel if self.anchor is None else kernel.with_anchor(self.anchor.config, self.objective)
        self._named = None
        self.context = replace(self.context, digest=kernel.digest)

    async def learn_names(self, observed: Sequence[Observation]) -> None:
        """Add the names that a worker has read to the kernel's digest.

        Raises:
            SourceChanged: The worker has read other contents than those in the kernel's digest.
            StoreError: The names cannot be recorded.
        """
        if observed and self.learns:
            await self.traces.learn_names(self.kernel, observed)

    @property
    def specialized_problem(self) -> dict[str, Scalar]:
        """The part of the problem that enters the key."""
        return self.kernel.select_key_values(self.problem)

    @property
    def objective(self) -> Objective:
        """The figure by which configs are judged."""
        return LATENCY if self.job.plan.is_judged else self.job.objective

    @property
    def search_objective(self) -> Objective:
        """The figure by which configs are judged until the finalists are known."""
        return choose_search_objective(self.objective)

    @property
    def present_key(self) -> PresentKey:
        """The key of the winner that the job looks for, with the facts behind it."""
        return PresentKey(self.kernel, self.problem, self.context, self.objective)

    @property
    def key(self) -> WinnerKey:
        """The key of the winner that the job looks for."""
        return self.present_key.winner_key

    @property
    def wanted_bits(self) -> requests.SameBits | None:
        """The request to workers to find out configs' bits; ``None`` where bits do not count."""
        return None if self.anchor is None else self.anchor.request

    def lacks_figure(self, trial: Trial) -> bool:
        """Return whether a trial was measured, but without the bits that decide in this job."""
        lacks_bits = self.anchor is not None and self.anchor.lacks_bits(trial)
        return trial.outcome is Outcome.MEASURED and lacks_bits

    def compute_cost(self, trial: TrialResult) -> float | None:
        """Return the cost of a measured trial in the search; ``None`` if it has no such figure."""
        return convert_to_cost(self.search_objective, trial.figure(self.search_objective))

    def compute_final_cost(self, trial: TrialResult) -> float | None:
        """Return the cost of a finalist by the objective; ``None`` if it has no such figure."""
        return convert_to_cost(self.objective, trial.figure(self.objective))

    def estimate_cost(self, trial: Trial) -> float | None:
        """Return the cost of a measured trial if its bits turn out to be the anchor's on all inputs."""
        if self.anchor is None or not self.anchor.may_equal_anchor(trial):
            return self.compute_cost(trial)
        objective = strip_numerics(self.search_objective)
        return convert_to_cost(objective, trial.figure(objective))

    def compute_round_cost(self, result: TrialResult) -> float | None:
        """Return the cost of a finalist in one round; its bits are not compared again there."""
        objective = strip_numerics(self.objective)
        return convert_to_cost(objective, result.figure(objective))

    def make_trial_machine(self) -> TrialMachine:
        """Return the rules for the job's trials."""
        return TrialMachine(
            self.kernel.default,
            suspects=self.in_hand.suspects,
            compiles_one_by_one=self.group_size == 1 and not self.lowers,
        )

    async def check_configs(self, configs: Sequence[Config]) -> list[bool]:
        """Return for each config whether the kernel's space holds it for the job's problem."""
        return await self.admission.check_configs(self.kernel, self.problem, configs)

    def make_explore_request(
        self,
        first: Iterable[Config] = (),
        last: Iterable[Config] = (),
        *,
        served: Iterable[Config] = (),
    ) -> requests.Explore:
        """Return the request that opens the space.

        Args:
            first: Configs to try before the strategy's own.
            last: Configs to try only after all others.
            served: Configs that lookups are answered with. A job for certain configs tries these as well, so that
                nothing worse replaces them.
        """
        device = self.devices[0] if self.devices else Device(DeviceName(""), DeviceModel(""), Target(self.target))
        plan = self.job.plan
        if plan.configs:
            wanted = {canonical(config): config for config in (*served, *plan.configs)}
            plan = replace(plan, configs=tuple(wanted.values()))
        return requests.Explore(self.kernel_ref, self.problem, plan, tuple(first), tuple(last), device)

    def make_unit(self, build: Mapping[str, Any]) -> requests.UnitRef:
        """Return a Build with its artifact's key: a digest of everything that decides the artifact's bytes.

        The digest of the sources is added separately, so that a worker can extend the key by names that it learns only
        when it compiles.
        """
        parts = {
            "backend": self.kernel.backend,
            "toolchain": self.context.toolchain,
            "target": self.target,
            "build": build,
        }
        made = hashlib.sha256(canonical(parts).encode()).hexdigest()
        return requests.UnitRef(add_digests(made, self.kernel.source_digest), build)

    def identify_measurement(self, build: Mapping[str, Any], files: str, data: str) -> str:
        """Return the identity of a measurement: SHA-256 over everything that decides its figure.

        ``files`` is the digest of the artifact's files, ``data`` the digest of the lane's inputs and expected outputs.
        Sources, toolchain, macros and flags are left out: they matter only through these two digests.
        """
        parts = {
            # The short name, from which inputs are drawn: they are the same in another checkout of the project.
            "kernel": self.kernel.kernel,
            "problem": dict(self.problem),
            "device": self.context.device,
            "driver": self.context.device_fingerprint,
            "measuring": self.context.measuring_version,
            "besides": self.kernel.data_digest,
            "data": data,
            "build": {name: value for name, value in build.items() if name not in _COMPILED_IN},
            "files": files,
        }
        return hashlib.sha256(canonical(parts).encode()).hexdigest()
