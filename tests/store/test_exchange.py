"""Which of two winners stays: the rule, and its effect on the store."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from ktuned.protocol.jobs import JobState
from ktuned.store import exchange
from ktuned.store.database import Store
from ktuned.store.exchange import judge_offer
from ktuned.store.winners import Winner
from tests.store.samples import CONTEXT, PROBLEM

YESTERDAY = replace(CONTEXT, digest="d0")
ELSEWHERE = replace(CONTEXT, toolchain="gcc-99")
OURS, THEIRS = {"BM": 1}, {"BM": 2}


def make_winner(context: object = CONTEXT, latency_us: float = 5.0, decided: float = 10.0) -> Winner:
    """Return this machine's winner."""
    return Winner(context, 1, PROBLEM, OURS, latency_us, 0.1, None, decided)  # type: ignore[arg-type]


def make_offer(
    context: object = CONTEXT, latency_us: float = 4.0, decided: float = 10.0, config: object = None
) -> Winner:
    """Return a winner from elsewhere."""
    return Winner(context, 0, PROBLEM, config or THEIRS, latency_us, 0.1, None, decided)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("theirs", "ours", "today", "takes"),
    [
        (make_offer(), None, None, True),
        (make_offer(ELSEWHERE), None, CONTEXT, True),
        # One context: the faster figure, and ours where they are equal.
        (make_offer(latency_us=4.0), make_winner(latency_us=5.0), CONTEXT, True),
        (make_offer(latency_us=5.0), make_winner(latency_us=5.0), CONTEXT, False),
        (make_offer(latency_us=6.0), make_winner(latency_us=5.0), CONTEXT, False),
        (make_offer(YESTERDAY, latency_us=4.0), make_winner(YESTERDAY), CONTEXT, True),
        (make_offer(latency_us=1.0, config=OURS), make_winner(), CONTEXT, False),
        # Two contexts: today's one, however slow and old.
        (make_offer(ELSEWHERE, 0.1, 99.0), make_winner(CONTEXT), CONTEXT, False),
        (make_offer(CONTEXT, 99.0, 0.1), make_winner(YESTERDAY), CONTEXT, True),
        # Neither is today's, or no one knows which is: the later one, however slow.
        (make_offer(ELSEWHERE, 99.0, 11.0), make_winner(YESTERDAY), CONTEXT, True),
        (make_offer(ELSEWHERE, 0.1, 10.0), make_winner(YESTERDAY), CONTEXT, False),
        (make_offer(ELSEWHERE, 0.1, 9.0), make_winner(YESTERDAY), None, False),
        (make_offer(ELSEWHERE, 99.0, 11.0), make_winner(CONTEXT), None, True),
    ],
)
def test_an_imported_winner_takes_the_key_as_the_documented_table_says(
    theirs: Winner, ours: Winner | None, today: object, takes: bool
) -> None:
    """All rows of the table in docs/reference/sharing.md, and their borders."""
    verdict = judge_offer(theirs, ours, today)  # type: ignore[arg-type]
    assert verdict.takes is takes
    assert verdict.reason


@pytest.mark.anyio
async def test_an_adopted_offer_is_the_winner(tmp_path: Path) -> None:
    """It is the trial of a done job, and is exported unchanged."""
    async with Store.open(tmp_path / "k.sqlite") as store:
        slow = await store.adopt_winners(CONTEXT.kernel, CONTEXT.device, [make_offer(YESTERDAY, 4.0)])
        await store.adopt_winners(CONTEXT.kernel, CONTEXT.device, [make_offer(CONTEXT, 9.0, decided=12.0)])
        seated = store.get_winner(CONTEXT.key)
        assert seated is not None
        assert (seated.context, seated.config, seated.latency_us, seated.decided) == (CONTEXT, THEIRS, 9.0, 12.0)
        job = store.get_job(slow)
        assert job is not None
        assert (job.state, job.reason, dict(job.outcomes)) == (JobState.DONE, "imported", {"measured": 1})
        assert exchange.list_exports(store.path) == [(CONTEXT.kernel, CONTEXT.device, 1)]
        assert exchange.load_exported_winners(store.path, CONTEXT.kernel, CONTEXT.device) == [seated]
        assert exchange.load_exported_winners(store.path, CONTEXT.kernel, "another") == []
