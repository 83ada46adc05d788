"""Checks of what lies beyond this machine: other hosts, and what is missing there."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator

from ktuned.cli import text
from ktuned.cli.doctor import Finding, Level
from ktuned.protocol import EnvironmentInfo, HostInfo, StatusAnswer


def check_hosts(status: StatusAnswer, version: str) -> Iterator[Finding]:
    """Check the other hosts in a daemon's status, where it has some; ``version`` is ktuned's here."""
    for name, executor in status.executors.items():
        if not executor.version:
            said = f"{executor.name} is not joined; the notices say why"
            yield Finding(Level.WARN, name, said, executor.mend)
            continue
        count = text.count_of(len(executor.hosts), "host")
        yield Finding(Level.OK, name, f"{executor.name}: {executor.version}, {count}")
        for host in executor.hosts:
            yield _check_host(host, status.environments, version)


def _check_host(host: HostInfo, environments: Iterable[EnvironmentInfo], version: str) -> Finding:
    name = f"host {host.name}"
    if host.state != "ready":
        reason = text.first_line(host.reason)
        return Finding(Level.WARN, name, reason or "it is being started", host.mend if reason else "")
    differs = []
    if host.ktuned != version:
        differs.append(f"ktuned {host.ktuned}, here {version}")
    if host.python.split(".")[:2] != platform.python_version().split(".")[:2]:
        differs.append(f"Python {host.python}, here {platform.python_version()}")
    if missing := _find_missing_backends(host, environments):
        differs.append(f"no backend {', '.join(sorted(missing))}")
    found = f"{host.interpreter}, {text.count_of(host.cpus, 'CPU')}, {text.count_of(host.gpus, 'GPU')}"
    if not differs:
        return Finding(Level.OK, name, found)
    return Finding(Level.WARN, name, f"{found}; {'; '.join(differs)}", host.mend)


def _find_missing_backends(host: HostInfo, environments: Iterable[EnvironmentInfo]) -> set[str]:
    """Return the usable backends of this machine that a host lacks; none while the host was not probed."""
    usable: dict[str, set[str]] = {}
    for report in environments:
        names = {name for name, backend in report.backends.items() if backend.error is None}
        usable.setdefault(report.host, set()).update(names)
    return usable.get("", set()) - usable[host.name] if host.name in usable else set()
