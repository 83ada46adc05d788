"""Libraries that Builds name: one front end imports each of them, for all jobs, and delays no other library."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from ktuned.fleet import FrontEndKey
from ktuned.fleet.front_ends import MAX_FRONT_ENDS
from ktuned.ipc import requests
from ktuned.model import WorkerError
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.trial_machine import Attempt
from tests.daemon_parts import PATIENCE_S, Parts, make_kernel_text
from tests.fleet.playground import wait_until
from tests.tuning.jobs import make_attempts, prepare_brief

pytestmark = pytest.mark.anyio

IMPORT_S = 2.0


class LibraryProject:
    """Modules that log their import, and jobs whose Builds need them."""

    def __init__(self, parts: Parts, directory: Path) -> None:
        self._parts = parts
        self._directory = directory
        self._log = directory / "imports"

    def write_module(self, name: str, body: str = "") -> Mapping[str, Any]:
        """Write a module; return its description for Builds."""
        logging_code = f"with open({str(self._log)!r}, 'a') as stream:\n    stream.write({name + chr(10)!r})\n"
        (self._directory / f"{name}.py").write_text(f"{logging_code}{body}")
        return {"module": name, "path": str(self._directory)}

    @property
    def read_imports(self) -> list[str]:
        """The imported modules, one entry for each import."""
        return self._log.read_text().split() if self._log.exists() else []

    async def prepare_brief(self, **deadlines: float) -> JobBrief:
        """Return the brief of a new job."""
        parts = self._parts
        if not parts.catalog.kernels:
            await parts.inspect_file(make_kernel_text(is_data="True"))
        brief = await prepare_brief(parts)
        brief.lowers = True
        brief.deadlines = {**brief.deadlines, **deadlines}
        return brief

    async def compile_configs(
        self, brief: JobBrief, library: Mapping[str, Any], *does: str, submodule: str = ""
    ) -> list[Attempt]:
        """Compile one config for each thing that a Build does."""
        stage = CompileStage(brief, self._parts.fleet, self._parts.artifacts)
        try:
            attempts = make_attempts(brief, *does, tag=f"{brief.job.id} ", library=library, submodule=submodule)
            await stage.compile_attempts(attempts)
            return attempts
        finally:
            await stage.close()

    @contextmanager
    def kill_workers_afterwards(self) -> Iterator[None]:
        """Kill the workers at the end of the block."""
        try:
            yield
        finally:
            self._parts.kill_workers()


@pytest.fixture
def library_project(parts: Parts, tmp_path: Path) -> LibraryProject:
    """Modules and jobs of a test."""
    directory = tmp_path / "site"
    directory.mkdir()
    return LibraryProject(parts, directory)


def find_front_ends(attempts: list[Attempt]) -> set[int]:
    """Return the processes that lowered the compiled attempts."""
    return {attempt.facts["lowered_by"] for attempt in attempts if attempt.is_compiled}


async def test_jobs_share_the_front_end_of_a_library(library_project: LibraryProject) -> None:
    """Simultaneous jobs share it, and later ones."""
    with library_project.kill_workers_afterwards():
        library = library_project.write_module("shared")
        attempts: list[Attempt] = []

        async def compile_some() -> None:
            attempts.extend(
                await library_project.compile_configs(await library_project.prepare_brief(), library, "work", "work")
            )

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(compile_some)
        await compile_some()
        assert len(attempts) == 8
        assert len(find_front_ends(attempts)) == 1
        assert library_project.read_imports == ["shared"]


async def test_a_library_may_be_imported_before_there_is_a_job(parts: Parts, library_project: LibraryProject) -> None:
    """The first unit then waits for no import."""
    with library_project.kill_workers_afterwards():
        library = library_project.write_module("early")
        brief = await library_project.prepare_brief()
        parts.fleet.start_soon(
            parts.fleet.front_ends.import_library, brief.environment, "fake", library, brief.deadlines
        )
        with anyio.fail_after(PATIENCE_S):
            await wait_until(lambda: library_project.read_imports == ["early"])
        assert find_front_ends(await library_project.compile_configs(brief, library, "work"))
        assert library_project.read_imports == ["early"]


async def test_a_library_that_cannot_be_imported_fails_only_its_own_job(library_project: LibraryProject) -> None:
    """Simultaneous requests import it once, and no config is blamed."""
    with library_project.kill_workers_afterwards():
        broken, fine = (
            library_project.write_module("broken", "raise ImportError('no such thing')\n"),
            library_project.write_module("fine"),
        )
        for _ in range(2):
            with pytest.raises(WorkerError, match="broken cannot be imported: no such thing"):
                await library_project.compile_configs(await library_project.prepare_brief(), broken, "work")
        assert library_project.read_imports == ["broken"]
        assert find_front_ends(
            await library_project.compile_configs(await library_project.prepare_brief(), fine, "work")
        )


async def test_a_library_that_hangs_delays_no_other(library_project: LibraryProject) -> None:
    """Jobs of other libraries continue; its own jobs end with the reason."""
    with library_project.kill_workers_afterwards():
        hanging, fine = (
            library_project.write_module("hanging", "while True:\n    pass\n"),
            library_project.write_module("fine"),
        )
        errors: list[str] = []

        async def compile_hanging() -> None:
            try:
                await library_project.compile_configs(
                    await library_project.prepare_brief(inspect=IMPORT_S), hanging, "work", "work"
                )
            except WorkerError as error:
                errors.append(error.message)

        async with anyio.create_task_group() as tasks:
            # There are fewer compile slots.
            for _ in range(4):
                tasks.start_soon(compile_hanging)
            await wait_until(lambda: library_project.read_imports == ["hanging"])
            assert (
                len(
                    find_front_ends(
                        await library_project.compile_configs(
                            await library_project.prepare_brief(), fine, "work", "work"
                        )
                    )
                )
                == 1
            )
            assert not errors
        assert len(errors) == 4
        assert set(errors) == {f"inspect timed out after {IMPORT_S:.3g} s"}


async def test_an_edited_library_is_imported_again(library_project: LibraryProject) -> None:
    """The same worker imports it in a fresh process, and the log says why."""
    with library_project.kill_workers_afterwards():
        library = library_project.write_module("edited")
        before = await library_project.compile_configs(await library_project.prepare_brief(), library, "work")
        library_project.write_module("edited", "# another state\n")
        # The worker looks for changes at most this often.
        await anyio.sleep(0.3)
        with capture_logs() as logs:
            after = await library_project.compile_configs(await library_project.prepare_brief(), library, "work")
        assert find_front_ends(before) == find_front_ends(after)
        (reason,) = [line["reason"] for line in logs if line["event"] == "worker_restarted"]
        assert reason.endswith("edited.py has changed since it was imported")
        assert library_project.read_imports == ["edited", "edited"]


@pytest.mark.parametrize("failing", ["lower_crash", "lower_hang"])
async def test_a_config_that_ends_the_front_end_fails_alone(library_project: LibraryProject, failing: str) -> None:
    """The next worker lowers the others."""
    with library_project.kill_workers_afterwards():
        library = library_project.write_module("fragile")
        attempts = await library_project.compile_configs(
            await library_project.prepare_brief(compile=IMPORT_S), library, "work", failing, "work"
        )
        assert [attempt.is_compiled for attempt in attempts] == [True, False, True]  # fmt: skip
        assert library_project.read_imports == ["fragile", "fragile"]


async def test_idle_front_ends_are_ended(parts: Parts, library_project: LibraryProject) -> None:
    """Front ends that a job still needs are kept."""
    with library_project.kill_workers_afterwards():
        library = library_project.write_module("idle")
        brief = await library_project.prepare_brief()
        (front_end_pid,) = find_front_ends(await library_project.compile_configs(brief, library, "work"))
        key, opening = FrontEndKey.for_build(brief.environment, "fake", "", library), requests.OpenFrontEnd("fake")
        await parts.fleet.front_ends.open_front_end(key, opening, 7, brief.deadlines)
        parts.fleet.front_ends.end_idle(0.0)
        os.kill(front_end_pid, 0)
        parts.fleet.front_ends.forget_job(7)
        parts.fleet.front_ends.end_idle(0.0)
        await wait_until(lambda: front_end_pid not in {worker.pid for worker in parts.fleet.describe_workers()})


async def test_the_number_of_front_ends_is_bounded(library_project: LibraryProject) -> None:
    """The longest idle front end makes room."""
    with library_project.kill_workers_afterwards():
        libraries = [library_project.write_module(f"library_{number}") for number in range(MAX_FRONT_ENDS + 1)]
        front_ends = [
            find_front_ends(
                await library_project.compile_configs(await library_project.prepare_brief(), library, "work")
            )
            for library in libraries
        ]
        front_ends_again = find_front_ends(
            await library_project.compile_configs(await library_project.prepare_brief(), libraries[-1], "work")
        )
        assert front_ends_again == front_ends[-1]
        assert library_project.read_imports == [library["module"] for library in libraries]
        await library_project.compile_configs(await library_project.prepare_brief(), libraries[0], "work")
        assert library_project.read_imports.count("library_0") == 2


@pytest.mark.parametrize("body", ["raise ImportError('no such thing')\n", "while True:\n    pass\n"])
async def test_a_submodule_that_cannot_be_imported_fails_only_its_own_job(
    library_project: LibraryProject, body: str
) -> None:
    """Other functions of the library are compiled at once."""
    with library_project.kill_workers_afterwards():
        library = library_project.write_module("whole")
        library_project.write_module("part", body)
        with pytest.raises(WorkerError):
            await library_project.compile_configs(
                await library_project.prepare_brief(inspect=IMPORT_S), library, "work", submodule="part"
            )
        assert find_front_ends(
            await library_project.compile_configs(await library_project.prepare_brief(), library, "work")
        )
