"""The doctor's view of other hosts: what is missing where, without either."""

import platform
from typing import Any

from ktuned.cli.doctor import Level, check_hosts
from ktuned.protocol import STATUS, StatusAnswer

PYTHON = platform.python_version()


def _host(name: str, **changes: Any) -> dict[str, Any]:
    ready = {"state": "ready", "reason": "", "interpreter": "/py", "python": PYTHON, "ktuned": "1.0", "mend": "do it"}
    return {"name": name, "cpus": 8, "gpus": 1, **ready, **changes}


def _status(*hosts: dict[str, Any], version: str = "Farm 2.60.0", reports: Any = ()) -> StatusAnswer:
    farm = {"name": "farm://head", "version": version, "mend": "install it", "hosts": list(hosts)}
    return STATUS.read_answer({"executors": {"farm": farm}, "environments": reports})


def _report(host: str, *backends: str) -> dict[str, Any]:
    return {"python": "/py", "error": None, "host": host, "backends": {name: {"version": "1"} for name in backends}}


def test_a_daemon_of_one_machine_has_nothing_to_check() -> None:
    """No other executor, no lines."""
    assert list(check_hosts(STATUS.read_answer({"executors": {}}), "1.0")) == []
    assert list(check_hosts(STATUS.read_answer({}), "1.0")) == []


def test_an_executor_that_reaches_no_hosts_says_what_helps() -> None:
    """In its own words."""
    (found,) = check_hosts(_status(version=""), "1.0")
    assert (found.level, found.mend, "farm://head" in found.message) == (Level.WARN, "install it", True)


def test_a_host_says_what_it_lacks() -> None:
    """Another ktuned, another Python and a missing backend are named with the host and its interpreter."""
    reports = [_report("", "nvrtc", "cpu"), _report("n1", "nvrtc", "cpu"), _report("n2", "cpu")]
    hosts = (
        _host("n1"),
        _host("n2", ktuned="0.9", python="3.9.1"),
        _host("n3", state="failed", reason="no plugin", ktuned="", python=""),
    )
    farm, first, second, third = check_hosts(_status(*hosts, reports=reports), "1.0")
    assert (farm.level, first.level, second.level, third.level) == (Level.OK, Level.OK, Level.WARN, Level.WARN)
    assert "Farm 2.60.0, 3 hosts" in farm.message
    for words in ("ktuned 0.9, here 1.0", "Python 3.9.1", "no backend nvrtc"):
        assert words in second.message
    assert second.mend == "do it"
    assert third.message == "no plugin"
