"""The live screen, drawn by its widgets without a terminal: what it shows at each size, and what its keys do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import DataTable

from ktuned.cli.watch.app import WatchApp
from ktuned.cli.watch.board import Board, BoardRow, add_answers, fold_event
from ktuned.cli.watch.load import Load
from ktuned.cli.watch.session import Session
from ktuned.cli.watch.trial_log import follow_event, open_log
from ktuned.protocol import FileError, ListedTrial, TrialDone, read_event
from ktuned_client import AsyncClient
from tests.cli.samples import DEVICE, KERNEL, answer, job_map, state_event, trial_event, trial_map

PROBLEM = {"M": 384, "N": 384, "K": 400}
ERROR = (
    "gemm.cc:31:5: error: 'flaot' was not declared in this scope; did you mean 'float'?\n"
    "   31 |     flaot sum = 0;\n"
    "      |     ^~~~~"
)
NOW = 1000.0
SIZES = [(80, 24), (200, 50)]


def winner(latency_us: float, **changes: Any) -> dict[str, Any]:
    """Return a ``winner`` event."""
    event = {"type": "winner", "kernel": KERNEL, "job": 1, "problem": PROBLEM, "device": DEVICE, "trial": 1}
    return event | {"config": {"BM": 64, "BN": 32, "unroll": 8}, "latency_us": latency_us} | changes


def trials(count: int = 24) -> list[dict[str, Any]]:
    """Return trials of the kernel that is tuned: one knob is the same in all, every sixth config does not compile."""
    found = []
    for number in range(1, count + 1):
        config = {"BM": 16 * (1 + number % 4), "BN": 32 * (1 + number % 3), "unroll": 8}
        changes: dict[str, Any] = {"problem": PROBLEM, "config": config, "updated": NOW - 100 + number}
        if number % 6 == 0:
            changes |= {"outcome": "compile_error", "message": ERROR, "latency_us": None}
        else:
            changes["latency_us"] = 40.0 - number
        found.append(trial_map(number, **changes))
    return found


def board_of_a_day() -> Board:
    """Return a kernel that is tuned after an edit, one that failed, one that waits, and a file with an error."""
    answers = [
        answer(problem=PROBLEM, config={"BM": 32, "BN": 64, "unroll": 8}),
        answer(kernel="project:attention_forward_causal", problem={"sequence": 16384, "dtype": "bfloat16"}),
    ]
    board = add_answers(Board(), answers)
    failed = job_map(
        2, kernel="project:dot", problem={"n": 65536}, state="failed", message="no config compiled\n" + ERROR
    )
    queued = job_map(3, kernel="project:softmax", problem={"n": 1}, state="queued", waits_for="job 1 has the device")
    events: list[Mapping[str, Any]] = [
        {"type": "stale", "kernel": KERNEL, "digest": "e"},
        state_event("job_started", job_map(problem=PROBLEM, total=96, left_s=33.0, started=NOW - 60)),
    ]
    for number, trial in enumerate(trials(), 1):
        best = min(one["latency_us"] or 99.0 for one in trials()[:number])
        failures = number // 6
        outcomes = {"measured": number - failures, "compile_error": failures}
        figures = {"best_us": best, "default_us": 58.5, "total": 96, "left_s": 33.0, "outcomes": outcomes}
        events.append(trial_event(trial, number, **figures))
    events += [winner(16.0), state_event("job_done", failed), state_event("job_queued", queued)]
    for event in events:
        board = fold_event(board, read_event(event), NOW - 75)
    wrong = FileError("/home/author/tune_bad.py", 7, "SyntaxError: expected ':'", "", "def broken()\n       ^")
    return replace(board, errors=(wrong,), roots=("/home/author",))


class FakeSession(Session):
    """A session with a board of its own and no daemon; it notes what its keys asked for."""

    def __init__(self, board: Board, given: Sequence[dict[str, Any]] | None = None) -> None:
        super().__init__(cast(AsyncClient, None), path=None, project=None, since=None)
        self.board = board
        self.load = Load({"cpu:0": 0.93}, 0.71, 2.13)
        self.asked: list[tuple[str, str]] = []
        self.given = trials() if given is None else given

    async def follow_events(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    async def observe_load(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    async def open_row(self, row: BoardRow) -> None:
        """Have the trials at once."""
        self.log = open_log(row, msgspec.convert(self.given if row.kernel == KERNEL else (), list[ListedTrial]), ())
        self.on_change()

    async def load_trial(self, number: int) -> ListedTrial | None:
        """Return one of them."""
        return msgspec.convert(trials()[number - 1], ListedTrial)

    async def _note(self, what: str, row: BoardRow) -> str:
        self.asked.append((what, row.kernel))
        return f"{what} {row.kernel}"

    async def tune_row(self, row: BoardRow) -> str:
        """Note it."""
        return await self._note("tune", row)

    async def toggle_pause(self, row: BoardRow) -> str:
        """Note it."""
        return await self._note("pause", row)

    async def cancel_job_of_row(self, row: BoardRow) -> str:
        """Note it."""
        return await self._note("cancel", row)


Opened = tuple[WatchApp, Pilot[None], FakeSession]


@asynccontextmanager
async def screen(
    size: tuple[int, int] = (140, 40), board: Board | None = None, given: Sequence[dict[str, Any]] | None = None
) -> AsyncIterator[Opened]:
    """Open the screen at a size, with the kernel chosen that is tuned, and its trials there."""
    session = FakeSession(board_of_a_day() if board is None else board, given)
    app = WatchApp(session)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        if app.rows:
            await pilot.press(*["down"] * [row.kernel for row in app.rows].index(KERNEL))
            await settled(pilot)
        yield app, pilot, session


async def settled(pilot: Pilot[None]) -> None:
    """Have what was asked for drawn."""
    for _ in range(4):
        await pilot.pause(0.12)


def picture(app: WatchApp) -> list[str]:
    """Return the lines on the screen, without their colours."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def titles(app: WatchApp, table: str) -> list[str]:
    """Return the titles of a table's columns."""
    return [str(column.label) for column in app.query_one(table, DataTable).columns.values()]


