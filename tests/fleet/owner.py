"""A small daemon that will be killed: its fleet has a worker with children; it reports them and waits.

Run as ``python -m tests.fleet.owner DIRECTORY``; it writes the ids of all processes to ``DIRECTORY/all``.
"""

import sys
from pathlib import Path

import anyio

from ktuned.fleet.executor import Environment
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.local_executor import LocalExecutor
from ktuned.model.keys import Role
from tests.fleet.playground import CHILDREN, DEADLINE_S, DEADLINES, HANG, PROJECT, Playground, make_base_env


async def run_until_killed(directory: Path) -> None:
    """Let a worker hang, with a child in its group and a child outside of it."""
    executor = LocalExecutor(
        scratch=directory / "tmp",
        cache=directory / "cache",
        artifacts=directory / "artifacts",
        base_env=make_base_env(),
    )
    fleet = Fleet(executor, compile_slots=1, deadlines={"spawn": DEADLINE_S})
    playground = Playground(directory)
    environment = Environment(sys.executable, str(directory), project=PROJECT)
    async with (
        fleet.run_workers(),
        anyio.create_task_group() as tasks,
        fleet.lend_worker(Role.INSPECT, environment) as worker,
    ):

        async def hang() -> None:
            await worker.send_request(playground.write_and_request(CHILDREN + HANG), DEADLINES)

        tasks.start_soon(hang)
        pids = [worker.pid, *await playground.read_child_pids()]
        (directory / "part").write_text(" ".join(map(str, pids)))
        (directory / "part").rename(directory / "all")
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(run_until_killed, Path(sys.argv[1]))
