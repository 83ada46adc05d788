from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from ktuned.cli.watch.board import Board, FileError, catch_up, fold, keep, know
from ktuned.cli.watch.load import Load
from ktuned.cli.watch.navigation import Act, draw, press
from ktuned.cli.watch.state import Page, Screen, Size
from ktuned.cli.watch.trial_log import opened
from ktuned.model import canonical
from tests.cli.samples import DEVICE, KERNEL, answer_map, job_map, state_event, trial_event, trial_map

PROBLEM = {"M": 384, "N": 384, "K": 400}
ERROR = (
    "gemm.cc:31:5: error: 'flaot' was not declared in this scope; did you mean 'float'?\n"
    "   31 |     flaot sum = 0;\n"
    "      |     ^~~~~"
)
NOW = 1000.0
SIZES = [(60, 24), (80, 24), (100, 16), (200, 50)]


def winner(latency_us: float, **changes: Any) -> dict[str, Any]:
    """Return a ``winner`` event."""
    event = {"type": "winner", "kernel": KERNEL, "job": 1, "problem": PROBLEM, "device": DEVICE, "trial": 1}
    return event | {"config": {"BM": 64, "BN": 32, "unroll": 8}, "latency_us": latency_us} | changes


def board_of_a_day() -> Board:
    """Return a kernel that is tuned after an edit, one that failed, one that waits, and a file with an error."""
    answers = [
        answer_map(problem=PROBLEM, config={"BM": 32, "BN": 64}),
        answer_map(kernel="project:attention_forward_causal", problem={"sequence": 16384, "dtype": "bfloat16"}),
    ]
    board = know(Board(), answers)
    failed = job_map(
        2, kernel="project:dot", problem={"n": 65536}, state="failed", message="no config compiled\n" + ERROR
    )
    queued = job_map(3, kernel="project:softmax", problem={"n": 1}, state="queued", waits_for="job 1 has the device")
    events: list[Mapping[str, Any]] = [
        {"type": "stale", "kernel": KERNEL, "digest": "e"},
        state_event("job_started", job_map(problem=PROBLEM, total=96, left_s=33.0)),
        trial_event(
            trial_map(2, "compile_error", problem=PROBLEM, message=ERROR),
            12,
            total=96,
            left_s=33.0,
            outcomes={"measured": 11, "compile_error": 1},
        ),
        winner(9.75),
        state_event("job_done", failed),
        state_event("job_queued", queued),
    ]
    for event in events:
        board = fold(board, event, NOW - 75)
    wrong = FileError(
        "/home/author/kernels/tune_bad.py:7: SyntaxError: expected ':'", ("    def broken()", "           ^")
    )
    return replace(board, errors={"/home/author/kernels/tune_bad.py": wrong}, roots=("/home/author/kernels",))


def screen(width: int = 140, height: int = 30, board: Board | None = None) -> Screen:
    """Return a screen with the list open."""
    board = board_of_a_day() if board is None else board
    return Screen(Size(width, height), board=board, load=Load({"cpu:0": 0.93}, 0.71, 2.13))


def lines_of(state: Screen) -> list[str]:
    """Return the picture's lines without their colours."""
    return [line.plain.rstrip() for line in draw(state, NOW).lines]


def words_of(state: Screen) -> list[str]:
    """Return the picture's words."""
    return " ".join(lines_of(state)).split()


def pressed(state: Screen, *keys: str) -> Screen:
    """Return the state after keys."""
    for key in keys:
        state, _ = press(state, key)
    return state


def choose(state: Screen, name: str) -> Screen:
    """Return the screen with a kernel's row chosen, by its short name."""
    place = [row.name for row in state.rows].index(name)
    return pressed(state, "home", *["down"] * place)


def open_gemm(state: Screen, count: int = 15) -> Screen:
    """Return the screen with the GEMM's page open, as its trials have arrived: each fifth does not compile."""
    state = pressed(choose(state, "gemm"), "enter")
    assert state.selected is not None
    trials = [
        trial_map(
            number,
            "compile_error" if number % 5 == 0 else "measured",
            problem=PROBLEM,
            config={"BM": 16 * number, "BN": 32, "unroll": number % 4},
            latency_us=None if number % 5 == 0 else 8.0 + 100.0 / number,
            objectives=["latency"] if number == count - 1 else [],
            message=ERROR if number % 5 == 0 else "",
        )
        for number in range(1, count + 1)
    ]
    old = [trial_map(-number, latency_us=30.0 + number, digest=f"old{number}") for number in (3, 2, 1)]
    return replace(state, log=opened(state.selected, trials, [*trials, *old]))


