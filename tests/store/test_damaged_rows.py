"""A flipped bit that SQLite cannot notice costs one row, and is reported."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ktuned.model.errors import StoreError
from ktuned.model.values import Outcome
from ktuned.protocol.jobs import JobState
from ktuned.protocol.kernels import Root
from ktuned.store import exchange
from ktuned.store.database import Store
from tests.store.samples import CONTEXT, PROBLEM, create_job, make_kernel_info, make_measured_result, run_trial

pytestmark = pytest.mark.anyio

FLIPS = 60
"""For each seed; 3,000 were tried once."""

BROKEN = {
    "JSON": b"{1",
    "UTF-8": b'{"\xff": 1}',
}

READS: dict[str, Callable[[Store], object]] = {
    "roots": Store.load_roots,
    "kernels": Store.load_kernels,
    "probes": Store.load_probes,
    "meaning": lambda store: store.load_digest_parts("proj:gemm", "d"),
    "versions": lambda store: store.load_fingerprint_versions("f"),
    "jobs": Store.list_jobs,
    "job": lambda store: store.get_job(1),
    "trials": Store.list_trials,
    "fastest": lambda store: store.list_trials(order="fastest"),
    "trial": lambda store: store.get_trial(1),
    "known": lambda store: store.find_trial(CONTEXT, {"BM": 8}),
    "best": lambda store: store.list_best_trials(CONTEXT, 5),
    "measured": lambda store: store.list_measured_configs(CONTEXT, 5),
    "past": lambda store: store.load_past_searches(CONTEXT, 3, 10),
    "winner": lambda store: store.get_winner(CONTEXT.key),
    "winners": Store.list_winners,
    "shared": lambda store: exchange.load_exported_winners(store.path, CONTEXT.kernel, CONTEXT.device),
    "counts": Store.measure_store,
    "pauses": Store.load_pauses,
}


async def fill_store(database: Path) -> None:
    """Write a closed store with a row in every table."""
    async with Store.open(database) as store:
        await store.add_root(Root("/p", "proj", "/usr/bin/python3", {"A": "1"}))
        await store.save_kernels([make_kernel_info()])
        await store.save_probe("here", {"backends": {}})
        await store.save_versions({"f": {"gcc": "12"}})
        await store.save_pauses({"cpu-y"})
        job = await create_job(store)
        for config in (8, 16, 32):
            await run_trial(store, job, config, make_measured_result(100.0 / config))


def execute_sql(database: Path, statement: str, *values: object) -> None:
    """Change the closed store with SQL."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement, values)


@pytest.mark.parametrize("broken", BROKEN.values(), ids=list(BROKEN))
@pytest.mark.parametrize(
    ("table", "column", "lost"),
    [
        ("roots", "env", {"roots"}),
        ("kernels", "info", {"kernels"}),
        ("probes", "data", {"probes"}),
        ("meanings", "parts", {"meaning"}),
        ("fingerprints", "versions", {"versions"}),
        ("jobs", "plan", {"jobs", "job"}),
        ("jobs", "outcomes", {"jobs", "job"}),
        ("trials", "detail", {"trials", "fastest", "trial", "known", "best"}),
    ],
)
async def test_an_unreadable_row_is_left_out(
    database: Path, table: str, column: str, lost: set[str], broken: bytes
) -> None:
    """All other queries are answered as before, and a notice reports the row."""
    await fill_store(database)
    async with Store.open(database) as store:
        before = {name: ask(store) for name, ask in READS.items()}
        assert store.damaged == ""
    execute_sql(database, f"UPDATE {table} SET {column} = CAST(? AS TEXT)", broken)
    async with Store.open(database) as store:
        after = {name: ask(store) for name, ask in READS.items()}
        assert {name for name in READS if after[name] != before[name]} - {"counts"} == lost
        for name in lost:
            assert not after[name], name
        assert "damaged and left out" in store.damaged
        assert "\n" not in store.damaged


async def test_a_damaged_winner_is_not_served(database: Path) -> None:
    """A config that cannot be read does not win either; the next measured trial does."""
    await fill_store(database)
    execute_sql(database, """UPDATE trials SET config = '{"BM"' || id WHERE id IN (2, 3)""")
    async with Store.open(database) as store:
        assert store.get_winner(CONTEXT.key) is None
        assert [trial.id for trial in store.list_trials()] == [1]
        assert [known.config for known in store.list_measured_configs(CONTEXT, 9)] == [{"BM": 8}]
        assert [known.config for known in store.load_past_searches(CONTEXT, 3, 10)] == [{"BM": 8}]
        job = await create_job(store)
        number = await run_trial(store, job, 16, make_measured_result(5.0))
        await store.decide_winner(number)
        await store.forget_trials(CONTEXT.kernel, Outcome.HUNG)
        winner = store.get_winner(CONTEXT.key)
        assert winner is not None
        assert winner.config == {"BM": 16}


@pytest.mark.parametrize("seed", range(4))
async def test_a_store_with_a_flipped_bit_opens_or_is_replaced(database: Path, tmp_path: Path, seed: int) -> None:
    """For a flip anywhere, the store or a fresh one opens; queries are answered or raise one line."""
    await fill_store(database)
    sound = database.read_bytes()
    used = [offset for offset, byte in enumerate(sound) if byte]
    source = random.Random(seed)
    for number in range(FLIPS):
        directory = tmp_path / f"flipped-{number}"
        directory.mkdir()
        path = directory / database.name
        flipped = bytearray(sound)
        flipped[source.choice(used)] ^= 1 << source.randrange(8)
        path.write_bytes(flipped)
        try:
            async with Store.open(path) as store:
                for ask in READS.values():
                    try:
                        ask(store)
                    except StoreError as error:
                        assert "\n" not in error.message  # noqa: PT017 - either is well
                job = await create_job(store)
                await store.begin_trial(CONTEXT, PROBLEM, job.id, {"BM": 64})
                store.list_jobs(states=[JobState.QUEUED])
        except StoreError as error:
            assert "\n" not in error.message  # noqa: PT017 - either is well
        shutil.rmtree(directory)
