"""The result of a tuning as tables and data frames."""

from ktuned.python import Trial, Trials
from ktuned.python.result import MAX_SHOWN
from tests.cli.samples import make_listed_trial


def make_trial(number: int, latency_us: float | None = None, **more: object) -> Trial:
    return make_listed_trial(number, "measured" if latency_us else "hung", latency_us=latency_us, message="", **more)


def test_the_fastest_trial_comes_first() -> None:
    """Configs without a latency follow, in the order of their trials."""
    trials = Trials([make_trial(4), make_trial(2, 9.0), make_trial(3), make_trial(1, 5.0)])
    assert [one.id for one in trials] == [1, 2, 3, 4]
    assert [one.id for one in trials[1:]] == [2, 3, 4]
    assert repr(trials) == "<4 trials, 2 measured>"


def test_a_data_frame_has_a_column_for_each_knob_and_metric() -> None:
    """A knob with the name of a figure keeps its name."""
    metrics = {"tflops": 2.0}
    frame = Trials([make_trial(1, 5.0, config={"BM": 1, "outcome": 7}, metrics=metrics), make_trial(2)]).to_pandas()
    assert list(frame["BM"]) == [1, 2]
    assert frame["outcome"][0] == 7
    assert frame["trial.outcome"][0] == "measured"
    assert frame["metric.tflops"][0] == 2.0
    assert frame["latency_us"].isna().tolist() == [False, True]


def test_a_table_is_escaped_and_bounded() -> None:
    """Configs and messages cannot add markup."""
    wild = [make_trial(number, 1.0 + number, config={"<b>": f"<script>{number}"}) for number in range(MAX_SHOWN + 5)]
    table = Trials(wild)._repr_html_()
    assert "<script>" not in table
    assert "&lt;script&gt;0" in table
    assert "and 5 more" in table
