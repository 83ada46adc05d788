"""Watchfiles' events arrive in complete batches; what cannot be watched is an error with its reason."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ktuned.watch.notifications import STEP_ACTIVE_MS, Batch, DirectoryGone, Notifications, WatchError

PATIENCE_S = 60.0


@pytest.fixture
def watches(tmp_path: Path) -> Iterator[Notifications]:
    """Watches of one directory."""
    (tmp_path / "native").mkdir()
    with Notifications([str(tmp_path / "native")], threading.Event()) as watches:
        yield watches


def list_relative_paths(batch: Batch, below: Path) -> set[str]:
    """Return a batch's paths, relative to a directory."""
    return {os.path.relpath(path, below) for path in batch.paths}


def test_events_arrive(watches: Notifications, tmp_path: Path) -> None:
    """Each names its path; names that appear or vanish are distinguished from writes."""
    path = tmp_path / "native" / "it"
    path.write_text("x")
    path.rename(tmp_path / "native" / "other")
    batch = watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
    assert (
        list_relative_paths(batch, tmp_path)
        == {"native/it", "native/other"}
        == list_relative_paths(Batch(batch.moved), tmp_path)
    )
    with (tmp_path / "native" / "other").open("w") as stream:
        stream.write("y")
    batch = watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
    assert (list_relative_paths(batch, tmp_path), batch.moved) == ({"native/other"}, frozenset())
    assert watches.wait_for_changes(0.05, STEP_ACTIVE_MS) == Batch()


def test_file_is_complete_when_its_writing_pauses(watches: Notifications, tmp_path: Path) -> None:
    """Continuous writing is one batch, and closing the file adds none."""
    is_written = threading.Event()

    def write() -> None:
        with (tmp_path / "native" / "it").open("w") as stream:
            for _ in range(40):
                stream.write("more")
                stream.flush()
                is_written.wait(0.005)
        is_written.set()

    writer = threading.Thread(target=write)
    writer.start()
    batch = watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
    was_written = is_written.is_set()
    writer.join()
    assert was_written
    assert list_relative_paths(batch, tmp_path) == {"native/it"}
    assert watches.wait_for_changes(0.1, STEP_ACTIVE_MS) == Batch()


def test_waiting_can_be_stopped(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    for directories in ([], [str(tmp_path)]):
        with Notifications(directories, stop) as watches:
            assert watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS).is_stopped


def test_what_cannot_be_watched_is_an_error(watches: Notifications, tmp_path: Path) -> None:
    """Examples: a missing directory, and a name that is not UTF-8."""
    with pytest.raises(DirectoryGone):
        Notifications(["/no/such/directory"], threading.Event())
    with pytest.raises(WatchError, match="surrogates"):
        Notifications([os.fsdecode(b"/\xff")], threading.Event())
    (tmp_path / "native" / os.fsdecode(b"x\xff")).touch()
    with pytest.raises(WatchError, match="decode"):
        watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