def words(lines: Sequence[str]) -> str:
    """Return lines as one text, with single spaces."""
    return " ".join(" ".join(lines).split())


@pytest.mark.anyio
@pytest.mark.parametrize("size", SIZES)
async def test_a_day_s_board_fits(size: tuple[int, int]) -> None:
    """At both sizes all kernels, the best with its gain, the failures and the chosen kernel's configs are there."""
    async with screen(size) as (app, _, _):
        lines = picture(app)
        assert len(lines) <= size[1]
        shown = words(lines)
        for expected in ("gemm", "attention_forward_causal", "dot", "softmax", "16.00 µs", "3.66×", "24/96"):
            assert expected in shown, "\n".join(lines)
        assert "tune_bad.py:7: SyntaxError" in shown
        assert "2.13 trials/s" in shown
        assert titles(app, "#kernels")[:2] == ["kernel", "state"]
        # The same in each config, so that it says nothing.
        assert titles(app, "#configs") == ["trial", "latency", "× best", "BM", "BN", "outcome"]
        # The table is short, so that nothing beside it would be empty.
        assert app.has_class("broad") is (size[0] >= 150)
        about, configs = app.query_one("#about").region, app.query_one("#configs").region
        assert (about.y == configs.y) is (size[0] >= 150)
        assert ("best so far" in titles(app, "#kernels")) is (size[0] >= 150)


@pytest.mark.anyio
async def test_a_long_table_has_the_chosen_kernel_beside_it() -> None:
    """It needs the height of the screen; a filter that leaves few rows puts the kernel below them."""
    board = board_of_a_day()
    many = [answer(kernel=f"project:other{number}", problem={"n": number}) for number in range(40)]
    async with screen((200, 50), add_answers(board, many)) as (app, pilot, _):
        kernels, about = app.query_one("#kernels").region, app.query_one("#about").region
        assert kernels.height > 40
        assert about.x >= kernels.right
        await pilot.press("slash", *"gemm", "enter")
        await settled(pilot)
        assert app.query_one("#about").region.y >= app.query_one("#kernels").region.bottom


@pytest.mark.anyio
async def test_configs_fill_the_screen_where_there_is_no_message() -> None:
    """Beside what is known of a kernel none of whose configs failed."""
    board = fold_event(Board(), read_event(state_event("job_started", job_map(problem=PROBLEM))), NOW)
    async with screen((160, 30), board) as (app, _, _):
        assert app.has_class("broad")
        assert app.query_one("#configs").region.height > 20


@pytest.mark.anyio
async def test_configs_that_were_not_tried_are_one_line() -> None:
    """Those of a job that ended early are counted, and fill no rows."""
    given = trials(4) + [
        trial_map(number, problem=PROBLEM, outcome="cancelled", latency_us=None) for number in range(5, 29)
    ]
    async with screen((80, 24), given=given) as (app, _, _):
        assert "not tried 24 configs" in words(picture(app))
        assert app.query_one("#configs", DataTable).row_count == 4


@pytest.mark.anyio
@pytest.mark.parametrize("size", SIZES)
async def test_many_knobs_with_long_names_fit(size: tuple[int, int]) -> None:
    """The names of knobs are shortened as far as it takes and stay apart, so that no column is beyond the edge."""
    names = ("TILE_ROWS", "TILE_COLUMNS", "BLOCK_ROWS", "BLOCK_DEPTH", "THREADS", "STAGES")
    given = [
        trial_map(number, problem=PROBLEM, config={name: number * place for place, name in enumerate(names, 1)})
        for number in (1, 2)
    ]
    async with screen(size, given=given) as (app, _, _):
        shown = titles(app, "#configs")
        assert (shown[:2], shown[-1]) == (["trial", "latency"], "outcome")
        knobs = [title for title in shown[2:-1] if title != "× best"]
        assert len(set(knobs)) == len(names)
        assert all(title[0] == name[0] and title[-2:] == name[-2:] for title, name in zip(knobs, names, strict=True))
        table = app.query_one("#configs", DataTable)
        assert table.virtual_size.width <= table.size.width


