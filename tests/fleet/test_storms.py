"""What cannot start is not started in a loop: one line says so, and it is tried again later."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from ktuned.fleet.executor import Environment
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.lane_machine import TOLERATED_FAILURES, FleetLimits
from ktuned.model.errors import WorkerError
from ktuned.model.keys import Role
from tests.fleet.conftest import RunFleet
from tests.fleet.playground import wait_until

pytestmark = pytest.mark.anyio

ATTEMPTS = 10


class BreakableInterpreter:
    """An interpreter that dies at once until it is repaired, and that counts its starts."""

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
    def count_starts(self) -> int:
        """Return how often it was started."""
        return len(self._starts.read_text().splitlines()) if self._starts.exists() else 0

    def repair(self) -> None:
        """Let it work from now on."""
        self._mended.touch()


@pytest.fixture
def interpreter(tmp_path: Path, environment: Environment) -> BreakableInterpreter:
    """An interpreter that cannot run a worker."""
    return BreakableInterpreter(tmp_path, environment)


async def fail_to_acquire(fleet: Fleet, environment: Environment) -> str:
    with pytest.raises(WorkerError) as caught:
        await fleet.acquire_worker(Role.BENCH, environment)
    return caught.value.message


async def test_ten_deaths_at_once_are_four_starts(
    run_fleet: RunFleet, environment: Environment, interpreter: BreakableInterpreter
) -> None:
    """After some failures in a row nothing starts for a while; each error and the status have the reason."""
    async with run_fleet() as fleet:
        messages = [await fail_to_acquire(fleet, interpreter.environment) for _ in range(ATTEMPTS)]
        assert interpreter.count_starts == TOLERATED_FAILURES + 1
        assert all("no libpython" in line and "\n" not in line for line in messages)
        assert "failed to run a worker 4 times in a row and is not used for" in messages[-1]
        (notice,) = fleet.machine.notices
        assert "runs no bench worker, tried again in" in notice
        assert "no libpython" in notice
        # Other interpreters are not affected.
        async with fleet.lend_worker(Role.BENCH, environment) as worker:
            assert worker.is_alive


async def test_after_the_pause_an_interpreter_that_works_again_is_used(
    run_fleet: RunFleet, interpreter: BreakableInterpreter
) -> None:
    """A success clears the failures and the notice."""
    async with run_fleet(limits=FleetLimits(first_pause_s=0.05)) as fleet:
        for _ in range(TOLERATED_FAILURES + 1):
            await fail_to_acquire(fleet, interpreter.environment)
        interpreter.repair()
        await wait_until(lambda: not fleet.machine._starts[Role.BENCH, interpreter.environment].pause_s)
        worker = await fleet.acquire_worker(Role.BENCH, interpreter.environment)
        assert worker.is_alive
        assert fleet.machine.notices == []
