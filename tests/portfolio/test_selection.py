"""Which problems are tuned when an application brings many: few, the costliest first, and enough."""

import random

import pytest

from ktuned.model import Problem, canonical
from ktuned.portfolio import Selection
from ktuned.portfolio.selection import MAX_PROBLEMS, count_octaves
from tests.portfolio import gemm_model

LENGTHS = 500
MAX_TUNINGS = 40


def draw_lengths(seed: int) -> dict[str, tuple[Problem, int]]:
    """Return 500 sequence lengths of one run and their counts: most come once or twice, a few often."""
    rng = random.Random(seed)
    lengths: dict[str, tuple[Problem, int]] = {}
    while len(lengths) < LENGTHS:
        length = min(8192, max(1, round(rng.lognormvariate(6.5, 0.9))))
        problem = {"M": length, "N": 4096, "K": 4096}
        key = canonical(problem)
        lengths[key] = (problem, lengths.get(key, (problem, 0))[1] + 1)
    return lengths


@pytest.mark.parametrize("seed", range(5))
def test_500_lengths_cause_at_most_40_tunings(seed: int) -> None:
    """With the config of the nearest tuned length, all steps take at most 3 % longer than with every length tuned."""
    traffic = list(draw_lengths(seed).values())
    matrix = gemm_model.make_matrix([problem for problem, _ in traffic])
    rows = {canonical(problem): row for row, problem in enumerate(matrix.problems)}
    selection = Selection(MAX_TUNINGS)
    configs: dict[str, str] = {}

    def find_config(problem: Problem) -> str | None:
        own = configs.get(canonical(problem))
        nearest = selection.find_neighbour(problem)
        return own or (None if nearest is None else configs[canonical(nearest)])

    for number, (problem, count) in enumerate(traffic, start=1):
        selection.add_problem(problem, count * matrix.best[rows[canonical(problem)]])
        # Some tunings end while lengths come; the others follow at the end of the run.
        while number % 25 == 0 or number == LENGTHS:
            chosen = selection.choose_next_problem()
            if chosen is None:
                break
            row = rows[canonical(chosen)]
            config_before = find_config(chosen)
            configs[canonical(chosen)] = min(matrix.costs[row], key=lambda config: matrix.costs[row][config])
            selection.record_tuning(chosen)
            if config_before is not None:
                selection.record_loss(chosen, matrix.compute_loss(row, config_before))
            if number < LENGTHS:
                break
    assert selection.tunings <= MAX_TUNINGS
    best_us = sum(count * matrix.best[rows[canonical(problem)]] for problem, count in traffic)
    taken_us = sum(
        count * matrix.costs[rows[canonical(problem)]][find_config(problem) or ""] for problem, count in traffic
    )
    assert taken_us <= 1.03 * best_us


def test_the_problem_that_loses_most_time_comes_first() -> None:
    """First the problem that takes most time is tuned, then the problem that probably loses most."""
    selection = Selection()
    for size, weight in ((64, 5.0), (128, 9.0), (4096, 4.0), (130, 8.0)):
        selection.add_problem({"N": size}, weight)
    assert selection.choose_next_problem() == {"N": 128}
    selection.record_tuning({"N": 128})
    assert selection.choose_next_problem() == {"N": 4096}, "130 takes more time, and is as good as tuned"


def test_a_selection_ends_when_little_is_left_to_gain() -> None:
    """Neighbours that lose nothing predict small losses, neighbours that lose much predict large ones."""
    for loss, min_tunings, max_tunings in ((0.0, 1, 8), (0.5, 30, 40)):
        selection = Selection(MAX_TUNINGS)
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
        selection = Selection(MAX_TUNINGS)
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
    single_selection = Selection()
    single_selection.record_tuning({"N": 64})
    single_selection.record_loss({"N": 64}, 1.0)
    assert single_selection.loss_per_octave == Selection().loss_per_octave


def test_the_number_of_known_problems_is_bounded() -> None:
    """Beyond the bound, the problems that take most time stay."""
    selection = Selection()
    for size in range(MAX_PROBLEMS + 500):
        selection.add_problem({"N": size + 1}, float(size))
    assert len(selection._problems) == MAX_PROBLEMS
    assert selection.choose_next_problem() == {"N": MAX_PROBLEMS + 500}


def test_distance_is_in_octaves() -> None:
    """Numbers are compared by ratio whatever their type; other differences are far."""
    assert count_octaves({"N": 64}, {"N": 256}) == 2.0
    assert count_octaves({"N": 64, "d": "f16"}, {"N": 64, "d": "f16"}) == 0.0
    assert count_octaves({"N": 64, "d": "f16"}, {"N": 64, "d": "f32"}) == count_octaves({"N": 0}, {"N": 1}) == 4.0
