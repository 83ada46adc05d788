"""Kernel files without user code: one worker serves all of them, in all projects that share workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ktuned.catalog.catalog import make_root_environment
from ktuned.catalog.roots import make_root
from ktuned.protocol import WorkerInfo
from ktuned.protocol.kernels import Root
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text

pytestmark = pytest.mark.anyio

SHARED = 'workers = ".."\n'


async def add_library_project(parts: Parts, name: str, text: str, project_file: str = SHARED) -> Root:
    """Watch a project beside others, with one kernel file; return its root."""
    directory = parts.project.parent / "libraries" / name
    directory.mkdir(parents=True)
    (directory / "ktuned.toml").write_text(project_file)
    (directory / f"tune_{name}.py").write_text(text)
    root = make_root(str(directory))
    parts.catalog.add_root(root)
    await parts.machine.environments.probe_environment(make_root_environment(root))
    await parts.inspector.inspect_root(root)
    return root


def select_role(workers: Sequence[WorkerInfo], role: str) -> Sequence[WorkerInfo]:
    """Return the workers of a role."""
    return [worker for worker in workers if worker.role == role]


def make_data_kernel_text(name: str, **options: str) -> str:
    """Return a kernel file as a program writes it."""
    return make_kernel_text(name, is_data="True", reference="'default'", **options)


async def tune_kernels(parts: Parts, *names: str) -> Sequence[WorkerInfo]:
    """Tune kernels one after the other; return the workers of that moment."""
    async with parts.run_jobs():
        jobs = 0
        for name in names:
            jobs += len(await parts.request_jobs(name))
            ended = await parts.recorder.wait_for_ended_jobs(jobs)
        assert {job["state"] for job in ended} == {"done"}
        workers = parts.fleet.describe_workers()
    parts.kill_workers()
    return workers


async def test_data_kernels_of_all_projects_share_one_worker(parts: Parts) -> None:
    """The worker opens each problem and is kept between them; the kernels belong to their own projects."""
    first = await add_library_project(parts, "first", make_data_kernel_text("one"))
    second = await add_library_project(
        parts, "second", make_data_kernel_text("two", problems="[dict(n=64), dict(n=128)]")
    )
    assert make_root_environment(first) == make_root_environment(second)
    assert {kernel.name for kernel in parts.catalog.kernels} == {"first:one", "second:two"}
    workers = await tune_kernels(parts, "one", "two")
    assert [len(select_role(workers, role)) for role in ("bench", "explore")] == [1, 1]


async def test_data_kernels_of_another_environment_have_other_workers(parts: Parts) -> None:
    """A project's own variables affect no other project."""
    first = await add_library_project(parts, "first", make_data_kernel_text("one"))
    second = await add_library_project(
        parts, "second", make_data_kernel_text("two"), f'{SHARED}env = {{ OMP_NUM_THREADS = "1" }}\n'
    )
    assert make_root_environment(first) != make_root_environment(second)
    assert len(select_role(await tune_kernels(parts, "one", "two"), "bench")) == 2


async def test_ordinary_kernel_files_share_no_worker(parts: Parts) -> None:
    """One file's effects on its process would distort the other's figures."""
    await add_library_project(parts, "first", make_kernel_text("one"))
    await add_library_project(parts, "second", make_kernel_text("two"))
    assert len(select_role(await tune_kernels(parts, "one", "two"), "bench")) == 2


def test_projects_share_workers_only_with_a_directory_above_them(tmp_path: Path) -> None:
    """A project's files have no names below any other directory."""
    project = tmp_path / "libraries" / "one"
    project.mkdir(parents=True)
    for workers_setting, expected in (
        ("..", tmp_path / "libraries"),
        ("../..", tmp_path),
        (".", None),
        ("../two", None),
    ):
        (project / "ktuned.toml").write_text(f'workers = "{workers_setting}"\n')
        assert make_root(str(project)).workers == (str(expected) if expected else "")


async def test_only_the_front_end_imports_a_library(tmp_path: Path) -> None:
    """Inspection, exploration, compile workers and lanes do not, for all kernels of two projects."""
    log = tmp_path / "imports"
    (tmp_path / "slow_library.py").write_text(
        f"import os, time\nopen({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(0.2)\n"
    )
    library = f"{{'module': 'slow_library', 'path': {str(tmp_path)!r}}}"
    (tmp_path / "daemon").mkdir()
    async with assemble_daemon(tmp_path / "daemon", env={"FAKE_LOWERS": "1"}) as parts:
        for project, kernel in (("first", "one"), ("second", "two")):
            text = make_data_kernel_text(kernel, problems="[dict(n=64), dict(n=128)]")
            await add_library_project(
                parts, project, text.replace("Build(**c)", f"Build(**c, tag={kernel!r}, library={library})")
            )
        await tune_kernels(parts, "one", "two")
    assert len(log.read_text().split()) == 1
    assert len(parts.recorder.list_events("job_done")) == 4
