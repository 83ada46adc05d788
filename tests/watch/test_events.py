"""Every way in which files come, go and change ends with exactly what changed; nothing is lost in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from ktuned.catalog.catalog import Changes
from ktuned.catalog.inspection import find_kernel_files, walk
from ktuned.model.kernel import Root
from ktuned.watch import inotify
from ktuned.watch.inotify import Inotify, Mask, decode
from ktuned.watch.polling import Snapshot
from ktuned.watch.trees import Trees
from ktuned.watch.watcher import Watcher
from tests.parts import PATIENCE_S, Parts, kernel_text

pytestmark = pytest.mark.anyio


class Watched:
    """A watcher at work: what became of each kernel, how often, by which save."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.told: list[tuple[Changes, bool]] = []
        self._news = anyio.Event()

    async def take(self, changes: Changes, saved: bool) -> None:
        """Take note of a change that is one."""
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

    def _names(self) -> list[str]:
        every = (name for changes, _ in self.told for name in (*changes.added, *changes.changed, *changes.removed))
        return [name.partition(":")[2] for name in every]


@asynccontextmanager
async def watching(parts: Parts) -> AsyncIterator[Watched]:
    """Inspect the roots, and watch them for the length of a block."""
    for root in parts.catalog.roots:
        if os.path.isdir(root.path):
            await parts.survey.root(root)
    told: list[Watched] = []

    async def take(changes: Changes, saved: bool) -> None:
        await told[0].take(changes, saved)

    watched = Watched(Watcher(parts.catalog, parts.survey, take))
    told.append(watched)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched.watcher.run)
        yield watched
        tasks.cancel_scope.cancel()
    parts.kill_workers()


def write(parts: Parts, *names: str, rtol: str = "1e-3", below: str = "") -> None:
    """Write one kernel file for each name."""
    for name in names:
        parts.write(kernel_text(name, rtol=rtol), f"{below}tune_{name}.py")


async def test_links_are_followed(parts: Parts, tmp_path: Path) -> None:
    """A linked kernel file, a linked directory and a linked source are watched where they lie, and so are the links."""
    away = tmp_path / "away"
    (away / "more").mkdir(parents=True)
    for name in ("one", "two"):
        (away / f"tune_{name}.py").write_text(kernel_text(name))
    (away / "more" / "tune_deep.py").write_text(kernel_text("deep"))
    (away / "v1.c").write_text("int v;\n")
    (away / "v2.c").write_text("long v;\n")
    (parts.project / "tune_one.py").symlink_to(away / "tune_one.py")
    (parts.project / "linked").symlink_to(away / "more")
    (parts.project / "it.c").symlink_to(away / "v1.c")
    parts.write(kernel_text(sources="['it.c']"))
    async with watching(parts) as watched:
        assert {kernel.kernel for kernel in parts.catalog.kernels} == {"one", "deep", "it"}
        (away / "tune_one.py").write_text(kernel_text("one", rtol="0.5"))
        await watched.until("one")
        (away / "more" / "tune_deep.py").write_text(kernel_text("deep", rtol="0.5"))
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
    assert len(list(walk(str(parts.project)))) == 2


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
        # In one turn of this loop, lest git pause for longer than a save takes between a file's removal and its return:
        # both would be told.
        git("checkout", "other")
        await watched.until("edited", "deep", "gone")
        git("checkout", "main")
        await watched.until("edited", "deep", "gone")


async def test_directories_that_go_and_come_back(parts: Parts) -> None:
    """A directory, and a whole root, that is deleted and made anew is watched as before, at once or later."""
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


async def test_root_that_appears_later(parts: Parts, tmp_path: Path) -> None:
    """A root may be named before it is there; what lies in it then was not saved just now."""
    later = tmp_path / "later"
    parts.catalog.add_root(Root(str(later), "later", parts.root.python))
    async with watching(parts) as watched:
        staged = tmp_path / "staged"
        staged.mkdir()
        (staged / "tune_it.py").write_text(kernel_text())
        staged.rename(later)
        with anyio.fail_after(PATIENCE_S):
            while not watched.told:  # noqa: ASYNC110 - the watcher tells in its own time
                await anyio.sleep(0.01)
        assert watched.told[0][1] is False
        await watched.until("it")
        (later / "tune_it.py").write_text(kernel_text(rtol="0.5"))
        await watched.until("it")


async def test_polled_root(parts: Parts) -> None:
    """A root that says so is watched without inotify."""
    write(parts, "it", "other")
    (parts.project / "x.h").write_text("int x;\n")
    (parts.project / "x.c").write_text('#include "x.h"\n')
    parts.write(kernel_text("with_header", sources="['x.c']"), "tune_header.py")
    parts.catalog.add_root(replace(parts.root, polling=True))
    async with watching(parts) as watched:
        write(parts, "it", rtol="0.5")
        await watched.until("it")
        (parts.project / "x.h").write_text("long x;\n")
        (parts.project / "tune_other.py").unlink()
        write(parts, "new", below="sub/")
        await watched.until("with_header", "other", "new")


