"""Eight commands start a daemon at once, a hundred times: one daemon each time, and no command fails."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import psutil
import pytest

from ktuned.serve import find_holder
from tests.chaos.conftest import TableRow
from tests.e2e.harness import Daemon
from tests.e2e.test_starts import list_daemons, start_at_once

STARTS = 100


@pytest.mark.timeout(3600)
def test_a_hundred_starts_by_eight_commands(tmp_path: Path, seed: int, table_row: TableRow) -> None:
    """Before each start the last daemon has ended, or ends, or was killed and has left its socket and lock."""
    daemon, dice, before = Daemon(tmp_path), random.Random(seed), Counter[str]()
    for _ in range(STARTS):
        start_at_once(daemon)
        holder = find_holder(daemon.home)
        assert holder is not None
        assert list_daemons(daemon.home) == [holder.pid]
        assert daemon.client.call("hello")["pid"] == holder.pid
        ending = dice.choice(["stopped", "ends", "killed"])
        before[ending] += 1
        if ending == "killed":
            process = psutil.Process(holder.pid)
            process.kill()
            process.wait()
        elif ending == "ends":
            daemon.client.call("shutdown")
        else:
            assert daemon.run_ktuned("stop").returncode == 0
    table_row |= {"starts": before.total(), "the daemon before": dict(before)}
    daemon.run_ktuned("stop")
    assert not list_daemons(daemon.home)
