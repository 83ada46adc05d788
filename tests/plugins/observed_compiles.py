"""Compilations in a process of their own under the observer, as in a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ktuned import observer
from ktuned.backends.contract import Unit
from ktuned.model.values import Outcome
from ktuned.observer.log import Kind, Log

_COMPILE_PROGRAM = """
import importlib, json, sys
from pathlib import Path
from ktuned.backends.contract import Unit
module, name, units, into = json.loads(sys.argv[1])
backend = getattr(importlib.import_module(module), name)()
for unit in units:
    unit["build"] = backend.build.from_plain(unit["build"])
    unit["sources"] = tuple(map(Path, unit["sources"]))
    unit["kernel_file"] = Path(unit["kernel_file"])
results = backend.compile([Unit(**unit) for unit in units], Path(into))
print(json.dumps([[one.key, one.outcome, one.message] for one in results]))
"""

_READING_KINDS = {Kind.OPENED, Kind.TESTED, Kind.SEARCHED, Kind.MAPPED, Kind.FOLLOWED}


class Result(NamedTuple):
    """What a worker would send about one unit."""

    key: str
    outcome: Outcome | None
    message: str


class ObservedNames(NamedTuple):
    """Names that were read or looked up in vain, relative to the project."""

    found: set[str]
    absent: set[str]


def compile_observed(backend: type, units: Sequence[Unit], project: Path) -> tuple[list[Result], ObservedNames]:
    """Compile units into ``project/into``; return the results and the names that were observed in the project."""
    for unit in units:
        (project / "into" / unit.key).mkdir(parents=True, exist_ok=True)
    variables = observer.make_worker_variables(project.parent / "log", os.environ, [str(project)])
    plain = json.dumps(
        [backend.__module__, backend.__name__, [_make_plain_unit(unit) for unit in units], str(project / "into")]
    )
    process = subprocess.run(
        [sys.executable, "-c", _COMPILE_PROGRAM, plain],
        env={**os.environ, **variables},
        capture_output=True,
    )
    assert process.returncode == 0, process.stderr.decode()
    observations = [
        observation
        for observation in Log(variables[observer.LOG_VARIABLE]).read_notes()
        if observation.kind in _READING_KINDS
    ]
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for observation in observations:
        if Path(observation.name).is_relative_to(project):
            names[observation.is_found].add(os.path.relpath(observation.name, project))
    results = [
        Result(key, None if outcome is None else Outcome(outcome), message)
        for key, outcome, message in json.loads(process.stdout.splitlines()[-1])
    ]
    return results, ObservedNames(names[True], names[False])


def _make_plain_unit(unit: Unit) -> Mapping[str, Any]:
    return {
        "key": unit.key,
        "build": unit.build.to_plain(),
        "sources": list(map(str, unit.sources)),
        "kernel_file": str(unit.kernel_file),
        "kernel": unit.kernel,
        "target": unit.target,
    }
