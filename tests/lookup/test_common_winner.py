"""The config that is best for a weighted set of problems."""

from ktuned.lookup.common_winner import common_config


def test_the_least_weighted_time_wins() -> None:
    """Weights decide between a config for small and one for large problems."""
    small, large = {"a": 1.0, "b": 2.0}, {"a": 50.0, "b": 40.0}
    assert common_config([(1.0, small), (1.0, large)]) == "b"
    assert common_config([(100.0, small), (1.0, large)]) == "a"


def test_what_has_no_latency_somewhere_is_out() -> None:
    """A config that failed on one problem is not served for any, however fast it is on the others."""
    assert common_config([(1.0, {"fast": 1.0, "safe": 9.0}), (1.0, {"safe": 9.0})]) == "safe"
    assert common_config([(1.0, {"fast": 1.0}), (1.0, {"safe": 9.0})]) is None
    assert common_config([(1.0, {"a": 1.0, "b": 2.0})], is_out=["a"]) == "b"
    assert common_config([]) is None


def test_equal_times_give_one_config() -> None:
    """The choice does not depend on an order."""
    assert common_config([(1.0, {"b": 1.0, "a": 1.0})]) == common_config([(1.0, {"a": 1.0, "b": 1.0})]) == "a"
