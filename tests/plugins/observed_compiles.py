"""Compiles in a process of their own, below the observer, as a worker's are."""

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

_SCRIPT = """
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

_READING = {Kind.OPENED, Kind.TESTED, Kind.SEARCHED, Kind.MAPPED, Kind.FOLLOWED}


class Result(NamedTuple):
    """What a worker would send of one unit."""

    key: str
    outcome: Outcome | None
    message: str


class Seen(NamedTuple):
    """The names that were read or looked for, relative to the project; those outside begin with ``..``."""

    found: set[str]
    absent: set[str]


def compile_observed(backend: type, units: Sequence[Unit], project: Path) -> tuple[list[Result], Seen]:
    """Compile units into ``project/into``; return the results and what was seen in the project."""
    for unit in units:
        (project / "into" / unit.key).mkdir(parents=True, exist_ok=True)
    variables = observer.make_worker_variables(project.parent / "log", os.environ, [str(project)])
    plain = json.dumps([backend.__module__, backend.__name__, [_plain(unit) for unit in units], str(project / "into")])
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, plain], env={**os.environ, **variables}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    notes = [note for note in Log(variables[observer.LOG_VARIABLE]).read_notes() if note.kind in _READING]
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for note in notes:
        if Path(note.name).is_relative_to(project):
            names[note.is_found].add(os.path.relpath(note.name, project))
    results = [
        Result(key, None if outcome is None else Outcome(outcome), message)
        for key, outcome, message in json.loads(done.stdout.splitlines()[-1])
    ]
    return results, Seen(names[True], names[False])


def _plain(unit: Unit) -> Mapping[str, Any]:
    return {
        "key": unit.key,
        "build": unit.build.to_plain(),
        "sources": list(map(str, unit.sources)),
        "kernel_file": str(unit.kernel_file),
        "kernel": unit.kernel,
        "target": unit.target,
    }
