"""Watchfiles' events arrive in batches that are over; what it cannot do is an error with its reason."""

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
    """Watch one directory by events, and one by polling."""
    (tmp_path / "native").mkdir()
    (tmp_path / "polled").mkdir()
    with Notifications([str(tmp_path / "native")], [str(tmp_path / "polled")], threading.Event()) as watches:
        yield watches


def paths(batch: Batch, below: Path) -> set[str]:
    """Return a batch's paths, relative to a directory."""
    return {os.path.relpath(path, below) for path in batch.paths}


def test_events_of_both_kinds_arrive(watches: Notifications, tmp_path: Path) -> None:
    """Each names its path; those of names that came or went are distinguished from writes."""
    path = tmp_path / "native" / "it"
    path.write_text("x")
    path.rename(tmp_path / "native" / "other")
    batch = watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
    assert paths(batch, tmp_path) == {"native/it", "native/other"} == paths(Batch(batch.moved), tmp_path)
    with (tmp_path / "native" / "other").open("w") as stream:
        stream.write("y")
    batch = watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
    assert (paths(batch, tmp_path), batch.moved) == ({"native/other"}, frozenset())
    (tmp_path / "polled" / "it").touch()
    # Polling may see the directory's own change, too.
    assert paths(watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS), tmp_path) - {"polled"} == {"polled/it"}
    assert watches.wait_for_changes(0.05, STEP_ACTIVE_MS) == Batch()


def test_file_is_complete_when_its_writing_pauses(watches: Notifications, tmp_path: Path) -> None:
    """A file that is written to without a pause is one batch, and its closing no other."""
    ended = threading.Event()

    def write() -> None:
        with (tmp_path / "native" / "it").open("w") as stream:
            for _ in range(40):
                stream.write("more")
                stream.flush()
                ended.wait(0.005)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    batch = watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
    was_over = ended.is_set()
    writer.join()
    assert was_over
    assert paths(batch, tmp_path) == {"native/it"}
    assert watches.wait_for_changes(0.1, STEP_ACTIVE_MS) == Batch()


def test_waiting_can_be_stopped(tmp_path: Path) -> None:
    """With watches, and with none at all."""
    stop = threading.Event()
    stop.set()
    for native, polled in (([], []), ([str(tmp_path)], []), ([], [str(tmp_path)]), ([str(tmp_path)], [str(tmp_path)])):
        with Notifications(native, polled, stop) as watches:
            assert watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS).is_stopped


def test_what_cannot_be_watched_is_an_error(watches: Notifications, tmp_path: Path) -> None:
    """A directory that is gone, a name that is not UTF-8, and a loop of links in a polled directory."""
    for native, polled in ((["/no/such/directory"], []), ([], ["/no/such/directory"])):
        with pytest.raises(DirectoryGone):
            Notifications(native, polled, threading.Event())
    with pytest.raises(WatchError, match="surrogates"):
        Notifications([os.fsdecode(b"/\xff")], [], threading.Event())
    (tmp_path / "native" / os.fsdecode(b"x\xff")).touch()
    with pytest.raises(WatchError, match="decode") as failed:
        watches.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
    assert not failed.value.is_polling
    (tmp_path / "polled" / "loop").symlink_to("loop")
    with Notifications([], [str(tmp_path / "polled")], threading.Event()) as polling:
        with pytest.raises(WatchError, match="symbolic links") as failed:
            polling.wait_for_changes(PATIENCE_S, STEP_ACTIVE_MS)
        assert failed.value.is_polling
