"""Texts of values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.cli import lines, text
from ktuned.cli.progress import JobEnded, begin_view
from ktuned.model import DeviceName
from ktuned.protocol import FileError, KernelsReloaded, LaneChanged, TuningPaused
from tests.cli.samples import make_job_info


def test_a_job_in_its_final_round_has_time_left() -> None:
    assert [text.format_time_left(seconds) for seconds in (None, 0.0, 75.0)] == ["", "", "1 min 15 s left"]


def test_a_spread_above_100_percent_has_no_digits() -> None:
    assert text.format_with_spread(20.0, 4.0) == "20.00 µs ±10 %"
    assert text.format_with_spread(20.0, 20_000.0) == "20.00 µs ±>100 %"


def test_a_figure_of_one_round_has_no_spread() -> None:
    assert [text.format_with_spread(20.0, spread_us) for spread_us in (None, 0.0)] == ["20.00 µs", "20.00 µs"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (0.0, "0.000 µs"), (0.5, "0.5000 µs"), (10.0, "10.00 µs"), (12.346, "12.35 µs"), (999.96, "1.000 ms"),
     (1500.0, "1.500 ms"), (2.5e6, "2.500 s"), (123456e6, "123456 s")],
)  # fmt: skip
def test_a_latency_has_four_digits_in_a_fitting_unit(value: float | None, expected: str) -> None:
    assert text.format_latency(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (0.006476, "0.0065 µs"), (1.2999, "1.3 µs"), (11.75, "12 µs"), (400.0, "400 µs")],
)
def test_a_spread_has_two_digits(value: float | None, expected: str) -> None:
    assert text.format_spread(value) == expected


@pytest.mark.parametrize(("count", "expected"), [(0, "0 jobs"), (1, "1 job"), (1234567, "1,234,567 jobs")])
def test_one_thing_is_singular(count: int, expected: str) -> None:
    assert text.format_count(count, "job") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (0.04, "0.0 s"), (9.9, "9.9 s"), (59.6, "1 min 0 s"), (75, "1 min 15 s"), (3700, "1 h 1 min"),
     (90000, "1 d 1 h")],
)  # fmt: skip
def test_a_duration_has_its_two_largest_units(value: float | None, expected: str) -> None:
    assert text.format_duration(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (12, "12 B"), (2048, "2.0 KiB"), (5 * 1024**3, "5.0 GiB"), (2**60, "1048576.0 TiB")],
)
def test_a_size_has_binary_units(value: float | None, expected: str) -> None:
    assert text.format_size(value) == expected


@given(st.text())
def test_cleaned_text_has_no_control_characters(message: str) -> None:
    """Only printable characters and line ends stay."""
    assert all(letter == "\n" or letter.isprintable() for letter in text.clean_message(message))
    assert "\n" not in text.first_line(message)
    assert len(text.first_line(message, limit=10)) <= 10


@pytest.mark.parametrize(
    "message", ["\x1b[1;31merror\x1b[0m", "\x1b]8;;file://x\x07error\x1b]8;;\x07", "\r\nerror\nmore"]
)
def test_escape_sequences_are_removed_and_words_stay(message: str) -> None:
    assert text.first_line(message) == "error"


@pytest.mark.parametrize(
    ("path", "line", "message", "expected"),
    [
        ("a.py", 3, "bad", "a.py:3: bad"),
        ("a.py", 0, "bad", "a.py: bad"),
        ("a.py", 3, "a.py:3: bad", "a.py:3: bad"),
        ("", 0, "bad", "bad"),
    ],
)
def test_an_error_s_place_is_printed_once(path: str, line: int, message: str, expected: str) -> None:
    """``file:line`` precedes the message unless the message begins with it."""
    assert lines.format_file_error(FileError(path, line, message, "")) == expected


def test_lanes_and_reloads_are_one_line_each() -> None:
    """A pause has no line."""
    lane = LaneChanged(device=DeviceName("cuda:0"), state="sick", reason="no canary")
    assert lines.describe_news(lane) == ["lane cuda:0: sick (no canary)"]
    errors = (FileError("b.py", 1, "no", ""),)
    reloaded = KernelsReloaded(added=("a",), removed=("c", "d"), errors=errors)
    assert lines.describe_news(reloaded) == ["added: a", "removed: c, d", "b.py:1: no"]
    assert lines.describe_news(KernelsReloaded(mended=("/src/x.py",))) == ["no error any more: /src/x.py"]
    assert lines.describe_news(TuningPaused(device="")) == []


def test_a_job_that_ended_without_figures_has_a_line() -> None:
    view = begin_view([make_job_info(state="cancelled", problem={})])
    assert lines.describe_news(JobEnded(view.jobs[1])) == ["project:gemm on cpu-model: job 1 cancelled"]
