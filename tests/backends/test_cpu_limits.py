"""Limits of a process on the CPUs: affinity and quotas of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ktuned.backends import cpu


def test_the_least_quota_of_all_groups_above_counts(tmp_path: Path) -> None:
    """Without any quota or control group there is no limit."""
    cgroup, mount_point = tmp_path / "cgroup", tmp_path / "mounted"
    inner_group = mount_point / "user.slice" / "inner"
    inner_group.mkdir(parents=True)
    cgroup.write_text("0::/user.slice/inner\n")
    assert "quota" not in cpu.limits(cgroup, mount_point)
    (inner_group / "cpu.max").write_text("max 100000\n")
    assert "quota" not in cpu.limits(cgroup, mount_point)
    (inner_group.parent / "cpu.max").write_text("150000 100000\n")
    assert cpu.limits(cgroup, mount_point)["quota"] == "1.5 cores"
    (inner_group / "cpu.max").write_text("50000 100000\n")
    assert cpu.limits(cgroup, mount_point)["quota"] == "0.5 cores"
    assert "quota" not in cpu.limits(tmp_path / "none", mount_point)


def test_a_quota_of_version_1_counts_too(tmp_path: Path) -> None:
    """Its tree belongs to the controller ``cpu``; a container may be named after a group outside its mount."""
    cgroup, mount_point = tmp_path / "cgroup", tmp_path / "mounted"
    inner_group = mount_point / "cpu" / "docker"
    inner_group.mkdir(parents=True)
    cgroup.write_text("5:cpuset:/\n4:cpu,cpuacct:/docker/0a1b\n0::/\n")
    for group, quota_us in ((inner_group, "-1"), (mount_point / "cpu", "150000")):
        (group / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
        (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu.limits(cgroup, mount_point)["quota"] == "1.5 cores"
    (inner_group / "cpu.cfs_quota_us").write_text("50000\n")
    assert cpu.limits(cgroup, mount_point)["quota"] == "0.5 cores"


def test_the_quota_of_a_real_control_group_is_found() -> None:
    """A process that enters the group sees its quota and later changes, and ktuned keeps no more cores busy."""
    tree = cpu.CGROUPS / "cpu" if (cpu.CGROUPS / "cpu").is_dir() else cpu.CGROUPS
    group = tree / f"ktuned_test_{os.getpid()}"
    is_v1 = tree != cpu.CGROUPS
    quota_file = group / ("cpu.cfs_quota_us" if is_v1 else "cpu.max")
    try:
        group.mkdir()
        quota_file.write_text("50000")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    script = (
        "import sys; from ktuned.backends import cpu;"
        "[print(f'{cpu.limits()[\"quota\"]}, {cpu.cores()} at work', flush=True) for _ in sys.stdin]"
    )
    try:
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            (group / "cgroup.procs").write_text(str(process.pid))
            process.stdin.write("\n")
            assert process.stdout.readline() == "0.5 cores, 1 at work\n"
            quota_file.write_text("250000")
            process.stdin.write("\n")
            assert process.stdout.readline() == f"2.5 cores, {min(2, len(os.sched_getaffinity(0)))} at work\n"
            process.stdin.close()
    finally:
        group.rmdir()


def test_a_process_that_may_use_all_cores_has_no_affinity(tmp_path: Path) -> None:
    """Only a process that is pinned to some cores names them."""
    script = (
        "import os, pathlib; from ktuned.backends import cpu; none = pathlib.Path('/none');"
        "os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}); print(cpu.limits(none, none).get('affinity'))"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    last_core = str(max(os.sched_getaffinity(0)))
    assert process.stdout.strip() == (last_core if (os.cpu_count() or 1) > 1 else "None")


@pytest.mark.parametrize(
    ("line", "name"), [("0::/box", "box/memory.max"), ("4:memory:/box", "memory/memory.limit_in_bytes")]
)
def test_a_containers_memory_counts(tmp_path: Path, line: str, name: str) -> None:
    """The machine's memory is the most; ``max`` is no limit."""
    cgroup = tmp_path / "cgroup"
    cgroup.write_text(f"1:cpu:/box\n{line}\n")
    machine = cpu.memory_bytes(cgroup, tmp_path)
    file = tmp_path / name
    file.parent.mkdir()
    for text, expected in (("max", machine), (str(1 << 30), 1 << 30), (str(1 << 62), machine)):
        file.write_text(f"{text}\n")
        assert cpu.memory_bytes(cgroup, tmp_path) == expected
