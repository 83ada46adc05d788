"""A daemon in miniature that is killed: it has a fleet whose worker started children, says so, and waits.

Run as ``python -m tests.fleet.owner DIRECTORY``; writes the ids of all processes to ``DIRECTORY/all``.
"""

import sys
from pathlib import Path

import anyio

from ktuned.fleet.executor import Environment
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.local_executor import LocalExecutor
from ktuned.model.keys import Role
from tests.fleet.playing import CHILDREN, DEADLINE_S, DEADLINES, HANG, PROJECT, Playground, base_env


async def main(directory: Path) -> None:
    """Have a worker hang, with a child in its group and one that left it."""
    executor = LocalExecutor(
        scratch=directory / "tmp",
        cache=directory / "cache",
        artifacts=directory / "artifacts",
        base_env=base_env(),
    )
    fleet = Fleet(executor, compile_slots=1, spawn_s=DEADLINE_S)
    playground = Playground(directory)
    environment = Environment(sys.executable, str(directory), project=PROJECT)
    async with (
        fleet.run_workers(),
        anyio.create_task_group() as tasks,
        fleet.lend_worker(Role.INSPECT, environment) as worker,
    ):

        async def hang() -> None:
            await worker.send_request(playground.request(CHILDREN + HANG), DEADLINES)

        tasks.start_soon(hang)
        pids = [worker.pid, *await playground.pids()]
        (directory / "part").write_text(" ".join(map(str, pids)))
        (directory / "part").rename(directory / "all")
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
