"""Writes trials for ever and prints each one after it was committed; the crash test kills it."""

import random
import sys
from pathlib import Path

import anyio

from ktuned.model.values import Outcome
from ktuned.protocol.jobs import Job
from ktuned.store.database import Store
from tests.store.samples import CONTEXT, PROBLEM, create_job, make_failed_result, make_measured_result

TASKS = 4


async def write_trials(store: Store, job: Job, task: int) -> None:
    """Begin and finish one trial after the other; every fourth fails."""
    dice = random.Random(task)
    config = task
    while True:
        number = await store.begin_trial(CONTEXT, PROBLEM, job.id, {"BM": config})
        print(f"begun {number}", flush=True)
        result = (
            make_measured_result(dice.uniform(1, 100)) if dice.random() < 0.75 else make_failed_result(Outcome.HUNG)
        )
        winner = await store.finish_trial(number, result)
        print(f"finished {number} {result.outcome} {result.latency_us}", flush=True)
        if winner:
            print(f"won {winner.trial} {winner.latency_us}", flush=True)
        config += TASKS


async def main() -> None:
    async with Store.open(Path(sys.argv[1])) as store, anyio.create_task_group() as tasks:
        job = await create_job(store)
        for task in range(TASKS):
            tasks.start_soon(write_trials, store, job, task)


if __name__ == "__main__":
    anyio.run(main)
