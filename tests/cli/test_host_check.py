"""The doctor's view of a cluster's hosts: what is missing where, without one."""

from typing import Any

from ktuned.cli.doctor import Level, check_hosts
from ktuned.protocol import StatusAnswer
from tests.cli.samples import status_of


def _host(name: str, state: str = "ready", reason: str = "") -> dict[str, Any]:
    return {"name": name, "cpus": 8, "gpus": 1, "state": state, "reason": reason}


def _status(*hosts: dict[str, Any], version: str = "Ray 2.60.0", reports: Any = ()) -> StatusAnswer:
    cluster = {"address": "ray://head", "version": version, "hosts": list(hosts)}
    return status_of(cluster=cluster, environments=reports)


def _report(host: str, *backends: str) -> dict[str, Any]:
    return {"python": "/py", "error": None, "host": host, "backends": {name: {"version": "1"} for name in backends}}


def test_a_daemon_of_one_machine_has_nothing_to_check() -> None:
    """No cluster, no lines."""
    assert list(check_hosts(status_of())) == []


def test_a_cluster_that_is_not_joined_says_what_helps() -> None:
    """The process that joins it may lack something."""
    (found,) = check_hosts(_status(version=""))
    assert (found.level, "ray://head" in found.message, "[cluster] python" in found.mend) == (Level.WARN, True, True)


def test_a_host_says_what_it_lacks() -> None:
    """A missing backend, and why a host cannot be used."""
    reports = [_report("", "nvrtc", "cpu"), _report("n1", "nvrtc", "cpu"), _report("n2", "cpu")]
    hosts = (_host("n1"), _host("n2"), _host("n3", "failed", "no plugin"))
    cluster, first, second, third = check_hosts(_status(*hosts, reports=reports))
    assert (cluster.level, first.level, second.level, third.level) == (Level.OK, Level.OK, Level.WARN, Level.WARN)
    assert "Ray 2.60.0, 3 hosts" in cluster.message
    assert "no backend nvrtc" in second.message
    assert third.message == "no plugin"
