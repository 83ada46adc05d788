"""Sets of directories: those that are watched for each root, by events or by polling, and when a set is outdated."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import chain
from time import time_ns

import msgspec
from msgspec.structs import replace

from ktuned.catalog import Listing, is_below, is_kernel_file, may_hold_kernel_files, walk_directories
from ktuned.ipc import Sight, read_sight
from ktuned.model import FrozenStruct

NEVER_WATCHED = frozenset(
    {".git", ".hg", ".svn", ".venv", ".tox", ".nox", "__pycache__", "node_modules", "site-packages", "dist-packages"}
)
"""Directories of other programs, large and busy. Kernels' dependencies there are surveyed, like all known files."""

ELSEWHERE = ""
"""Stands for the root of directories that lie below no root."""

NOT_UTF8 = "a name is not UTF-8"


class Plan(FrozenStruct):
    """The directories to watch: trees of ``roots``, and single ``directories`` with files that kernels depend on.

    ``polled`` has the roots that raise no events, with the reason (empty if their settings say so).
    """

    roots: tuple[str, ...] = ()
    directories: frozenset[str] = frozenset()
    polled: Mapping[str, str] = {}

    def find_owner(self, path: str) -> str:
        """Return the innermost root that a path lies below, or :data:`ELSEWHERE`."""
        return max((root for root in self.roots if is_below(path, root)), key=len, default=ELSEWHERE)


class Contents(FrozenStruct):
    """A directory's relevant entries at the time of ``sight`` (``None`` if not settled: it must be read again)."""

    sight: Sight | None
    kernel_files: frozenset[str]
    directories: frozenset[str]


class Group(FrozenStruct):
    """The directories of one root, or of none; all are watched in the same way, by events or by surveys.

    ``trees`` are the directories of the root's tree. ``singles`` are other directories, with their identity (device and
    inode). ``reason`` says why they are polled although the root's settings do not ask for it.
    """

    root: str
    is_polled: bool
    reason: str = ""
    trees: dict[str, Contents] = {}
    singles: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.trees) + len(self.singles)


class Differences(FrozenStruct):
    """Kernel files that came or went, and whether the set of directories is out of date."""

    kernel_files: frozenset[str] = frozenset()
    is_outdated: bool = False


