"""Identities: names and keys of kernels, problems, devices and winners, each a type of its own for the type checker.

At run time a name is a string, so that it costs nothing to pass, compare and send. It gets its type once, where it
enters the program: from a request, a row of the store, a kernel file or a backend's report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, NewType

from ktuned.model.frozen_struct import FrozenStruct
from ktuned.model.objective import LATENCY, Objective
from ktuned.model.values import Problem, Scalar, canonical

ProjectName = NewType("ProjectName", str)
"""The name of a root's project; unique among the roots."""

KernelName = NewType("KernelName", str)
"""The full name of a kernel, ``project:kernel``. Requests may use short names, which are resolved at once."""

KeyProblem = NewType("KeyProblem", str)
"""The part of a problem that enters the key (``specialize=``), as canonical text; see :func:`make_key_problem`."""

DeviceName = NewType("DeviceName", str)
"""A device's place on a machine: ``cpu:0``, ``cuda:1``."""

DeviceModel = NewType("DeviceModel", str)
"""The model of a device, by which winners are kept: ``NVIDIA H100 80GB HBM3``."""

Target = NewType("Target", str)
"""The architecture that compilers compile for: ``sm_90a``."""


class Role(StrEnum):
    """What a worker process is for; the fleet keeps the workers of each role separate."""

    INSPECT = "inspect"
    EXPLORE = "explore"
    COMPILE = "compile"
    BENCH = "bench"


class Phase(StrEnum):
    """Phase of a worker's work. Each has its deadline, and a failed trial names the phase in which it failed.

    ``build`` calls the kernel function for a config, ``prior`` the kernel file's prior, and ``strategy`` begins a
    search; these have the deadline of ``inspect``. ``load_next`` loads the next config while a GPU works on this one;
    it has the deadline of ``load``.
    """

    SPAWN = "spawn"
    INSPECT = "inspect"
    PRIOR = "prior"
    STRATEGY = "strategy"
    BUILD = "build"
    COMPILE = "compile"
    LOAD = "load"
    REFERENCE = "reference"
    FIRST_LAUNCH = "first_launch"
    CHECK = "check"
    TIMING = "timing"
    LOAD_NEXT = "load_next"


class WinnerKey(NamedTuple):
    """Key of a winner. Jobs, winners and lookups for the same work have equal keys.

    A compile-only job has its target in place of the device model. The key is a tuple, because lookups hash thousands
    of keys, and tuples are hashed in C.
    """

    kernel: KernelName
    problem: KeyProblem
    device: DeviceModel
    objective: Objective = LATENCY


class CallKey(FrozenStruct):
    """A tuning key of an application's function.

    Attributes:
        identity: digest of everything that decides a measurement of the function, except the call itself.
        problem: the values by which the function's winners are told apart.
        device: the model of the GPU; None lets the daemon choose.
        objective: the latency, with the application's numerics.
    """

    identity: str
    problem: Problem
    device: str | None = None
    objective: Objective = LATENCY

    @property
    def text(self) -> str:
        """The key as text, under which it is looked up."""
        return f"{self.identity} {self.device or ''} {self.objective} {canonical(self.problem)}"


def make_full_name(project: str, kernel: str) -> KernelName:
    """Return the full name of a project's kernel."""
    return KernelName(f"{project}:{kernel}")


def get_project_name(kernel: KernelName) -> ProjectName:
    """Return the project of a full name. A project's name may contain colons, a kernel's short name does not."""
    return ProjectName(kernel.rpartition(":")[0])


def make_key_problem(values: Mapping[str, Scalar]) -> KeyProblem:
    """Return the key of a problem from the values that enter it."""
    return KeyProblem(canonical(values))


def parse_key_problem(problem: KeyProblem) -> dict[str, Scalar]:
    """Return the values from which a problem's key was made."""
    values: dict[str, Scalar] = json.loads(problem)
    return values
