from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ktuned.model import Outcome, Trial
from ktuned.report.pareto import compute_cost, pareto_front
from tests.trials import make_trial


def _trial(number: int, latency_us: float | None, device: str = "cpu", **metrics: float) -> Trial:
    outcome = Outcome.CRASHED if latency_us is None else Outcome.MEASURED
    return make_trial(number, outcome=outcome, latency_us=latency_us, device=device, metrics=metrics)


def _ids(trials: list[Trial], *names: str) -> list[int]:
    return [trial.id for trial in pareto_front(trials, names)]


def test_front_of_latency_and_energy() -> None:
    """A trial that another beats in both is left out; one without a figure is no candidate."""
    trials = [_trial(1, 5.0, energy=9.0), _trial(2, 7.0, energy=4.0), _trial(3, 8.0, energy=5.0), _trial(4, 1.0)]
    assert _ids([*trials, _trial(5, None)], "latency", "energy") == [1, 2]
    assert _ids(trials, "latency") == [4]


def test_more_is_better_unless_it_has_a_minus() -> None:
    """Of a metric such as tflops more is better; ``-registers`` turns that round."""
    trials = [_trial(1, 5.0, registers=64.0), _trial(2, 7.0, registers=32.0)]
    assert _ids(trials, "latency", "registers") == [1]
    assert _ids(trials, "latency", "-registers") == [1, 2]
    assert compute_cost(trials[0], "registers") == -64.0


def test_each_device_has_its_own_front() -> None:
    """Figures of two devices are not compared."""
    assert _ids([_trial(1, 5.0), _trial(2, 9.0, device="gpu")], "latency") == [1, 2]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20))
def test_front_is_that_of_its_definition(figures: list[tuple[int, int]]) -> None:
    """A trial is in the front exactly if none is at least as good in both and better in one."""
    trials = [_trial(number, float(us), energy=float(j)) for number, (us, j) in enumerate(figures)]
    expected = {
        number
        for number, (us, j) in enumerate(figures)
        if not any(one <= us and other <= j and (one, other) != (us, j) for one, other in figures)
    }
    assert set(_ids(trials, "latency", "energy")) == expected
