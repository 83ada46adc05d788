"""Start-up storms: what cannot start is not started in a loop, says so in one line, and is tried again by itself."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from ktuned.fleet.executor import Environment
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.lane_machine import TOLERATED_FAILURES, FleetLimits
from ktuned.model.errors import WorkerError
from ktuned.model.keys import Role
from tests.fleet.conftest import RunFleet
from tests.fleet.playing import until

pytestmark = pytest.mark.anyio

ATTEMPTS = 10


class Broken:
    """An interpreter that dies at once until it is mended, and counts how often it was started."""

    def __init__(self, directory: Path, sound: Environment) -> None:
        self._starts = directory / "starts"
        self._mended = directory / "mended"
        script = directory / "python"
        script.write_text(
            f'#!/bin/sh\necho >> {self._starts}\n[ -e {self._mended} ] && exec {sound.python} "$@"\n'
            "echo 'no libpython' >&2\nexit 127\n"
        )
        script.chmod(0o755)
        self.environment = replace(sound, python=str(script))

    @property
    def starts(self) -> int:
        """How often someone started it."""
        return len(self._starts.read_text().splitlines()) if self._starts.exists() else 0

    def mend(self) -> None:
        """Let it work from now on."""
        self._mended.touch()


@pytest.fixture
def broken(tmp_path: Path, environment: Environment) -> Broken:
    """Return an interpreter that cannot run a worker."""
    return Broken(tmp_path, environment)


async def _fail(fleet: Fleet, environment: Environment) -> str:
    with pytest.raises(WorkerError) as caught:
        await fleet.acquire_worker(Role.BENCH, environment)
    return caught.value.message


async def test_ten_deaths_at_once_are_four_starts(
    run_fleet: RunFleet, environment: Environment, broken: Broken
) -> None:
    """After some failures in a row nothing is started for a while; the reason is given each time, and in the status."""
    async with run_fleet() as fleet:
        said = [await _fail(fleet, broken.environment) for _ in range(ATTEMPTS)]
        assert broken.starts == TOLERATED_FAILURES + 1
        assert all("no libpython" in line and "\n" not in line for line in said)
        assert "failed to run a worker 4 times in a row and is left alone for" in said[-1]
        (notice,) = fleet.machine.notices
        assert "runs no bench worker, tried again in" in notice
        assert "no libpython" in notice
        # No one else suffers.
        async with fleet.lend_worker(Role.BENCH, environment) as worker:
            assert worker.is_alive


async def test_after_the_pause_an_interpreter_that_works_again_is_used(run_fleet: RunFleet, broken: Broken) -> None:
    """After the pause it is tried again; a success forgets the failures, and the status says no more of them."""
    async with run_fleet(limits=FleetLimits(first_pause_s=0.05)) as fleet:
        for _ in range(TOLERATED_FAILURES + 1):
            await _fail(fleet, broken.environment)
        broken.mend()
        await until(lambda: not fleet.machine._starts[Role.BENCH, broken.environment].pause_s)
        worker = await fleet.acquire_worker(Role.BENCH, broken.environment)
        assert worker.is_alive
        assert fleet.machine.notices == []
