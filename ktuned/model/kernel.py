"""Kernels as the daemon knows them, and the roots that contain them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ktuned.model.batch_invariance import find_groups
from ktuned.model.buckets import FUNCTION, apply_bucket_rules
from ktuned.model.errors import UsageError, listed
from ktuned.model.keys import (
    DeviceModel,
    KernelName,
    KeyProblem,
    ProjectName,
    WinnerKey,
    make_full_name,
    make_key_problem,
)
from ktuned.model.objective import (
    BUILT_IN,
    LATENCY,
    Objective,
    is_exact,
    is_latency,
    metric_of,
    read_objective,
    strip_numerics,
)
from ktuned.model.plan import Plan, PlanDefaults
from ktuned.model.record import Record, record
from ktuned.model.trace import (
    DISTRIBUTION,
    ENVIRONMENT,
    UNOBSERVED,
    Observation,
    extend_digest,
    find_news,
    reduce_digest,
)
from ktuned.model.values import Config, Problem, Scalar, canonical, sha256

_DIRECTORY = "dir"
"""The stamp of a directory, and the beginning of that of the names in it."""


@record
class RootSettings(Record):
    """Explicit settings of a root, by ``config.toml`` or a request; they come before all others."""

    name: str = ""
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Root:
    """A watched directory: its project's name, its interpreter, its workers' environment variables, its watching.

    ``polling`` is for file systems that do not report changes made elsewhere (network file systems). ``asked`` is what
    was asked for, ``project_digest`` the SHA-256 of the ``ktuned.toml`` that the root was made with, and ``defaults``
    what that file says of kernel files that set no budgets. ``workers`` is the directory above it that it shares its
    workers with, empty if it has its own.
    """

    path: str
    name: str
    python: str
    env: Mapping[str, str] = field(default_factory=dict)
    polling: bool = False
    asked: RootSettings = field(default=RootSettings(), compare=False)
    project_digest: str = field(default="", compare=False)
    defaults: PlanDefaults = field(default_factory=PlanDefaults)
    workers: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Return the protocol's map."""
        return {
            "path": self.path,
            "name": self.name,
            "python": self.python,
            "env": dict(self.env),
            "polling": self.polling,
        }


