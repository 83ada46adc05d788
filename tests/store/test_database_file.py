"""Opening a store with damage, locks, files in the way, and disks that are full or read-only."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ktuned.model.errors import StoreError
from ktuned.model.values import Outcome
from ktuned.store import database_file as opening
from ktuned.store.database import Store
from ktuned.store.schema import UNRELEASED_ID
from tests.store.samples import CONTEXT, PROBLEM, create_job, make_failed_result, make_measured_result, run_trial

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


async def fill_store(database: Path, trials: int = 200) -> None:
    """Write a closed store with many pages."""
    async with Store.open(database) as store:
        job = await create_job(store)
        for number in await store.begin_trials(CONTEXT, PROBLEM, job.id, [{"BM": value} for value in range(trials)]):
            await store.finish_trial(number, make_measured_result(1.0 + number))


def find_damaged_database(database: Path) -> Path:
    """Return the only damaged database that was moved aside."""
    (aside,) = database.parent.glob("ktuned.db.damaged-*Z")
    return aside


@pytest.mark.parametrize("damage", ["not a database", "header", "schema page", "cut short"])
async def test_a_damaged_database_is_moved_aside(database: Path, damage: str) -> None:
    """The damaged file keeps its bytes under a dated name; a fresh store works, and the notice names both."""
    await fill_store(database)
    content = bytearray(database.read_bytes())
    match damage:
        case "not a database":
            content = bytearray(b"something else entirely, " * 400)
        case "header":
            content[:64] = os.urandom(64)
        case "schema page":
            content[100:4096] = b"\xff" * 3996
        case "cut short":
            del content[5000:]
    database.write_bytes(content)
    async with Store.open(database) as store:
        assert store.list_trials() == []
        assert find_damaged_database(database).name in store.notice
        assert "damaged" in store.notice
        assert "\n" not in store.notice
        job = await create_job(store)
        await run_trial(store, job, 1, make_measured_result(1.0))
    assert find_damaged_database(database).read_bytes() == content
    async with Store.open(database) as store:
        assert store.notice == ""
        assert len(store.list_trials()) == 1


async def test_a_database_from_before_the_first_release_is_moved_aside(database: Path) -> None:
    """Nothing of it is read, whatever its tables are."""
    database.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA application_id = {UNRELEASED_ID}")
        connection.execute("PRAGMA user_version = 23")
        connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY)")
    before = database.read_bytes()
    async with Store.open(database) as store:
        assert store.list_trials() == []
        (aside,) = database.parent.glob("ktuned.db.unreleased-*Z")
        assert store.notice == f"the store {database} is from before the first release, so it was moved to {aside.name}"
    assert aside.read_bytes() == before


async def test_damage_that_is_found_later_is_moved_aside_by_the_next_opening(database: Path) -> None:
    """The error says to restart."""
    await fill_store(database)
    with closing(sqlite3.connect(database)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trials'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with database.open("r+b") as stream:
        stream.seek((page - 1) * size)
        stream.write(b"\xff" * size)
    async with Store.open(database) as store:
        assert store.notice == ""
        with pytest.raises(StoreError, match="is damaged") as caught:
            store.list_trials()
        assert "restart" in caught.value.hint
        assert len(store.list_jobs()) == 1
    async with Store.open(database) as store:
        assert find_damaged_database(database).name in store.notice
        assert store.list_trials() == []
    async with Store.open(database) as store:
        assert store.notice == ""


async def test_a_sound_database_that_was_marked_for_a_check_is_kept(database: Path) -> None:
    await fill_store(database, 3)
    opening.mark_database_suspect(database)
    async with Store.open(database) as store:
        assert store.notice == ""
        assert len(store.list_trials()) == 3
    assert sorted(path.name for path in database.parent.iterdir()) == ["ktuned.db"]


async def test_a_file_system_without_shared_memory_is_refused(database: Path) -> None:
    """SQLite's WAL needs it; network file systems lack it. The message names a remedy."""
    with pytest.raises(StoreError, match="shared memory and locks") as caught:
        # This layer locks by files, the way SQLite works where there are no real locks; it has no shared memory.
        Store.open(database, vfs="unix-dotfile")
    assert "KTUNED_HOME" in caught.value.hint


