"""The summary of a search, and errors that name the strategy."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.fleet import DeadlineExpired
from ktuned.fleet.failures import Output
from ktuned.ipc import requests
from ktuned.model import Phase, Plan, WorkerError
from ktuned.tuning.exploration import Explorer, SearchSummary, open_space
from tests.store.samples import make_kernel_info


def test_the_summary_shows_how_the_best_figure_improved() -> None:
    """It names the strategy, the share of the space, and the best after some trials."""
    summary = SearchSummary(strategy="guided", size=4362)
    for done, best in ((9, None), (10, 1300.0), (25, 900.0), (40, 800.0), (50, 710.5)):
        summary.record_best(done, best)
    assert summary.describe_search(60, 700.25) == (
        "guided tried 60 of 4,362 configs (1.4 %); best 1300 µs after 10, 900 µs after 25, 710.5 µs after 50, "
        "700.2 µs at the end"
    )


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (SearchSummary(), ""),
        (SearchSummary(strategy="exhaustive", size=8), ""),
        (SearchSummary(strategy="exhaustive", size=16), "exhaustive tried 8 of 16 configs (50 %)"),
        (SearchSummary(strategy="random"), "random tried 8 configs"),
        (
            SearchSummary(strategy="guided", size=10**6, converged=True),
            (
                "guided tried 8 of 1,000,000 configs (0.0008 %), until the chance of an improvement of more than 1 % "
                "was below a tenth"
            ),
        ),
        (
            SearchSummary(strategy="guided", size=10_400, size_is_estimate=True),
            "guided tried 8 of about 10,400 configs (0.077 %)",
        ),
        (SearchSummary(strategy="random", size=9, notice="no NumPy"), "random tried 8 of 9 configs (89 %); no NumPy"),
    ],
)
def test_the_summary_has_only_what_is_known(summary: SearchSummary, expected: str) -> None:
    """A space that was tried completely has no summary; an uncountable space has no share."""
    assert summary.describe_search(8, 5.0) == expected


class HangingWorker:
    def __init__(self, phase: Phase = Phase.INSPECT) -> None:
        self.phase = phase

    async def send_request(self, *arguments: Any, **options: Any) -> Any:
        raise DeadlineExpired(self.phase, 2.0, Output())


@pytest.mark.anyio
async def test_a_strategy_that_hangs_is_named() -> None:
    """The phase alone would not say what took so long."""
    explorer = Explorer(HangingWorker(), "slowpoke", {})  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match=r"^while the strategy 'slowpoke' chose configs: inspect timed out after 2 s"):
        await explorer.ask_for_configs([], 1)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (Phase.PRIOR, "(?m)^/p/tune_gemm.py:7: gemm: prior timed out after 2 s$"),
        (
            Phase.STRATEGY,
            "7: gemm: while the strategy 'guided' started, which also calls `where`: strategy timed out",
        ),
        (Phase.INSPECT, "^inspect timed out after 2 s$"),
    ],
)
async def test_a_prior_or_strategy_that_hangs_at_the_opening_is_named(phase: Phase, words: str) -> None:
    """The error tells the kernel file's prior, the strategy and the import apart."""
    reference = requests.KernelRef("p", "tune_gemm.py", "gemm", "fake", (), {})
    request = requests.Explore(reference, {}, Plan(strategy="guided"))
    with pytest.raises(WorkerError, match=words):
        await open_space(HangingWorker(phase), request, make_kernel_info(), {"inspect": 2.0})  # type: ignore[arg-type]