@record
class KernelInfo(Record):
    """A kernel's declaration without its code.

    ``digest`` changes when old measurements no longer hold; ``source_digest`` when old artifacts do not;
    ``plan_digest`` when there may be more to explore. ``stamps`` maps each file that it depends on (absolute
    path) to the SHA-256 of its bytes, or to ``""`` for a missing one. ``learned`` are the names that only compiling or
    measuring has shown, as they are now; they are part of the digests. ``bucket`` has the rules of buckets by key, and
    ``problems`` are representatives.
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
    space: Mapping[str, Any]
    plan: Plan
    extra: Mapping[str, Any] = field(default_factory=dict)
    learned: Mapping[str, Observation] = field(default_factory=dict)
    bucket: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> KernelName:
        """The full name, ``project:kernel``."""
        return make_full_name(self.project, self.kernel)

    @property
    def data_digest(self) -> str:
        """Digest of what decides a figure besides machine code, arguments and the bits of inputs and expected outputs.

        These are the tolerances, say, and libraries that were imported. Python counts where it judges: a ``check``.
        """
        return str(self.extra.get("data_digest", self.digest))

    @property
    def data_read(self) -> dict[str, str]:
        """The names that were read to make a problem's data, or in launches, with short digests of what decides there.

        Python that does not judge is none of them: a lane tells the bits of what it makes.
        """
        judges = self.extra.get("judges")
        entries = [one for one in self.learned.values() if one.is_data and (judges or not one.meaning)]
        return {one.name: one.decisive[:16] for one in entries}

    @property
    def is_judged(self) -> bool:
        """False if nothing decides whether its outputs are right."""
        return bool(self.extra.get("judged", True))

    @property
    def is_data(self) -> bool:
        """True if its kernel file executes nothing of the user's, so that workers serve it like any other such file."""
        return bool(self.extra.get("is_data", False))

    @property
    def expects_default_outputs(self) -> bool:
        """True if its configs are compared with the outputs of the default config."""
        return bool(self.extra.get("expects_default_outputs", False))

    @property
    def parts(self) -> dict[str, str]:
        """Parts of ``digest``: short digests by labels that begin with ``source:`` or ``argument:``."""
        groups = (("source", "files"), ("source", "python"), ("argument", "arguments"))
        found = [(group, self.extra.get(key, {})) for group, key in groups]
        parts = {f"{group}:{label}": digest for group, digests in found for label, digest in digests.items()}
        return parts | {self.label_part(entry): entry.decisive[:16] for entry in self.learned.values()}

    @property
    def version(self) -> str:
        """Identifies the code that was inspected, whatever was learned of it."""
        return str(self.extra.get("version", ""))

    @property
    def unobserved(self) -> str:
        """The reason why not all that decides this kernel's results is known; empty if it is."""
        if self.extra.get("declares"):
            return ""
        prefix = f"{UNOBSERVED}{self.version}:"
        learned = (name.removeprefix(prefix) for name in self.learned if name.startswith(prefix))
        return str(self.extra.get("unobserved", "")) or next(learned, "")

    @property
    def compiled_files(self) -> list[str]:
        """The files in ``stamps`` that artifacts are known to depend on, or would if they appeared.

        Of a kernel without sources all are: its own code is what compilers get.
        """
        read = self._read_by_compilers()
        return [path for path, digest in self.stamps.items() if not (self.sources and digest) or path in read]

    @property
    def code_digest(self) -> str:
        """Digest of all files but those that only compilers read: if it is equal, importing the kernel file does the
        same to its process.
        """
        compiled = self._read_by_compilers()
        read = {path: digest for path, digest in self.stamps.items() if path.endswith(".py") or path not in compiled}
        return sha256(canonical(read))

    def _read_by_compilers(self) -> set[str]:
        home = os.path.dirname(self.file)
        read = {os.path.normpath(os.path.join(home, label)) for label in self.extra.get("files", ())}
        return read | {place for entry in self.learned.values() if entry.is_source for place in entry.places}

    def label_part(self, entry: Observation) -> str:
        """Return the label of a learned name among ``parts``; a file is named as sources are."""
        if entry.name.startswith((ENVIRONMENT, UNOBSERVED)):
            return entry.name
        is_elsewhere = not entry.places or entry.name.startswith(DISTRIBUTION)
        return f"source:{entry.name if is_elsewhere else os.path.relpath(entry.places[0], os.path.dirname(self.file))}"

    def with_observed(self, found: Iterable[Observation]) -> KernelInfo:
        """Return the kernel with names that were observed and that it does not have yet; itself if there are none."""
        news = find_news(self.learned, found)
        if not news:
            return self
        fresh = [entry for entry in news if entry.name not in self.learned]
        sources = [entry for entry in news if entry.is_source and not self._find_learned(entry.name).is_source]
        return dataclasses.replace(
            self,
            digest=extend_digest(self.digest, fresh),
            source_digest=extend_digest(self.source_digest, sources),
            stamps={**{place: entry.digest for entry in fresh for place in entry.places}, **self.stamps},
            learned={**self.learned, **{entry.name: entry for entry in news}},
        )

    def without_names(self, names: Collection[str]) -> KernelInfo:
        """Return the kernel without some of its learned names; their files stay watched."""
        if not names:
            return self
        gone = [self.learned[name] for name in names]
        return dataclasses.replace(
            self,
            digest=reduce_digest(self.digest, gone),
            source_digest=reduce_digest(self.source_digest, [entry for entry in gone if entry.is_source]),
            learned={name: entry for name, entry in self.learned.items() if name not in names},
        )

    def find_contradiction(self, found: Iterable[Observation]) -> Observation | None:
        """Return an observation of something else than what this kernel is known by; a file has changed then."""
        for entry in found:
            known = {self.learned[entry.name].digest} if entry.name in self.learned else set()
            if not entry.name.endswith("/"):
                known |= {self.stamps[place] for place in entry.places if place in self.stamps}
            if entry.digest.startswith(_DIRECTORY):
                # That it is there was known; now the names in it count, too.
                known.discard(_DIRECTORY)
            if known - {entry.digest}:
                return entry
        return None

    def _find_learned(self, name: str) -> Observation:
        return self.learned.get(name, Observation(name, ""))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the problems, if one config is to be served for all of them; else nothing."""
        return tuple(self.extra.get("weights", ()))

    @property
    def batch_invariant(self) -> tuple[str, ...]:
        """The fields in which problems may differ whose rows are to have equal bits; see :mod:`.batch_invariance`."""
        fields, _ = self.extra.get("batch_invariant", ((), ()))
        return tuple(fields)

    def find_batch_groups(self) -> list[list[tuple[Problem, float]]]:
        """Return the groups of declared problems whose rows are to have equal bits, with their weights, the largest
        problem of each last.
        """
        fields, weights = self.extra.get("batch_invariant", ((), ()))
        weight_of = dict(zip(map(canonical, self.problems), weights, strict=False))
        groups = find_groups(self.problems, fields) if fields else []
        return [[(problem, weight_of[canonical(problem)]) for problem in group] for group in groups]

    @property
    def has_bucket_function(self) -> bool:
        """True if code of the kernel file chooses the buckets of problems."""
        return FUNCTION in self.bucket.values()

    def represent(self, problem: Problem) -> dict[str, Scalar]:
        """Return the problem that stands for a problem's bucket, as far as rules that are data say."""
        return apply_bucket_rules(self.bucket, problem) if self.bucket else dict(problem)

    def select_key_values(self, problem: Problem) -> dict[str, Scalar]:
        """Return the part of a problem, or of its bucket's representative, that enters the key."""
        problem = self.represent(problem)
        return problem if self.specialize is None else {key: problem[key] for key in self.specialize}

    def make_key_problem(self, problem: Problem) -> KeyProblem:
        """Return the key of a problem."""
        return make_key_problem(self.select_key_values(problem))

    def make_winner_key(self, problem: Problem, device: str, objective: Objective = LATENCY) -> WinnerKey:
        """Return the key of a problem's winner on a device model."""
        return WinnerKey(self.name, self.make_key_problem(problem), DeviceModel(device), objective)

    @property
    def metrics(self) -> Mapping[str, bool]:
        """The file's own metrics, and whether each is made of the energy, too."""
        found: Mapping[str, bool] = self.extra.get("metrics", {})
        return found

    def objective(self, asked: str | None) -> Objective:
        """Return the objective that a request means: the declared one if it names none.

        Raises:
            UsageError: there is none of this name, or it is a metric that the kernel does not have.
        """
        objective = read_objective(self.plan.objective if asked is None else asked)
        if strip_numerics(objective) not in BUILT_IN and metric_of(objective) not in self.metrics:
            raise UsageError(
                f"{self.name} has no metric {metric_of(objective)!r} {listed(self.metrics, near=metric_of(objective))}",
                hint="an objective is latency, energy, edp, or max:NAME or min:NAME of one of its metrics=",
            )
        return objective

    def needs_energy(self, objective: Objective) -> bool:
        """Return whether the figure of an objective is made of the energy that a launch takes."""
        plain = strip_numerics(objective)
        return not is_latency(plain) and (plain in BUILT_IN or self.metrics.get(metric_of(plain), False))

    def with_anchor(self, anchor: Config | None, objective: Objective) -> KernelInfo:
        """Return the kernel with an anchor in its default's place, as it is where numerics are exact.

        So the anchor is what is served before there is a winner, is measured in full, and is the base of speed-ups.
        """
        is_other = anchor is not None and is_exact(objective) and anchor != self.default
        return dataclasses.replace(self, default=anchor) if is_other else self

    def order_config(self, config: Config) -> dict[str, Scalar]:
        """Return a config with its knobs in the order in which the space declares them; the store sorts them."""
        listed = self.space.get("configs") or [self.default or {}]
        return _order_values(config, self.space.get("axes") or listed[0])

    def order_problem(self, problem: Problem) -> dict[str, Scalar]:
        """Return a problem with its keys in the order of the first declared problem; the store sorts them."""
        return _order_values(problem, self.problems[0] if self.problems else ())

    def with_plan_defaults(self, defaults: PlanDefaults) -> KernelInfo:
        """Return the kernel with its project's defaults where its file sets no budgets, and the plan's digest."""
        plan = defaults.apply_to(self.plan, self.extra.get("given", ()))
        if plan == self.plan:
            return self
        digest = sha256(f"{self.plan_digest} {canonical(plan.to_wire())}")
        return dataclasses.replace(self, plan=plan, plan_digest=digest)

    def to_wire(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_wire` reads; nested values are shared with the kernel."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        learned = {name: dataclasses.asdict(entry) for name, entry in self.learned.items()}
        return values | {"plan": self.plan.to_wire(), "learned": learned}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> KernelInfo:
        """Rebuild from :meth:`to_wire`'s data."""
        values = dict(data)
        values["plan"] = Plan.from_wire(values["plan"])
        for key in ("sources", "problems"):
            values[key] = tuple(values[key])
        if values["specialize"] is not None:
            values["specialize"] = tuple(values["specialize"])
        learned = values.get("learned", {}).items()
        values["learned"] = {
            name: Observation(**{**entry, "places": tuple(entry["places"])}) for name, entry in learned
        }
        return cls(**values)


def _order_values(values: Mapping[str, Scalar], names: Iterable[str]) -> dict[str, Scalar]:
    return {**{name: values[name] for name in names if name in values}, **values}
