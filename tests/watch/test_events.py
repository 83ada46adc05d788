"""Every way in which files come, go and change ends with exactly what changed; nothing is lost in silence."""

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

OFTEN = Intervals(all_s=1.0, recent_s=0.5, retry_s=PATIENCE_S)
"""Surveys, as often as a test can wait for."""


class Watched:
    """A watcher at work: what became of each kernel, how often, by which save."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.told: list[tuple[Changes, bool]] = []
        self.inspected = 0
        self.errors = 0
        self._news = anyio.Event()

    async def take(self, changes: Changes, saved: bool) -> None:
        """Take note of an inspection, and of a change that is one."""
        self.inspected += saved
        self.errors += len(changes.errors)
        if changes:
            self.told.append((changes, saved))
            self._news.set()

    async def until(self, *names: str) -> None:
        """Wait until these kernels, and no others, changed, came or went, each once; then forget it."""
        with anyio.fail_after(PATIENCE_S):
            while len(self._names()) < len(names):
                self._news = anyio.Event()
                await self._news.wait()
        assert sorted(self._names()) == sorted(names)
        self.told.clear()

    async def until_notice(self, words: str) -> None:
        """Wait until the watcher's notice has some words, or is empty."""
        with anyio.fail_after(PATIENCE_S):
            while words not in self.watcher.notice or bool(words) != bool(self.watcher.notice):  # noqa: ASYNC110
                await anyio.sleep(0.01)

    def _names(self) -> list[str]:
        every = (name for changes, _ in self.told for name in (*changes.added, *changes.changed, *changes.removed))
        return [name.partition(":")[2] for name in every]


@asynccontextmanager
async def watching(
    parts: Parts,
    *,
    open_watches: OpenWatches = Notifications,
    intervals: Intervals = OFTEN,
    looked_up: Sequence[str] = (),
) -> AsyncIterator[Watched]:
    """Inspect the roots, and watch them for the length of a block."""
    for root in parts.catalog.roots:
        if os.path.isdir(root.path):
            await parts.inspector.inspect_root(root)
    told: list[Watched] = []

    async def take(changes: Changes, saved: bool) -> None:
        await told[0].take(changes, saved)

    watched = Watched(Watcher(parts.catalog, parts.inspector, take, lambda: looked_up, intervals, open_watches))
    told.append(watched)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched.watcher.watch_until_cancelled)
        yield watched
        tasks.cancel_scope.cancel()
    parts.kill_workers()


def write(parts: Parts, *names: str, rtol: str = "1e-3", below: str = "") -> None:
    """Write one kernel file for each name."""
    for name in names:
        parts.write_file(make_kernel_text(name, rtol=rtol), f"{below}tune_{name}.py")


async def test_links_are_followed(parts: Parts, tmp_path: Path) -> None:
    """A linked kernel file, a linked directory and a linked source are watched where they lie, and so are the links."""
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
    async with watching(parts) as watched:
        assert {kernel.kernel for kernel in parts.catalog.kernels} == {"one", "deep", "it"}
        (away / "tune_one.py").write_text(make_kernel_text("one", rtol="0.5"))
        await watched.until("one")
        (away / "more" / "tune_deep.py").write_text(make_kernel_text("deep", rtol="0.5"))
        await watched.until("deep")
        (away / "v1.c").write_text("int v2;\n")
        await watched.until("it")
        (parts.project / "new.c").symlink_to(away / "v2.c")
        (parts.project / "new.c").replace(parts.project / "it.c")
        await watched.until("it")
        (parts.project / "tune_two.py").symlink_to(away / "tune_two.py")
        await watched.until("two")
        os.link(away / "tune_two.py", parts.project / "tune_hard.py.tmp")
        (parts.project / "linked").unlink()
        await watched.until("deep")


async def test_link_inside_the_root_is_no_second_kernel(parts: Parts) -> None:
    """What is linked to from inside its own root is declared once, where it lies; circles end."""
    write(parts, "it", below="real/")
    (parts.project / "again").symlink_to("real")
    (parts.project / "tune_it.py").symlink_to("real/tune_it.py")
    (parts.project / "real" / "up").symlink_to(parts.project)
    assert find_kernel_files(str(parts.project)) == [str(parts.project / "real" / "tune_it.py")]
    assert len(list(walk_directories(str(parts.project)))) == 2


async def test_checkout_of_another_branch(parts: Parts) -> None:
    """A checkout that changes, adds and removes files ends with just those; going back, with the same."""

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *identity, *words], cwd=parts.project, check=True, capture_output=True)

    write(parts, "same", "edited", "gone")
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    git("checkout", "-b", "other")
    write(parts, "edited", rtol="0.5")
    write(parts, "deep", below="new/dir/")
    (parts.project / "tune_gone.py").unlink()
    git("add", "-A")
    git("commit", "-m", "two")
    git("checkout", "main")
    async with watching(parts) as watched:
        # In one turn of this loop: git may pause for longer than a save takes between a file's removal and its return:
        # both would be reported.
        git("checkout", "other")
        await watched.until("edited", "deep", "gone")
        git("checkout", "main")
        await watched.until("edited", "deep", "gone")


