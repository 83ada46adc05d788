"""The doctor's view of a cluster and a team's store: what is missing where, without either."""

import platform
from typing import Any

from ktuned.cli.cluster_check import check_cluster, check_team
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


def _team(**changes: Any) -> dict[str, Any]:
    return {
        "url": "s3://bucket/team",
        "read_only": False,
        "published": 3,
        "read": 2,
        "looked": 1.0,
        "fault": "",
        **changes,
    }


def test_a_teams_store_has_a_line() -> None:
    """Where it is and what is shared; none without a store."""
    assert list(check_team({"url": None})) == []
    (finding,) = check_team(_team(read_only=True))
    assert (finding.level, finding.mend) == (Level.OK, "")
    assert finding.message == "s3://bucket/team, only read: 3 winners of ours there, 2 for this machine's contexts"


def test_a_teams_store_that_fails_says_why() -> None:
    """A fault is a warning, with its reason and where to look: tuning goes on without the store."""
    (finding,) = check_team(_team(fault="connection refused"))
    assert (finding.level, finding.message) == (Level.WARN, "s3://bucket/team: connection refused")
    assert "ktuned team status" in finding.mend
