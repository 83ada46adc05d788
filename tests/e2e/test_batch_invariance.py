"""Batch-invariant kernels: rows have equal bits whatever batch they are in, or the answer says why not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import numerics_family as known
from tests.e2e.harness import Daemon

numpy = pytest.importorskip("numpy")

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 64)
COLUMNS = 64
PLAIN = known.config(slow=8)
ORDERED = known.config(lanes=4, slow=2)


def _tune(daemon: Daemon, space: Iterable[Any], **options: Any) -> list[dict[str, Any]]:
    """Tune the family for all sizes; return the jobs."""
    problems = [{"M": size, "K": COLUMNS} for size in SIZES]
    chosen = {"numerics": "tolerance", "default": known.TURNING, "problems": problems, **options}
    path = known.family(daemon, space=list(space), more='batch_invariant=("M",),', **chosen)
    _, jobs = daemon.tune(path=path)
    return jobs


def _answers(daemon: Daemon, **asked: Any) -> list[dict[str, Any]]:
    return [
        daemon.client.call("lookup", kernel="rows", problem={"M": size, "K": COLUMNS}, tune=False, **asked)
        for size in SIZES
    ]


def _launched_rows(answers: list[dict[str, Any]]) -> set[tuple[int, bytes]]:
    """Launch what was answered on the first rows of numbers that no tuning saw; return each row's number and bits."""
    import tvm_ffi

    generator = numpy.random.default_rng(5)
    b = generator.standard_normal(COLUMNS, "float32")
    a = generator.standard_normal((max(SIZES), COLUMNS), "float32")
    found: set[tuple[int, bytes]] = set()
    for size, answer in zip(SIZES, answers, strict=True):
        (library,) = Path(answer["artifact"]).rglob("*.so")
        sums, twice = numpy.zeros(size, "float32"), numpy.zeros((size, COLUMNS), "float32")
        rows = numpy.ascontiguousarray(a[:size])
        tensors = [tvm_ffi.from_dlpack(one) for one in (rows, b, sums, twice)]
        tvm_ffi.load_module(str(library)).rows(*tensors)
        found |= {(row, sums[row].tobytes() + twice[row].tobytes()) for row in range(size)}
    return found


def test_rows_of_twelve_batches_have_equal_bits(daemon: Daemon) -> None:
    """The class of the least total is served everywhere, not the fastest config of each batch."""
    jobs = _tune(daemon, [PLAIN, ORDERED, known.TURNING])
    assert [job["state"] for job in jobs] == ["done"] * len(SIZES)
    answers = _answers(daemon)
    assert {answer["status"] for answer in answers} == {"fresh"}
    # By itself the turning one is the fastest of each; where it does not turn yet it has the bits of the plain one.
    assert [answer["config"] for answer in answers] == [ORDERED] * len(SIZES)
    assert answers[0]["message"].startswith("batch-invariant under M = 1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 64; that")
    assert len(_launched_rows(answers)) == max(SIZES)
    shown = daemon.ktuned("results", "rows").stdout
    assert "batch-invariant under M = 1, 2" in shown
    trials = daemon.client.call("results", kernel="rows")["trials"]
    assert [trial["config"] for trial in trials if trial["winner"]] == [ORDERED] * len(SIZES)


def test_configs_of_a_class_may_differ_from_batch_to_batch(daemon: Daemon) -> None:
    """The turning config has the plain one's bits until it turns: weights of the small batches make it worth having."""
    problems = [({"M": size, "K": COLUMNS}, 1000.0 if size < known.MANY_ROWS else 1.0) for size in SIZES]
    _tune(daemon, [PLAIN, ORDERED, known.TURNING], problems=problems)
    answers = _answers(daemon)
    expected = [known.TURNING if size < known.MANY_ROWS else PLAIN for size in SIZES]
    assert [answer["config"] for answer in answers] == expected
    assert len(_launched_rows(answers)) == max(SIZES)


