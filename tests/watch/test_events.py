"""Every way in which files appear, vanish and change ends with exactly the changed kernels; nothing is lost
silently.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from ktuned.catalog.catalog import Changes
from ktuned.catalog.discovery import find_kernel_files, walk_directories
from ktuned.catalog.roots import remake_root
from ktuned.protocol.kernels import Root
from ktuned.watch.notifications import Notifications, WatchError
from ktuned.watch.watcher import Intervals, OpenWatches, Watcher
from tests.daemon_parts import PATIENCE_S, Parts, make_kernel_text

pytestmark = pytest.mark.anyio

FREQUENT_SURVEYS = Intervals(all_s=1.0, recent_s=0.5, retry_s=PATIENCE_S)
"""Surveys that are so frequent that a test can wait for them."""


class ChangeRecorder:
    """A watcher at work, with the changes that it reports."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.recorded: list[tuple[Changes, bool]] = []
        self.inspected = 0
        self.errors = 0
        self._news = anyio.Event()

    async def record_changes(self, changes: Changes, saved: bool) -> None:
        """Record an inspection and its changes."""
        self.inspected += saved
        self.errors += len(changes.errors)
        if changes:
            self.recorded.append((changes, saved))
            self._news.set()

    async def wait_until_changed(self, *names: str) -> None:
        """Wait until these kernels, and no others, changed, appeared or vanished once each; then forget the changes."""
        with anyio.fail_after(PATIENCE_S):
            while len(self._names()) < len(names):
                self._news = anyio.Event()
                await self._news.wait()
        assert sorted(self._names()) == sorted(names)
        self.recorded.clear()

    async def wait_until_notice(self, words: str) -> None:
        """Wait until the watcher's notice has these words, or is empty."""
        with anyio.fail_after(PATIENCE_S):
            while words not in self.watcher.notice or bool(words) != bool(self.watcher.notice):  # noqa: ASYNC110
                await anyio.sleep(0.01)

    def _names(self) -> list[str]:
        names = (name for changes, _ in self.recorded for name in (*changes.added, *changes.changed, *changes.removed))
        return [name.partition(":")[2] for name in names]


@asynccontextmanager
async def watch_roots(
    parts: Parts,
    *,
    open_watches: OpenWatches = Notifications,
    intervals: Intervals = FREQUENT_SURVEYS,
    looked_up: Sequence[str] = (),
) -> AsyncIterator[ChangeRecorder]:
    """Inspect the roots, and watch them for the length of a block."""
    for root in parts.catalog.roots:
        if os.path.isdir(root.path):
            await parts.inspector.inspect_root(root)
    recorders: list[ChangeRecorder] = []

    async def take(changes: Changes, saved: bool) -> None:
        await recorders[0].record_changes(changes, saved)

    recorder = ChangeRecorder(Watcher(parts.catalog, parts.inspector, take, lambda: looked_up, intervals, open_watches))
    recorders.append(recorder)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.watcher.watch_until_cancelled)
        yield recorder
        tasks.cancel_scope.cancel()
    parts.kill_workers()


def write_kernel_files(parts: Parts, *names: str, rtol: str = "1e-3", below: str = "") -> None:
    for name in names:
        parts.write_file(make_kernel_text(name, rtol=rtol), f"{below}tune_{name}.py")


async def test_links_are_followed(parts: Parts, tmp_path: Path) -> None:
    """Linked kernel files, directories and sources are watched where they lie, and so are the links."""
    away = tmp_path / "away"
    (away / "more").mkdir(parents=True)
    for name in ("one", "two"):
        (away / f"tune_{name}.py").write_text(make_kernel_text(name))
    (away / "more" / "tune_deep.py").write_text(make_kernel_text("deep"))
    (away / "v1.c").write_text("int v;\n")
    (away / "v2.c").write_text("long v;\n")
    (parts.project / "tune_one.py").symlink_to(away / "tune_one.py")
    (parts.project / "linked").symlink_to(away / "more")
    (parts.project / "it.c").symlink_to(away / "v1.c")
    parts.write_file(make_kernel_text(sources="['it.c']"))
    async with watch_roots(parts) as recorder:
        assert {kernel.kernel for kernel in parts.catalog.kernels} == {"one", "deep", "it"}
        (away / "tune_one.py").write_text(make_kernel_text("one", rtol="0.5"))
        await recorder.wait_until_changed("one")
        (away / "more" / "tune_deep.py").write_text(make_kernel_text("deep", rtol="0.5"))
        await recorder.wait_until_changed("deep")
        (away / "v1.c").write_text("int v2;\n")
        await recorder.wait_until_changed("it")
        (parts.project / "new.c").symlink_to(away / "v2.c")
        (parts.project / "new.c").replace(parts.project / "it.c")
        await recorder.wait_until_changed("it")
        (parts.project / "tune_two.py").symlink_to(away / "tune_two.py")
        await recorder.wait_until_changed("two")
        os.link(away / "tune_two.py", parts.project / "tune_hard.py.tmp")
        (parts.project / "linked").unlink()
        await recorder.wait_until_changed("deep")


