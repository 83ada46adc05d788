"""Runs code in a sandbox: a process that stands for the judge, and in it the candidate's process."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ktuned.judging.sandbox import LAYERS, Sandbox

_CANDIDATE = """
import ctypes, ctypes.util, json, os, signal, socket, struct, sys, threading, time
from ktuned.judging.sandbox import Sandbox, enter_sandbox

plan, user, code = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if user:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable, as a process that this user has started
plan["layers"] = frozenset(plan["layers"])
confinement = enter_sandbox(Sandbox(**{**plan, "parent": os.getppid()}))

def say(**facts):
    print(json.dumps(facts), flush=True)

def try_all(**attempts):
    done = []
    for name, attempt in attempts.items():
        try:
            attempt()
            done.append(name)
        except (OSError, ProcessLookupError):
            pass
    say(done=done, pid=confinement.pid, not_enforced=confinement.not_enforced)

exec(code)
"""
ORDINARY_USER = 65534


def make_command(sandbox: Sandbox, code: str, user: int = 0) -> list[str]:
    """Return the command of a candidate that runs ``code``."""
    plan = {**sandbox._asdict(), "layers": sorted(sandbox.layers)}
    return [sys.executable, "-c", _CANDIDATE, json.dumps(plan), str(user), code]


def run_confined(sandbox: Sandbox, code: str, user: int = 0) -> dict[str, Any]:
    """Return what the candidate says."""
    ended = subprocess.run(make_command(sandbox, code, user), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert isinstance(said, dict)
    return said


@contextmanager
def start_confined(sandbox: Sandbox, code: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    """Run a candidate; yield its process, and the first line that it says. Kills it at the end."""
    with subprocess.Popen(
        make_command(sandbox, code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline() or "{}")
        finally:
            process.kill()


@cache
def _find_reasons(layer: str) -> str:
    """Return why this system refuses a layer; empty if it does not."""
    with TemporaryDirectory() as scratch:
        gaps = run_confined(Sandbox(parent=0, scratch=scratch, layers=frozenset({layer})), "try_all()")["not_enforced"]
    return "".join(gap for gap in gaps if f"{layer}: " in gap)


def make_sandbox(base: Path, layers: Sequence[str] = tuple(LAYERS)) -> Sandbox:
    """Return a sandbox below ``base``: its daemon's directory is hidden, but for the artifact in it.

    Skips the test if this system refuses one of the layers.
    """
    for reason in filter(None, map(_find_reasons, layers)):
        pytest.skip(reason)
    scratch, hidden, artifact = base / "scratch", base / "daemon", base / "daemon" / "artifact"
    for directory in (scratch, artifact):
        directory.mkdir(parents=True, exist_ok=True)
    (base / "outside").mkdir(exist_ok=True)
    for path in (base, *base.rglob("*")):
        path.chmod(0o777)
    return Sandbox(
        parent=0,
        scratch=str(scratch),
        hidden=(str(hidden),),
        readable=(str(artifact),),
        layers=frozenset(layers),
    )
