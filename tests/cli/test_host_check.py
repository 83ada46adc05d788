"""The doctor's findings about the hosts of a cluster."""

from typing import Any

from ktuned.cli.doctor import Level, check_hosts
from ktuned.protocol import StatusAnswer
from tests.cli.samples import make_status


def make_host(name: str, state: str = "ready", reason: str = "") -> dict[str, Any]:
    return {"name": name, "cpus": 8, "gpus": 1, "state": state, "reason": reason}


def make_cluster_status(*hosts: dict[str, Any], version: str = "Ray 2.60.0", reports: Any = ()) -> StatusAnswer:
    cluster = {"address": "ray://head", "version": version, "hosts": list(hosts)}
    return make_status(cluster=cluster, environments=reports)


def make_backends_report(host: str, *backends: str) -> dict[str, Any]:
    return {"python": "/py", "error": None, "host": host, "backends": {name: {"version": "1"} for name in backends}}


def test_a_daemon_of_one_machine_has_nothing_to_check() -> None:
    assert list(check_hosts(make_status())) == []


def test_a_cluster_that_was_not_joined_has_a_remedy() -> None:
    (finding,) = check_hosts(make_cluster_status(version=""))
    assert finding.level == Level.WARN
    assert "ray://head" in finding.message
    assert "[cluster] python" in finding.mend


def test_a_host_s_missing_backend_and_failure_are_named() -> None:
    reports = [
        make_backends_report("", "nvrtc", "cpu"),
        make_backends_report("n1", "nvrtc", "cpu"),
        make_backends_report("n2", "cpu"),
    ]
    hosts = (make_host("n1"), make_host("n2"), make_host("n3", "failed", "no plugin"))
    cluster, first, second, third = check_hosts(make_cluster_status(*hosts, reports=reports))
    assert (cluster.level, first.level, second.level, third.level) == (Level.OK, Level.OK, Level.WARN, Level.WARN)
    assert "Ray 2.60.0, 3 hosts" in cluster.message
    assert "no backend nvrtc" in second.message
    assert third.message == "no plugin"
