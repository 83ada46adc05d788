"""Winners by exact numerics: trials with the anchor's bits only; another anchor is one transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ktuned.model import Objective, Outcome, TrialResult
from ktuned.store.database import Store
from tests.store.samples import CONTEXT, NEW_CONTEXT, create_job
from tests.store.test_objectives import finish_trials
from tests.trials import make_detail

pytestmark = pytest.mark.anyio

EXACT = Objective("exact:latency")
LATENCY = Objective("latency")


def make_result_with_bits(latency_us: float, *bits: str, **detail: Any) -> TrialResult:
    return TrialResult(Outcome.MEASURED, latency_us, 0.1, detail=make_detail(bits=bits, **detail))


RESULTS = (
    make_result_with_bits(5.0, "a", "b"),
    make_result_with_bits(4.0, "a", "b"),
    make_result_with_bits(1.0, "a", "x"),
    make_result_with_bits(3.0, "a"),
    make_result_with_bits(2.0, "a", "b", nondeterministic=True),
    TrialResult(Outcome.MEASURED, 0.5, 0.1),
)


async def test_the_fastest_trial_with_the_anchor_s_bits_wins(tmp_path: Path) -> None:
    """Trials with too few compared inputs, or nondeterministic ones, do not win."""
    async with Store.open(tmp_path / "k.db") as store:
        ids = await finish_trials(store, EXACT, *RESULTS)
        assert store.get_winner(CONTEXT.key_for(EXACT)) is None
        await store.mark_same_bits(CONTEXT, ("a", "b"))
        assert [one.id for one in store.list_best_trials(CONTEXT, 9, objective=EXACT)] == [ids[1], ids[0]]
        assert [one.detail.numerics.same_bits for one in map(store.get_trial, ids) if one is not None] == [
            *(True, True, False, None, False, None)
        ]
        winner = await store.decide_winner(ids[1], objective=EXACT)
        assert (winner.figure, store.get_winner(CONTEXT.key)) == (4.0, None)


async def test_another_anchor_replaces_the_winner(tmp_path: Path) -> None:
    """By the best of its class, or by none; winners by tolerance and of other contexts stay."""
    async with Store.open(tmp_path / "k.db") as store:
        ids = await finish_trials(store, LATENCY, *RESULTS[:3])
        await store.mark_same_bits(CONTEXT, ("a", "b"))
        await store.decide_winner(ids[1], objective=EXACT)
        await store.mark_same_bits(NEW_CONTEXT, ("a", "x"))
        assert [one.trial for one in store.list_winners() if one.objective == EXACT] == [ids[1]]
        await store.mark_same_bits(CONTEXT, ("a", "x"))
        assert [one.trial for one in store.list_winners() if one.objective == EXACT] == [ids[2]]
        await store.mark_same_bits(CONTEXT, ("q",))
        assert [(one.trial, one.objective) for one in store.list_winners()] == [(ids[2], LATENCY)]


async def test_an_anchor_is_kept_until_another_is_chosen(tmp_path: Path) -> None:
    """It is kept for its kernel, problem and device, whatever the objective."""
    async with Store.open(tmp_path / "k.db") as store:
        await create_job(store)
        key = CONTEXT.key_for(EXACT)
        assert store.anchors.find_anchor(key) is None
        await store.anchors.choose_anchor(key, {"BM": 2})
        await store.anchors.choose_anchor(key, {"BM": 1})
        assert store.anchors.find_anchor(CONTEXT.key_for(Objective("exact:min:energy"))) == {"BM": 1}
        assert store.anchors.find_anchor(key._replace(device="other")) is None  # type: ignore[arg-type]
    async with Store.open(tmp_path / "k.db") as store:
        assert store.anchors.find_anchor(key) == {"BM": 1}
        await store.anchors.choose_anchor(key, None)
        assert store.anchors.find_anchor(key) is None
