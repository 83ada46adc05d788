"""The live screen, drawn without a terminal: what it shows at each size, and what its keys do."""

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

from ktuned.cli.watch.app import WatchApp, problem_lines
from ktuned.cli.watch.board import Board, BoardRow, add_answers, catch_up, fold_event
from ktuned.cli.watch.load import Load
from ktuned.cli.watch.session import Session
from ktuned.cli.watch.trial_log import follow_event, open_log
from ktuned.protocol import FileError, JobInfo, ListedTrial, TrialDone, read_event
from ktuned_client import AsyncClient
from tests.cli.samples import (
    DEVICE,
    KERNEL,
    make_answer,
    make_job_map,
    make_state_event,
    make_trial_event,
    make_trial_map,
)

PROBLEM = {"M": 384, "N": 384, "K": 400}
ERROR = (
    "gemm.cc:31:5: error: 'flaot' was not declared in this scope; did you mean 'float'?\n"
    "   31 |     flaot sum = 0;\n"
    "      |     ^~~~~"
)
NOW = 1000.0
SIZES = [(80, 24), (200, 50)]


def make_winner_event(latency_us: float, **changes: Any) -> dict[str, Any]:
    """Return a ``winner`` event."""
    event = {"type": "winner", "kernel": KERNEL, "job": 1, "problem": PROBLEM, "device": DEVICE, "trial": 1}
    return event | {"config": {"BM": 64, "BN": 32, "unroll": 8}, "latency_us": latency_us} | changes


def make_trials(count: int = 24) -> list[dict[str, Any]]:
    """Return trials of one kernel: one knob has the same value in all, and every sixth config does not compile."""
    trials = []
    for number in range(1, count + 1):
        config = {"BM": 16 * (1 + number % 4), "BN": 32 * (1 + number % 3), "unroll": 8}
        changes: dict[str, Any] = {"problem": PROBLEM, "config": config, "updated": NOW - 100 + number}
        if number % 6 == 0:
            changes |= {"outcome": "compile_error", "message": ERROR, "latency_us": None}
        else:
            changes["latency_us"] = 40.0 - number
        trials.append(make_trial_map(number, **changes))
    return trials


def make_full_board() -> Board:
    """Return a board with a tuned, a failed and a queued kernel, and a file with an error."""
    answers = [
        make_answer(problem=PROBLEM, config={"BM": 32, "BN": 64, "unroll": 8}),
        make_answer(kernel="project:attention_forward_causal", problem={"sequence": 16384, "dtype": "bfloat16"}),
    ]
    board = add_answers(Board(), answers)
    failed = make_job_map(
        2, kernel="project:dot", problem={"n": 65536}, state="failed", message="no config compiled\n" + ERROR
    )
    queued = make_job_map(
        3, kernel="project:softmax", problem={"n": 1}, state="queued", waits_for="job 1 has the device"
    )
    events: list[Mapping[str, Any]] = [
        {"type": "stale", "kernel": KERNEL, "digest": "e"},
        make_state_event("job_started", make_job_map(problem=PROBLEM, total=96, left_s=33.0, started=NOW - 60)),
    ]
    for number, trial in enumerate(make_trials(), 1):
        best = min(one["latency_us"] or 99.0 for one in make_trials()[:number])
        failures = number // 6
        outcomes = {"measured": number - failures, "compile_error": failures}
        figures = {"best_us": best, "default_us": 58.5, "total": 96, "left_s": 33.0, "outcomes": outcomes}
        events.append(make_trial_event(trial, number, **figures))
    events += [make_winner_event(16.0), make_state_event("job_done", failed), make_state_event("job_queued", queued)]
    for event in events:
        board = fold_event(board, read_event(event), NOW - 75)
    wrong = FileError("/home/author/tune_bad.py", 7, "SyntaxError: expected ':'", "", "def broken()\n       ^")
    return replace(board, errors=(wrong,), roots=("/home/author",))