async def test_a_database_that_another_process_holds_is_refused(database: Path) -> None:
    """The lock is waited for, and then named."""
    await fill_store(database, 1)
    with closing(sqlite3.connect(database, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="held by another process"):
            Store.open(database, patience_s=0.05)


async def test_a_file_in_place_of_the_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(StoreError, match=r"state cannot be made: a file is where a directory must be"):
        Store.open(tmp_path / "state" / "ktuned.db")
    with pytest.raises(StoreError, match=r"cannot be made: a part of its path is a file"):
        Store.open(tmp_path / "state" / "deeper" / "ktuned.db")


async def test_a_directory_in_place_of_the_database_is_refused(database: Path) -> None:
    """It is not moved aside, because it is not ktuned's."""
    database.mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store.open(database)
    assert database.is_dir()


async def test_the_store_survives_a_full_disk(store: Store) -> None:
    """Writes raise the store's error until there is space; reads work."""
    job = await create_job(store)
    kept = await run_trial(store, job, 1, make_measured_result(5.0))
    (pages,) = store._writer.connection.execute("PRAGMA page_count").fetchone()
    # SQLite answers SQLITE_FULL beyond this many pages, just as when the disk has no more.
    store._writer.connection.execute(f"PRAGMA max_page_count = {pages}")
    begun: list[int] = []
    with pytest.raises(StoreError, match="no space is left") as caught:  # noqa: PT012
        for config in range(2, 5000):
            begun.append(await store.begin_trial(CONTEXT, PROBLEM, job.id, {"BM": config}))
    assert caught.value.code == "store"
    assert "free some space" in caught.value.hint
    assert (winner := store.get_winner(CONTEXT.key)) is not None
    assert winner.trial == kept
    assert [trial.id for trial in reversed(store.list_trials(limit=9999))] == [kept, *begun]
    store._writer.connection.execute("PRAGMA max_page_count = 1073741823")
    later = await run_trial(store, job, 9999, make_measured_result(4.0))
    assert (winner := store.get_winner(CONTEXT.key)) is not None
    assert winner.trial == later


ON_A_SMALL_DISK = """
import os, sys, anyio
from pathlib import Path
from ktuned.model.errors import StoreError
from ktuned.store import Store
from tests.store.samples import CONTEXT, PROBLEM, create_job, make_failed_result, make_measured_result, run_trial
from ktuned.model import Outcome

disk = Path(sys.argv[1])

async def main() -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * 512 * 1024)
    ids = []
    async with Store.open(disk / "ktuned.db") as store:
        job = await create_job(store)
        ids.append(await run_trial(store, job, 0, make_measured_result(5.0)))
        try:
            for config in range(1, 100000):
                ids.append(await run_trial(store, job, config, make_failed_result(Outcome.HUNG)))
        except StoreError as error:
            print(f"full: {error} ({error.hint})")
        assert {trial.id for trial in store.list_trials(outcome=Outcome.HUNG, limit=100000)} == set(ids[1:])
        ballast.unlink()
        ids.append(await run_trial(store, job, -1, make_measured_result(4.0)))
        print("goes on")
    async with Store.open(disk / "ktuned.db") as store:
        assert not store.notice, store.notice
        assert {trial.id for trial in store.list_trials(limit=100000) if trial.outcome != "interrupted"} == set(ids)
        print(f"kept: {store.list_winners()[0].latency_us}")
        (disk / "ballast").touch()
        with open(disk / "ballast", "wb", buffering=0) as stream:
            try:
                while stream.write(b"x" * 4096) == 4096:
                    pass
            except OSError:
                pass
    try:
        Store.open(disk / "ktuned.db").close()
        print("opens on a full disk")
    except StoreError as error:
        print(f"refused: {error} ({error.hint})")

anyio.run(main)
"""

ON_A_READ_ONLY_DISK = """
import sys
from pathlib import Path
from ktuned.model.errors import StoreError
from ktuned.store import Store

for name in ("ktuned.db", "missing.db", "deeper/ktuned.db"):
    try:
        Store.open(Path(sys.argv[1]) / name)
    except StoreError as error:
        print(f"{name}: {error} ({error.hint})")
"""


def run_on_mount(mount: str, script: str, directory: Path) -> list[str]:
    """Run a script beside a mount of its own, and return the lines that it prints; the mount ends with its process."""
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this system does not let a test mount file systems (unshare -rm fails)")
    directory.mkdir(exist_ok=True)
    command = f'{mount} && exec "$0" -c "$1" "$2"'
    done = subprocess.run(
        [unshare, "-rm", "sh", "-c", command, sys.executable, script, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def test_writes_to_a_really_full_disk_fail_and_lose_nothing(tmp_path: Path) -> None:
    """On a disk of 2 MiB; freed space lets the next write through."""
    lines = run_on_mount('mount -t tmpfs -o size=2m none "$2"', ON_A_SMALL_DISK, tmp_path / "disk")
    full, goes_on, kept, start = lines
    assert full.startswith("full: ")
    assert "no space is left on its disk" in full
    assert (goes_on, kept) == ("goes on", "kept: 4.0")
    assert start == "opens on a full disk" or "free some space" in start


async def test_a_really_read_only_disk_is_one_line(tmp_path: Path) -> None:
    """Both for an existing and for a new database."""
    await fill_store(tmp_path / "disk" / "ktuned.db", 3)
    mount = 'mount --bind "$2" "$2" && mount -o remount,bind,ro "$2"'
    existing, missing, deeper = run_on_mount(mount, ON_A_READ_ONLY_DISK, tmp_path / "disk")
    for line in (existing, missing, deeper):
        assert "make its directory writable, or set KTUNED_HOME" in line
    assert "cannot be opened" in existing
    assert "cannot be opened" in missing
    assert "its file system is read-only" in deeper


async def test_an_unexpected_database_error_is_the_store_s_error(store: Store) -> None:
    with pytest.raises(StoreError, match="FOREIGN KEY") as caught:
        await store.begin_trial(CONTEXT, PROBLEM, 99, {"BM": 1})
    assert "\n" not in str(caught.value)
    assert await run_trial(store, await create_job(store), 1, make_failed_result(Outcome.HUNG))
