from __future__ import annotations

import pytest

from ktuned.cli.tables import format_table, split_common_columns

ROWS = [
    ("job", "kernel", "problem", "best"),
    ("1", "project:gemm", "M=384 N=384 K=400", "9.750 µs"),
    ("12", "project:dot", "N=65536", "–"),
]
FIGURES = [True, False, False, True]


def test_a_table_in_a_pipe_has_one_line_for_each_row() -> None:
    """Figures are aligned on the right."""
    assert format_table(ROWS, FIGURES) == [
        "job  kernel        problem                best",
        "  1  project:gemm  M=384 N=384 K=400  9.750 µs",
        " 12  project:dot   N=65536                   –",
    ]
    assert format_table(ROWS, FIGURES, 47) == format_table(ROWS, FIGURES)


@pytest.mark.parametrize("width", range(36, 47))
def test_cells_wrap_between_words(width: int) -> None:
    """No line is wider than the terminal, and no word is lost or broken."""
    lines = format_table(ROWS, FIGURES, width)
    assert max(map(len, lines)) <= width
    assert sorted(" ".join(lines).split()) == sorted(" ".join(" ".join(row) for row in ROWS).split())


def test_rows_of_too_many_columns_become_records() -> None:
    """Each value has a line with its column's name."""
    assert format_table(ROWS, FIGURES, 24) == [
        "job      1",
        "kernel   project:gemm",
        "problem  M=384 N=384",
        "         K=400",
        "best     9.750 µs",
        "",
        "job      12",
        "kernel   project:dot",
        "problem  N=65536",
    ]
    path = "/home/author/kernels/tune_gemm.py:26"
    assert path in " ".join(format_table([("declared at", "size"), (path, "3")], [False, True], 20))
    assert format_table([("a", "b")], [False, False], 1) == ["a  b"]


def test_a_column_that_is_the_same_everywhere_goes_into_the_heading() -> None:
    """Only as far as the table is too broad."""
    device = "Intel(R) Xeon(R) Processor (2 cores)"
    rows = [("kernel", "device", "state", "best"), ("gemm", device, "done", "1 µs"), ("dot", device, "done", "2 µs")]
    figures = [False, False, False, True]
    common, rest, kinds = split_common_columns(rows, figures, 40)
    assert common == [("device", device)]
    assert rest == [("kernel", "state", "best"), ("gemm", "done", "1 µs"), ("dot", "done", "2 µs")]
    assert max(map(len, format_table(rest, kinds, 40))) <= 40
    assert split_common_columns(rows, figures, 80) == ([], rows, figures)
    assert [name for name, _ in split_common_columns(rows, figures, 12)[0]] == ["device", "state"]
