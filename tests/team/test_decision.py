"""The rules of sharing, case by case."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from ktuned.sharing.decision import (
    BETTER_BY,
    MAX_CANDIDATES,
    Action,
    Candidate,
    OwnWinner,
    WinnerFacts,
    choose_action,
    confirms_cost,
    rank_candidates,
    should_publish,
)
from ktuned_team.calls import Entry
from ktuned_team.retention import select_surplus
from tests.team.test_objects import WINNER

SHARED = Candidate({"BM": 64}, 100.0)


@pytest.mark.parametrize(
    ("cost", "wanted"),
    [(None, False), (1.0, False), (90.8, False), (91.0, True), (100.0, True), (110.0, True), (110.2, False)],
)
def test_a_config_holds_within_a_tenth(cost: float | None, wanted: bool) -> None:
    """One that is far faster here does not, nor one that failed."""
    assert confirms_cost(100.0, cost) is wanted


def test_the_action_for_a_candidate_in_every_case() -> None:
    """Without a present winner it is verified, beside one only what is better competes; known work is not repeated."""
    standings = [None, *(OwnWinner(cost, current) for cost in (None, 50.0, 102.0, 200.0) for current in (False, True))]
    for ours, is_tried, is_open in itertools.product(standings, (False, True), (False, True)):
        found = choose_action(SHARED, ours, is_tried=is_tried, is_open=is_open)
        if is_tried or is_open:
            assert found is Action.NOTHING
        elif ours is None or not ours.is_current:
            assert found is Action.VERIFY
        else:
            is_better = ours.cost is not None and SHARED.cost < BETTER_BY * ours.cost
            assert found is (Action.COMPETE if is_better else Action.NOTHING), ours


def test_candidates_are_the_cheapest_configs_by_the_median() -> None:
    """One member's wrong clock decides nothing where others have measured the same config."""
    quick = replace(WINNER, config={"BM": 1}, latency_us=5.0)
    figures = [(1.0, 10.0), (2.0, 20.0), (3.0, 21.0)]
    often = [replace(WINNER, config={"BM": 2}, decided=at, latency_us=us) for at, us in figures]
    found = rank_candidates([*often, quick])
    assert [(dict(one.config), one.cost) for one in found] == [({"BM": 1}, 5.0), ({"BM": 2}, 20.0)]


def test_candidates_are_bounded() -> None:
    """The newest count."""
    many = [replace(WINNER, config={"BM": at}, decided=float(at)) for at in range(2 * MAX_CANDIDATES)]
    assert {one.config["BM"] for one in rank_candidates(many)} == set(range(MAX_CANDIDATES, 2 * MAX_CANDIDATES))
    assert rank_candidates([]) == []


def test_a_winner_is_published_only_if_it_is_decided_here_and_news() -> None:
    """Only what a final round decided, here, in the present context, by a job that shares."""
    for flags in itertools.product((False, True), repeat=4):
        decided = WinnerFacts(*flags)
        wanted = flags == (True, True, False, False)
        assert should_publish(decided, 100.0, {"BM": 64}, []) is wanted
        # A better config of others does not make ours less of a finding; the same figure again is none.
        assert should_publish(decided, 100.0, {"BM": 8}, [SHARED]) is wanted
        assert not should_publish(decided, 105.0, {"BM": 64}, [SHARED])
        assert should_publish(decided, 150.0, {"BM": 64}, [SHARED]) is wanted
        assert should_publish(decided, 50.0, {"BM": 64}, [SHARED]) is wanted


def test_retention_comes_before_the_cap() -> None:
    """What is too old goes first, then the oldest until the rest fits; nothing goes that need not."""
    kept = [Entry(f"o{age}", 10, 1000.0 - age) for age in range(0, 100, 10)]
    assert select_surplus(kept, 1000.0, 0, 1000) == []
    assert select_surplus(kept, 1000.0, 75.0, 1000) == ["o90", "o80"]
    assert select_surplus(kept, 1000.0, 75.0, 50) == ["o90", "o80", "o70", "o60", "o50"]
    assert select_surplus(kept, 1000.0, 0, 95) == ["o90"]
    assert len(select_surplus(kept, 1000.0, 0, 0)) == 10
    assert select_surplus([], 0.0, 1.0, 0) == []
