"""Counts of launches: each launch is left in the spool once, by the process that made it."""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ktuned.dropin import CallKey, LaunchCounter, count_launches, launch_counts, leave_launch_counts
from ktuned.spool import COUNTS_SUFFIX, KeyLaunches, LaunchCounts, read_file, spool_directory

IDENTITY = "0123456789abcdef"
OTHER = "fedcba9876543210"


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the process a spool of its own, and no counters."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    monkeypatch.setattr(launch_counts, "_counters", [])
    yield spool_directory(tmp_path)
    for counter in launch_counts._counters:
        # The exit of this process leaves nothing in a home that is gone.
        counter.take_new_launches()


def left_in(spool: Path) -> Counter[str]:
    """Return the launches of each function that lie in a spool."""
    found: Counter[str] = Counter()
    for path in spool.glob(f"*{COUNTS_SUFFIX}"):
        for row in LaunchCounts.from_bytes(read_file(path)).launches:
            found[row.key.identity] += row.number
    return found


def launch(counter: LaunchCounter, times: int) -> None:
    """Launch."""
    for _ in range(times):
        counter.launches += 1


def test_only_new_launches_are_left(spool: Path) -> None:
    """Each once; a key without any has no row."""
    counter, other = count_launches(CallKey(IDENTITY, {"size": 1}, "a GPU")), count_launches(CallKey(OTHER, {}))
    leave_launch_counts()
    assert not spool.exists()
    launch(counter, 3)
    leave_launch_counts()
    leave_launch_counts()
    assert left_in(spool) == {IDENTITY: 3}
    launch(counter, 2)
    launch(other, 1)
    leave_launch_counts()
    assert left_in(spool) == {IDENTITY: 5, OTHER: 1}
    (first, *_) = sorted(spool.glob(f"*{COUNTS_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
    assert LaunchCounts.from_bytes(read_file(first)).launches == (
        KeyLaunches(CallKey(IDENTITY, {"size": 1}, "a GPU"), 3),
    )


def test_counts_are_left_no_more_often_than_allowed(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came meanwhile is left the next time."""
    now = [100.0]
    monkeypatch.setattr(launch_counts, "monotonic", lambda: now[0])
    monkeypatch.setattr(launch_counts, "_last", 0.0)
    counter = count_launches(CallKey(IDENTITY, {}))
    launch(counter, 1)
    leave_launch_counts(at_most_every_s=10.0)
    launch(counter, 1)
    now[0] += 9.9
    leave_launch_counts(at_most_every_s=10.0)
    assert left_in(spool) == {IDENTITY: 1}
    now[0] += 0.2
    leave_launch_counts(at_most_every_s=10.0)
    assert left_in(spool) == {IDENTITY: 2}


def test_many_keys_go_to_several_files(spool: Path) -> None:
    """None of which is large; keys beyond the bound are not counted."""
    counters = [count_launches(CallKey(IDENTITY, {"size": size})) for size in range(launch_counts.MAX_COUNTED + 5)]
    for counter in counters:
        launch(counter, 1)
    leave_launch_counts()
    assert left_in(spool) == {IDENTITY: launch_counts.MAX_COUNTED}
    assert len(list(spool.iterdir())) == 5


def test_a_forked_child_leaves_its_own_launches(spool: Path) -> None:
    """And its parent the parent's, also of before the fork."""
    counter = count_launches(CallKey(IDENTITY, {}))
    launch(counter, 3)
    child = os.fork()
    if child == 0:
        launch(counter, 10)
        leave_launch_counts()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert left_in(spool) == {IDENTITY: 10}
    launch(counter, 100)
    leave_launch_counts()
    assert left_in(spool) == {IDENTITY: 113}


def test_a_child_forked_while_counts_are_left_can_leave_its_own(spool: Path) -> None:
    """The lock that another thread held is not held there."""
    counter = count_launches(CallKey(IDENTITY, {}))
    with launch_counts._lock:
        child = os.fork()
        if child == 0:
            launch(counter, 1)
            leave_launch_counts()
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert left_in(spool) == {IDENTITY: 1}


def test_threads_leave_each_launch_once(spool: Path) -> None:
    """Which of them leaves it does not matter."""
    counter = count_launches(CallKey(IDENTITY, {}))
    launch(counter, 1000)
    threads = [threading.Thread(target=leave_launch_counts) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert left_in(spool) == {IDENTITY: 1000}


def test_counts_that_cannot_be_written_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application goes on."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "file"))
    launch(count_launches(CallKey(IDENTITY, {})), 1)
    leave_launch_counts()


def test_the_remaining_launches_are_left_at_the_processs_end(tmp_path: Path) -> None:
    """An ordinary end."""
    code = f"""if True:
        from ktuned.dropin import CallKey, count_launches
        count_launches(CallKey({IDENTITY!r}, {{}})).launches += 7
    """
    environment = {**os.environ, "KTUNED_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert left_in(spool_directory(tmp_path)) == {IDENTITY: 7}
