from __future__ import annotations

import pytest

from ktuned.cli.watch.layout import Cell, Column, TableLayout, ends, facts, shortened, sparkline, verbatim, wrapped


@pytest.mark.parametrize(
    ("words", "width", "lines"),
    [
        ("", 10, [""]),
        ("BM=64 BN=32", 11, ["BM=64 BN=32"]),
        ("BM=64 BN=32", 10, ["BM=64", "BN=32"]),
        ("a bc d", 4, ["a bc", "d"]),
        ("日本 語", 4, ["日本", "語"]),
        ("reference 17.56 µs", 16, ["reference", "17.56 µs"]),
        ("now 5.4 µs, 13.1× the default", 10, ["now", "5.4 µs,", "13.1× the", "default"]),
        ("4 small", 5, ["4", "small"]),
        ("/home/author/kernels/tune_gemm.py", 20, ["/home/…/tune_gemm.py"]),
    ],
)
def test_words_wrap_and_never_break(words: str, width: int, lines: list[str]) -> None:
    """A line ends between words; only a word wider than the line loses its middle."""
    assert wrapped(words, width) == lines


def test_cut_text_says_that_there_is_more() -> None:
    """The last line that is allowed ends with an ellipsis, within the width."""
    assert wrapped("one two three four", 9, limit=1) == ["one two …"]
    assert wrapped("one two three four", 7, limit=2) == ["one two", "three …"]
    assert wrapped("one two", 9, limit=1) == ["one two"]


@pytest.mark.parametrize("width", range(1, 12))
def test_shortened_words_fit(width: int) -> None:
    """In any width, also where a letter takes two columns."""
    for word in ("abcdefghijklmnop", "日本語日本語日本語"):
        assert len(shortened(word, width).encode("utf-16-le")) // 2 <= width


def test_verbatim_lines_keep_their_carets() -> None:
    """Lines that fit are unchanged; a long one wraps behind its own indent."""
    message = "a.cc:1: error\n   31 |   x = y;\n      |   ^"
    assert verbatim(message, 40) == message.splitlines()
    assert verbatim("    one two three", 14) == ["    one two", "      three"]


def test_both_ends_share_a_line_where_they_fit() -> None:
    """Else the right one has a line of its own: it is never cut away."""
    assert [line.plain for line in ends("left", "right", 12)] == ["left   right"]
    assert [line.plain for line in ends("left", "right", 10)] == ["left", "right"]


def test_facts_stand_behind_their_names() -> None:
    """Values wrap behind the names; empty ones are left out."""
    lines = [line.plain for line in facts([("winner", "BM=64 BN=32"), ("waits", ""), ("now", "9 µs")], 14)]
    assert lines == ["winner  BM=64", "        BN=32", "now     9 µs"]


@pytest.mark.parametrize(
    ("values", "width", "bars"),
    [
        ([], 5, ""),
        ([3.0], 5, "▁"),
        ([4.0, 2.0, 1.0], 5, "█▅▁"),
        ([8.0, 8.0, 4.0, 4.0, 1.0, 1.0], 3, "█▆▁"),
        ([1.0, 1.0], 5, "▁▁"),
        ([0.0, -1.0], 5, ""),
        ([1.0, 2.0], 0, ""),
    ],
)
def test_sparklines(values: list[float], width: int, bars: str) -> None:
    """The least value is the lowest bar, the greatest the highest; many values share a bar."""
    assert sparkline(values, width) == bars


@pytest.mark.parametrize("width", range(30, 120, 7))
def test_tables_fit(width: int) -> None:
    """Elastic columns get what they wish, or share the line; cells wrap, and figures stand at the right."""
    columns = [Column("kernel"), Column("now", 9, True), Column("state")]
    table = TableLayout(columns, [24, 33], width)
    cells = [Cell("gemm M=384 N=384 K=400"), Cell("9.750 µs"), Cell("tuning 12/96, 33 s left, 1 failed")]
    lines = [line.plain for line in [table.heading(), *table.row(cells)]]
    assert max(map(len, lines)) <= width
    words = ["kernel now state 9.750 µs", *(cell.words for cell in cells if cell is not cells[1])]
    assert sorted(" ".join(lines).split()) == sorted(" ".join(words).split())
    assert lines[0].index("now") + 3 == lines[1].index("µs") + 2