async def test_link_inside_the_root_is_no_second_kernel(parts: Parts) -> None:
    """A file with links in its own root is declared once, where it lies; circles end."""
    write_kernel_files(parts, "it", below="real/")
    (parts.project / "again").symlink_to("real")
    (parts.project / "tune_it.py").symlink_to("real/tune_it.py")
    (parts.project / "real" / "up").symlink_to(parts.project)
    assert find_kernel_files(str(parts.project)) == [str(parts.project / "real" / "tune_it.py")]
    assert len(list(walk_directories(str(parts.project)))) == 2


async def test_checkout_of_another_branch(parts: Parts) -> None:
    """Exactly the changed, added and removed files are reported, in both directions."""

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *identity, *words], cwd=parts.project, check=True, capture_output=True)

    write_kernel_files(parts, "same", "edited", "gone")
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    git("checkout", "-b", "other")
    write_kernel_files(parts, "edited", rtol="0.5")
    write_kernel_files(parts, "deep", below="new/dir/")
    (parts.project / "tune_gone.py").unlink()
    git("add", "-A")
    git("commit", "-m", "two")
    git("checkout", "main")
    async with watch_roots(parts) as recorder:
        # The checkout blocks this loop, because git may pause between a file's removal and its return, and then both
        # would be reported.
        git("checkout", "other")
        await recorder.wait_until_changed("edited", "deep", "gone")
        git("checkout", "main")
        await recorder.wait_until_changed("edited", "deep", "gone")


async def test_directories_that_go_and_come_back(parts: Parts) -> None:
    """A directory or a whole root that is deleted and made again is watched as before."""
    write_kernel_files(parts, "deep", below="sub/")
    write_kernel_files(parts, "it")
    moved_away = parts.project.with_name("aside")
    async with watch_roots(parts) as recorder:
        shutil.copytree(parts.project / "sub", moved_away)
        shutil.rmtree(parts.project / "sub")
        await recorder.wait_until_changed("deep")
        shutil.copytree(moved_away, parts.project / "sub")
        await recorder.wait_until_changed("deep")
        write_kernel_files(parts, "deep", rtol="0.5", below="sub/")
        await recorder.wait_until_changed("deep")
        parts.project.rename(moved_away / "all")
        await recorder.wait_until_changed("deep", "it")
        (moved_away / "all").rename(parts.project)
        await recorder.wait_until_changed("deep", "it")
        assert [saved for _, saved in recorder.recorded] == []
        write_kernel_files(parts, "deep", rtol="0.25", below="sub/")
        await recorder.wait_until_changed("deep")


async def test_a_file_that_came_back_during_a_rebuild_is_found(parts: Parts) -> None:
    """Its removal was reported; it came back while no watch existed, so both scans contain it."""
    write_kernel_files(parts, "it")
    async with watch_roots(parts, intervals=Intervals()) as recorder:
        with anyio.fail_after(PATIENCE_S):
            await recorder.watcher.caught_up.wait()
        await parts.inspector.inspect_files(parts.root, [], [str(parts.project / "tune_it.py")])
        recorder.watcher.roots_changed()
        await recorder.wait_until_changed("it")


async def test_root_that_appears_later(parts: Parts, tmp_path: Path) -> None:
    """A root may be named before it exists; its first files do not count as saves."""
    later = tmp_path / "later"
    parts.catalog.add_root(Root(str(later), "later", parts.root.python))
    async with watch_roots(parts) as recorder:
        staged = tmp_path / "staged"
        staged.mkdir()
        (staged / "tune_it.py").write_text(make_kernel_text())
        staged.rename(later)
        with anyio.fail_after(PATIENCE_S):
            while not recorder.recorded:  # noqa: ASYNC110 - the watcher reports in its own time
                await anyio.sleep(0.01)
        assert recorder.recorded[0][1] is False
        await recorder.wait_until_changed("it")
        (later / "tune_it.py").write_text(make_kernel_text(rtol="0.5"))
        await recorder.wait_until_changed("it")


