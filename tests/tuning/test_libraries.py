"""Libraries that Builds name: each is imported by one front end, for all jobs, and delays no other one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from ktuned.fleet import FrontEndKey
from ktuned.fleet.front_ends import MAX_FRONT_ENDS
from ktuned.ipc import requests
from ktuned.model import WorkerError
from ktuned.model.plan import Plan
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.trial_machine import Attempt
from tests.daemon_parts import PATIENCE_S, Parts, make_kernel_text, make_winner_key
from tests.fleet.playing import until

pytestmark = pytest.mark.anyio

IMPORT_S = 2.0


class Libraries:
    """Modules that leave a line in a file when they are imported, and the works of jobs that need them."""

    def __init__(self, parts: Parts, directory: Path) -> None:
        self._parts = parts
        self._directory = directory
        self._log = directory / "imports"

    def write(self, name: str, body: str = "") -> Mapping[str, Any]:
        """Write a module; return what Builds say of it."""
        note = f"with open({str(self._log)!r}, 'a') as stream:\n    stream.write({name + chr(10)!r})\n"
        (self._directory / f"{name}.py").write_text(f"{note}{body}")
        return {"module": name, "path": str(self._directory)}

    @property
    def imports(self) -> list[str]:
        """The modules that were imported, as often as they were."""
        return self._log.read_text().split() if self._log.exists() else []

    async def brief(self, **deadlines: float) -> JobBrief:
        """Return the work of a job of its own."""
        parts = self._parts
        if not parts.catalog.kernels:
            await parts.inspect_file(make_kernel_text(is_data="True"))
        plan = Plan(preset="fast", strategy="exhaustive")
        job = await parts.store.create_job(
            make_winner_key({"n": 64}), {"n": 64}, priority=1, reason="test", plan=plan, now=0.0
        )
        brief = parts.preparation.prepare_brief(job)
        brief.lowers = True
        brief.deadlines = {**brief.deadlines, **deadlines}
        return brief

    async def compile(
        self, brief: JobBrief, library: Mapping[str, Any], *does: str, submodule: str = ""
    ) -> list[Attempt]:
        """Compile one config for each thing that a Build does."""
        stage = CompileStage(brief, self._parts.fleet, self._parts.artifacts)
        common = {"library": library, "submodule": submodule}
        builds = [{"does": what, "tag": f"{brief.job.id} {number}", **common} for number, what in enumerate(does)]
        try:
            attempts = [Attempt(number, {}, brief.make_unit(build)) for number, build in enumerate(builds)]
            await stage.compile_attempts(attempts)
            return attempts
        finally:
            await stage.close()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """End the workers with the block."""
        try:
            yield
        finally:
            self._parts.kill_workers()


@pytest.fixture
def libraries(parts: Parts, tmp_path: Path) -> Libraries:
    """Return the libraries of a test."""
    directory = tmp_path / "site"
    directory.mkdir()
    return Libraries(parts, directory)


def translators(done: list[Attempt]) -> set[int]:
    """Return the processes that translated what was compiled."""
    return {attempt.facts["lowered_by"] for attempt in done if attempt.is_compiled}


async def test_jobs_share_the_front_end_of_a_library(libraries: Libraries) -> None:
    """Jobs at the same time, and those that come later."""
    with libraries.in_use():
        library = libraries.write("shared")
        done: list[Attempt] = []

        async def compile_some() -> None:
            done.extend(await libraries.compile(await libraries.brief(), library, "work", "work"))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(compile_some)
        await compile_some()
        assert len(done) == 8
        assert len(translators(done)) == 1
        assert libraries.imports == ["shared"]


async def test_a_library_may_be_imported_before_there_is_a_job(parts: Parts, libraries: Libraries) -> None:
    """The first unit then waits for no import."""
    with libraries.in_use():
        library = libraries.write("early")
        brief = await libraries.brief()
        parts.fleet.start_soon(
            parts.fleet.front_ends.import_library, brief.environment, "fake", library, brief.deadlines
        )
        with anyio.fail_after(PATIENCE_S):
            await until(lambda: libraries.imports == ["early"])
        assert translators(await libraries.compile(brief, library, "work"))
        assert libraries.imports == ["early"]


async def test_a_library_that_cannot_be_imported_fails_only_its_own_job(libraries: Libraries) -> None:
    """It is tried once for those that come together, and no config is to blame."""
    with libraries.in_use():
        broken, fine = libraries.write("broken", "raise ImportError('no such thing')\n"), libraries.write("fine")
        for _ in range(2):
            with pytest.raises(WorkerError, match="broken cannot be imported: no such thing"):
                await libraries.compile(await libraries.brief(), broken, "work")
        assert libraries.imports == ["broken"]
        assert translators(await libraries.compile(await libraries.brief(), fine, "work"))


async def test_a_library_that_hangs_delays_no_other(libraries: Libraries) -> None:
    """The jobs of others go on meanwhile; its own end with the reason."""
    with libraries.in_use():
        hanging, fine = libraries.write("hanging", "while True:\n    pass\n"), libraries.write("fine")
        errors: list[str] = []

        async def compile_hanging() -> None:
            try:
                await libraries.compile(await libraries.brief(inspect=IMPORT_S), hanging, "work", "work")
            except WorkerError as error:
                errors.append(error.message)

        async with anyio.create_task_group() as tasks:
            # More than there are compile slots.
            for _ in range(4):
                tasks.start_soon(compile_hanging)
            await until(lambda: libraries.imports == ["hanging"])
            assert len(translators(await libraries.compile(await libraries.brief(), fine, "work", "work"))) == 1
            assert not errors
        assert len(errors) == 4
        assert set(errors) == {f"inspect timed out after {IMPORT_S:.3g} s"}


async def test_an_edited_library_is_imported_again(libraries: Libraries) -> None:
    """By the same worker, as a fresh process."""
    with libraries.in_use():
        library = libraries.write("edited")
        before = await libraries.compile(await libraries.brief(), library, "work")
        libraries.write("edited", "# another state\n")
        # It looks at most so often.
        await anyio.sleep(0.3)
        after = await libraries.compile(await libraries.brief(), library, "work")
        assert translators(before) == translators(after)
        assert libraries.imports == ["edited", "edited"]


@pytest.mark.parametrize("bad", ["lower_crash", "lower_hang"])
async def test_a_config_that_ends_the_front_end_fails_alone(libraries: Libraries, bad: str) -> None:
    """The others go on in the next worker."""
    with libraries.in_use():
        library = libraries.write("fragile")
        done = await libraries.compile(await libraries.brief(compile=IMPORT_S), library, "work", bad, "work")
        assert [attempt.is_compiled for attempt in done] == [True, False, True]  # fmt: skip
        assert libraries.imports == ["fragile", "fragile"]


async def test_idle_front_ends_are_ended(parts: Parts, libraries: Libraries) -> None:
    """Not those that a job still needs."""
    with libraries.in_use():
        library = libraries.write("idle")
        brief = await libraries.brief()
        (front,) = translators(await libraries.compile(brief, library, "work"))
        key, opening = FrontEndKey.for_build(brief.environment, "fake", "", library), requests.OpenFrontEnd("fake")
        await parts.fleet.front_ends.open_front_end(key, opening, 7, brief.deadlines)
        parts.fleet.front_ends.end_idle(0.0)
        os.kill(front, 0)
        parts.fleet.front_ends.forget_job(7)
        parts.fleet.front_ends.end_idle(0.0)
        await until(lambda: front not in {worker.pid for worker in parts.fleet.describe_workers()})


async def test_the_number_of_front_ends_is_bounded(libraries: Libraries) -> None:
    """The longest idle make room for others."""
    with libraries.in_use():
        some = [libraries.write(f"library_{number}") for number in range(MAX_FRONT_ENDS + 1)]
        fronts = [translators(await libraries.compile(await libraries.brief(), one, "work")) for one in some]
        again = translators(await libraries.compile(await libraries.brief(), some[-1], "work"))
        assert again == fronts[-1]
        assert libraries.imports == [one["module"] for one in some]
        await libraries.compile(await libraries.brief(), some[0], "work")
        assert libraries.imports.count("library_0") == 2


@pytest.mark.parametrize("body", ["raise ImportError('no such thing')\n", "while True:\n    pass\n"])
async def test_a_submodule_that_cannot_be_imported_fails_only_its_own_job(libraries: Libraries, body: str) -> None:
    """Other functions of the library go on at once."""
    with libraries.in_use():
        library = libraries.write("whole")
        libraries.write("part", body)
        with pytest.raises(WorkerError):
            await libraries.compile(await libraries.brief(inspect=IMPORT_S), library, "work", submodule="part")
        assert translators(await libraries.compile(await libraries.brief(), library, "work"))
