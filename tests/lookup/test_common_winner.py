"""The config that is best for a weighted set of problems."""

from ktuned.lookup.common_winner import Common, choose_common_config, replace_by_common_configs
from ktuned.model.objective import minimize
from ktuned.model.trial import Winner
from tests.store.samples import CONTEXT, PROBLEM
from tests.trials import make_trial

BY_ENERGY = minimize("energy")


def test_the_least_weighted_time_wins() -> None:
    """Weights decide between a config for small and one for large problems."""
    small, large = {"a": 1.0, "b": 2.0}, {"a": 50.0, "b": 40.0}
    assert choose_common_config([(1.0, small), (1.0, large)]) == "b"
    assert choose_common_config([(100.0, small), (1.0, large)]) == "a"


def test_what_has_no_latency_somewhere_is_out() -> None:
    """A config that failed on one problem is not served for any, however fast it is on the others."""
    assert choose_common_config([(1.0, {"fast": 1.0, "safe": 9.0}), (1.0, {"safe": 9.0})]) == "safe"
    assert choose_common_config([(1.0, {"fast": 1.0}), (1.0, {"safe": 9.0})]) is None
    assert choose_common_config([(1.0, {"a": 1.0, "b": 2.0})], is_out=["a"]) == "b"
    assert choose_common_config([]) is None


def test_equal_times_give_one_config() -> None:
    """The choice does not depend on an order."""
    assert (
        choose_common_config([(1.0, {"b": 1.0, "a": 1.0})])
        == choose_common_config([(1.0, {"a": 1.0, "b": 1.0})])
        == "a"
    )


def test_each_objective_has_a_common_winner_of_its_own() -> None:
    """It takes the place of a problem's own winner by that objective, and has the figures of its trial."""
    trial = make_trial(
        9, {"BM": 2}, latency_us=7.0, problem=PROBLEM, artifact="ab", updated=5.0, metrics={"energy": 0.5}
    )
    fastest = Winner(CONTEXT, 3, PROBLEM, {"BM": 1}, 5.0, 0.1, "aa", 1.0)
    thriftiest = Winner(
        CONTEXT, 4, PROBLEM, {"BM": 4}, 6.0, 0.1, "ac", 1.0, metrics={"energy": 0.4}, objective=BY_ENERGY
    )
    found = replace_by_common_configs([fastest, thriftiest], [Common(CONTEXT, trial, BY_ENERGY)])
    assert found[0] == fastest
    assert (found[1].trial, found[1].config, found[1].figure, found[1].objective) == (9, {"BM": 2}, 0.5, BY_ENERGY)
