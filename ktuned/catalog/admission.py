"""Admission: whether a kernel's present space contains a config. This is the only place that decides it.

For plain spaces, and constraints that have a text, the declaration is enough. Other constraints and callables are user
code, which a worker runs. Its verdicts are remembered by the digest of the space, and stored, so that the next daemon
serves known winners at once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Self

import msgspec
import structlog

from ktuned.catalog.catalog import Catalog
from ktuned.fleet import Fleet, is_outside_kill
from ktuned.ipc import requests
from ktuned.model import (
    Config,
    Expression,
    KernelInfo,
    KtunedError,
    Observation,
    Problem,
    Role,
    StoreError,
    WorkerError,
    canonical,
    is_among,
)
from ktuned.store import Store, Verdict

_log = structlog.get_logger()

MAX_REMEMBERED = 50_000
"""Most verdicts in memory, some 150 bytes each. At more, all are forgotten, and found again when needed."""

_ELSEWHERE = frozenset({"default", "plan", "problems", "specialize"})
"""The parts of a kernel's plan digest that do not decide which configs its space holds."""


def decide_by_declaration(kernel: KernelInfo, problem: Problem | None, config: Config) -> bool | None:
    """Return whether a kernel's space admits a config, by its declaration; ``None`` if code must be run.

    Without a ``problem``, return whether the space admits it for every problem.
    """
    axes, configs = kernel.space.axes, kernel.space.configs
    if axes is not None:
        is_held = set(config) == set(axes) and all(is_among(config[knob], axes[knob]) for knob in axes)
    elif configs is not None:
        text = canonical(config)
        # Compare only the texts of configs that are equal as maps: these are few, but maps take 1 for 1.0 and True.
        is_held = any(canonical(listed) == text for listed in configs if listed == config)
    else:
        return None
    if not is_held or not kernel.space.constrained:
        return is_held
    constraints = kernel.space.constraints
    if problem is None or not constraints:
        return None
    try:
        return all(_read_constraint(text)(problem, config) for text in constraints)
    except (KtunedError, ArithmeticError, TypeError, ValueError, LookupError):
        # Let a worker's code decide: it also has the error message.
        return None


@lru_cache(maxsize=1_000)
def _read_constraint(text: str) -> Expression:
    return Expression(text)


def is_checked_default(kernel: KernelInfo, problem: Problem, config: Config) -> bool:
    """Return whether a config is the default for a declared problem, which the inspection has found in the space.

    It is false if the code has read data since then, because that data may have changed.
    """
    has_read_later = any(not kernel.learned[name].is_source for name in _decisive_digests(kernel))
    if config != kernel.default or problem not in kernel.problems or has_read_later:
        return False
    # Compare texts: in maps, 1 equals 1.0 and True.
    declared = map(canonical, kernel.problems)
    return canonical(config) == canonical(kernel.default) and canonical(problem) in declared


def complete_config(kernel: KernelInfo, config: Config) -> Config:
    """Return a config with the knobs that the space has gained since, set to the default config's values."""
    default = kernel.default or {}
    if not config.keys() < default.keys():
        return config
    return {knob: config.get(knob, value) for knob, value in default.items()}


def digest_space(kernel: KernelInfo) -> str:
    """Return a digest of a kernel's space. Verdicts hold as long as it stays the same."""
    parts = kernel.plan_parts
    if not parts:
        return kernel.plan_digest
    return canonical({label: digest for label, digest in parts.items() if label not in _ELSEWHERE})


def decide_config(
    kernel: KernelInfo, verdicts: Mapping[str, Mapping[str, bool]], problem: Problem, config: Config
) -> bool | None:
    """Return whether the space holds a config for a problem; ``None`` if a worker must be asked.

    ``verdicts`` are those that hold, by problem and config (:meth:`Admission.list_verdicts`).
    """
    declared = decide_by_declaration(kernel, problem, config)
    if declared is not None:
        return declared
    if is_checked_default(kernel, problem, config):
        return True
    return verdicts.get(canonical(problem), {}).get(canonical(config))


class _KnownVerdict(NamedTuple):
    """A verdict, and the digests of the names that Python code was known to read: the space's code may have read some.

    ``seen`` are all learned names of the kernel at that time. If they are unchanged, the verdict holds without further
    checks.
    """

    admitted: bool
    read: Mapping[str, str]
    seen: Mapping[str, Observation] | None = None

    @classmethod
    def from_kernel(cls, kernel: KernelInfo, *, admitted: bool) -> Self:
        """Return a verdict that holds for a kernel's present files."""
        return cls(admitted, _decisive_digests(kernel), kernel.learned)

    def still_holds(self, kernel: KernelInfo) -> bool:
        """Return whether the files that decided the verdict are unchanged."""
        now = kernel.learned
        return self.seen is now or all(
            now[name].decisive == digest for name, digest in self.read.items() if name in now
        )


