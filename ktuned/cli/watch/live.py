"""``ktuned watch`` on a terminal: draws the screen as events arrive, and acts on keys."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from rich.console import Console

from ktuned.backends import read_ticks
from ktuned.cli import text
from ktuned.cli.limits import Limits
from ktuned.cli.options import given
from ktuned.cli.watch.board import Board, BoardRow, catch_up, estimate, fold, keep, know
from ktuned.cli.watch.keys import Keyboard
from ktuned.cli.watch.load import Sample, load_between, sample
from ktuned.cli.watch.navigation import Act, draw, press
from ktuned.cli.watch.painter import Painter
from ktuned.cli.watch.state import Screen, Size
from ktuned.cli.watch.trial_log import MAX_TRIALS, TrialLog, followed, is_outdated, opened
from ktuned.model import MAX_PRIORITY, Outcome, Priority
from ktuned_client import AsyncClient, DaemonError
from ktuned_client.answers import TUNE_DEADLINE_S

DRAWING_S = 0.1
"""Least time between two pictures; more would not be readable."""

ESTIMATE_S = 2.0
"""Interval of requests for load and remaining time, while there are jobs."""

REST_S = 10.0
"""The same without jobs: a screen that is left open must not keep a resting daemon awake."""

MAX_CASES = 500
"""Cases that are looked up when the screen opens; more than fit on any screen."""


class LiveWatch:
    """One session of the live screen, for ``project`` (all projects without one), below ``path`` if given."""

    def __init__(
        self, client: AsyncClient, *, path: str | None, project: str | None, since: tuple[int, int] | None
    ) -> None:
        self._client = client
        self._path = path
        self._project = project
        self._since = since
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._screen = Screen(self._size(), f"ktuned watch {path or ''}".rstrip())
        self._news = asyncio.Event()
        self._quit = asyncio.Event()
        self._stirred = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        self._painter = Painter(self._console)
        self._keyboard = Keyboard(sys.stdin.fileno())
        self._sample: Sample | None = None
        self._is_outdated = False

    async def run(self) -> None:
        """Show the screen until the user quits.

        Raises:
            DaemonUnavailable: the daemon is gone.
        """
        async with await self._client.events(since=self._since) as events:
            await self._catch_up()
            with self._on_screen():
                parts = (self._follow(events), self._draw(), self._ask(), self._await_quit())
                tasks = [asyncio.create_task(part) for part in parts]
                try:
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in [*tasks, *self._requests]:
                        task.cancel()
                    await asyncio.gather(*tasks, *self._requests, return_exceptions=True)
            for task in done:
                task.result()

    @contextmanager
    def _on_screen(self) -> Iterator[None]:
        """Use the terminal, except while suspended; restore it at the end."""
        loop = asyncio.get_running_loop()
        handlers: Mapping[signal.Signals, Callable[[], None]] = {
            signal.SIGTSTP: self._suspend,
            signal.SIGWINCH: self._news.set,
            signal.SIGTERM: self._quit.set,
            signal.SIGHUP: self._quit.set,
        }
        with self._keyboard:
            for number, handler in handlers.items():
                loop.add_signal_handler(number, handler)
            loop.add_reader(self._keyboard.descriptor, self._press)
            self._painter.enter()
            try:
                yield
            finally:
                self._painter.leave()
                loop.remove_reader(self._keyboard.descriptor)
                for number in handlers:
                    loop.remove_signal_handler(number)

    def _suspend(self) -> None:
        """Restore the terminal, stop for Ctrl-Z, and take the terminal again when continued."""
        self._painter.leave()
        self._keyboard.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._keyboard.take()
        self._painter.enter()
        self._news.set()

    def _size(self) -> Size:
        # The terminal's own size: COLUMNS and LINES, where a parent has exported them, do not follow its window.
        try:
            width, height = os.get_terminal_size(self._console.file.fileno())
        except (OSError, ValueError):
            width, height = self._console.size
        return Size(max(1, width), max(1, height))

    async def _await_quit(self) -> None:
        await self._quit.wait()

    async def _follow(self, events: Any) -> None:
        async for event in events:
            if event.get("fresh") or event.get("type") == "reloaded":
                await self._catch_up()
            elif self._concerns(event):
                self._take(event)
            self._news.set()

    def _take(self, event: Mapping[str, Any]) -> None:
        screen = replace(self._screen, board=fold(self._screen.board, event, time.time()))
        if screen.log is not None:
            row = screen.board.rows.get(screen.log.row.case, screen.log.row)
            screen = replace(screen, log=followed(replace(screen.log, row=row), event))
            self._is_outdated |= is_outdated(replace(screen.log or TrialLog(row), row=row), event)
        self._screen = screen
        if event.get("type") in ("job_queued", "job_started"):
            self._stirred.set()

    async def _draw(self) -> None:
        while True:
            if self._is_outdated:
                self._is_outdated = False
                self._do(self._reopen())
            self._screen = replace(self._screen, size=self._size())
            size = self._screen.size
            self._painter.draw(draw(self._screen, time.time()).lines, (size.columns, size.lines))
            await asyncio.sleep(DRAWING_S)
            # Ages are shown in seconds, so there is a new picture every second.
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._news.wait()
            self._news.clear()

    async def _ask(self) -> None:
        """Request the load and the remaining time of open jobs: often while there are any."""
        while True:
            status = await self._client.call("status")
            now = sample(status, read_ticks(), time.monotonic())
            load = load_between(self._sample, now, status)
            self._sample = now
            open_jobs = [job.id for job in self._screen.board.view.active]
            jobs = (await self._client.call("jobs", ids=open_jobs))["jobs"] if open_jobs else []
            board = estimate(self._screen.board, jobs)
            self._screen = replace(self._screen, board=board, load=load, notices=tuple(status.get("notices", ())))
            self._news.set()
            self._stirred.clear()
            await asyncio.sleep(ESTIMATE_S)
            if not open_jobs:
                with suppress(TimeoutError):
                    async with asyncio.timeout(REST_S - ESTIMATE_S):
                        await self._stirred.wait()

    async def _catch_up(self) -> None:
        """Request the present state."""
        known = await self._client.call("kernels", **given(path=self._path))
        cases = [(kernel["name"], problem) for kernel in known["kernels"] for problem in kernel["problems"]]
        lookups = [{"kernel": name, "problem": problem, "tune": False} for name, problem in cases[:MAX_CASES]]
        answers = (await self._client.call("lookup_many", lookups=lookups))["answers"] if lookups else []
        jobs = [job for job in (await self._client.call("jobs"))["jobs"] if self._concerns(job)]
        status = await self._client.call("status")
        limits = await self._limits()
        board = self._screen.board
        board = replace(board, view=replace(board.view, limits=limits))
        board = fold_pauses(keep(know(catch_up(board, jobs), answers), known), status)
        self._screen = replace(self._screen, board=board)

    async def _limits(self) -> Limits:
        try:
            answer = await self._client.call("peaks")
        except DaemonError:
            # A daemon of an earlier version measures none.
            return {}
        return {peaks["device"]: peaks for peaks in answer.get("peaks", ())}

    def _concerns(self, subject: Mapping[str, Any]) -> bool:
        kernel = subject.get("kernel")
        return self._project is None or not kernel or str(kernel).startswith(f"{self._project}:")

    def _press(self) -> None:
        for key in self._keyboard.read():
            self._screen, act = press(self._screen, key)
            if act is not None:
                self._act(act)
            self._news.set()

    def _act(self, act: Act) -> None:
        row, trial = self._screen.selected, self._screen.selected_trial
        match act:
            case Act.QUIT:
                self._quit.set()
            case Act.PAUSE_ALL:
                self._do(self._toggle_everything())
            case Act.OPEN_TRIAL if trial is not None:
                self._do(self._open_trial(trial.id))
            case _ if row is None:
                self._screen = replace(self._screen, said="there is no kernel to act on")
            case Act.OPEN_KERNEL:
                self._screen = replace(self._screen, log=TrialLog(row))
                self._do(self._reopen())
            case Act.TUNE:
                self._do(self._tune(row))
            case Act.PAUSE:
                self._do(self._toggle(row))
            case Act.CANCEL:
                self._do(self._cancel(row))

    def _do(self, action: Coroutine[Any, Any, str]) -> None:
        """Act on a key in the background, and show the result."""

        async def run() -> None:
            try:
                said = await action
            except DaemonError as error:
                said = f"{error.message}; {error.hint}" if error.hint else error.message
            if said:
                self._screen = replace(self._screen, said=text.first_line(said))
            self._news.set()

        task = asyncio.create_task(run())
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _reopen(self) -> str:
        """Request the trials of the kernel that is open."""
        log = self._screen.log
        if log is None:
            return ""
        asked = given(kernel=log.row.kernel, problem=dict(log.row.problem), device=log.row.device or None)
        newest = {"order": "newest", "limit": MAX_TRIALS, **asked}
        current = await self._client.call("results", current=True, **newest)
        measured = await self._client.call("results", outcome=Outcome.MEASURED, **newest)
        if self._screen.log is not None and self._screen.log.row.case == log.row.case:
            self._screen = replace(
                self._screen, log=opened(self._screen.log.row, current["trials"], measured["trials"])
            )
        return ""

    async def _open_trial(self, number: int) -> str:
        found = (await self._client.call("results", trial=number))["trials"]
        self._screen = replace(self._screen, trial=found[0] if found else None)
        return ""

    async def _tune(self, row: BoardRow) -> str:
        wanted: dict[str, Any] = {"kernel": row.kernel, "problem": dict(row.problem), "objective": row.objective}
        if row.device:
            wanted["device"] = row.device
        # Above all jobs that other clients wait for, because the user is watching the screen.
        priority = min(MAX_PRIORITY, Priority.WAITED_FOR + 1)
        answer = await self._client.call("tune", deadline_s=TUNE_DEADLINE_S, priority=priority, **wanted)
        return f"job {answer['jobs'][0]['id']} tunes {row.kernel} now"

    async def _toggle(self, row: BoardRow) -> str:
        if row.job is None or not row.is_open:
            return f"{row.kernel} has no job to pause"
        method = "resume" if row.state == "paused" else "pause"
        await self._client.call(method, job=row.job.id)
        return f"{method}d job {row.job.id}"

    async def _toggle_everything(self) -> str:
        method = "resume" if self._screen.board.paused_everything else "pause"
        await self._client.call(method)
        return f"{method}d all tuning"

    async def _cancel(self, row: BoardRow) -> str:
        if row.job is None or not row.is_open:
            return f"{row.kernel} has no job to cancel"
        await self._client.call("cancel", job=row.job.id)
        return f"cancelled job {row.job.id}"


def fold_pauses(board: Board, status: Mapping[str, Any]) -> Board:
    """Return the board with the pauses in a status."""
    now = frozenset(status.get("paused", ()))
    for device in board.paused - now:
        board = fold(board, {"type": "resumed", "device": device}, 0.0)
    for device in now - board.paused:
        board = fold(board, {"type": "paused", "device": device}, 0.0)
    return board


def watch(path: str | None, project: str | None, since: tuple[int, int] | None) -> None:
    """Show the screen until the user quits; Ctrl-C raises ``KeyboardInterrupt``.

    Raises:
        DaemonUnavailable: the daemon is gone.
    """

    async def sit() -> None:
        async with AsyncClient() as client:
            await LiveWatch(client, path=path, project=project, since=since).run()

    asyncio.run(sit())
