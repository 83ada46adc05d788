"""ktuned checks the launches that it times: no config wins by skipping its work or by being wrong at times."""

from __future__ import annotations

import pytest

from tests.e2e.harness import Daemon, make_kernel_text

RIGHT = {"reference": "lambda x: dict(y=2 * x)", "strategy": "'exhaustive'"}


def test_a_config_that_skips_finished_work_gains_nothing(daemon: Daemon) -> None:
    """Outputs are overwritten between timed launches."""
    configs = "space([dict(us=400.0, does='skips', tag='skips'), dict(us=300.0, does='work', tag='works')])"
    daemon.write_kernel(make_kernel_text(configs, **RIGHT))
    daemon.tune(path=daemon.directory / "project")
    trials = daemon.fetch_trials()
    assert trials["skips"]["latency_us"] >= 400
    assert daemon.client.call("lookup", kernel="it", problem={"n": 64})["config"]["tag"] == "works"


@pytest.mark.parametrize(("does", "every"), [("regularly_wrong", 20), ("seldom_wrong", 10), ("wrong_at_last", 60)])
def test_a_config_that_is_wrong_at_times_does_not_win(daemon: Daemon, does: str, every: int) -> None:
    """The compared launches are drawn at random."""
    wrong, right = f"us=20.0, does={does!r}, every={every}, tag='wrong'", "us=60.0, does='work', every=1, tag='right'"
    configs = f"space([dict({wrong}), dict({right})])"
    daemon.write_kernel(make_kernel_text(configs, **RIGHT))
    daemon.tune(path=daemon.directory / "project")
    trials = daemon.fetch_trials()
    assert trials["wrong"]["outcome"] == "mismatch"
    assert "a later one was not" in trials["wrong"]["message"]
    assert trials["right"]["outcome"] == "measured"


def test_a_config_that_leaves_threads_whenever_it_is_timed_is_not_measured(daemon: Daemon) -> None:
    """They may do the work that its launches did not. A pool that grows once is honest."""
    configs = "space([dict(us=20.0, every=1, does=does, tag=does) for does in ('leaves_threads', 'grows')])"
    daemon.write_kernel(make_kernel_text(configs, **RIGHT))
    daemon.tune(path=daemon.directory / "project")
    trials = daemon.fetch_trials()
    assert trials["leaves_threads"]["outcome"] == "mismatch"
    assert "whenever it was timed, it left a thread behind" in trials["leaves_threads"]["message"]
    assert trials["grows"]["outcome"] == "measured"