class FakeSession(Session):
    """A session without a daemon; ``requests`` holds what its keys requested."""

    def __init__(self, board: Board, trials: Sequence[dict[str, Any]] | None = None) -> None:
        super().__init__(cast(AsyncClient, None), path=None, project=None, since=None)
        self.board = board
        self.load = Load({"cpu:0": 0.93}, 0.71, 2.13)
        self.requests: list[tuple[str, str]] = []
        self._trials = make_trials() if trials is None else trials

    async def follow_events(self) -> None:
        await asyncio.Event().wait()

    async def observe_load(self) -> None:
        await asyncio.Event().wait()

    async def open_row(self, row: BoardRow) -> None:
        self.log = open_log(row, msgspec.convert(self._trials if row.kernel == KERNEL else (), list[ListedTrial]), ())
        self.on_change()

    async def load_trial(self, number: int) -> ListedTrial | None:
        return msgspec.convert(make_trials()[number - 1], ListedTrial)

    async def _record_request(self, what: str, row: BoardRow) -> str:
        self.requests.append((what, row.kernel))
        return f"{what} {row.kernel}"

    async def tune_row(self, row: BoardRow) -> str:
        return await self._record_request("tune", row)

    async def toggle_pause(self, row: BoardRow) -> str:
        return await self._record_request("pause", row)

    async def cancel_job_of_row(self, row: BoardRow) -> str:
        return await self._record_request("cancel", row)


@pytest.fixture(autouse=True)
def _draw_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktuned.cli.watch.app.DRAWING_S", 0.0)


OpenScreen = tuple[WatchApp, Pilot[None], FakeSession]


@asynccontextmanager
async def open_screen(
    size: tuple[int, int] = (140, 40), board: Board | None = None, trials: Sequence[dict[str, Any]] | None = None
) -> AsyncIterator[OpenScreen]:
    """Open the screen with the tuned kernel chosen."""
    session = FakeSession(make_full_board() if board is None else board, trials)
    app = WatchApp(session)
    async with app.run_test(size=size) as pilot:
        await wait_until_drawn(pilot)
        if app.rows:
            await pilot.press(*["down"] * [row.kernel for row in app.rows].index(KERNEL))
            await wait_until_drawn(pilot)
        yield app, pilot, session


async def wait_until_drawn(pilot: Pilot[None]) -> None:
    """Wait until the screen shows all changes: drawing may choose a row, which is another change."""
    assert isinstance(pilot.app, WatchApp)
    await pilot.pause()
    while pilot.app._is_due.is_set():
        await pilot.pause()
    await pilot.pause()
    if pilot.app._is_due.is_set():
        await wait_until_drawn(pilot)