@pytest.mark.anyio
async def test_the_page_of_keys_has_two_columns_at_80() -> None:
    """What a key does is wrapped within its own column."""
    async with screen((80, 24)) as (app, pilot, _):
        await pilot.press("question_mark")
        await settled(pilot)
        lines = picture(app)
        (place,) = [at for at, line in enumerate(lines) if "Enter, Tab" in line]
        assert lines[place + 1].startswith(" " * lines[place].index("go to"))


@pytest.mark.anyio
async def test_keys_act_on_the_chosen_kernel() -> None:
    """Up chooses; tune, pause and cancel ask the daemon, and the screen says what came of it."""
    async with screen() as (app, pilot, session):
        await pilot.press("up")
        chosen = app.selected
        assert chosen is not None
        await pilot.press("t", "p", "c")
        await settled(pilot)
        assert session.asked == [(what, chosen.kernel) for what in ("tune", "pause", "cancel")]
        assert f"cancel {chosen.kernel}" in words(picture(app))


@pytest.mark.anyio
async def test_filter_and_order() -> None:
    """Typed words leave the rows that have them; escape brings all back; ``s`` sorts by the next column."""
    async with screen() as (app, pilot, _):
        await pilot.press("slash", *"softmax")
        await settled(pilot)
        assert [row.name for row in app.rows] == ["softmax"]
        await pilot.press("enter")
        await settled(pilot)
        assert "filter: softmax" in words(picture(app))
        await pilot.press("escape")
        await settled(pilot)
        assert len(app.rows) == 4
        await pilot.press("s")
        await settled(pilot)
        assert app.rows[0].state == "failed"
        await pilot.press("r")
        await settled(pilot)
        assert app.rows[-1].state == "failed"


@pytest.mark.anyio
async def test_configs_have_a_page_each_with_the_compilers_message() -> None:
    """Enter leads from the kernel to its configs, and from one to everything about it; escape leads back."""
    async with screen() as (app, pilot, _):
        await pilot.press("enter", "s", "s", "home")
        await settled(pilot)
        # By failures, so that the first did not compile.
        assert app.selected_trial is not None
        assert app.selected_trial.outcome == "compile_error"
        assert "'flaot' was not declared" in words(picture(app))
        await pilot.press("enter")
        await settled(pilot)
        assert "BM=" in words(picture(app))
        await pilot.press("escape", "escape")
        await settled(pilot)
        assert app.query_one("#kernels", DataTable).has_focus


@pytest.mark.anyio
async def test_a_new_best_flashes() -> None:
    """Its cell is marked for a moment."""
    async with screen() as (app, pilot, session):
        better = {"best_us": 8.0, "default_us": 58.5, "total": 96, "outcomes": {"measured": 25}}
        trial = trial_map(25, problem=PROBLEM, latency_us=8.0)
        session.board = fold_event(session.board, read_event(trial_event(trial, 25, **better)), NOW)
        session.board = fold_event(session.board, read_event(winner(8.0)), NOW)
        done = read_event(trial_event(trial, 25, **better))
        assert session.log is not None
        assert isinstance(done, TrialDone)
        session.log = follow_event(session.log, done)
        session.on_change()
        await settled(pilot)
        # The best are in sight until somebody chooses among the configs.
        configs = app.query_one("#configs", DataTable)
        assert configs.cursor_row == 0
        assert "25" in str(configs.get_row_at(0)[0])
        cells = [str(cell) for cell in app.query_one("#kernels", DataTable).get_row_at(2)]
        assert "8.000 µs" in cells
        marked = [cell for cell in app.query_one("#kernels", DataTable).get_row_at(2) if "green" in str(cell.style)]
        assert "8.000 µs" in map(str, marked)


@pytest.mark.anyio
async def test_pages_of_text() -> None:
    """All keys, and all problems with their full messages."""
    async with screen() as (app, pilot, _):
        await pilot.press("question_mark")
        await settled(pilot)
        assert "tune the kernel now, before all else" in words(picture(app))
        await pilot.press("escape", "e")
        await settled(pilot)
        assert "no config compiled" in words(picture(app))


@pytest.mark.anyio
async def test_an_empty_screen_says_what_a_kernel_file_is() -> None:
    """And nothing to act on is no error."""
    async with screen((80, 24), Board()) as (app, pilot, _):
        await pilot.press("t")
        await settled(pilot)
        shown = words(picture(app))
        assert "a kernel file is named tune_*.py" in shown
        assert "there is no kernel to act on" in shown
