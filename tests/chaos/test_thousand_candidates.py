"""A thousand candidates in a row, many of them dishonest or broken: nothing grows, nothing stays, nobody suffers."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from shutil import copy

import psutil
import pytest

from tests.chaos.conftest import TableRow
from tests.e2e.harness import Daemon
from tests.judging.cheats.projects import HERE, judge_candidates, name_end, write_cpp_project

CANDIDATES = 1000
BROKEN = ("endless", "exit_when_done", "killed_by_itself", "raised", "write_everywhere", "memory_taken_away")
DISHONEST = (
    "replay_by_address",
    "forged_noise",
    "every_other_launch",
    "half_precision",
    "left_by_another",
    "clock_patched",
)
HONEST = ("plain", "workspace", "closed_form", "double_precision", "vectors", "flush_to_zero", "backwards", "own_clock")

GROWTH_BYTES = 32 << 20
"""How much more memory than after its first candidates the daemon may have at the end."""


@pytest.mark.timeout(7200)
def test_a_thousand_candidates(tmp_path: Path, seed: int, table_row: TableRow) -> None:
    """In an order that is drawn anew each time, each gets the verdict that it got before."""
    mixed, project = tmp_path / "mixed", tmp_path / "project"
    mixed.mkdir()
    project.mkdir()
    for directory, chosen in (("cpp", (*BROKEN, *DISHONEST)), ("honest_cpp", HONEST)):
        for name in chosen:
            copy(HERE / directory / f"{name}.cc", mixed)
    path, names = write_cpp_project(project, mixed)
    dice, verdicts, count = random.Random(seed), defaultdict[str, set[str]](set), 0
    unfair: dict[str, str] = {}
    with Daemon(tmp_path, spares=True, tensors="torch") as daemon:
        assert daemon.process is not None
        process = psutil.Process(daemon.process.pid)
        began = 0
        while count < CANDIDATES:
            for name, judged in judge_candidates(daemon.client, path, dice.sample(names, len(names))).items():
                verdicts[name].add(name_end(judged))
                if (name in HONEST) != (judged["verdict"] == "right"):
                    unfair[name] = judged["reason"]
                count += 1
            began = began or process.memory_info().rss
        growth = process.memory_info().rss - began
    table_row |= {"candidates": count, "the daemon has grown by (MiB)": growth >> 20}
    assert unfair == {}
    assert {name: found for name, found in verdicts.items() if len(found) > 1} == {}
    assert growth < GROWTH_BYTES
