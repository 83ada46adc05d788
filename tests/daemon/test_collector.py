"""Garbage collection in a daemon does not scan its modules and parts, so that lookups need not wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SCRIPT = """\
import gc, os, sys
from contextlib import asynccontextmanager
from ktuned.daemon import load_settings, run
from ktuned.daemon.assembly import Replacements
from ktuned.fleet import LocalExecutor
from ktuned.model import KtunedError

@asynccontextmanager
async def run_workers(self):
    print(len(gc.get_objects()), gc.get_freeze_count(), flush=True)
    raise KtunedError("seen enough")
    yield

LocalExecutor.run_workers = run_workers
try:
    run(load_settings({"KTUNED_HOME": sys.argv[1], "KTUNED_SOCKET": sys.argv[1] + "/run/s"}))
except KtunedError as error:
    print(error.message)
"""


def test_the_collector_does_not_scan_modules_and_parts(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout, done.stderr
    counts, message = done.stdout.splitlines()[-2:]
    scanned, frozen = map(int, counts.split())
    assert message == "seen enough"
    assert frozen > 10_000 > scanned