async def test_directories_that_go_and_come_back(parts: Parts) -> None:
    """A directory, and a whole root, that is deleted and made again is watched as before, at once or later."""
    write(parts, "deep", below="sub/")
    write(parts, "it")
    aside = parts.project.with_name("aside")
    async with watching(parts) as watched:
        shutil.copytree(parts.project / "sub", aside)
        shutil.rmtree(parts.project / "sub")
        await watched.until("deep")
        shutil.copytree(aside, parts.project / "sub")
        await watched.until("deep")
        write(parts, "deep", rtol="0.5", below="sub/")
        await watched.until("deep")
        parts.project.rename(aside / "all")
        await watched.until("deep", "it")
        (aside / "all").rename(parts.project)
        await watched.until("deep", "it")
        assert [saved for _, saved in watched.told] == []
        write(parts, "deep", rtol="0.25", below="sub/")
        await watched.until("deep")


async def test_a_file_that_came_back_during_a_rebuild_is_found(parts: Parts) -> None:
    """It went, and that was taken in; it came back while no watch stood, so that both scans have it."""
    write(parts, "it")
    async with watching(parts, intervals=Intervals()) as watched:
        with anyio.fail_after(PATIENCE_S):
            await watched.watcher.caught_up.wait()
        await parts.inspector.inspect_files(parts.root, [], [str(parts.project / "tune_it.py")])
        watched.watcher.roots_changed()
        await watched.until("it")


async def test_root_that_appears_later(parts: Parts, tmp_path: Path) -> None:
    """A root may be named before it is there; what lies in it then was not saved just now."""
    later = tmp_path / "later"
    parts.catalog.add_root(Root(str(later), "later", parts.root.python))
    async with watching(parts) as watched:
        staged = tmp_path / "staged"
        staged.mkdir()
        (staged / "tune_it.py").write_text(make_kernel_text())
        staged.rename(later)
        with anyio.fail_after(PATIENCE_S):
            while not watched.told:  # noqa: ASYNC110 - the watcher reports in its own time
                await anyio.sleep(0.01)
        assert watched.told[0][1] is False
        await watched.until("it")
        (later / "tune_it.py").write_text(make_kernel_text(rtol="0.5"))
        await watched.until("it")


async def test_a_polled_root_is_watched_without_inotify(parts: Parts) -> None:
    """A root that says so is watched without inotify."""
    write(parts, "it", "other")
    (parts.project / "x.h").write_text("int x;\n")
    (parts.project / "x.c").write_text('#include "x.h"\n')
    parts.write_file(make_kernel_text("with_header", sources="['x.c', 'x.h']"), "tune_header.py")
    parts.catalog.add_root(replace(parts.root, polling=True))
    async with watching(parts) as watched:
        write(parts, "it", rtol="0.5")
        await watched.until("it")
        (parts.project / "x.h").write_text("long x;\n")
        (parts.project / "tune_other.py").unlink()
        write(parts, "new", below="sub/")
        await watched.until("with_header", "other", "new")


@contextmanager
def starved_reader() -> Iterator[None]:
    """Leave watchfiles' thread the time on one core that this thread does not use, so that the kernel's queue fills."""
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
    """What is saved while the kernel's queue of events is full is still seen."""
    write(parts, "it", "other")
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 100_000:
        pytest.skip(f"a queue of {limit} events takes too long to fill")
    async with watching(parts) as watched:
        await watched.watcher.caught_up.wait()
        with starved_reader():
            for number in range(limit):
                # Each is two events at least; the kernel merges only equal ones in a row.
                name = parts.project / f"n{number % 7}"
                name.touch()
                name.unlink()
            write(parts, "it", rtol="0.5")
        await watched.until("it")
        write(parts, "other", rtol="0.25")
        await watched.until("other")


async def test_lost_event_is_made_up_for(parts: Parts, tmp_path: Path) -> None:
    """A change that no event names is found by the next survey, and the notice says that events were lost."""
    write(parts, "it")
    (tmp_path / "twin").hardlink_to(parts.project / "tune_it.py")
    async with watching(parts) as watched:
        await watched.watcher.caught_up.wait()
        # The same file, but inotify names the directory by which it was opened.
        (tmp_path / "twin").write_text(make_kernel_text(rtol="0.5"))
        await watched.until("it")
        assert "lost file events 1 time" in watched.watcher.notice
        assert watched.inspected == 1


