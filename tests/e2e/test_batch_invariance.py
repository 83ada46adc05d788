"""Batch-invariant kernels: rows have equal bits whatever batch they are in, or the answer says why not."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import numerics_family as known
from tests.e2e.harness import Daemon

numpy = pytest.importorskip("numpy")

SIZES = (1, 3, 8, 12, 32, 64)
COLUMNS = 64
FEW_SIZES = (1, 8, 64)
PLAIN = known.config(slow=8)
ORDERED = known.config(lanes=4, slow=2)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Run a daemon that knows the family's backend."""
    with known.make_daemon(tmp_path) as running:
        yield running


def _family(daemon: Daemon, space: Iterable[Any], *, sizes: Iterable[int] = FEW_SIZES, **options: Any) -> str:
    """Write the family as a batch-invariant kernel; return its file."""
    problems = [{"M": size, "K": COLUMNS} for size in sizes]
    chosen = {"numerics": "tolerance", "default": known.TURNING, "problems": problems, **options}
    return known.family(daemon, space=list(space), more='batch_invariant=("M",),', **chosen)


def _answers(daemon: Daemon, sizes: Iterable[int] = FEW_SIZES) -> list[dict[str, Any]]:
    return [
        daemon.client.call("lookup", kernel="rows", problem={"M": size, "K": COLUMNS}, tune=False) for size in sizes
    ]


def _launched_rows(answers: list[dict[str, Any]], sizes: Iterable[int] = SIZES) -> set[tuple[int, bytes]]:
    """Launch what was answered on the first rows of numbers that no tuning saw; return each row's number and bits."""
    generator = numpy.random.default_rng(5)
    b = generator.standard_normal(COLUMNS, "float32")
    a = generator.standard_normal((max(SIZES), COLUMNS), "float32")
    found: set[tuple[int, bytes]] = set()
    for size, answer in zip(sizes, answers, strict=True):
        (library,) = Path(answer["artifact"]).rglob("*.so")
        sums, twice = numpy.zeros(size, "float32"), numpy.zeros((size, COLUMNS), "float32")
        rows = numpy.ascontiguousarray(a[:size])
        addresses = [ctypes.c_void_p(tensor.ctypes.data) for tensor in (rows, b, sums, twice)]
        ctypes.CDLL(str(library)).run(*addresses, ctypes.c_long(size), ctypes.c_long(COLUMNS))
        found |= {(row, sums[row].tobytes() + twice[row].tobytes()) for row in range(size)}
    return found


def test_rows_of_six_batches_have_equal_bits(daemon: Daemon) -> None:
    """One class is served everywhere, the one with the least weighted total: not the fastest config of each batch."""
    space = [PLAIN, ORDERED, known.TURNING]
    _, jobs = daemon.tune(path=_family(daemon, space, sizes=SIZES))
    assert [job["state"] for job in jobs] == ["done"] * len(SIZES)
    answers = _answers(daemon, SIZES)
    assert {answer["status"] for answer in answers} == {"fresh"}
    assert [answer["config"] for answer in answers] == [ORDERED] * len(SIZES)
    assert "batch-invariant under M = 1, 3, 8, 12, 32, 64; that" in answers[0]["message"]
    assert len(_launched_rows(answers)) == max(SIZES)
    assert "batch-invariant under M = 1, 3" in daemon.ktuned("results", "rows").stdout
    trials = daemon.client.call("results", kernel="rows")["trials"]
    assert [trial["config"] for trial in trials if trial["winner"]] == [ORDERED] * len(SIZES)
    # A Build that does not depend on the problem is compiled once for all of them.
    assert sum(trial["compile_s"] > 0 for trial in trials) == len(space)


def test_weights_choose_the_class(daemon: Daemon) -> None:
    """Until it turns, the turning config has the plain one's bits, and is the fastest of all: small batches decide."""
    weighted = [({"M": size, "K": COLUMNS}, 1000.0 if size < known.MANY_ROWS else 1.0) for size in FEW_SIZES]
    daemon.tune(path=_family(daemon, [PLAIN, ORDERED, known.TURNING], problems=weighted))
    expected = [known.TURNING if size < known.MANY_ROWS else PLAIN for size in FEW_SIZES]
    assert [answer["config"] for answer in _answers(daemon)] == expected
    assert len(_launched_rows(_answers(daemon), FEW_SIZES)) == max(FEW_SIZES)