class DirectorySet(FrozenStruct):
    """The directories of a plan, as they were found; ``missing`` directories are watched once they exist."""

    plan: Plan = msgspec.field(default_factory=Plan)
    groups: tuple[Group, ...] = ()
    missing: frozenset[str] = frozenset()
    watched: frozenset[str] = frozenset()

    @classmethod
    def scan_directories(cls, plan: Plan) -> DirectorySet:
        """Find the directories of a plan. Blocks as long as the disk does."""
        groups = {
            root: Group(root, root in plan.polled, plan.polled.get(root, "")) for root in (*plan.roots, ELSEWHERE)
        }
        missing = set()
        for root in plan.roots:
            if not os.path.isdir(root):
                missing.add(root)
            for listing in walk_directories(root):
                owner = plan.find_owner(listing.directory)
                groups[owner].trees[listing.directory] = _directory_contents(listing)
                if not groups[owner].is_polled and not _is_utf8(listing):
                    groups[owner] = replace(groups[owner], is_polled=True, reason=NOT_UTF8)
        for directory in sorted({*plan.directories, *missing}):
            owner = plan.find_owner(directory)
            if directory in groups[owner].trees or (directory not in missing and _is_never_watched(directory, owner)):
                continue
            nearest = _find_nearest_existing(directory)
            if nearest != directory:
                missing.add(directory)
            holder = groups[plan.find_owner(nearest)]
            found = read_sight(nearest)
            # A directory that may not be read cannot be watched; its files are surveyed, like all known files.
            if found is not None and nearest not in holder.trees and os.access(nearest, os.R_OK):
                holder.singles[nearest] = (found.device, found.inode)
        # The largest root comes last, so that it goes without if watches run out.
        ordered = tuple(sorted(filter(len, groups.values()), key=len))
        watched = frozenset(path for group in ordered for path in (*group.trees, *group.singles))
        return cls(plan, ordered, frozenset(missing), watched)

    def list_native_directories(self) -> list[str]:
        """Return the directories that are watched by events, in the order in which they get watches.

        Of two paths to one directory, inotify's events name the one that was added last: a root's.
        """
        native = [group for group in self.groups if not group.is_polled]
        singles, trees = ([*group.singles] for group in native), ([*group.trees] for group in native)
        return list(filter(_is_text, chain.from_iterable(chain(singles, trees))))

    def raises_events(self, path: str) -> bool:
        """Return whether a change of a file is announced by an event."""
        return os.path.dirname(path) in self.watched and not self.is_polled(path)

    def is_polled(self, path: str) -> bool:
        """Return whether only polling shows changes of a path."""
        owner = self.plan.find_owner(path)
        return any(group.is_polled for group in self.groups if group.root == owner)

    def find_failed_root(self, reason: str) -> str:
        """Return the root (or :data:`ELSEWHERE`) whose watch failed.

        It is the root of a path in the message, or else the largest root that is not polled.
        """
        native = [group for group in self.groups if not group.is_polled]
        named = [
            (len(path), group.root)
            for group in native
            for path in (*group.trees, *group.singles)
            if f'"{path}"' in reason or f'"{path}/' in reason
        ]
        return max(named)[1] if named else native[-1].root

    def lacks_directories(self, plan: Plan) -> bool:
        """Return whether a newer plan contains directories that this set does not watch."""
        if (plan.roots, plan.polled) != (self.plan.roots, self.plan.polled):
            return True
        added = plan.directories - self.plan.directories - self.watched
        return any(not _is_never_watched(directory, plan.find_owner(directory)) for directory in added)

    def is_outdated_by(self, moved: Iterable[str]) -> bool:
        """Return whether the set is outdated now that these paths came or went. Blocks as long as the disk does."""
        for path in moved:
            directory, name = os.path.split(path)
            if path in self.watched or any(is_below(one, path) for one in self.missing):
                return True
            if any(directory in group.trees for group in self.groups) and (
                name == "pyvenv.cfg" or (may_hold_kernel_files(name) and os.path.isdir(path))
            ):
                return True
        return False

    def find_differences(self, *, polled_only: bool = False) -> Differences:
        """Compare the directories with their last known contents, and remember the present contents.

        Blocks as long as the disk does.
        """
        kernel_files: set[str] = set()
        is_outdated = any(map(os.path.isdir, self.missing))
        for group in self.groups:
            if polled_only and not group.is_polled:
                continue
            is_outdated |= any(_directory_identity(path) != identity for path, identity in group.singles.items())
            for directory, before in group.trees.items():
                sight = read_sight(directory)
                if sight is not None and sight == before.sight:
                    continue
                listing = next(walk_directories(directory), None)
                if listing is None:
                    is_outdated = True
                    continue
                now = group.trees[directory] = _directory_contents(listing)
                is_outdated |= now.directories != before.directories
                came_or_went = now.kernel_files ^ before.kernel_files
                kernel_files.update(os.path.join(directory, name) for name in came_or_went)
        return Differences(frozenset(kernel_files), is_outdated)

    def list_changed_kernel_files(self, before: DirectorySet) -> set[str]:
        """Return the kernel files that came or went between two scans, in roots that both contain."""
        known = _kernel_files(before)
        now = _kernel_files(self)
        return {path for root in known.keys() & now.keys() for path in known[root] ^ now[root]}

    def list_common_kernel_files(self, before: DirectorySet) -> set[str]:
        """Return the kernel files that both of two scans contain."""
        known = _kernel_files(before)
        now = _kernel_files(self)
        return {path for root in known.keys() & now.keys() for path in known[root] & now[root]}

    def list_found_roots(self) -> set[str]:
        """Return the roots that exist."""
        return set(self.plan.roots) - self.missing


def _kernel_files(directories: DirectorySet) -> dict[str, set[str]]:
    return {
        group.root: {
            os.path.join(directory, name) for directory, held in group.trees.items() for name in held.kernel_files
        }
        for group in directories.groups
    }


def _directory_contents(listing: Listing) -> Contents:
    now_ns = time_ns()
    sight = read_sight(listing.directory)
    # If an entry came between the listing and the sight, the sight is not settled.
    settled = sight if sight is not None and sight.is_settled(now_ns) else None
    return Contents(settled, frozenset(filter(is_kernel_file, listing.files)), frozenset(listing.directories))


def _directory_identity(path: str) -> tuple[int, int] | None:
    found = read_sight(path)
    return None if found is None else (found.device, found.inode)


def _find_nearest_existing(directory: str) -> str:
    while not os.path.isdir(directory) and directory != "/":
        directory = os.path.dirname(directory)
    return directory


def _is_never_watched(directory: str, owner: str) -> bool:
    # The root's own path does not matter, only the part below it.
    return not NEVER_WATCHED.isdisjoint(directory[len(owner) :].split("/"))


def _is_utf8(listing: Listing) -> bool:
    return all(map(_is_text, (listing.directory, *listing.files, *listing.directories)))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