async def test_lost_events_are_made_up_for_and_told(parts: Parts) -> None:
    """When the kernel's queue overflows, everything is looked at again, and the notice says so."""
    write(parts, "it", "other")
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 100_000:
        pytest.skip(f"a queue of {limit} events takes too long to fill")
    async with watching(parts) as watched:
        write(parts, "other", rtol="0.25")
        await watched.until("other")
        for number in range(limit // 2 + 1):
            # One loop's turn: nobody reads meanwhile.
            name = parts.project / f"n{number % 7}"
            name.touch()
            name.unlink()
        write(parts, "it", rtol="0.5")
        await watched.until("it")
        assert "lost file events 1 time" in watched.watcher.notice


async def test_exhausted_watches_lead_to_polling(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without watches to be had everything is polled, which the notice says together with what mends it."""

    def refuse(self: Inotify, directory: str) -> int:
        raise OSError(28, "No space left on device", directory)

    monkeypatch.setattr(inotify.Inotify, "watch", refuse)
    write(parts, "it")
    async with watching(parts) as watched:
        with anyio.fail_after(PATIENCE_S):
            while not watched.watcher.notice:  # noqa: ASYNC110 - the watcher tells in its own time
                await anyio.sleep(0.01)
        assert "polling" in watched.watcher.notice
        assert "max_user_watches" in watched.watcher.notice
        await anyio.lowlevel.checkpoint()
        write(parts, "it", rtol="0.5")
        await watched.until("it")


def test_half_written_files_are_no_change(tmp_path: Path) -> None:
    """A file counts when it is closed, not while it is written; one rename is two names."""
    with Inotify() as watches:
        trees = Trees(watches)
        trees.cover([str(tmp_path)], [])
        path = tmp_path / "tune_it.py"
        with path.open("w") as stream:
            stream.write("half")
            stream.flush()
            assert trees.read() == (set(), False)
        assert trees.read() == ({str(path)}, False)
        path.rename(tmp_path / "b")
        assert trees.read() == ({str(path), str(tmp_path / "b")}, False)
        (tmp_path / ".git").mkdir()
        (tmp_path / ".git" / "x").touch()
        assert trees.read()[0] == {str(tmp_path / ".git")}


def test_nested_directories_and_single_ones(tmp_path: Path) -> None:
    """A tree grows and shrinks with its directories; what is needed elsewhere is watched alone, even before it is."""
    root, elsewhere = tmp_path / "root", tmp_path / "else" / "where"
    root.mkdir()
    with Inotify() as watches:
        trees = Trees(watches)
        assert trees.cover([str(root)], [str(elsewhere)]) == ([str(root)], [str(elsewhere)])
        assert trees.cover([str(root)], [str(elsewhere)]) == ([], [])
        elsewhere.mkdir(parents=True)
        assert str(tmp_path / "else") in trees.read()[0]
        assert trees.cover([str(root)], [str(elsewhere)]) == ([], [str(elsewhere)])
        (elsewhere / "x.h").touch()
        assert trees.read()[0] == {str(elsewhere / "x.h")}
        (root / "a" / "b").mkdir(parents=True)
        trees.read()
        (root / "a" / "b" / "c").touch()
        assert trees.read()[0] == {str(root / "a" / "b" / "c")}
        (root / "a").rename(tmp_path / "moved")
        trees.read()
        (tmp_path / "moved" / "b" / "c").write_text("x")
        assert trees.read()[0] == set()
        trees.cover([], [])
        (root / "n").touch()
        assert trees.read()[0] == set()
        assert trees.missing([str(root)])


def test_decoding() -> None:
    """Events are read as the kernel packs them: several at once, names padded with zeros or absent."""
    data = (
        inotify._HEADER.pack(1, Mask.CLOSE_WRITE, 0, 8)
        + b"ab\0\0\0\0\0\0"
        + inotify._HEADER.pack(-1, Mask.OVERFLOW, 0, 0)
    )
    first, second = decode(data)
    assert (first.watch, first.mask, first.name) == (1, Mask.CLOSE_WRITE, "ab")
    assert (second.mask, second.name) == (Mask.OVERFLOW, "")
    assert list(decode(b"")) == []


def test_snapshot_tells_what_came_went_and_changed(tmp_path: Path) -> None:
    """Two looks differ in just the files that were touched."""
    files = [tmp_path / f"tune_{name}.py" for name in "abc"]
    for file in files[:2]:
        file.write_text("x")
    before = Snapshot.take([str(tmp_path)], [])
    files[0].write_text("longer")
    files[1].unlink()
    files[2].write_text("new")
    after = Snapshot.take([str(tmp_path)], [])
    assert after.differences(before) == {str(file) for file in files}
    assert after.differences(after) == set()
