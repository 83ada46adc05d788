import pytest

from ktuned.model.plan import PRESETS
from ktuned.tuning.limits import DEFAULT_DEADLINES, HOPELESS_RATIO, merge_deadlines, shorten_for_trial

FAST = PRESETS["fast"]
FLOOR_S = DEFAULT_DEADLINES["floor"]


def test_later_layers_override_earlier_ones() -> None:
    """``config.toml`` overrides the defaults and the kernel file overrides both; the defaults stay unchanged."""
    deadlines = merge_deadlines({"compile": 1.0, "load": 2.0}, {"compile": 3.0})
    assert (deadlines["compile"], deadlines["load"], deadlines["check"]) == (3.0, 2.0, DEFAULT_DEADLINES["check"])
    assert DEFAULT_DEADLINES["compile"] != 3.0
    assert merge_deadlines() == DEFAULT_DEADLINES


@pytest.mark.parametrize(
    ("best_launch_s", "hopeless_s"),
    [(1e-6, FLOOR_S), (FLOOR_S / HOPELESS_RATIO, FLOOR_S), (0.1, HOPELESS_RATIO * 0.1)],
)
def test_a_known_best_shortens_launch_and_timing(best_launch_s: float, hopeless_s: float) -> None:
    """A config that takes many times the best is given up early, but not before the floor; other phases stay as they
    are.
    """
    deadlines = shorten_for_trial(DEFAULT_DEADLINES, FAST, best_launch_s)
    assert deadlines["first_launch"] == pytest.approx(hopeless_s)
    assert deadlines["timing"] == pytest.approx(FAST.timing_s + hopeless_s)
    unchanged = DEFAULT_DEADLINES.keys() - {"first_launch", "timing"}
    assert {phase: deadlines[phase] for phase in unchanged} == {phase: DEFAULT_DEADLINES[phase] for phase in unchanged}


@pytest.mark.parametrize("best_launch_s", [None, 1e3])
def test_fixed_deadlines_are_never_exceeded(best_launch_s: float | None) -> None:
    """They hold without a best config and with a slow one."""
    assert shorten_for_trial(DEFAULT_DEADLINES, FAST, best_launch_s) == {
        **DEFAULT_DEADLINES,
        "load_next": DEFAULT_DEADLINES["load"],
    }


def test_a_short_declared_deadline_stays() -> None:
    """A kernel file may ask for less than the floor."""
    assert shorten_for_trial(merge_deadlines({"first_launch": 0.5, "timing": 0.5}), FAST, 1e-6)["first_launch"] == 0.5


def test_the_floor_can_be_set() -> None:
    """A kernel whose first launch builds tables may raise the floor of shortened deadlines."""
    assert shorten_for_trial(merge_deadlines({"floor": 5.0}), FAST, 1e-6)["first_launch"] == 5.0
    assert (
        shorten_for_trial(merge_deadlines({"floor": 60.0}), FAST, 1e-6)["first_launch"]
        == DEFAULT_DEADLINES["first_launch"]
    )
