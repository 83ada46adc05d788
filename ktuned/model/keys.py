"""Identities: what kernels, problems, devices and winners are called, as types that a type checker tells apart.

A name is a string at run time, so that it costs nothing to carry, to compare and to send. It gets its type once, at
the edge where it comes in: from a request, a row, a kernel file or a backend's report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, NewType

from ktuned.model.values import Scalar, canonical

ProjectName = NewType("ProjectName", str)
"""What a root's kernels are named for; unique among the roots."""

KernelName = NewType("KernelName", str)
"""The full name of a kernel, ``project:kernel``; a short one exists only until a request has been resolved."""

KeyProblem = NewType("KeyProblem", str)
"""The part of a problem that enters the key (``specialize=``), as canonical text; see :func:`key_problem`."""

DeviceName = NewType("DeviceName", str)
"""A device's place on a machine: ``cpu:0``, ``cuda:1``."""

DeviceModel = NewType("DeviceModel", str)
"""The model of a device, which winners are kept for: ``NVIDIA H100 80GB HBM3``."""

Target = NewType("Target", str)
"""What compilers aim at: ``sm_90a``."""


class Objective(StrEnum):
    """What a winner is the best at."""

    LATENCY = "latency"


class Role(StrEnum):
    """What a worker process is for; the fleet keeps each role's workers apart."""

    INSPECT = "inspect"
    EXPLORE = "explore"
    COMPILE = "compile"
    BENCH = "bench"


class Phase(StrEnum):
    """What a worker is doing; each phase has its deadline, and a failed trial names the one that it failed in.

    ``build`` is a config's way from the strategy to the backend's instructions; it runs within ``inspect``'s deadline.
    """

    SPAWN = "spawn"
    INSPECT = "inspect"
    BUILD = "build"
    COMPILE = "compile"
    LOAD = "load"
    REFERENCE = "reference"
    FIRST_LAUNCH = "first_launch"
    CHECK = "check"
    TIMING = "timing"


class WinnerKey(NamedTuple):
    """What there is one winner for. Jobs, winners, lookups and pins that mean the same work have equal keys.

    A job that only compiles has its target in the place of the device model. It is a tuple because lookups hash keys
    by the thousand, and tuples do that in C.
    """

    kernel: KernelName
    problem: KeyProblem
    device: DeviceModel
    objective: Objective = Objective.LATENCY


def full_name(project: str, kernel: str) -> KernelName:
    """Return the full name of a project's kernel."""
    return KernelName(f"{project}:{kernel}")


def project_of(kernel: KernelName) -> ProjectName:
    """Return the project of a full name; a kernel's own name has no colon, a project's may have some."""
    return ProjectName(kernel.rpartition(":")[0])


def key_problem(values: Mapping[str, Scalar]) -> KeyProblem:
    """Return the key of the values that enter it."""
    return KeyProblem(canonical(values))


def key_values(problem: KeyProblem) -> dict[str, Scalar]:
    """Return the values that a key problem was made of."""
    values: dict[str, Scalar] = json.loads(problem)
    return values
