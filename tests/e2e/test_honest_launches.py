"""What is timed is what is checked: no config wins by skipping its work, or by being wrong now and then."""

from __future__ import annotations

import pytest

from tests.e2e.harness import Daemon, make_kernel_text

RIGHT = {"reference": "lambda x: dict(y=2 * x)", "strategy": "'exhaustive'"}


def test_a_config_that_finds_its_output_there_has_the_figure_of_working(daemon: Daemon) -> None:
    """Between timed launches the outputs are poisoned, so that there is nothing to be found."""
    configs = "space([dict(us=400.0, does='skips', tag='skips'), dict(us=300.0, does='work', tag='works')])"
    daemon.write_kernel(make_kernel_text(configs, **RIGHT))
    daemon.tune(path=str(daemon.directory / "project"))
    found = daemon.fetch_trials()
    assert found["skips"]["latency_us"] >= 400
    assert daemon.client.call("lookup", kernel="it", problem={"n": 64})["config"]["tag"] == "works"


@pytest.mark.parametrize(("does", "every"), [("regularly_wrong", 20), ("seldom_wrong", 10), ("wrong_at_last", 60)])
def test_a_config_that_is_wrong_now_and_then_does_not_win(daemon: Daemon, does: str, every: int) -> None:
    """However it chooses its wrong launches: those that are compared are drawn at random."""
    wrong, right = f"us=20.0, does={does!r}, every={every}, tag='wrong'", "us=60.0, does='work', every=1, tag='right'"
    configs = f"space([dict({wrong}), dict({right})])"
    daemon.write_kernel(make_kernel_text(configs, **RIGHT))
    daemon.tune(path=str(daemon.directory / "project"))
    found = daemon.fetch_trials()
    assert found["wrong"]["outcome"] == "mismatch"
    assert "a later one was not" in found["wrong"]["message"]
    assert found["right"]["outcome"] == "measured"


def test_the_count_of_compared_launches_is_stored(daemon: Daemon) -> None:
    """Of a config that may win they are as many as find one wrong launch in twenty with 99 %."""
    daemon.write_kernel(make_kernel_text("space([dict(us=50.0, tag='a')])", **RIGHT))
    daemon.tune(path=str(daemon.directory / "project"))
    (trial,) = daemon.fetch_trials().values()
    assert daemon.fetch_trial(trial["id"])["detail"]["compared"] >= 90
