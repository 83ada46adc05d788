"""A daemon in miniature that is killed: it has a fleet whose worker started children, says so, and waits.

Run as ``python -m tests.fleet.owner DIRECTORY``; writes the ids of all processes to ``DIRECTORY/all``.
"""

import sys
from pathlib import Path

import anyio

from ktuned.fleet.pool import Fleet
from ktuned.fleet.process import Environment
from tests.fleet.playing import CHILDREN, DEADLINE_S, DEADLINES, HANG, Playground, base_env


async def main(directory: Path) -> None:
    """Have a worker hang, with a child in its group and one that left it."""
    fleet = Fleet(
        scratch=directory / "tmp",
        cache=directory / "cache",
        base_env=base_env(),
        compile_slots=1,
        compile_cores=frozenset(),
        spawn_s=DEADLINE_S,
    )
    playground = Playground(directory)
    environment = Environment(sys.executable, str(directory))
    async with fleet.running(), anyio.create_task_group() as tasks, fleet.lend("inspect", environment) as worker:

        async def hang() -> None:
            await worker.call(playground.request(CHILDREN + HANG), DEADLINES, first_phase="inspect")

        tasks.start_soon(hang)
        pids = [worker.pid, *await playground.pids()]
        (directory / "part").write_text(" ".join(map(str, pids)))
        (directory / "part").rename(directory / "all")
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
