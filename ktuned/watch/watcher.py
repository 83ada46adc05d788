"""The watcher: finds out which files changed, and has the kernel files inspected that depend on them.

Events say where to look, surveys find changes without events, and digests decide. So nothing depends on each event
arriving exactly once:

- The set of watched directories is fixed while it is watched. It is *outdated* when directories come or go, or when an
  inspection finds a dependency in a directory that is not in it; then a new set is scanned and opened.
- Changes between a scan and the setting of its watches raise no event. So each new set begins with a comparison of all
  stamps (``_catch_up``). After the first comparison, ``caught_up`` is set; until then, lookups doubt all answers.
- Then events are processed, one batch at a time. Every 30 s all known files are compared with what was inspected, and
  every 2 s the files of polled roots and of kernels that were looked up lately.
- A survey may see a save before its event arrives. Such a file is a *suspect* and is looked at again after 0.5 s. If no
  event has arrived by then, events are being lost: the file is inspected, and ``notice`` says so.
- A root whose watches fail is polled. Watches are tried again after a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

import anyio
import anyio.to_thread
import structlog

from ktuned.catalog import Catalog, FileInspector, escape_path
from ktuned.model import AmbiguousName, FrozenStruct, NotFound
from ktuned.watch.directories import ELSEWHERE, NOT_UTF8, Differences, DirectorySet, Plan
from ktuned.watch.notifications import STEP_ACTIVE_MS, STEP_AT_REST_MS, Batch, DirectoryGone, Notifications, WatchError
from ktuned.watch.reinspection import OnChanges, Reinspection

_log = structlog.get_logger()

ACTIVE_S = 60.0
"""For this long after a relevant save, the next one is looked for in short steps."""

REBUILD_PAUSE_S = 0.1
"""A checkout makes many directories; the set is rebuilt this long after the last time at the earliest, or
:data:`REBUILD_SHARE` of what that took."""

REBUILD_SHARE = 5.0

LOST_S = 600.0
"""How long ``notice`` tells of lost events after the last one."""

GRACE_S = 0.5
"""A survey may find a save before its event arrives; after this long, the event is taken for lost."""

_REMEDIES = {
    "watch limit": "raise fs.inotify.max_user_watches",
    "Too many open files": "raise fs.inotify.max_user_instances",
    "decode": "rename the file in UTF-8",
    NOT_UTF8: "rename the file in UTF-8",
}

OpenWatches = Callable[[Sequence[str], threading.Event], Notifications]
"""Opens the watches on directories; the event ends their ``wait``."""


class Intervals(FrozenStruct):
    """Intervals at which files are looked at although no event names them.

    ``all_s`` is for all known files, ``recent_s`` for files of kernels that were looked up lately and of polled roots,
    and ``retry_s`` for setting watches again that failed.
    """

    all_s: float = 30.0
    recent_s: float = 2.0
    retry_s: float = 60.0


class Watcher:
    """Watches the files and directories of the catalog; ``notice`` says what is wrong with the watches.

    ``list_used_kernels`` returns the names of the kernels that were looked up lately. ``caught_up`` is set once all
    changes from before the watches were set are known.
    """

    def __init__(
        self,
        catalog: Catalog,
        inspector: FileInspector,
        on_changes: OnChanges,
        list_used_kernels: Callable[[], Iterable[str]],
        intervals: Intervals | None = None,
        open_watches: OpenWatches = Notifications,
    ) -> None:
        self.caught_up = anyio.Event()
        self._catalog = catalog
        self._inspections = Reinspection(catalog, inspector, on_changes)
        self._list_used_kernels = list_used_kernels
        self._intervals = intervals or Intervals()
        self._open_watches = open_watches
        self._directories = DirectorySet()
        self._stop = threading.Event()
        self._waiting = anyio.CapacityLimiter(1)
        self._active_until = 0.0
        self._failed: dict[str, str] = {}
        self._retry_at = 0.0
        self._lost = 0
        self._lost_until = 0.0
        self._lacks_directories = False
        catalog.when_roots_change(self.roots_changed)
        catalog.when_kernels_change(self._kernels_changed)

    @property
    def notice(self) -> str:
        """Faults of the watches, in one line."""
        polled = [
            f"watching {group.root or 'files outside of all roots'} by polling: {_explain_with_remedy(group.reason)}"
            for group in self._directories.groups
            if group.is_polled and group.reason
        ]
        lost = (
            f"lost file events {self._lost} time{'s' * (self._lost > 1)} and looked at everything again; "
            "raise fs.inotify.max_queued_events, "
            "or set `polling = true` for a network file system"
        )
        is_losing = self._lost and monotonic() < self._lost_until
        faults = (lost if is_losing else "", self._inspections.notice)
        return "; ".join([*polled, *filter(None, faults)])

    def roots_changed(self) -> None:
        """Watch the new set of roots."""
        self._stop.set()

    def _kernels_changed(self, names: Collection[str]) -> None:
        """Also watch the directories that an inspection has found, whichever part of the daemon has caused it."""
        if self._directories.lacks_directories(self._make_plan()):
            self._lacks_directories = True
            self._stop.set()

    async def watch_until_cancelled(self) -> None:
        """Watch until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_when_cancelled)
            while True:
                await self._watch_directories()

    async def _stop_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            # The thread that waits for events cannot be cancelled, so tell it to stop.
            self._stop.set()

    async def _watch_directories(self) -> None:
        """Watch one set of directories until it is outdated."""
        self._stop.clear()
        began = monotonic()
        if began >= self._retry_at:
            self._retry_at = 0.0
            self._failed.clear()
        before = self._directories
        self._directories = await anyio.to_thread.run_sync(DirectorySet.scan_directories, self._make_plan())
        try:
            notifications = await self._open_notifications()
        except DirectoryGone:
            self._directories = before
            await anyio.sleep(REBUILD_PAUSE_S)
            return
        with notifications:
            now = monotonic()
            rebuild_at = now + max(REBUILD_PAUSE_S, REBUILD_SHARE * (now - began))
            is_outdated = await self._catch_up(before)
            self.caught_up.set()
            try:
                await self._follow_changes(notifications, rebuild_at, is_outdated=is_outdated)
            except WatchError as error:
                self._handle_failure(error)

    async def _catch_up(self, before: DirectorySet) -> bool:
        """Inspect files that changed before the watches were set; return whether the set is outdated."""
        differences = await anyio.to_thread.run_sync(self._directories.find_differences)
        await self._inspections.inspect_new_roots(self._directories.list_found_roots() - before.list_found_roots())
        # A file that went, was inspected as gone, and came back before this scan, is in both scans.
        kept = {
            path
            for path in self._directories.list_common_kernel_files(before)
            if not self._catalog.has_inspected(escape_path(path))
        }
        candidates = differences.kernel_files | self._directories.list_changed_kernel_files(before) | kept
        news = filter(self._inspections.is_new_or_gone, candidates)
        differing = await self._inspections.find_differing_paths(self._catalog.list_inspected_stamps())
        await self._inspections.inspect_files(await self._inspections.find_affected_kernel_files({*news, *differing}))
        return differences.is_outdated

    async def _open_notifications(self) -> Notifications:
        """Open the watches; a root whose watches cannot be set is polled.

        Raises:
            DirectoryGone: the set is outdated already.
        """
        while True:
            directories = self._directories
            try:
                return await anyio.to_thread.run_sync(
                    self._open_watches, directories.list_native_directories(), self._stop
                )
            except WatchError as error:
                self._handle_failure(error)
                self._directories = await anyio.to_thread.run_sync(DirectorySet.scan_directories, self._make_plan())

    def _handle_failure(self, error: WatchError) -> None:
        """Poll the root whose watch has failed."""
        _log.warning("watch_failed", reason=error.reason)
        self._failed[self._directories.find_failed_root(error.reason)] = error.reason
        self._retry_at = monotonic() + self._intervals.retry_s

    def _make_plan(self) -> Plan:
        roots = self._catalog.roots
        polled = {**self._failed, **{root.path: "" for root in roots if root.polling}}
        return Plan(tuple(root.path for root in roots), frozenset(self._catalog.list_watched_directories()), polled)

    async def _follow_changes(self, notifications: Notifications, rebuild_at: float, *, is_outdated: bool) -> None:
        """Process events, and survey, until the set of directories must be rebuilt.

        Raises:
            WatchError: the watches are dead.
        """
        now = monotonic()
        all_at, recent_at = now + self._intervals.all_s, now + self._intervals.recent_s
        suspects: set[str] = set()
        while not (is_outdated and now >= rebuild_at):
            until = min(all_at, recent_at, rebuild_at if is_outdated else all_at)
            batch = await self._next_changes(notifications, until - now)
            if batch.is_stopped and not self._lacks_directories:
                return
            if self._lacks_directories:
                # The present watches stay in use until the pause between two sets is over.
                self._lacks_directories, is_outdated = False, True
                self._stop.clear()
            if batch.paths:
                is_outdated |= await anyio.to_thread.run_sync(self._directories.is_outdated_by, batch.moved)
                affected = await self._inspections.find_affected_kernel_files(batch.paths)
                if affected:
                    self._active_until = monotonic() + ACTIVE_S
                await self._inspections.inspect_files(affected)
                # Check this even if nothing has changed: a file may now be a link to another directory.
                is_outdated |= self._directories.lacks_directories(self._make_plan())
            now = monotonic()
            is_outdated |= 0.0 < self._retry_at <= now
            if now < min(all_at, recent_at):
                continue
            if now >= all_at:
                found = await self._survey_all(suspects)
                suspects = await self._confirm_survey(found, suspects)
                all_at = monotonic() + (GRACE_S if suspects else self._intervals.all_s)
            else:
                found = await self._survey_recent(suspects)
                suspects = await self._confirm_survey(found, suspects)
            is_outdated |= found.is_outdated
            now = monotonic()
            recent_at = now + (GRACE_S if suspects else self._intervals.recent_s)

    async def _next_changes(self, notifications: Notifications, timeout_s: float) -> Batch:
        step_ms = STEP_ACTIVE_MS if monotonic() < self._active_until else STEP_AT_REST_MS
        return await anyio.to_thread.run_sync(
            notifications.wait_for_changes, max(0.0, timeout_s), step_ms, limiter=self._waiting
        )

    async def _survey_all(self, suspects: set[str]) -> _SurveyResult:
        """Look at every known file and directory."""
        entries = self._catalog.list_inspected_stamps()
        await self._inspections.prune_stamps(entries)
        differences = await anyio.to_thread.run_sync(self._directories.find_differences)
        news = filter(self._inspections.is_new_or_gone, differences.kernel_files | suspects)
        return _SurveyResult({*news, *await self._inspections.find_differing_paths(entries)}, differences.is_outdated)

    async def _survey_recent(self, suspects: set[str]) -> _SurveyResult:
        """Look at polled roots, and at the files of kernels that were looked up lately."""
        # Of files outside all roots, it is not known whose kernels depend on them.
        is_all = self._directories.is_polled(ELSEWHERE)
        roots = [root for root in self._catalog.roots if is_all or self._directories.is_polled(root.path)]
        files = {file for root in roots for file in self._catalog.list_kernel_files_of(root)}
        for name in self._list_used_kernels():
            with suppress(NotFound, AmbiguousName):
                files.update(self._catalog.list_declaring_files(self._catalog.resolve_kernel(name)))
        differences = Differences()
        if roots:
            differences = await anyio.to_thread.run_sync(partial(self._directories.find_differences, polled_only=True))
        news = filter(self._inspections.is_new_or_gone, differences.kernel_files | suspects)
        differing = (
            await self._inspections.find_differing_paths(self._catalog.list_inspected_stamps(files)) if files else set()
        )
        return _SurveyResult({*news, *differing}, differences.is_outdated)

    async def _confirm_survey(self, found: _SurveyResult, suspects: set[str]) -> set[str]:
        """Inspect what a survey found; return the paths to look at again, because their events may still arrive."""
        announced = {path for path in found.paths if self._directories.raises_events(path)}
        lost = announced & suspects
        if lost:
            self._lost += 1
            self._lost_until = monotonic() + LOST_S
            _log.warning("events_lost", paths=len(lost))
        await self._inspections.inspect_files(
            await self._inspections.find_affected_kernel_files((found.paths - announced) | lost)
        )
        return announced - lost


class _SurveyResult(FrozenStruct):
    """Paths that a survey found to differ, and whether the set of directories is out of date."""

    paths: set[str]
    is_outdated: bool


def _explain_with_remedy(reason: str) -> str:
    """Return why a watch failed, with the remedy if one is known."""
    for words, remedy in _REMEDIES.items():
        if words in reason:
            return f"{reason.rstrip('.')}; {remedy}"
    return reason
