"""The spool as the daemon reads it: each record once, each count once, and nothing else is tolerated."""

from __future__ import annotations

import os
from pathlib import Path
from time import time

import anyio
import pytest

from ktuned.adoption.spool_reader import STAGED_S, SpoolReader
from ktuned.spool import RECORD_SUFFIX, STAGED_PREFIX


@pytest.fixture
def reader(tmp_path: Path) -> SpoolReader:
    """The reader of an empty spool."""
    reader = SpoolReader(tmp_path / "spool")
    reader.make_directory()
    return reader


def test_anything_but_a_record_is_removed_with_one_notice(
    reader: SpoolReader,
) -> None:
    """Foreign files and damaged records are removed; a directory stays but is not reported again."""
    (reader.directory / "strange.txt").write_text("strange")
    (reader.directory / f"0{RECORD_SUFFIX}").write_bytes(b"damaged")
    (reader.directory / "directory").mkdir()
    for _ in range(2):
        assert reader.read_files() == ([], [])
        assert len(reader.notices) == 3
    assert [path.name for path in reader.directory.iterdir()] == ["directory"]


def test_a_file_that_is_being_written_stays_until_its_writer_must_have_died(reader: SpoolReader) -> None:
    """After an hour it is removed without a notice."""
    staged = reader.directory / f"{STAGED_PREFIX}one"
    staged.write_bytes(b"half")
    reader.read_files()
    assert staged.exists()
    os.utime(staged, (0.0, time() - STAGED_S - 1.0))
    reader.read_files()
    assert (staged.exists(), reader.notices) == (False, [])


@pytest.mark.anyio
async def test_a_new_file_is_noticed(reader: SpoolReader) -> None:
    """It is noticed at once, before the next survey."""
    noticed = anyio.Event()
    with anyio.fail_after(20.0):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.watch_directory, noticed.set)
            while not noticed.is_set():
                (reader.directory / "new").write_text("new")
                with anyio.move_on_after(0.2):
                    await noticed.wait()
            tasks.cancel_scope.cancel()