async def test_a_polled_root_is_watched_without_inotify(parts: Parts) -> None:
    write_kernel_files(parts, "it", "other")
    (parts.project / "x.h").write_text("int x;\n")
    (parts.project / "x.c").write_text('#include "x.h"\n')
    parts.write_file(make_kernel_text("with_header", sources="['x.c', 'x.h']"), "tune_header.py")
    parts.catalog.add_root(replace(parts.root, polling=True))
    async with watch_roots(parts) as recorder:
        write_kernel_files(parts, "it", rtol="0.5")
        await recorder.wait_until_changed("it")
        (parts.project / "x.h").write_text("long x;\n")
        (parts.project / "tune_other.py").unlink()
        write_kernel_files(parts, "new", below="sub/")
        await recorder.wait_until_changed("with_header", "other", "new")


@contextmanager
def starve_watchfiles() -> Iterator[None]:
    """Leave watchfiles' thread only the idle time of one core, so that the kernel's queue fills."""
    readers = [int(task.name) for task in Path("/proc/self/task").iterdir() if "inoti" in (task / "comm").read_text()]
    assert readers
    cores = os.sched_getaffinity(0)
    for task in (0, *readers):
        os.sched_setaffinity(task, {min(cores)})
    for task in readers:
        os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield
    finally:
        for task in readers:
            os.sched_setscheduler(task, os.SCHED_OTHER, os.sched_param(0))
        for task in (0, *readers):
            os.sched_setaffinity(task, cores)


async def test_overflow_of_the_queue_loses_nothing(parts: Parts) -> None:
    """A save while the kernel's event queue is full is still noticed."""
    write_kernel_files(parts, "it", "other")
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 100_000:
        pytest.skip(f"a queue of {limit} events takes too long to fill")
    async with watch_roots(parts) as recorder:
        await recorder.watcher.caught_up.wait()
        with starve_watchfiles():
            for number in range(limit):
                # Each iteration makes at least two events; the kernel only merges equal events in a row.
                name = parts.project / f"n{number % 7}"
                name.touch()
                name.unlink()
            write_kernel_files(parts, "it", rtol="0.5")
        await recorder.wait_until_changed("it")
        write_kernel_files(parts, "other", rtol="0.25")
        await recorder.wait_until_changed("other")


async def test_lost_event_is_made_up_for(parts: Parts, tmp_path: Path) -> None:
    """The next survey finds a change without an event, and the notice says that events were lost."""
    write_kernel_files(parts, "it")
    (tmp_path / "twin").hardlink_to(parts.project / "tune_it.py")
    async with watch_roots(parts) as recorder:
        await recorder.watcher.caught_up.wait()
        # It is the same file, but inotify names the directory through which it was opened.
        (tmp_path / "twin").write_text(make_kernel_text(rtol="0.5"))
        await recorder.wait_until_changed("it")
        assert "lost file events 1 time" in recorder.watcher.notice
        assert recorder.inspected == 1


async def test_recently_looked_up_kernels_are_surveyed_more_often(parts: Parts, tmp_path: Path) -> None:
    """The lost event of a recently looked-up kernel is found after the shorter interval."""
    write_kernel_files(parts, "asked", "other")
    for name in ("asked", "other"):
        (tmp_path / name).hardlink_to(parts.project / f"tune_{name}.py")
    intervals = Intervals(all_s=PATIENCE_S, recent_s=0.2)
    async with watch_roots(parts, intervals=intervals, looked_up=["project:asked", "project:gone"]) as recorder:
        await recorder.watcher.caught_up.wait()
        for name in ("other", "asked"):
            (tmp_path / name).write_text(make_kernel_text(name, rtol="0.5"))
        await recorder.wait_until_changed("asked")