def test_a_group_that_no_class_spans_says_what_breaks_it(daemon: Daemon) -> None:
    """Lookups and results say so, all batches get the default, and no lookup has anything tuned again."""
    daemon.tune(path=_family(daemon, [known.TURNING, known.SLOWLY_TURNING]))
    words = "M = 1 breaks it, where no measured config has the bits that 2 of 3 problems can agree on"
    for answer in _answers(daemon):
        assert (answer["status"], answer["config"]) == ("default", known.TURNING)
        assert answer["message"] == f"not batch-invariant under M = 1, 8, 64: {words}"
    assert words in daemon.ktuned("results", "rows").stdout
    shown = daemon.ktuned("lookup", "rows", "-p", "M=64", "-p", f"K={COLUMNS}")
    assert words in shown.stdout + shown.stderr
    tuned = {job["id"] for job in daemon.client.call("jobs", kernel="rows")["jobs"]}
    daemon.client.call("lookup", kernel="rows", problem={"M": 8, "K": COLUMNS}, tune=True)
    assert {job["id"] for job in daemon.client.call("jobs", kernel="rows")["jobs"]} == tuned


def test_a_batch_is_served_once_its_whole_group_is_tuned(daemon: Daemon) -> None:
    """A lookup of one that is tuned has the others tuned."""
    path = _family(daemon, [PLAIN, ORDERED], sizes=(4, 16), default=PLAIN)
    daemon.tune(path=path, problem={"M": 4, "K": COLUMNS})
    (first,) = _answers(daemon, [4])
    assert (first["status"], first["config"]) == ("default", PLAIN)
    assert first["message"] == "rows are compared under M = 4, 16 once all are tuned; 16 not yet"
    daemon.client.call("lookup", kernel="rows", problem={"M": 4, "K": COLUMNS}, tune=True)

    def is_served() -> bool:
        return [answer["status"] for answer in _answers(daemon, (4, 16))] == ["fresh"] * 2

    daemon.until(is_served, "the other batch to be tuned")
    assert [answer["config"] for answer in _answers(daemon, (4, 16))] == [ORDERED] * 2


def test_exact_numerics_keep_to_the_anchors_rows(daemon: Daemon) -> None:
    """Where another class is faster, too."""
    faster = known.config(slow=4)
    daemon.tune(path=_family(daemon, [PLAIN, ORDERED, faster], sizes=(1, 8), numerics="exact", default=PLAIN))
    answers = _answers(daemon, (1, 8))
    assert [(answer["config"], answer["objective"]) for answer in answers] == [(faster, "exact:latency")] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('batch_invariant=("M",)', 'batch_invariant=("K",)'),
            "batch_invariant: the output sums of shape (4,) has no dimension that grows with K",
        ),
        (
            ("a=tensor((p.M, p.K))", "a=tensor((p.M, p.K) if p.M < 8 else (p.M, p.K, 1))"),
            "batch_invariant: a of shape (4, 64) does not fit into that of the largest problem, (128, 64, 1)",
        ),
    ],
)
def test_inputs_that_are_no_parts_of_the_largest_are_one_line(
    daemon: Daemon, change: tuple[str, str], message: str
) -> None:
    """Of the job that would have measured them."""
    varied = "K" if '("K",)' in change[1] else "M"
    problems = [{"M": 4, "K": 64}, {"M": 4, "K": 64} | {varied: 128}]
    path = _family(daemon, [PLAIN, ORDERED], problems=problems, default=PLAIN)
    file = Path(path)
    file.write_text(file.read_text().replace(*change))
    _, jobs = daemon.tune(path=path)
    assert {job["state"] for job in jobs} == {"failed"}
    assert message in jobs[0]["message"]
    assert "\n" not in jobs[0]["message"]