def test_picture_of_a_running_job() -> None:
    """One line has the kernel, the save, both figures, the ratio and the state; the failure stands below it."""
    lines = lines_of(screen())
    (line,) = [line for line in lines if "gemm M" in line]
    words = "gemm M=384 N=384 K=400  1 min ago  12.50 µs  9.750 µs  1.28×  tuning 12/96, 33 s left, 1 failed"
    assert line.split() == words.split()
    assert "compile_error: gemm.cc:31:5: error" in lines[lines.index(line) + 1]
    assert lines[0].startswith("ktuned watch  /home/author/kernels")
    assert lines[0].endswith("2 problems")
    assert lines[1] == "2.13 trials/s · cpu:0 93 % · CPUs 71 % · 1 running, 1 waiting · 35 s left"
    assert lines[-1].startswith("? keys  q quit  ↵ open")


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("page", ["list", "kernel", "trial", "problems", "keys"])
def test_pages_fit_and_words_never_break(width: int, height: int, page: str) -> None:
    """Every page has as many lines as the terminal, none wider, and each word as it was written."""
    state = screen(width, height)
    if page in ("kernel", "trial"):
        state = open_gemm(state)
    if page == "trial":
        state = replace(pressed(state, "enter"), trial=trial_map(5, "compile_error", problem=PROBLEM, message=ERROR))
    if page in ("problems", "keys"):
        state = pressed(state, "e" if page == "problems" else "?")
    lines = lines_of(state)
    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width
    written = set(" ".join(lines_of(replace(state, size=Size(400, 100)))).split())
    unknown = {word for word in words_of(state) if word not in written and not re.search("[─▁-█]", word)}
    # Counts of what is out of sight, and the name of the line with the winner, depend on the size.
    counts = "before winner row rows config configs line lines above below below, problem problems among them above,"
    assert {word for word in unknown if not word.isdecimal()} <= set(counts.split())


@pytest.mark.parametrize(("width", "height"), [*SIZES, (40, 12), (20, 6)])
def test_problems_never_vanish(width: int, height: int) -> None:
    """However small the terminal and however many rows, the first line counts the problems, and an error is shown."""
    many = [answer_map(kernel=f"project:k{number:02}", problem={}) for number in range(60)]
    state = screen(width, height, know(board_of_a_day(), many))
    assert "2 problems" in " ".join(lines_of(state)[:3])
    if width >= 60:
        assert "SyntaxError:" in words_of(state)
        hidden = choose(state, "k30")
        assert any("1 problem among them" in line for line in lines_of(hidden)) or "failed" in words_of(hidden)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_winner_s_config_is_in_sight(width: int, height: int) -> None:
    """In a column where there is room, else below the list for the chosen row, and on the kernel's page."""
    state = choose(screen(width, height), "gemm")
    assert {"BM=64", "BN=32", "unroll=8"} <= set(words_of(state))
    assert {"BM=64", "BN=32", "unroll=8"} <= set(words_of(open_gemm(state)))


def test_rows_that_differ_in_the_device_alone_name_it() -> None:
    """On one device there is no need for its name."""
    one = fold(Board(), state_event("job_started", job_map()), NOW)
    assert DEVICE not in " ".join(words_of(screen(board=one)))
    two = fold(one, state_event("job_started", job_map(2, device="H200")), NOW)
    said = " ".join(words_of(screen(width=200, board=two)))
    assert f"on {DEVICE} " in said
    assert "on H200 " in said


def test_kernels_of_one_short_name_are_shown_by_their_full_names() -> None:
    """Those of other names by the short one."""
    answers = [answer_map(kernel=name) for name in ("a:dot", "b:dot", "b:gemm")]
    said = " ".join(words_of(screen(board=know(Board(), answers))))
    assert all(word in said for word in ("a:dot M=64", "b:dot M=64", " gemm M=64"))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([{"type": "paused", "device": ""}], "all tuning is paused: P resumes it"),
        ([{"type": "paused", "device": "H200"}], "paused: H200"),
        ([{"type": "paused", "reason": "the disk is full"}], "nothing is tuned: the disk is full"),
        (
            [state_event("job_queued", job_map(state="queued", waits_for="policy is manual"))],
            "queued: policy is manual",
        ),
        (
            [
                state_event("job_started", job_map()),
                {"type": "refining", "kernel": KERNEL, "job": 1, "round": 2, "rounds": 5, "finalists": 3},
            ],
            "finalists again, 2 of 5",
        ),
    ],
)
def test_pictures_say_what_keeps_tuning(events: list[dict[str, Any]], words: str) -> None:
    """Pauses, waiting and the finalists' rounds are reported in words."""
    board = Board()
    for event in events:
        board = fold(board, event, NOW)
    assert words in " ".join(words_of(screen(board=board)))


