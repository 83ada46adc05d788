"""Limits of a process on the CPUs: affinity and control groups' quotas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ktuned.backends import cpu


def test_the_least_quota_of_all_groups_above_counts(tmp_path: Path) -> None:
    """A group's own quota or one above it; none where all are without, or where there is no control group."""
    cgroup, mounted = tmp_path / "cgroup", tmp_path / "mounted"
    inner = mounted / "user.slice" / "inner"
    inner.mkdir(parents=True)
    cgroup.write_text("0::/user.slice/inner\n")
    assert "quota" not in cpu.limits(cgroup, mounted)
    (inner / "cpu.max").write_text("max 100000\n")
    assert "quota" not in cpu.limits(cgroup, mounted)
    (inner.parent / "cpu.max").write_text("150000 100000\n")
    assert cpu.limits(cgroup, mounted)["quota"] == "1.5 cores"
    (inner / "cpu.max").write_text("50000 100000\n")
    assert cpu.limits(cgroup, mounted)["quota"] == "0.5 cores"
    assert "quota" not in cpu.limits(tmp_path / "none", mounted)


def test_a_process_that_may_use_all_cores_has_no_affinity(tmp_path: Path) -> None:
    """Pinned to one of several it names it; all cores are no limit."""
    script = (
        "import os, pathlib; from ktuned.backends import cpu; none = pathlib.Path('/none');"
        "os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}); print(cpu.limits(none, none).get('affinity'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    last = str(max(os.sched_getaffinity(0)))
    assert done.stdout.strip() == (last if (os.cpu_count() or 1) > 1 else "None")
