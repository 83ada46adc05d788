"""What workers have in hand survives the death of the daemon, and convicts a trial at the second death."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from ktuned.model import Outcome, TrialResult
from ktuned.model.errors import StoreError
from ktuned.protocol import JobState
from ktuned.store.database import Store
from ktuned.store.in_hand import InHand, describe_quarantine, locate_in_hand, take_last_in_hand
from tests.store.samples import CONTEXT, PROBLEM, create_job

pytestmark = pytest.mark.anyio


async def begin_job(store: Store, configs: int) -> tuple[int, list[int]]:
    """Return the ids of a running job and of its trials."""
    job = await create_job(store)
    await store.update_job(replace(job, state=JobState.RUNNING))
    return job.id, await store.begin_trials(CONTEXT, PROBLEM, job.id, [{"x": index} for index in range(configs)])


async def die_with(database: Path, job: int, trials: list[int]) -> None:
    """Open the store, and leave it as a daemon does that dies while a worker has these trials."""
    place = locate_in_hand(database)
    async with Store.open(database) as store:
        await store.begin_trials(CONTEXT, PROBLEM, job, [{"x": index} for index in range(8)])
        async with store.in_hand.hold_trials(job, trials):
            left = place.read_bytes()
    place.write_bytes(left)


async def test_the_second_death_convicts_the_trial_in_hand(database: Path) -> None:
    """The first death makes suspects of the whole request; a trial that ended after it is none any more."""
    async with Store.open(database) as store:
        job, trials = await begin_job(store, 8)
    await die_with(database, job, trials[:4])
    async with Store.open(database) as store:
        assert store.in_hand.suspects >= set(trials[:4])
        assert not store.in_hand.suspects & set(trials[4:])
        measured = TrialResult(Outcome.MEASURED, latency_us=1.0)
        await store.finish_trials([(trials[0], measured)])
        assert {trial.id for trial in store.list_suspects()} == set(trials[1:4])
    await die_with(database, job, [trials[1]])
    async with Store.open(database) as store:
        outcomes = {trial.id: trial.outcome for trial in store.list_trials(limit=100)}
        assert outcomes == {
            trials[0]: Outcome.MEASURED,
            trials[1]: Outcome.CRASHED,
            **dict.fromkeys(trials[2:], Outcome.INTERRUPTED),
        }
        (named,) = describe_quarantine(store.list_suspects(CONTEXT.kernel))
        assert named == (
            f"{CONTEXT.kernel} x=1 is quarantined: the daemon died 2 times while a worker had this config; "
            f"`ktuned forget {CONTEXT.kernel} --outcome crashed` lifts that"
        )
        await store.forget_trials(CONTEXT.kernel, Outcome.CRASHED)
        assert not describe_quarantine(store.list_suspects())


async def test_a_winner_that_kills_while_it_is_measured_again_gives_way(database: Path) -> None:
    async with Store.open(database) as store:
        job, trials = await begin_job(store, 8)
        for number, latency_us in zip(trials, (1.0, 2.0), strict=False):
            await store.finish_trial(number, TrialResult(Outcome.MEASURED, latency_us=latency_us))
    for _ in range(2):
        await die_with(database, job, [trials[0]])
    async with Store.open(database) as store:
        winner = store.get_winner(CONTEXT.key)
        assert winner is not None
        assert winner.trial == trials[1]


async def test_a_stopped_suspect_stays_one(database: Path) -> None:
    async with Store.open(database) as store:
        job, trials = await begin_job(store, 8)
    await die_with(database, job, [trials[0]])
    async with Store.open(database) as store:
        await store.finish_trial(trials[0], TrialResult(Outcome.CANCELLED))
        assert [trial.id for trial in store.list_suspects()] == [trials[0]]


async def test_an_idle_daemon_has_nothing_in_hand(tmp_path: Path) -> None:
    """Neither after a request nor after one that failed."""
    in_hand = InHand(tmp_path / "in-hand")
    async with in_hand.hold_trials(1, [5, 6]):
        in_hand.let_go([5])
    with pytest.raises(ZeroDivisionError):
        async with in_hand.hold_trials(1, [7]):
            raise ZeroDivisionError
    in_hand.close()
    assert take_last_in_hand(tmp_path / "in-hand") == set()


async def test_suspects_are_in_hand_one_at_a_time_and_others_beside_them(tmp_path: Path) -> None:
    in_hand = InHand(tmp_path / "in-hand", suspects=[1, 2])
    inside: set[int] = set()
    seen: list[set[int]] = []

    async def hold(trial: int) -> None:
        async with in_hand.hold_trials(9, [trial]):
            inside.add(trial)
            seen.append(set(inside))
            await anyio.lowlevel.checkpoint()
            inside.discard(trial)

    async with in_hand.hold_trials(9, [3]), anyio.create_task_group() as tasks:
        for trial in (1, 2, 4, 1, 2, 4):
            tasks.start_soon(hold, trial)
    in_hand.close()
    assert all(not {1, 2} <= together for together in seen)
    assert any({1, 4} <= together or {2, 4} <= together for together in seen)


async def test_a_file_that_cannot_be_written_is_an_error_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="in-hand cannot be written"):
        async with InHand(tmp_path / "gone" / "in-hand").hold_trials(1, [2]):
            pass


@pytest.mark.parametrize("content", [b"", b"\xff" * 5, b"\0" * 80])
def test_a_damaged_file_accuses_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in-hand").write_bytes(content)
    assert take_last_in_hand(tmp_path / "in-hand") == set()
    assert not (tmp_path / "in-hand").exists()


ENDLESS = """
import anyio, pathlib, sys
from ktuned.store.in_hand import InHand

async def main():
    in_hand = InHand(pathlib.Path(sys.argv[1]))
    while True:
        for base in range(1000, 9000, 1000):
            async with in_hand.hold_trials(1, range(base, base + 900)):
                print(base, flush=True)

anyio.run(main)
"""


@pytest.mark.parametrize("seed", range(4))
def test_sigkill_leaves_whole_ids(tmp_path: Path, seed: int) -> None:
    place = tmp_path / "in-hand"
    with subprocess.Popen([sys.executable, "-c", ENDLESS, str(place)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(random.Random(seed).randrange(1, 2000)):
            child.stdout.readline()
        child.kill()
    assert all(1000 <= number < 9000 and number % 1000 < 900 for number in take_last_in_hand(place))


def test_the_file_lies_beside_its_database(database: Path) -> None:
    assert locate_in_hand(database).parent == database.parent