class Admission(msgspec.Struct, eq=False):
    """Says whether a space holds a config.

    :meth:`find_known_verdict` answers from memory; :meth:`check_configs` asks a worker about the rest.
    """

    catalog: Catalog
    fleet: Fleet
    store: Store
    _verdicts: dict[tuple[str, str], dict[str, dict[str, _KnownVerdict]]] = {}
    """By kernel and space, then by problem, then by config; the last two are texts."""
    _count: int = 0

    def find_known_verdict(self, kernel: KernelInfo, problem: Problem, config: Config) -> bool | None:
        """Return whether the space holds a config for a problem; ``None`` if a worker must be asked."""
        declared = decide_by_declaration(kernel, problem, config)
        if declared is not None:
            return declared
        asked, text = canonical(problem), canonical(config)
        known = self._find_verdicts(kernel).get(asked, {}).get(text)
        verdicts = {} if known is None or not known.still_holds(kernel) else {asked: {text: known.admitted}}
        return decide_config(kernel, verdicts, problem, config)

    def list_verdicts(self, kernel: KernelInfo, configs: Collection[str]) -> dict[str, dict[str, bool]]:
        """Return the known verdicts on some configs, by problem and config; all are texts."""
        found = {
            problem: {
                config: verdicts[config].admitted
                for config in configs
                if config in verdicts and verdicts[config].still_holds(kernel)
            }
            for problem, verdicts in self._find_verdicts(kernel).items()
        }
        return {problem: verdicts for problem, verdicts in found.items() if verdicts}

    def _find_verdicts(self, kernel: KernelInfo) -> dict[str, dict[str, _KnownVerdict]]:
        """Return the verdicts on a kernel's present space; those that the store has are read once."""
        place = kernel.name, digest_space(kernel)
        if place not in self._verdicts:
            if self._count >= MAX_REMEMBERED:
                self._verdicts.clear()
                self._count = 0
            self._verdicts[place] = {}
            for stored in self.store.admissions.load_verdicts(*place):
                verdict = _KnownVerdict(stored.admitted, json.loads(stored.read))
                self._verdicts[place].setdefault(stored.problem, {})[stored.config] = verdict
                self._count += 1
        return self._verdicts[place]

    async def check_configs(self, kernel: KernelInfo, problem: Problem, configs: Sequence[Config]) -> list[bool]:
        """Return whether the space holds each config, asking a worker about those that are not known.

        A space whose code raises for them, hangs or crashes holds none of them.

        Raises:
            WorkerError: the files have changed since they were inspected, or the worker was killed from outside.
            NotFound: the kernel's file is below no watched root.
        """
        unknown = {
            canonical(config): config for config in configs if self.find_known_verdict(kernel, problem, config) is None
        }
        if unknown:
            try:
                admitted = await self._ask_worker(kernel, problem, list(unknown.values()))
            except WorkerError as error:
                if error.code == "source_changed" or is_outside_kill(error):
                    raise
                _log.warning("evaluate_space_failed", kernel=kernel.name, reason=error.message)
                # Do not store this: after the next start, the code may work.
                self._remember_verdicts(kernel, problem, unknown.values(), admitted=False)
            else:
                for config, verdict in zip(unknown.values(), admitted, strict=True):
                    self._remember_verdicts(kernel, problem, [config], admitted=verdict)
                await self._save_verdicts(kernel, problem, unknown.values())
        return [self.find_known_verdict(kernel, problem, config) is True for config in configs]

    def remember_admitted_configs(self, kernel: KernelInfo, problem: Problem, configs: Sequence[Config]) -> None:
        """Note configs that the space holds: a worker that walked it has just proposed them."""
        for asked in _list_problem_forms(kernel, problem):
            self._remember_verdicts(kernel, asked, configs, admitted=True)

    async def store_verdict(self, kernel: KernelInfo, problem: Problem, config: Config) -> None:
        """Store the verdict on a new winner's config, before lookups are answered with it."""
        for asked in _list_problem_forms(kernel, problem):
            await self._save_verdicts(kernel, asked, [config])

    def _remember_verdicts(
        self, kernel: KernelInfo, problem: Problem, configs: Iterable[Config], *, admitted: bool
    ) -> None:
        verdict = _KnownVerdict.from_kernel(kernel, admitted=admitted)
        known = self._find_verdicts(kernel).setdefault(canonical(problem), {})
        before = len(known)
        known.update(
            (canonical(config), verdict) for config in configs if decide_by_declaration(kernel, problem, config) is None
        )
        self._count += len(known) - before

    async def _save_verdicts(self, kernel: KernelInfo, problem: Problem, configs: Iterable[Config]) -> None:
        known = self._find_verdicts(kernel).get(canonical(problem), {})
        verdicts = [
            Verdict(canonical(problem), text, known[text].admitted, canonical(known[text].read))
            for text in map(canonical, configs)
            if text in known
        ]
        if not verdicts:
            return
        try:
            await self.store.admissions.save_verdicts(kernel.name, digest_space(kernel), verdicts)
        except StoreError as error:
            # This daemon remembers the verdicts; the next one asks again.
            _log.warning("store_verdicts_failed", kernel=kernel.name, reason=error.message)

    async def _ask_worker(self, kernel: KernelInfo, problem: Problem, configs: Sequence[Config]) -> list[bool]:
        environment = self.catalog.find_kernel_environment(kernel)
        reference = requests.KernelRef.from_kernel(kernel, environment.project, environment.cwd)
        request = requests.Admits(reference, problem, tuple(dict(config) for config in configs))
        async with self.fleet.lend_worker(Role.INSPECT, environment) as worker:
            reply, _ = await worker.send_request(request, self.fleet.deadlines)
        return list(reply.admitted)


def _decisive_digests(kernel: KernelInfo) -> dict[str, str]:
    """Return the digests of the names that a space's code may have read: all except those that only compilers read."""
    return {name: one.decisive for name, one in kernel.learned.items() if one.is_data or not one.is_source}


def _list_problem_forms(kernel: KernelInfo, problem: Problem) -> list[Problem]:
    """Return a problem, and the part of it that enters the key.

    An application may look up that part alone, because only the tuning needs the rest, such as a recorded call.
    """
    key = kernel.select_key_values(problem)
    return [problem] if key == dict(problem) else [problem, key]