def read_lines(app: WatchApp) -> list[str]:
    """Return the lines on the screen, without colours."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def read_column_titles(app: WatchApp, table: str) -> list[str]:
    return [str(column.label) for column in app.query_one(table, DataTable).columns.values()]


def join_words(lines: Sequence[str]) -> str:
    """Return lines as one text with single spaces."""
    return " ".join(" ".join(lines).split())


@pytest.mark.anyio
@pytest.mark.parametrize("size", SIZES)
async def test_the_board_fits_at_both_sizes(size: tuple[int, int]) -> None:
    async with open_screen(size) as (app, _, _):
        lines = read_lines(app)
        assert len(lines) <= size[1]
        text = join_words(lines)
        for expected in ("gemm", "attention_forw", "dot", "softmax", "16.00 µs", "3.66×", "24/96"):
            assert expected in text, "\n".join(lines)
        assert "tune_bad.py:7: SyntaxError" in text
        assert "2.13 trials/s" in text
        assert read_column_titles(app, "#kernels")[:2] == ["kernel", "state"]
        # The same in each config, so that it says nothing.
        assert read_column_titles(app, "#configs") == ["trial", "latency", "× best", "BM", "BN", "outcome"]
        # The table is short, so that nothing beside it would be empty.
        assert app.has_class("broad") is (size[0] >= 150)
        about, configs = app.query_one("#about").region, app.query_one("#configs").region
        assert (about.y == configs.y) is (size[0] >= 150)
        assert ("config" in read_column_titles(app, "#kernels")) is (size[0] >= 150)
        # Each kernel has one line.
        names = ["attention", "dot", "gemm", "softmax"]
        first = next(at for at, line in enumerate(lines) if line.strip().startswith("kernel  "))
        assert [line.split()[0].partition("_")[0] for line in lines[first + 1 : first + 5]] == names
        assert set(lines[first + 5]) == {"─"}


@pytest.mark.anyio
async def test_the_list_has_the_winner_s_config() -> None:
    """A config that has no room is cut at its end; a kernel without a winner has none."""
    config = {f"KNOB_{number}": 2**number for number in range(12)}
    board = fold_event(make_full_board(), read_event(make_winner_event(8.0, config=config)), NOW)
    async with open_screen((200, 50), board) as (app, _, _):
        (line,) = [line for line in read_lines(app) if line.strip().startswith("gemm") and "µs" in line]
        assert "KNOB_0=1 KNOB_1=2" in line
        assert line.endswith("…")
        (failed,) = [line for line in read_lines(app) if line.strip().startswith("dot")]
        assert "=" not in failed.replace("n=65536", "")


@pytest.mark.anyio
async def test_long_names_keep_what_tells_them_apart() -> None:
    """Two problems of one kernel often differ at the end only."""
    answers = [
        make_answer(kernel="project:attention_forward_causal", problem={"dtype": "bfloat16", "sequence": length})
        for length in (1024, 16384)
    ]
    async with open_screen((80, 24), add_answers(make_full_board(), answers)) as (app, _, _):
        shown = [line.split("  ")[0] for line in read_lines(app) if line.strip().startswith("attention")]
        assert len(shown) == 2
        assert len(set(shown)) == 2


@pytest.mark.anyio
async def test_a_long_table_has_the_chosen_kernel_beside_it() -> None:
    """If a filter leaves few rows, the kernel is below them."""
    board = make_full_board()
    many = [make_answer(kernel=f"project:other{number}", problem={"n": number}) for number in range(40)]
    async with open_screen((200, 50), add_answers(board, many)) as (app, pilot, _):
        kernels, about = app.query_one("#kernels").region, app.query_one("#about").region
        assert kernels.height > 40
        assert about.x >= kernels.right
        await pilot.press("slash", *"gemm", "enter")
        await wait_until_drawn(pilot)
        assert app.query_one("#about").region.y >= app.query_one("#kernels").region.bottom


@pytest.mark.anyio
async def test_configs_fill_the_screen_if_no_config_failed() -> None:
    board = fold_event(Board(), read_event(make_state_event("job_started", make_job_map(problem=PROBLEM))), NOW)
    async with open_screen((160, 30), board) as (app, _, _):
        assert app.has_class("broad")
        assert app.query_one("#configs").region.height > 20


@pytest.mark.anyio
async def test_untried_configs_are_counted_in_one_line() -> None:
    trials = make_trials(4) + [
        make_trial_map(number, problem=PROBLEM, outcome="cancelled", latency_us=None) for number in range(5, 29)
    ]
    async with open_screen((80, 24), trials=trials) as (app, _, _):
        assert "not tried 24 configs" in join_words(read_lines(app))
        assert app.query_one("#configs", DataTable).row_count == 4


@pytest.mark.anyio
@pytest.mark.parametrize("size", [*SIZES, (150, 30)])
async def test_many_knobs_with_long_names_fit(size: tuple[int, int]) -> None:
    """Names of knobs are shortened but stay distinct, and no column is beyond the edge."""
    names = ("TILE_ROWS", "TILE_COLUMNS", "BLOCK_ROWS", "BLOCK_DEPTH", "THREADS", "STAGES")
    trials = [
        make_trial_map(number, problem=PROBLEM, config={name: number * factor for factor, name in enumerate(names, 1)})
        for number in (1, 2)
    ]
    async with open_screen(size, trials=trials) as (app, _, _):
        titles = read_column_titles(app, "#configs")
        assert (titles[:2], titles[-1]) == (["trial", "latency"], "outcome")
        knobs = [title for title in titles[2:-1] if title != "× best"]
        assert len(set(knobs)) == len(names)
        assert all(title[0] == name[0] and title[-2:] == name[-2:] for title, name in zip(knobs, names, strict=True))
        table = app.query_one("#configs", DataTable)
        assert table.virtual_size.width <= table.size.width
        # Where there is room, nothing is shortened.
        assert (knobs == list(names)) is (size[0] >= 150)


@pytest.mark.anyio
async def test_the_page_of_keys_has_two_columns_at_width_80() -> None:
    async with open_screen((80, 24)) as (app, pilot, _):
        await pilot.press("question_mark")
        await wait_until_drawn(pilot)
        lines = read_lines(app)
        (index,) = [at for at, line in enumerate(lines) if "Enter, Tab" in line]
        assert lines[index + 1].startswith(" " * lines[index].index("go to"))


@pytest.mark.anyio
async def test_keys_act_on_the_chosen_kernel() -> None:
    """The screen shows the daemon's answer."""
    async with open_screen() as (app, pilot, session):
        await pilot.press("up")
        chosen = app.selected
        assert chosen is not None
        await pilot.press("t", "p", "c")
        await wait_until_drawn(pilot)
        assert session.requests == [(what, chosen.kernel) for what in ("tune", "pause", "cancel")]
        assert f"cancel {chosen.kernel}" in join_words(read_lines(app))