async def test_recently_looked_up_kernels_are_surveyed_more_often(parts: Parts, tmp_path: Path) -> None:
    """A lost event of a kernel that was looked up lately waits for the shorter interval, of another for the longer."""
    write(parts, "asked", "other")
    for name in ("asked", "other"):
        (tmp_path / name).hardlink_to(parts.project / f"tune_{name}.py")
    intervals = Intervals(all_s=PATIENCE_S, recent_s=0.2)
    async with watching(parts, intervals=intervals, looked_up=["project:asked", "project:gone"]) as watched:
        await watched.watcher.caught_up.wait()
        for name in ("other", "asked"):
            (tmp_path / name).write_text(make_kernel_text(name, rtol="0.5"))
        await watched.until("asked")


async def test_the_project_file_of_a_recently_looked_up_kernel_is_surveyed_with_it(
    parts: Parts, tmp_path: Path
) -> None:
    """A lost event of the file that has a project's name, interpreter and variables waits for the shorter interval."""
    write(parts, "it")
    (tmp_path / "twin").hardlink_to(parts.write_file("", "ktuned.toml"))
    parts.catalog.add_root(remake_root(parts.root))
    async with watching(
        parts, intervals=Intervals(all_s=PATIENCE_S, recent_s=0.2), looked_up=["project:it"]
    ) as watched:
        await watched.watcher.caught_up.wait()
        (tmp_path / "twin").write_text("name = 'gemms'\n")
        await watched.until("it", "it")
    assert [kernel.name for kernel in parts.catalog.kernels] == ["gemms:it"]


async def test_name_that_is_not_utf8_leads_to_polling(parts: Parts) -> None:
    """It ends the watches; its root is polled, which the notice says, and by events again once it is gone."""
    write(parts, "it")
    bad = os.fsencode(parts.project) + b"/bad\xff"
    async with watching(parts, intervals=Intervals(all_s=1.0, recent_s=0.5, retry_s=1.0)) as watched:
        await watched.watcher.caught_up.wait()
        Path(os.fsdecode(bad)).touch()
        await watched.until_notice(f"watching {parts.project} by polling")
        assert "UTF-8" in watched.watcher.notice
        write(parts, "it", rtol="0.5")
        await watched.until("it")
        os.unlink(bad)
        await watched.until_notice("")
        write(parts, "it", rtol="0.25")
        await watched.until("it")


async def test_rebuild_loses_nothing(parts: Parts) -> None:
    """What changes between the search for directories and the start of their watches is seen, each once."""
    edits = ["1", "2", "3"]

    def edit_and_open(native: Sequence[str], polled: Sequence[str], stop: threading.Event) -> Notifications:
        if edits:
            rtol = f"{edits.pop()}e-1"
            write(parts, "it", rtol=rtol)
            write(parts, f"new{len(edits)}")
            write(parts, f"deep{len(edits)}", below=f"below{len(edits)}/er/")
        return Notifications(native, polled, stop)

    write(parts, "it")
    async with watching(parts, open_watches=edit_and_open, intervals=Intervals(all_s=PATIENCE_S)) as watched:
        names = {kernel.kernel for kernel in parts.catalog.kernels}
        with anyio.fail_after(PATIENCE_S):
            while len(names) < 7:
                await anyio.sleep(0.01)
                names = {kernel.kernel for kernel in parts.catalog.kernels}
        assert names == {"it", *(f"{kind}{number}" for kind in ("new", "deep") for number in range(3))}
        assert edits == []
        watched.told.clear()
        write(parts, "deep0", rtol="0.5", below="below0/er/")
        await watched.until("deep0")


async def test_unchanged_bytes_are_not_inspected(parts: Parts) -> None:
    """A file that is touched, or saved as it was, costs no inspection; one that crashes its worker costs one."""
    write(parts, "it", "marker")
    async with watching(parts) as watched:
        await watched.watcher.caught_up.wait()
        before = watched.inspected
        (parts.project / "tune_it.py").touch()
        write(parts, "it")
        write(parts, "marker", rtol="0.5")
        await watched.until("marker")
        assert watched.inspected - before == 1
        parts.write_file("import os\nos._exit(1)\n", "tune_it.py")
        for number in range(2, 6):
            write(parts, "marker", rtol=f"{number}e-3")
            await watched.until("marker")
        assert watched.errors == 1


async def test_exhausted_watches_lead_to_polling(parts: Parts) -> None:
    """A root whose watches cannot be had is polled, which the notice says together with what mends it."""

    def refuse(native: Sequence[str], polled: Sequence[str], stop: threading.Event) -> Notifications:
        if native:
            raise WatchError(f'OS file watch limit reached. about ["{native[0]}"]', is_polling=False)
        return Notifications(native, polled, stop)

    write(parts, "it")
    async with watching(parts, open_watches=refuse) as watched:
        with anyio.fail_after(PATIENCE_S):
            await watched.watcher.caught_up.wait()
        assert f"watching {parts.project} by polling" in watched.watcher.notice
        assert "max_user_watches" in watched.watcher.notice
        write(parts, "it", rtol="0.5")
        await watched.until("it")
