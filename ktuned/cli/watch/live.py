"""``ktuned watch`` on a terminal: draws the board as events arrive, and acts on keys."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.live import Live

from ktuned.cli import text
from ktuned.cli.options import given
from ktuned.cli.watch.board import Board, Row, catch_up, estimate, fold, keep, know
from ktuned.cli.watch.keys import Keyboard
from ktuned.cli.watch.screen import render
from ktuned.model import MAX_PRIORITY, Priority
from ktuned_client import AsyncClient, DaemonError
from ktuned_client.answers import TUNE_DEADLINE_S

DRAWING_S = 0.1
"""Least time between two pictures; more would not be readable."""

ESTIMATE_S = 2.0
"""Interval of requests for the jobs' remaining time."""

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
        self._board = Board()
        self._news = asyncio.Event()
        self._quit = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._keyboard = Keyboard(sys.stdin.fileno())

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
            self._live.start()
            try:
                yield
            finally:
                self._live.stop()
                loop.remove_reader(self._keyboard.descriptor)
                for number in handlers:
                    loop.remove_signal_handler(number)

    def _suspend(self) -> None:
        """Restore the terminal, stop for Ctrl-Z, and take the terminal again when continued."""
        self._live.stop()
        self._keyboard.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._keyboard.take()
        self._live.start()
        self._news.set()

    async def _await_quit(self) -> None:
        await self._quit.wait()

    async def _follow(self, events: Any) -> None:
        async for event in events:
            if event.get("fresh") or event.get("type") == "reloaded":
                await self._catch_up()
            elif self._concerns(event):
                self._board = fold(self._board, event, time.time())
            self._news.set()

    async def _draw(self) -> None:
        while True:
            title = f"ktuned watch {self._path or ''}".rstrip()
            picture = render(self._board, title, time.time(), self._console.size.height)
            self._live.update(picture, refresh=True)
            await asyncio.sleep(DRAWING_S)
            # Ages are shown in seconds, so there is a new picture every second.
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._news.wait()
            self._news.clear()

    async def _ask(self) -> None:
        """Request the remaining time of open jobs, while there are any."""
        while True:
            await asyncio.sleep(ESTIMATE_S)
            open_jobs = [job.id for job in self._board.view.active]
            if open_jobs:
                answer = await self._client.call("jobs", ids=open_jobs)
                self._board = estimate(self._board, answer["jobs"])
                self._news.set()

    async def _catch_up(self) -> None:
        """Request the present state."""
        known = await self._client.call("kernels", **given(path=self._path))
        names = [kernel["name"] for kernel in known["kernels"]]
        cases = [(kernel["name"], problem) for kernel in known["kernels"] for problem in kernel["problems"]]
        lookups = [{"kernel": name, "problem": problem, "tune": False} for name, problem in cases[:MAX_CASES]]
        answers = (await self._client.call("lookup_many", lookups=lookups))["answers"] if lookups else []
        jobs = [job for job in (await self._client.call("jobs"))["jobs"] if self._concerns(job)]
        status = await self._client.call("status")
        board = know(catch_up(self._board, jobs), answers)
        self._board = fold_pauses(keep(board, names, known["errors"]), status)

    def _concerns(self, subject: Mapping[str, Any]) -> bool:
        kernel = subject.get("kernel")
        return self._project is None or not kernel or str(kernel).startswith(f"{self._project}:")

    def _press(self) -> None:
        for key in self._keyboard.read():
            match key:
                case "q":
                    self._quit.set()
                case "up" | "k":
                    self._board = self._board.select(-1)
                case "down" | "j":
                    self._board = self._board.select(1)
                case "P":
                    self._do(self._toggle_everything())
                case "t":
                    self._do_to_selected(self._tune)
                case "p":
                    self._do_to_selected(self._toggle)
                case "c":
                    self._do_to_selected(self._cancel)
            self._news.set()

    def _do_to_selected(self, act: Callable[[Row], Coroutine[Any, Any, str]]) -> None:
        row = self._board.selected
        if row is None:
            self._board = self._board.say("there is no kernel to act on")
        else:
            self._do(act(row))

    def _do(self, action: Coroutine[Any, Any, str]) -> None:
        """Act on a key in the background, and show the result."""

        async def run() -> None:
            try:
                said = await action
            except DaemonError as error:
                said = f"{error.message}; {error.hint}" if error.hint else error.message
            self._board = self._board.say(text.first_line(said))
            self._news.set()

        task = asyncio.create_task(run())
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _tune(self, row: Row) -> str:
        wanted: dict[str, Any] = {"kernel": row.kernel, "problem": dict(row.problem), "objective": row.objective}
        if row.device:
            wanted["device"] = row.device
        # Above all jobs that other clients wait for, because the user is watching the screen.
        priority = min(MAX_PRIORITY, Priority.WAITED_FOR + 1)
        answer = await self._client.call("tune", deadline_s=TUNE_DEADLINE_S, priority=priority, **wanted)
        return f"job {answer['jobs'][0]['id']} tunes {row.kernel} now"

    async def _toggle(self, row: Row) -> str:
        if row.job is None or not row.is_open:
            return f"{row.kernel} has no job to pause"
        method = "resume" if row.state == "paused" else "pause"
        await self._client.call(method, job=row.job.id)
        return f"{method}d job {row.job.id}"

    async def _toggle_everything(self) -> str:
        method = "resume" if self._board.paused_everything else "pause"
        await self._client.call(method)
        return f"{method}d all tuning"

    async def _cancel(self, row: Row) -> str:
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
