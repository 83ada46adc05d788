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
    """Watches of one directory by events and one by polling."""
    (tmp_path / "native").mkdir()
    (tmp_path / "polled").mkdir()
    with Notifications([str(tmp_path / "native")], [str(tmp_path / "polled")], threading.Event()) as watches:
        yield watches


def list_relative_paths(batch: Batch, below: Path) -> set[str]:
    """Return a batch's paths, relative to a directory."""
    return {os.path.relpath(path, below) for path in batch.paths}


def test_events_of_both_kinds_arrive(watches: Notifications, tmp_path: Path) -> None:
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
    (tmp_path / "polled" / "it").touch()
    # Polling may see the directory's own change, too.
    assert list_relative_paths(watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS), tmp_path) - {"polled"} == {
        "polled/it"
    }
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
    for native, polled in (([], []), ([str(tmp_path)], []), ([], [str(tmp_path)]), ([str(tmp_path)], [str(tmp_path)])):
        with Notifications(native, polled, stop) as watches:
            assert watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS).is_stopped


def test_what_cannot_be_watched_is_an_error(watches: Notifications, tmp_path: Path) -> None:
    """Examples: a missing directory, a name that is not UTF-8, and a loop of links in a polled directory."""
    for native, polled in ((["/no/such/directory"], []), ([], ["/no/such/directory"])):
        with pytest.raises(DirectoryGone):
            Notifications(native, polled, threading.Event())
    with pytest.raises(WatchError, match="surrogates"):
        Notifications([os.fsdecode(b"/\xff")], [], threading.Event())
    (tmp_path / "native" / os.fsdecode(b"x\xff")).touch()
    with pytest.raises(WatchError, match="decode") as caught:
        watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
    assert not caught.value.is_polling
    (tmp_path / "polled" / "loop").symlink_to("loop")
    with Notifications([], [str(tmp_path / "polled")], threading.Event()) as polling:
        with pytest.raises(WatchError, match="symbolic links") as caught:
            polling.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
        assert caught.value.is_polling
