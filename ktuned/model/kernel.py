"""Kernels as the daemon knows them, and the roots that contain them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ktuned.model.keys import DeviceModel, KernelName, KeyProblem, ProjectName, WinnerKey, full_name, key_problem
from ktuned.model.plan import Plan, PlanDefaults
from ktuned.model.record import Record, record
from ktuned.model.values import Config, Problem, Scalar, canonical


@record
class Asked(Record):
    """Explicit settings of a root, by ``config.toml`` or a request; they come before all others."""

    name: str = ""
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Root:
    """A watched directory: its project's name, its interpreter, its workers' environment variables, its watching.

    ``polling`` is for file systems that do not report changes made elsewhere (network file systems). ``asked`` is what
    was asked for, ``project_digest`` the SHA-256 of the ``ktuned.toml`` that the root was made with, and ``defaults``
    what that file says of kernel files that set no budgets.
    """

    path: str
    name: str
    python: str
    env: Mapping[str, str] = field(default_factory=dict)
    polling: bool = False
    asked: Asked = field(default=Asked(), compare=False)
    project_digest: str = field(default="", compare=False)
    defaults: PlanDefaults = field(default_factory=PlanDefaults)

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
    path) to the SHA-256 of its bytes, or to ``""`` for a missing one.
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

    @property
    def name(self) -> KernelName:
        """The full name, ``project:kernel``."""
        return full_name(self.project, self.kernel)

    @property
    def data_digest(self) -> str:
        """Digest of inputs, reference and checks: if it is equal, measurements of equal artifacts are equal."""
        return str(self.extra.get("data_digest", self.digest))

    @property
    def parts(self) -> dict[str, str]:
        """Parts of ``digest``: short digests by labels that begin with ``source:`` or ``python:``."""
        groups = (("source", self.extra.get("files", {})), ("python", self.extra.get("definitions", {})))
        return {f"{group}:{label}": digest for group, found in groups for label, digest in found.items()}

    def specialized(self, problem: Problem) -> dict[str, Scalar]:
        """Return the part of a problem that enters the key."""
        if self.specialize is None:
            return dict(problem)
        return {key: problem[key] for key in self.specialize}

    def key_problem(self, problem: Problem) -> KeyProblem:
        """Return the key of a problem."""
        return key_problem(self.specialized(problem))

    def winner_key(self, problem: Problem, device: str) -> WinnerKey:
        """Return the key of a problem's winner on a device model."""
        return WinnerKey(self.name, self.key_problem(problem), DeviceModel(device))

    def planned(self, defaults: PlanDefaults) -> KernelInfo:
        """Return the kernel with its project's defaults where its file sets no budgets, and the plan's digest."""
        plan = defaults.applied(self.plan, self.extra.get("given", ()))
        if plan == self.plan:
            return self
        digest = hashlib.sha256(f"{self.plan_digest} {canonical(plan.to_wire())}".encode()).hexdigest()
        return dataclasses.replace(self, plan=plan, plan_digest=digest)

    def to_wire(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_wire` reads; nested values are shared with the kernel."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"plan": self.plan.to_wire()}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> KernelInfo:
        """Rebuild from :meth:`to_wire`'s data."""
        values = dict(data)
        values["plan"] = Plan(**values["plan"])
        for key in ("sources", "problems"):
            values[key] = tuple(values[key])
        if values["specialize"] is not None:
            values["specialize"] = tuple(values["specialize"])
        return cls(**values)
