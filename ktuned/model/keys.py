"""Identities: names and keys of kernels, problems, devices and winners, as distinct types for a type checker.

A name is a string at run time, so that it costs nothing to carry, to compare and to send. It gets its type once, at
the edge: from a request, a row, a kernel file or a backend's report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, NewType

from ktuned.model.objective import LATENCY, Objective
from ktuned.model.values import Scalar, canonical

ProjectName = NewType("ProjectName", str)
"""Name of a root's project; unique among the roots."""

KernelName = NewType("KernelName", str)
"""The full name of a kernel, ``project:kernel``; a short one exists only until a request has been resolved."""

KeyProblem = NewType("KeyProblem", str)
"""The part of a problem that enters the key (``specialize=``), as canonical text; see :func:`make_key_problem`."""

DeviceName = NewType("DeviceName", str)
"""A device's place on a machine: ``cpu:0``, ``cuda:1``."""

DeviceModel = NewType("DeviceModel", str)
"""The model of a device, which winners are kept for: ``NVIDIA H100 80GB HBM3``."""

Target = NewType("Target", str)
"""The architecture that compilers aim at: ``sm_90a``."""


class Role(StrEnum):
    """Purpose of a worker process; the fleet keeps the workers of each role separate."""

    INSPECT = "inspect"
    EXPLORE = "explore"
    COMPILE = "compile"
    BENCH = "bench"


class Phase(StrEnum):
    """Phase of a worker's work; each has its deadline, and a failed trial names the phase of its failure.

    ``build`` calls the kernel function for a config, ``prior`` the kernel file's prior, and ``strategy`` is where a
    search begins; they run within ``inspect``'s deadline. ``load_next`` loads the config that follows while a GPU works
    on one, within ``load``'s.
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
    """Key of a winner. Jobs, winners, lookups and pins for the same work have equal keys.

    A compile-only job has its target in place of the device model. It is a tuple because lookups hash keys by the
    thousand, and tuples do that in C.
    """

    kernel: KernelName
    problem: KeyProblem
    device: DeviceModel
    objective: Objective = LATENCY


def make_full_name(project: str, kernel: str) -> KernelName:
    """Return the full name of a project's kernel."""
    return KernelName(f"{project}:{kernel}")


def project_of(kernel: KernelName) -> ProjectName:
    """Return the project of a full name; a kernel's short name has no colon, a project's may have some."""
    return ProjectName(kernel.rpartition(":")[0])


def make_key_problem(values: Mapping[str, Scalar]) -> KeyProblem:
    """Return the key of the values that enter it."""
    return KeyProblem(canonical(values))


def parse_key_problem(problem: KeyProblem) -> dict[str, Scalar]:
    """Return the values that a key problem was made of."""
    values: dict[str, Scalar] = json.loads(problem)
    return values