async def test_the_project_file_of_a_recently_looked_up_kernel_is_surveyed_with_it(
    parts: Parts, tmp_path: Path
) -> None:
    """The project file holds the project's name, interpreter and variables."""
    write_kernel_files(parts, "it")
    (tmp_path / "twin").hardlink_to(parts.write_file("", "ktuned.toml"))
    parts.catalog.add_root(remake_root(parts.root))
    async with watch_roots(
        parts, intervals=Intervals(all_s=PATIENCE_S, recent_s=0.2), looked_up=["project:it"]
    ) as recorder:
        await recorder.watcher.caught_up.wait()
        (tmp_path / "twin").write_text("name = 'gemms'\n")
        await recorder.wait_until_changed("it", "it")
    assert [kernel.name for kernel in parts.catalog.kernels] == ["gemms:it"]


async def test_name_that_is_not_utf8_leads_to_polling(parts: Parts) -> None:
    """The root is polled, as the notice says, and watched by events again once the name is gone."""
    write_kernel_files(parts, "it")
    bad_name = os.fsencode(parts.project) + b"/bad\xff"
    async with watch_roots(parts, intervals=Intervals(all_s=1.0, recent_s=0.5, retry_s=1.0)) as recorder:
        await recorder.watcher.caught_up.wait()
        Path(os.fsdecode(bad_name)).touch()
        await recorder.wait_until_notice(f"watching {parts.project} by polling")
        assert "UTF-8" in recorder.watcher.notice
        write_kernel_files(parts, "it", rtol="0.5")
        await recorder.wait_until_changed("it")
        os.unlink(bad_name)
        await recorder.wait_until_notice("")
        write_kernel_files(parts, "it", rtol="0.25")
        await recorder.wait_until_changed("it")


async def test_rebuild_loses_nothing(parts: Parts) -> None:
    """Changes between the search for directories and the start of their watches are each noticed once."""
    edits = ["1", "2", "3"]

    def edit_and_open(directories: Sequence[str], stop: threading.Event) -> Notifications:
        if edits:
            rtol = f"{edits.pop()}e-1"
            write_kernel_files(parts, "it", rtol=rtol)
            write_kernel_files(parts, f"new{len(edits)}")
            write_kernel_files(parts, f"deep{len(edits)}", below=f"below{len(edits)}/er/")
        return Notifications(directories, stop)

    write_kernel_files(parts, "it")
    async with watch_roots(parts, open_watches=edit_and_open, intervals=Intervals(all_s=PATIENCE_S)) as recorder:
        names = {kernel.kernel for kernel in parts.catalog.kernels}
        with anyio.fail_after(PATIENCE_S):
            while len(names) < 7:
                await anyio.sleep(0.01)
                names = {kernel.kernel for kernel in parts.catalog.kernels}
        assert names == {"it", *(f"{kind}{number}" for kind in ("new", "deep") for number in range(3))}
        assert edits == []
        recorder.recorded.clear()
        write_kernel_files(parts, "deep0", rtol="0.5", below="below0/er/")
        await recorder.wait_until_changed("deep0")


async def test_unchanged_bytes_are_not_inspected(parts: Parts) -> None:
    """A file that is touched or saved unchanged costs no inspection; a file that crashes its worker costs one."""
    write_kernel_files(parts, "it", "marker")
    async with watch_roots(parts) as recorder:
        await recorder.watcher.caught_up.wait()
        before = recorder.inspected
        (parts.project / "tune_it.py").touch()
        write_kernel_files(parts, "it")
        write_kernel_files(parts, "marker", rtol="0.5")
        await recorder.wait_until_changed("marker")
        assert recorder.inspected - before == 1
        parts.write_file("import os\nos._exit(1)\n", "tune_it.py")
        for number in range(2, 6):
            write_kernel_files(parts, "marker", rtol=f"{number}e-3")
            await recorder.wait_until_changed("marker")
        assert recorder.errors == 1


async def test_exhausted_watches_lead_to_polling(parts: Parts) -> None:
    """The notice says so and names the remedy."""

    def refuse_watches(directories: Sequence[str], stop: threading.Event) -> Notifications:
        if directories:
            raise WatchError(f'OS file watch limit reached. about ["{directories[0]}"]')
        return Notifications(directories, stop)

    write_kernel_files(parts, "it")
    async with watch_roots(parts, open_watches=refuse_watches) as recorder:
        with anyio.fail_after(PATIENCE_S):
            await recorder.watcher.caught_up.wait()
        assert f"watching {parts.project} by polling" in recorder.watcher.notice
        assert "max_user_watches" in recorder.watcher.notice
        write_kernel_files(parts, "it", rtol="0.5")
        await recorder.wait_until_changed("it")