@pytest.mark.anyio
async def test_rows_can_be_filtered_and_sorted() -> None:
    async with open_screen() as (app, pilot, _):
        await pilot.press("slash", *"softmax")
        await wait_until_drawn(pilot)
        assert [row.name for row in app.rows] == ["softmax"]
        await pilot.press("enter")
        await wait_until_drawn(pilot)
        assert "filter: softmax" in join_words(read_lines(app))
        await pilot.press("escape")
        await wait_until_drawn(pilot)
        assert len(app.rows) == 4
        await pilot.press("s")
        await wait_until_drawn(pilot)
        assert app.rows[0].state == "failed"
        await pilot.press("r")
        await wait_until_drawn(pilot)
        assert app.rows[-1].state == "failed"


@pytest.mark.anyio
async def test_enter_opens_the_configs_and_then_one_config() -> None:
    """Escape leads back."""
    async with open_screen() as (app, pilot, _):
        await pilot.press("enter", "s", "s", "home")
        await wait_until_drawn(pilot)
        # By failures, so that the first did not compile.
        assert app.selected_trial is not None
        assert app.selected_trial.outcome == "compile_error"
        assert "'flaot' was not declared" in join_words(read_lines(app))
        await pilot.press("enter")
        await wait_until_drawn(pilot)
        assert "BM=" in join_words(read_lines(app))
        await pilot.press("escape", "escape")
        await wait_until_drawn(pilot)
        assert app.query_one("#kernels", DataTable).has_focus


@pytest.mark.anyio
async def test_the_cell_of_a_new_best_is_marked_for_a_moment() -> None:
    async with open_screen() as (app, pilot, session):
        better = {"best_us": 8.0, "default_us": 58.5, "total": 96, "outcomes": {"measured": 25}}
        trial = make_trial_map(25, problem=PROBLEM, latency_us=8.0)
        session.board = fold_event(session.board, read_event(make_trial_event(trial, 25, **better)), NOW)
        session.board = fold_event(session.board, read_event(make_winner_event(8.0)), NOW)
        done = read_event(make_trial_event(trial, 25, **better))
        assert session.log is not None
        assert isinstance(done, TrialDone)
        session.log = follow_event(session.log, done)
        session.on_change()
        await wait_until_drawn(pilot)
        # The best are in sight until somebody chooses among the configs.
        configs = app.query_one("#configs", DataTable)
        assert configs.cursor_row == 0
        assert "25" in str(configs.get_row_at(0)[0])
        cells = [str(cell) for cell in app.query_one("#kernels", DataTable).get_row_at(2)]
        assert "8.000 µs" in cells
        marked = [cell for cell in app.query_one("#kernels", DataTable).get_row_at(2) if "green" in str(cell.style)]
        assert "8.000 µs" in map(str, marked)


@pytest.mark.anyio
async def test_pages_show_all_keys_and_all_problems() -> None:
    async with open_screen() as (app, pilot, _):
        await pilot.press("question_mark")
        await wait_until_drawn(pilot)
        assert "tune the kernel now, before all else" in join_words(read_lines(app))
        await pilot.press("escape", "e")
        await wait_until_drawn(pilot)
        assert "no config compiled" in join_words(read_lines(app))


def test_failures_from_before_the_screen_are_counted() -> None:
    """The screen has not seen their messages."""
    job = make_job_map(4, kernel="project:scan", state="running", outcomes={"compile_error": 7, "measured": 1})
    board = catch_up(Board(), [msgspec.convert(job, JobInfo)])
    (_, line, _) = problem_lines(FakeSession(board))
    assert str(line) == "7 configs failed: `ktuned results project:scan` says why"


@pytest.mark.anyio
@pytest.mark.parametrize("keys", [("question_mark",), ("e",), ("enter", "enter"), ("slash", "enter"), ()], ids=str)
async def test_q_leaves_every_screen(keys: tuple[str, ...]) -> None:
    """A page goes back to the screen, and the screen ends."""
    async with open_screen() as (app, pilot, _):
        await pilot.press(*keys)
        await wait_until_drawn(pilot)
        for _ in range(len(app.screen_stack)):
            assert app.is_running
            await pilot.press("q")
            await pilot.pause()
        assert not app.is_running


@pytest.mark.anyio
async def test_an_empty_screen_explains_kernel_files() -> None:
    """Keys do nothing there."""
    async with open_screen((80, 24), Board()) as (app, pilot, _):
        await pilot.press("t")
        await wait_until_drawn(pilot)
        text = join_words(read_lines(app))
        assert "a kernel file is named tune_*.py" in text
        assert "there is no kernel to act on" in text