def test_an_empty_board_says_how_a_kernel_is_found() -> None:
    """Neither an empty table nor a heading alone."""
    assert any("no kernel yet" in line for line in lines_of(screen(board=Board())))
    sick = replace(screen(board=Board()), load=Load(sick={"cuda:0": "the driver does not answer"}))
    assert any("cuda:0 is sick: the driver does not answer" in line for line in lines_of(sick))


def names(state: Screen) -> list[str]:
    """Return the kernels that the list shows."""
    return [row.name for row in state.rows]


def test_filter() -> None:
    """Rows that have all words stay, as they are typed; Enter keeps the filter, Escape clears it."""
    state = pressed(screen(), "/", *"FAILED dot")
    assert names(state) == ["dot"]
    assert any(line.startswith("filter FAILED dot") for line in lines_of(state))
    kept = pressed(state, "enter")
    assert (kept.is_typing, names(kept)) == (False, ["dot"])
    assert "1 of 4 shown" in " ".join(lines_of(kept))
    assert "2 problems" in lines_of(kept)[0]
    assert len(names(pressed(kept, "escape"))) == 4
    assert len(names(pressed(state, "escape"))) == 4
    assert names(pressed(state, "backspace", "backspace", "backspace")) == ["dot"]
    nothing = pressed(state, "x")
    assert "none of 4 rows has 'FAILED dotx'" in " ".join(words_of(nothing))
    assert press(nothing, "t") == (pressed(nothing, "t"), None)


def test_sort() -> None:
    """Each press is another column, and another key turns it round; rows without a value come last."""
    state = screen()
    assert names(state) == ["attention_forward_causal", "dot", "gemm", "softmax"]
    by_state = pressed(state, "s")
    assert names(by_state)[:3] == ["dot", "gemm", "softmax"]
    assert "by state" in lines_of(by_state)[0]
    by_save = pressed(by_state, "s")
    assert names(by_save)[0] == "gemm"
    assert names(pressed(by_save, "r"))[0] == "gemm"
    assert names(pressed(state, "r")) == ["softmax", "gemm", "dot", "attention_forward_causal"]
    assert names(pressed(state, *"sssss")) == names(state)


def test_choice_moves_and_stays_in_sight() -> None:
    """Arrows, pages and ends move the choice; the picture keeps it in sight; it outlives another order."""
    state = screen(100, 16, know(Board(), [answer_map(kernel=f"project:k{number:02}") for number in range(40)]))
    assert "▸ k00" in "\n".join(lines_of(state))
    for key, name in (
        ("down", "k01"),
        ("pagedown", "k09"),
        ("end", "k39"),
        ("up", "k38"),
        ("home", "k00"),
        ("k", "k00"),
    ):
        state = pressed(state, key)
        assert f"▸ {name}" in "\n".join(lines_of(state)), key
    state = pressed(state, "j", "r")
    assert "▸ k01" in "\n".join(lines_of(state))
    assert any("rows above" in line for line in lines_of(state))


def test_page_of_a_kernel() -> None:
    """Enter opens it: winner, figures, best so far and history with sparklines, configs with the winner marked."""
    state, act = press(choose(screen(), "gemm"), "enter")
    assert (state.page, act) == (Page.KERNEL, Act.OPEN_KERNEL)
    lines = lines_of(open_gemm(screen(100, 40)))
    assert re.search("tuning 12/96, 33 s left, 1 failed", lines[0])
    assert "winner       BM=64 BN=32 unroll=8" in lines
    assert any(re.fullmatch("best so far  108.0 µs █[▁-█]* 15.14 µs after 12 configs", line) for line in lines)
    assert any(re.fullmatch("over saves   33.00 µs [▁-█]{3}▁ 15.14 µs in 4 versions", line) for line in lines)
    assert any(re.match(r".* \* 14 ", line) for line in lines) or any("* 14" in line for line in lines)
    assert lines[-1].startswith("? keys  q quit  esc back")
    back = pressed(open_gemm(screen()), "escape")
    assert (back.page, back.selected and back.selected.name) == (Page.KERNELS, "gemm")


