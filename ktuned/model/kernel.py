"""Kernels as the daemon knows them, and the roots that contain them.

The daemon knows a kernel by its declaration and by digests, which decide what stored results are still good for.

==================  ================================================  =================================================
digest              changes with                                      what must be done again after a change
==================  ================================================  =================================================
``digest``          anything that can change a measurement: sources,  measuring, unless machine code, arguments and data
                    Python, data, arguments of ``@kernel``            turn out to be the same as before
``source_digest``   what compilers get                                compiling
``plan_digest``     space, problems, budgets, default                 nothing, but there may be more to explore
``data_digest``     anything else that can change a measurement,      measuring, even if machine code, arguments and
                    such as tolerances and versions of libraries      data are the same
``code_digest``     the code that importing the kernel file executes  importing; otherwise a worker is used further
``version``         the code as it was inspected, without names that  observing: reasons why not everything was observed
                    were learned later                                belong to one version
==================  ================================================  =================================================

*Learned* names are files, variables and distributions that only compiling or measuring was seen to read, and not the
inspection. They are parts of ``digest``, and of ``source_digest`` if a compiler has read them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from ktuned.model.buckets import apply_bucket_rules
from ktuned.model.errors import UsageError, listed
from ktuned.model.frozen_struct import FrozenStruct
from ktuned.model.keys import (
    DeviceModel,
    KernelName,
    KeyProblem,
    ProjectName,
    WinnerKey,
    make_full_name,
    make_key_problem,
)
from ktuned.model.objective import ENERGY, LATENCY, Objective, is_exact, name_figure, read_objective
from ktuned.model.plan import Plan, PlanDefaults
from ktuned.model.trace import (
    ATTRIBUTES,
    DISTRIBUTION,
    ENVIRONMENT,
    HOME,
    MADE,
    PREFIX,
    SITE,
    UNOBSERVED,
    Observation,
    extend_digest,
    find_new_observations,
    merge_stamps,
    reduce_digest,
)
from ktuned.model.values import Config, Problem, Scalar, canonical, sha256

_DIRECTORY = "dir"
"""The stamp of a directory, which is also the beginning of its listing's stamp (:mod:`ktuned.ipc.stamps`)."""


class SpaceInfo(FrozenStruct):
    """A declared space, as far as it can be described without code.

    Attributes:
        kind: ``cartesian``, ``list`` or ``callable``.
        axes: each knob's values; None for other kinds, or if there are very many values.
        configs: the listed configs; None for other kinds, or if there are very many.
        constrained: whether there are constraints, which decide about each config.
        constraints: the constraints' texts (:class:`~ktuned.model.Expression`); empty if one of them has no text.
        size: number of configs before constraints; None if they cannot be counted.
    """

    kind: str = ""
    axes: Mapping[str, tuple[Scalar, ...]] | None = None
    configs: tuple[Config, ...] | None = None
    constrained: bool = False
    constraints: tuple[str, ...] = ()
    size: int | None = None


