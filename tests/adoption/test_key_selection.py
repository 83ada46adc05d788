"""Which problems are tuned when an application brings many: few, the costliest first, and enough."""

import pytest

from ktuned.adoption.key_selection import MAX_PROBLEMS, KeySelection
from ktuned.store import count_octaves

MAX_TUNINGS = 40


def test_the_problem_that_loses_most_time_comes_first() -> None:
    """First the problem that takes most time is tuned, then the problem that probably loses most."""
    selection = KeySelection()
    for size, weight in ((64, 5.0), (128, 9.0), (4096, 4.0), (130, 8.0)):
        selection.add_problem({"N": size}, weight)
    assert selection.choose_next_problem() == {"N": 128}
    selection.record_tuning({"N": 128})
    assert selection.choose_next_problem() == {"N": 4096}, "130 takes more time, and is as good as tuned"


def test_a_selection_ends_when_little_is_left_to_gain() -> None:
    """Neighbours that lose nothing predict small losses, neighbours that lose much predict large ones."""
    for loss, min_tunings, max_tunings in ((0.0, 1, 8), (0.5, 30, 40)):
        selection = KeySelection(MAX_TUNINGS)
        for size in range(1, 1000):
            selection.add_problem({"N": size}, 1.0)
        while (chosen := selection.choose_next_problem()) is not None:
            selection.record_tuning(chosen)
            selection.record_loss(chosen, loss)
        assert min_tunings <= selection.tunings <= max_tunings


def test_what_tuned_problems_lose_with_their_neighbours_configs_decides_how_many_more_are_tuned() -> None:
    """This includes problems that were tuned before anything was chosen; a single problem has no neighbour."""
    chosen = []
    for loss in (0.0, 0.08):
        selection = KeySelection(MAX_TUNINGS)
        for size in range(64, 2048):
            selection.add_problem({"N": size}, 1.0)
        for size in (64, 256, 1024):
            selection.record_tuning({"N": size})
        for size in (64, 256, 1024):
            selection.record_loss({"N": size}, loss * 2)
        assert selection.find_neighbour({"N": 64}) == {"N": 256}
        assert selection.loss_per_octave == pytest.approx((0.1 + 6 * loss) / 8)
        while (problem := selection.choose_next_problem()) is not None:
            selection.record_tuning(problem)
        chosen.append(selection.tunings)
    assert chosen[0] < chosen[1] / 3
    single_selection = KeySelection()
    single_selection.record_tuning({"N": 64})
    single_selection.record_loss({"N": 64}, 1.0)
    assert single_selection.loss_per_octave == KeySelection().loss_per_octave


def test_the_number_of_known_problems_is_bounded() -> None:
    """Beyond the bound, the problems that take most time stay."""
    selection = KeySelection()
    for size in range(MAX_PROBLEMS + 500):
        selection.add_problem({"N": size + 1}, float(size))
    assert len(selection._problems) == MAX_PROBLEMS
    assert selection.choose_next_problem() == {"N": MAX_PROBLEMS + 500}


def test_distance_is_in_octaves() -> None:
    """Numbers are compared by ratio whatever their type; other differences are far."""
    assert count_octaves({"N": 64}, {"N": 256}) == 2.0
    assert count_octaves({"N": 64, "d": "f16"}, {"N": 64, "d": "f16"}) == 0.0
    assert count_octaves({"N": 64, "d": "f16"}, {"N": 64, "d": "f32"}) == count_octaves({"N": 0}, {"N": 1}) == 4.0