def test_configs_are_filtered_and_sorted() -> None:
    """The best first, or the newest, or failures; words of knobs and outcomes filter."""
    state = open_gemm(screen(100, 40))

    def shown(state: Screen) -> list[int]:
        return [trial.id for trial in state.trials]

    assert shown(state)[:2] == [14, 13]
    assert shown(state)[-3:] == [5, 10, 15]
    assert shown(pressed(state, "s"))[0] == 15
    assert shown(pressed(state, "s", "s"))[:3] == [5, 10, 15]
    assert shown(pressed(state, "/", *"compile bm=80", "enter")) == [5]
    unfiltered = pressed(state, "/", *"zzz", "enter", "escape")
    assert (unfiltered.page, len(shown(unfiltered))) == (Page.KERNEL, 15)


def test_compilers_message_in_full() -> None:
    """The chosen config's message stands below the configs, Enter opens it whole, and it scrolls to its end."""
    state = pressed(open_gemm(screen(100, 40)), "s", "s")
    for line in ERROR.splitlines():
        assert line in lines_of(state)
    state, act = press(state, "enter")
    assert (state.page, act) == (Page.TRIAL, Act.OPEN_TRIAL)
    assert "the trial is being read" in lines_of(state)
    long = "\n".join(f"{number}: error" for number in range(200))
    state = replace(state, trial=trial_map(5, "compile_error", problem=PROBLEM, message=long))
    assert "199: error" not in lines_of(state)
    end = pressed(state, "end")
    assert "199: error" in lines_of(end)
    assert "0: error" in lines_of(pressed(end, "home", "down"))
    assert pressed(end, "down") == end
    assert pressed(end, "up") != end


def test_page_of_problems_has_full_messages() -> None:
    """Errors in kernel files with their excerpt, failed jobs and the daemon's notices."""
    state = replace(screen(100, 40), notices=("the disk is nearly full",))
    lines = lines_of(pressed(state, "e"))
    assert "    def broken()" in lines
    assert "   31 |     flaot sum = 0;" in lines
    assert "the disk is nearly full" in lines
    assert "no problems" in lines_of(pressed(screen(board=Board()), "e"))


def test_every_key_is_explained() -> None:
    """The page of keys has each that does something; it is left by Escape."""
    state = pressed(screen(100, 40), "?")
    said = " ".join(lines_of(state))
    for key in ("↑ ↓", "PgUp", "esc", "/", "s  r", "t ", "p ", "P ", "c ", "e ", "?", "q  Ctrl-C"):
        assert key in said
    assert pressed(state, "escape").page == Page.KERNELS
    assert pressed(state, "?").pages == state.pages


@pytest.mark.parametrize(
    ("key", "act"),
    [("t", Act.TUNE), ("p", Act.PAUSE), ("P", Act.PAUSE_ALL), ("c", Act.CANCEL), ("q", Act.QUIT), ("gone", Act.QUIT)],
)
def test_acts(key: str, act: Act) -> None:
    """Keys ask for their act on the list and on a kernel's page; while a filter is typed they are its letters."""
    assert press(screen(), key)[1] == act
    assert press(open_gemm(screen()), key)[1] == act
    typed, found = press(pressed(screen(), "/"), key)
    if key == "gone":
        assert found == act
    else:
        assert (typed.kernels.query, found) == (key, None)


@pytest.mark.parametrize("keys", [["enter"], ["up"], ["end"], ["s"], ["r"], ["left"], ["?", "down"], ["e", "end"]])
def test_keys_on_an_empty_board(keys: Sequence[str]) -> None:
    """Nothing to act on is no error."""
    assert len(lines_of(pressed(screen(board=Board()), *keys))) == 30


def test_a_kernel_that_goes_while_it_is_open_stays_readable() -> None:
    """Its file was deleted: the page shows what was known."""
    state = open_gemm(screen())
    gone = replace(state, board=keep(catch_up(Board(), []), {"kernels": [], "errors": []}))
    assert "gemm M=384 N=384 K=400" in lines_of(gone)[0]
    assert canonical(PROBLEM) in {case[1] for case in state.board.rows}
