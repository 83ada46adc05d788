"""Which keys of an adopted function are tuned if a length makes many of them."""

from __future__ import annotations

from ktuned.adoption.key_choice import MAX_TUNED, MAX_TUNED_AS_THEY_COME, KeyChoice
from ktuned.model import Problem


def tune_until_none_is_chosen(choice: KeyChoice, loss: float) -> list[Problem]:
    """Tune keys until none is chosen; each loses this share with its neighbour's config."""
    chosen: list[Problem] = []
    while True:
        for problem in choice.unlearned:
            choice.selection.record_tuning(problem)
            choice.record_loss(problem, loss)
        if (key := choice.choose_next()) is None:
            return chosen
        chosen.append(key.problem)


def count_tuned_lengths(loss: float) -> int:
    """Return how many of 300 lengths are tuned if the first ones lose this share with a neighbour's config."""
    choice = KeyChoice([])
    for number in range(300):
        choice.take_in_key({"length": 64 + 37 * (number * 131 % 300)}, "a call")
    return MAX_TUNED_AS_THEY_COME + len(tune_until_none_is_chosen(choice, loss))


def test_the_first_keys_teach_how_many_more_are_worth_it() -> None:
    """If neighbours' configs lose nothing, no more are tuned; if they lose much, as many as allowed."""
    assert count_tuned_lengths(0.0) == MAX_TUNED_AS_THEY_COME
    assert MAX_TUNED_AS_THEY_COME < count_tuned_lengths(0.08) < MAX_TUNED
    assert count_tuned_lengths(0.3) == MAX_TUNED


def test_a_key_under_way_serves_no_other_and_is_chosen_once() -> None:
    """It counts as tuned when its tuning has ended, even by a failure."""
    choice = KeyChoice([{"length": 64 * (number + 1)} for number in range(MAX_TUNED_AS_THEY_COME)])
    for length in (60_000, 70_000):
        assert not choice.take_in_key({"length": length}, "a call")
    chosen = choice.choose_next()
    assert chosen is not None
    neighbour = {"length": 130_000 - chosen.problem["length"]}  # type: ignore[operator]
    assert choice.selection.find_neighbour(neighbour) == {"length": 1024}
    assert not choice.is_waiting(chosen.problem)
    assert chosen.problem in choice.unlearned
    choice.selection.record_tuning(chosen.problem)
    assert choice.selection.find_neighbour(neighbour) == chosen.problem


def test_a_loss_that_is_not_known_teaches_nothing() -> None:
    """The key still counts as tuned."""
    choice = KeyChoice([{"length": 64}])
    choice.record_loss({"length": 64}, None)
    assert choice.unlearned == []
    assert choice.selection.find_neighbour({"length": 65}) == {"length": 64}
