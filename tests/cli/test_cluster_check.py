"""The doctor's view of a cluster: what is missing where, without either."""

import platform
from typing import Any

from ktuned.cli.cluster_check import check_cluster
from ktuned.cli.doctor import Level

PYTHON = platform.python_version()


def _node(name: str, **changes: Any) -> dict[str, Any]:
    ready = {"state": "ready", "reason": "", "interpreter": "/py", "python": PYTHON, "ktuned": "1.0"}
    return {"name": name, "host": "rack", "cpus": 8, "gpus": 1, **ready, **changes}


def _status(*nodes: dict[str, Any], ray: str = "2.60.0") -> dict[str, Any]:
    return {"cluster": {"address": "ray://head:10001", "ray": ray, "python": PYTHON, "nodes": list(nodes)}}


def _report(node: str, *backends: str) -> dict[str, Any]:
    return {"node": node, "backends": {name: {} for name in backends}}


def test_a_daemon_without_a_cluster_has_nothing_to_check() -> None:
    """No cluster, no lines."""
    assert list(check_cluster({"cluster": {}}, [], "1.0")) == []
    assert list(check_cluster({}, [], "1.0")) == []


def test_a_cluster_that_is_not_joined_names_the_versions() -> None:
    """Ray wants equal versions, which is the usual reason."""
    (found,) = check_cluster(_status(ray=""), [], "1.0")
    assert (found.level, "ktuned-ray" in found.mend) == (Level.WARN, True)


def test_a_node_says_what_it_lacks() -> None:
    """Another ktuned, another Python and a missing backend are named with the node and its interpreter."""
    reports = [_report("", "nvrtc", "cpu"), _report("n1", "nvrtc", "cpu"), _report("n2", "cpu")]
    nodes = (
        _node("n1"),
        _node("n2", ktuned="0.9", python="3.9.1"),
        _node("n3", state="failed", reason="no ktuned_ray", ktuned="", python=""),
    )
    cluster, first, second, third = check_cluster(_status(*nodes), reports, "1.0")
    assert (cluster.level, first.level, second.level, third.level) == (Level.OK, Level.OK, Level.WARN, Level.WARN)
    assert "Ray 2.60.0" in cluster.message
    for words in ("ktuned 0.9, here 1.0", "Python 3.9.1", "no backend nvrtc"):
        assert words in second.message
    assert "rack" in second.mend
    assert third.message == "no ktuned_ray"