class KernelInfo(FrozenStruct):
    """A kernel's declaration without its code.

    Short digests by labels say what changed between two descriptions.

    Attributes:
        digest: changes when existing measurements become invalid.
        source_digest: changes when existing artifacts become invalid.
        plan_digest: changes when there may be more to explore.
        stamps: the SHA-256 of each file that it depends on, by absolute path; empty for an absent file.
        problems: the declared problems, as representatives of their buckets.
        learned: the learned names, with their present digests. The kernel's digests include them.
        bucket: the rules of buckets by problem key.
        knobs: the knobs' names; empty for a callable's space.
        file_parts, python_parts, argument_parts, plan_parts: short digests of each source file, Python file and
            distribution, declared value and part of the plan.
        data_digest: digest of everything else that can change a measurement, such as tolerances and library versions.
            Machine code, arguments and the bits of inputs and expected outputs are compared elsewhere.
        judges: whether code of the kernel file takes part in measuring. Then ``data_digest`` covers all Python.
        is_judged: false if nothing decides whether its outputs are right.
        expects_default_outputs: whether configs are compared with the outputs of the default config.
        metrics: the names of the file's own metrics.
        given: names of the budgets that the file sets itself.
        version: identifies the code that was inspected, independent of what was learned since.
        is_data: whether the file runs no code of the user's, so that one worker can serve many such files.
        unobserved_read: why the inspection could not observe all that it read; empty if it could.
        declares_reads: whether the file itself declares, by ``depends=``, the files whose reads cannot be observed.
    """

    project: ProjectName
    kernel: str
    file: str
    line: int
    backend: str
    digest: str
    source_digest: str
    plan_digest: str
    sources: tuple[str, ...]
    stamps: Mapping[str, str]
    problems: tuple[Problem, ...]
    default: Config | None
    specialize: tuple[str, ...] | None
    space: SpaceInfo
    plan: Plan
    learned: Mapping[str, Observation] = {}
    bucket: Mapping[str, Any] = {}
    knobs: tuple[str, ...] = ()
    file_parts: Mapping[str, str] = {}
    python_parts: Mapping[str, str] = {}
    argument_parts: Mapping[str, str] = {}
    plan_parts: Mapping[str, str] = {}
    data_digest: str = ""
    judges: bool = False
    is_judged: bool = True
    expects_default_outputs: bool = False
    metrics: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    version: str = ""
    is_data: bool = False
    unobserved_read: str = ""
    declares_reads: bool = False

    @property
    def name(self) -> KernelName:
        """The full name, ``project:kernel``."""
        return make_full_name(self.project, self.kernel)

    @property
    def data_read(self) -> dict[str, str]:
        """The names that decide a measurement besides machine code and data, with short digests of their contents.

        They were read by the reference, by checks or in launches. Lanes digest the data that other reads have made; but
        if code of the kernel file judges outputs, everything counts that may have been read for that.
        """
        entries = [
            one for one in self.learned.values() if (one.is_data if self.judges else one.is_run and not one.meaning)
        ]
        return {one.name: one.decisive[:16] for one in entries}

    @property
    def parts(self) -> dict[str, str]:
        """The parts of ``digest``: short digests by labels, most of which begin with ``source:`` or ``argument:``."""
        learned = {self.label_part(entry): entry.decisive[:16] for entry in self.learned.values()}
        return self._inspected_parts | learned

    @property
    def _inspected_parts(self) -> dict[str, str]:
        groups = (("source", self.file_parts), ("source", self.python_parts), ("argument", self.argument_parts))
        return {f"{group}:{label}": digest for group, digests in groups for label, digest in digests.items()}

    @property
    def unobserved(self) -> str:
        """The reason why the kernel is not fully observed; empty if it is."""
        if self.declares_reads:
            return ""
        prefix = f"{UNOBSERVED}{self.version}:"
        learned = (name.removeprefix(prefix) for name in self.learned if name.startswith(prefix))
        return self.unobserved_read or next(learned, "")

    @property
    def compiled_files(self) -> list[str]:
        """The files in ``stamps`` on which artifacts depend, or would depend if the files appeared.

        If the kernel declares no sources, its own Python is compiled, so every file counts.
        """
        read = self._read_by_compilers()
        return [path for path, digest in self.stamps.items() if not (self.sources and digest) or path in read]

    @property
    def compiled_variables(self) -> dict[str, str]:
        """The environment variables that artifacts are known to depend on, with digests of their values."""
        read = [entry for entry in self.learned.values() if entry.is_source and entry.name.startswith(ENVIRONMENT)]
        return {entry.name.removeprefix(ENVIRONMENT): entry.digest for entry in read}

    @property
    def code_digest(self) -> str:
        """Digest of all files except those that only compilers read.

        While it is equal, importing the kernel file has the same effect on a process. A library that the kernel file
        loads counts, although compile workers load it, too: a lane that has loaded it keeps the old one.
        """
        loaded = {place for entry in self.learned.values() if entry.is_data for place in entry.places}
        compiled = self._read_by_compilers() - loaded
        read = {path: digest for path, digest in self.stamps.items() if path.endswith(".py") or path not in compiled}
        return sha256(canonical(read))

    def _read_by_compilers(self) -> set[str]:
        home = os.path.dirname(self.file)
        read = {os.path.normpath(os.path.join(home, label)) for label in self.file_parts}
        return read | {place for entry in self.learned.values() if entry.is_source for place in entry.places}

    def label_part(self, entry: Observation) -> str:
        """Return the label of a learned name among ``parts``; files are labelled like sources.

        A module that counts by its syntax tree may also be read as text, when it is compiled or launched. These are two
        parts of the digest, which need two labels.
        """
        if entry.name.startswith((ENVIRONMENT, UNOBSERVED)):
            return entry.name
        if entry.name.startswith(MADE):
            return f"{MADE}its winner, made again"
        is_elsewhere = not entry.places or entry.name.startswith((DISTRIBUTION, SITE, PREFIX, HOME, "/"))
        name = entry.name if is_elsewhere else os.path.relpath(entry.places[0], os.path.dirname(self.file))
        label = f"source:{name}{' (attributes)' if entry.name.endswith(ATTRIBUTES) and not is_elsewhere else ''}"
        return f"{label} (its text)" if label in self._inspected_parts else label

    def convert_paths(self, convert: Callable[[str], str]) -> KernelInfo:
        """Return the kernel with other paths: relative to another directory, or absolute. Learned names stay."""
        return msgspec.structs.replace(
            self,
            file=convert(self.file),
            sources=tuple(map(convert, self.sources)),
            stamps={convert(path): digest for path, digest in self.stamps.items()},
        )

    def with_observed(self, found: Iterable[Observation]) -> KernelInfo:
        """Return the kernel with the observed names added that it lacks; if it lacks none, the kernel itself."""
        news = find_new_observations(self.learned, found)
        if not news:
            return self
        rest = self.without_names([entry.name for entry in news if entry.name in self.learned])
        fresh = [entry for entry in news if entry.name not in self.learned]
        return msgspec.structs.replace(
            rest,
            digest=extend_digest(rest.digest, news),
            source_digest=extend_digest(rest.source_digest, [entry for entry in news if entry.is_source]),
            stamps=_add_stamps(self.stamps, fresh),
            learned={**self.learned, **{entry.name: entry for entry in news}},
        )

    def without_names(self, names: Collection[str]) -> KernelInfo:
        """Return the kernel without some of its learned names; their files stay watched."""
        if not names:
            return self
        gone = [self.learned[name] for name in names]
        return msgspec.structs.replace(
            self,
            digest=reduce_digest(self.digest, gone),
            source_digest=reduce_digest(self.source_digest, [entry for entry in gone if entry.is_source]),
            learned={name: entry for name, entry in self.learned.items() if name not in names},
        )

    def find_contradiction(self, found: Iterable[Observation]) -> Observation | None:
        """Return an observation that contradicts what this kernel knows, because a file has changed since; or None."""
        for entry in found:
            known = {self.learned[entry.name].digest} if entry.name in self.learned else set()
            if not entry.name.endswith(("/", ATTRIBUTES)):
                known |= {self.stamps[place].partition("|")[0] for place in entry.places if place in self.stamps}
            if entry.digest.startswith(_DIRECTORY):
                # The directory was known to exist. It is no contradiction if the names in it now count, too.
                known.discard(_DIRECTORY)
            if known - {entry.digest}:
                return entry
        return None

    def choose_representative(self, problem: Problem) -> dict[str, Scalar]:
        """Return the problem that stands for a problem's bucket."""
        return apply_bucket_rules(self.bucket, problem) if self.bucket else dict(problem)

    def select_key_values(self, problem: Problem) -> dict[str, Scalar]:
        """Return the part of a problem's bucket representative that enters the key."""
        problem = self.choose_representative(problem)
        return problem if self.specialize is None else {key: problem[key] for key in self.specialize}

    def make_key_problem(self, problem: Problem) -> KeyProblem:
        """Return the key of a problem."""
        return make_key_problem(self.select_key_values(problem))

    def make_winner_key(self, problem: Problem, device: str, objective: Objective = LATENCY) -> WinnerKey:
        """Return the key of a problem's winner on a device model."""
        return WinnerKey(self.name, self.make_key_problem(problem), DeviceModel(device), objective)

    def objective(self, asked: str | None) -> Objective:
        """Return the objective of a request: the one that it names, or the declared one.

        Raises:
            UsageError: there is no such objective, or it is a metric that the kernel does not have.
        """
        objective = read_objective(self.plan.objective if asked is None else asked)
        metric = name_figure(objective)
        if metric not in (LATENCY, ENERGY, *self.metrics):
            raise UsageError(
                f"{self.name} has no metric {metric!r} {listed(self.metrics, near=metric)}",
                hint="an objective is latency, min:energy, or max:NAME or min:NAME of one of its metrics=",
            )
        return objective

    def with_anchor(self, anchor: Config | None, objective: Objective) -> KernelInfo:
        """Return the kernel with the anchor as its default, if the objective's numerics are exact.

        As the default, the anchor is served before there is a winner, measured in full, and the base of speed-ups.
        """
        is_other = anchor is not None and is_exact(objective) and anchor != self.default
        return msgspec.structs.replace(self, default=anchor) if is_other else self

    def order_config(self, config: Config) -> dict[str, Scalar]:
        """Return a config with its knobs in the order of the declared space; the store sorts them by name."""
        listed = self.space.configs or [self.default or {}]
        return _order_values(config, self.space.axes or listed[0])

    def order_problem(self, problem: Problem) -> dict[str, Scalar]:
        """Return a problem with its keys in the order of the first declared one; the store sorts them by name."""
        return _order_values(problem, self.problems[0] if self.problems else ())

    def with_plan_defaults(self, defaults: PlanDefaults) -> KernelInfo:
        """Return the kernel with its project's defaults for budgets that its file does not set."""
        plan = defaults.apply_to(self.plan, self.given)
        if plan == self.plan:
            return self
        digest = sha256(f"{self.plan_digest} {canonical(msgspec.to_builtins(plan))}")
        return msgspec.structs.replace(self, plan=plan, plan_digest=digest)


def _add_stamps(stamps: Mapping[str, str], entries: Iterable[Observation]) -> dict[str, str]:
    """Return stamps with those of further entries; what is held of a path is kept."""
    found = dict(stamps)
    for entry in entries:
        for place in entry.places:
            found[place] = merge_stamps(found[place], entry.digest) if place in found else entry.digest
    return found


def _order_values(values: Mapping[str, Scalar], names: Iterable[str]) -> dict[str, Scalar]:
    return {**{name: values[name] for name in names if name in values}, **values}
