"""The task of one job: a kernel's problem on a device model, and all that its trials have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ktuned.catalog import Admission, Traces
from ktuned.fleet import Environment
from ktuned.ipc import requests
from ktuned.model import (
    ENERGY,
    Config,
    Context,
    Device,
    DeviceModel,
    DeviceName,
    EarlierSearch,
    Job,
    KernelInfo,
    Objective,
    Observation,
    Outcome,
    Preset,
    Problem,
    Scalar,
    Target,
    Trial,
    TrialResult,
    Winner,
    WinnerKey,
    add_captured,
    add_digests,
    canonical,
    cost_of,
    is_exact,
    is_nondeterministic,
    strip_numerics,
)
from ktuned.tuning.anchor import Anchor
from ktuned.tuning.shared_lead import SharedConfigs
from ktuned.tuning.trial_detail import rounds_name
from ktuned.tuning.trial_machine import TrialMachine

_COMPILED_IN = frozenset({"defines", "flags", "library", "source", "cache_key", "globals_read"})
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
    ``shared`` is asked what others have found, if that may be used. ``served`` returns the winners that the kernel's
    lookups are answered with, ``portfolio`` the configs that its portfolio has for this problem, if there is one.
    Where numerics are exact, the kernel's default is the ``anchor``; the file's own is ``declared_default``.
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
    portfolio: Callable[[], Sequence[Config]] = tuple
    group_size: int = 1
    lowers: bool = False
    absence: str = ""
    captured: str = ""
    toolchain: Mapping[str, str] = msgspec.field(default_factory=dict)
    shared: SharedConfigs | None = None
    compilers: tuple[Compiler, ...] = ()
    anchor: Anchor | None = None
    declared_default: Config | None = None
    _named: requests.KernelRef | None = None

    def __post_init__(self) -> None:
        self._named = None
        self.compilers = self.compilers or (Compiler(self.environment, self.toolchain),)
        if self.anchor is None and is_exact(self.objective) and self.kernel.default is not None:
            self.anchor = Anchor(self.kernel.default, self.preset.inputs)

    def environment_on(self, device: Device) -> Environment:
        """Return the environment of the workers that measure on a device."""
        return self.environment.beside(device)

    @property
    def kernel_ref(self) -> requests.KernelRef:
        """The kernel as requests name it."""
        if self._named is None:
            self._named = requests.KernelRef.from_kernel(self.kernel, self.environment.project, self.environment.cwd)
        return self._named

    def follow(self, kernel: KernelInfo) -> None:
        """Take in what was learned of the kernel since."""
        self.kernel = kernel if self.anchor is None else kernel.with_anchor(self.anchor.config, self.objective)
        self._named = None
        self.context = replace(self.context, digest=add_captured(kernel.digest, self.captured))

    async def learn(self, observed: Sequence[Observation]) -> None:
        """Have names that a worker has observed belong to the kernel.

        Raises:
            SourceChanged: what it read is not what the kernel is known by now.
            StoreError: it cannot be recorded.
        """
        if observed:
            await self.traces.learn_names(self.kernel, observed)

    @property
    def specialized(self) -> dict[str, Scalar]:
        """The part of the problem that enters the key."""
        return self.kernel.select_key_values(self.problem)

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

    @property
    def wanted_bits(self) -> requests.SameBits | None:
        """What is to be found out of configs' bits, where they count."""
        if self.anchor is not None:
            return self.anchor.request
        return requests.SameBits(self.preset.inputs, on_all_inputs=True) if self.kernel.batch_invariant else None

    def lacks_figure(self, trial: Trial) -> bool:
        """Return whether a trial was measured, but not what its launches take or leave, which decides here."""
        lacks_energy = self.needs_energy and ENERGY not in trial.metrics
        lacks_bits = False
        if self.anchor is not None:
            lacks_bits = self.anchor.lacks_bits(trial)
        elif self.kernel.batch_invariant and not is_nondeterministic(trial.detail):
            lacks_bits = len(trial.detail.get("bits") or ()) < self.preset.inputs
        return trial.outcome is Outcome.MEASURED and (lacks_energy or lacks_bits)

    def cost(self, trial: Trial | TrialResult) -> float | None:
        """Return what the figure of a measured trial costs; ``None`` if it has none."""
        return cost_of(self.objective, trial.figure(self.objective))

    def expected_cost(self, trial: Trial) -> float | None:
        """Return what a measured trial costs as far as its bits are known: on the first inputs alone, of most."""
        if self.anchor is None or not self.anchor.may_have_bits(trial):
            return self.cost(trial)
        objective = strip_numerics(self.objective)
        return cost_of(objective, trial.figure(objective))

    def cost_of_round(self, result: TrialResult) -> float | None:
        """Return what a finalist costs by one round, in which its bits are not asked for again."""
        objective = strip_numerics(self.objective)
        return cost_of(objective, result.figure(objective))

    def trial_machine(self) -> TrialMachine:
        """Return the rules for the job's trials."""
        return TrialMachine(self.kernel.default, compiles_one_by_one=self.group_size == 1 and not self.lowers)

    async def admitted(self, configs: Sequence[Config]) -> list[bool]:
        """Return whether the kernel's space holds each config for the job's problem."""
        return await self.admission.check_configs(self.kernel, self.problem, configs)

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
        return requests.UnitRef(add_digests(made, self.kernel.source_digest), build)

    def measured_content(self, build: Mapping[str, Any], files: str, data: str) -> str:
        """Return the identity of a measurement: SHA-256 over all that decides the figure of an artifact with ``files``.

        ``data`` is the digest of the lane's inputs and expected outputs. Sources, toolchain, macros and flags are not
        part of it: they decide the bytes of the artifact and of the data, and those are the same.
        """
        parts = {
            # Inputs are drawn from the short name: in another checkout of the project they are the same.
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