def test_a_group_that_no_class_spans_says_what_breaks_it(daemon: Daemon) -> None:
    """Lookups and results say so, all batches get the default, and no lookup has anything tuned again."""
    _tune(daemon, [known.TURNING, known.SLOWLY_TURNING])
    words = "M = 1 breaks it, where no measured config has the bits that 6 of 12 problems can agree on"
    for answer in _answers(daemon):
        assert (answer["status"], answer["config"]) == ("default", known.TURNING)
        assert answer["message"].startswith("not batch-invariant under M = 1, 2")
        assert answer["message"].endswith(words)
    assert words in daemon.ktuned("results", "rows").stdout
    assert words in daemon.ktuned("lookup", "rows", "-p", "M=64", f"K={COLUMNS}").stdout
    daemon.client.call("lookup", kernel="rows", problem={"M": 8, "K": COLUMNS}, tune=True)
    assert daemon.client.call("jobs", kernel="rows", live=True)["jobs"] == []


def test_a_batch_is_served_once_its_whole_group_is_tuned(daemon: Daemon) -> None:
    """A lookup of one that is tuned has the others tuned."""
    problems = [{"M": 4, "K": COLUMNS}, {"M": 16, "K": COLUMNS}]
    path = known.family(
        daemon,
        numerics="tolerance",
        space=[PLAIN, ORDERED],
        default=PLAIN,
        problems=problems,
        more='batch_invariant=("M",),',
    )
    daemon.tune(path=path, problem=problems[0])

    def ask(size: int, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = daemon.client.call(
            "lookup", kernel="rows", problem={"M": size, "K": COLUMNS}, **options
        )
        return found

    first = ask(4, tune=False)
    assert (first["status"], first["config"]) == ("default", PLAIN)
    assert first["message"] == "rows are compared under M = 4, 16 once all are tuned; 16 not yet"
    ask(4, tune=True)
    daemon.until(lambda: ask(4, tune=False)["status"] == "fresh", "the other batch to be tuned")
    assert ask(4, tune=False)["config"] == ask(16, tune=False)["config"] == ORDERED


def test_exact_numerics_keep_to_the_anchors_rows(daemon: Daemon) -> None:
    """Where other classes are faster, too."""
    _tune(daemon, [PLAIN, ORDERED, known.config(slow=4)], numerics="exact", default=PLAIN)
    answers = _answers(daemon)
    assert [answer["config"] for answer in answers] == [known.config(slow=4)] * len(SIZES)
    assert {answer["objective"] for answer in answers} == {"exact:latency"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('batch_invariant=("M",)', 'batch_invariant=("K",)'),
            "batch_invariant: the output sums of (4,) has no dimension that goes with K",
        ),
        (
            ("a=tensor((p.M, p.K))", "a=tensor((p.M, p.K) if p.M > 4 else (p.M, p.K, 1))"),
            "batch_invariant: a of (4, 64, 1) is no part of that of (8, 64), which the largest problem has",
        ),
    ],
)
def test_inputs_that_are_no_parts_of_the_largest_are_one_line(
    daemon: Daemon, change: tuple[str, str], message: str
) -> None:
    """Of the job that would have measured them."""
    problems = [{"M": 4, "K": 64}, {"M": 8, "K": 64}]
    if "K" in change[1][:22]:
        problems = [{"M": 4, "K": 64}, {"M": 4, "K": 128}]
    path = known.family(
        daemon,
        numerics="tolerance",
        space=[PLAIN, ORDERED],
        default=PLAIN,
        problems=problems,
        more='batch_invariant=("M",),',
    )
    file = daemon.directory / "project" / "tune_it.py"
    file.write_text(file.read_text().replace(*change))
    _, jobs = daemon.tune(path=path)
    assert {job["state"] for job in jobs} == {"failed"}
    assert message in jobs[0]["message"]
    assert "\n" not in jobs[0]["message"]
