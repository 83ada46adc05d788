"""Kernel files that run nothing of the user's: one worker serves all of them, in all projects that share it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ktuned.catalog.catalog import make_root_environment
from ktuned.catalog.roots import make_root
from ktuned.protocol import WorkerInfo
from ktuned.protocol.kernels import Root
from ktuned.scheduling.job_requests import TuningRequest
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text

pytestmark = pytest.mark.anyio

SHARED = 'workers = ".."\n'


async def library(parts: Parts, name: str, text: str, project_file: str = SHARED) -> Root:
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


def of_role(workers: Sequence[WorkerInfo], role: str) -> Sequence[WorkerInfo]:
    """Return the workers of a role."""
    return [worker for worker in workers if worker.role == role]


def data_text(name: str, **options: str) -> str:
    """Return a kernel file as a program writes it."""
    return make_kernel_text(name, is_data="True", reference="'default'", **options)


async def tuned(parts: Parts, *names: str) -> Sequence[WorkerInfo]:
    """Tune kernels one after the other; return the workers that there are then."""
    async with parts.run_jobs():
        jobs = 0
        for name in names:
            jobs += len(await parts.requests.request_jobs(parts.catalog.resolve_kernel(name), TuningRequest()))
            ended = await parts.recorder.wait_for_ended_jobs(jobs)
        assert {one["state"] for one in ended} == {"done"}
        found = parts.fleet.describe_workers()
    parts.kill_workers()
    return found


async def test_data_kernels_of_all_projects_share_one_worker(parts: Parts) -> None:
    """Each problem is opened in it, and it is not given up between them; the kernels belong to their own projects."""
    first = await library(parts, "first", data_text("one"))
    second = await library(parts, "second", data_text("two", problems="[dict(n=64), dict(n=128)]"))
    assert make_root_environment(first) == make_root_environment(second)
    assert {kernel.name for kernel in parts.catalog.kernels} == {"first:one", "second:two"}
    workers = await tuned(parts, "one", "two")
    assert [len(of_role(workers, role)) for role in ("bench", "explore")] == [1, 1]


async def test_data_kernels_of_another_environment_have_other_workers(parts: Parts) -> None:
    """What a project sets for its workers is not another's."""
    first = await library(parts, "first", data_text("one"))
    second = await library(parts, "second", data_text("two"), f'{SHARED}env = {{ OMP_NUM_THREADS = "1" }}\n')
    assert make_root_environment(first) != make_root_environment(second)
    assert len(of_role(await tuned(parts, "one", "two"), "bench")) == 2


async def test_ordinary_kernel_files_share_no_worker(parts: Parts) -> None:
    """What one has done to its process would reach the other's figures."""
    await library(parts, "first", make_kernel_text("one"))
    await library(parts, "second", make_kernel_text("two"))
    assert len(of_role(await tuned(parts, "one", "two"), "bench")) == 2


def test_projects_share_workers_only_with_a_directory_above_them(tmp_path: Path) -> None:
    """Any other would be no place that a project's files have names below."""
    project = tmp_path / "libraries" / "one"
    project.mkdir(parents=True)
    for wanted, shared in (("..", tmp_path / "libraries"), ("../..", tmp_path), (".", None), ("../two", None)):
        (project / "ktuned.toml").write_text(f'workers = "{wanted}"\n')
        assert make_root(str(project)).workers == (str(shared) if shared else "")


async def test_only_the_front_end_imports_a_library(tmp_path: Path) -> None:
    """Neither inspection nor exploration, a compile worker or a lane does, for all kernels of two projects."""
    log = tmp_path / "imports"
    (tmp_path / "slow_library.py").write_text(
        f"import os, time\nopen({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(0.2)\n"
    )
    named = f"{{'module': 'slow_library', 'path': {str(tmp_path)!r}}}"
    (tmp_path / "daemon").mkdir()
    async with assemble_daemon(tmp_path / "daemon", env={"FAKE_LOWERS": "1"}) as parts:
        for project, kernel in (("first", "one"), ("second", "two")):
            text = data_text(kernel, problems="[dict(n=64), dict(n=128)]")
            await library(parts, project, text.replace("Build(**c)", f"Build(**c, tag={kernel!r}, library={named})"))
        await tuned(parts, "one", "two")
    assert len(log.read_text().split()) == 1
    assert len(parts.recorder.list_events("job_done")) == 4
