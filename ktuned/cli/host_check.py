"""Checks of what lies beyond this machine: other hosts, and what is missing there."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ktuned.cli import text
from ktuned.cli.doctor import Finding, Level


def check_hosts(
    status: Mapping[str, Any], environments: Iterable[Mapping[str, Any]], version: str
) -> Iterator[Finding]:
    """Check the other hosts in a daemon's ``status``; nothing where it has none.

    ``environments`` are reports of interpreters, here and on hosts; ``version`` is ktuned's here.
    """
    reports = list(environments)
    here = {name for report in reports if not report.get("host") for name in _usable_backends(report)}
    for name, executor in (status.get("executors") or {}).items():
        if not executor["version"]:
            said = f"{executor['name']} is not joined; the notices say why"
            yield Finding(Level.WARN, name, said, executor["mend"])
            continue
        count = text.count_of(len(executor["hosts"]), "host")
        yield Finding(Level.OK, name, f"{executor['name']}: {executor['version']}, {count}")
        for host in executor["hosts"]:
            yield _check_host(host, reports, here, version)


def _check_host(host: Mapping[str, Any], reports: Iterable[Mapping[str, Any]], here: set[str], version: str) -> Finding:
    name = f"host {host['name']}"
    if host["state"] != "ready":
        reason = text.first_line(host["reason"])
        return Finding(Level.WARN, name, reason or "it is being started", host["mend"] if reason else "")
    there = [report for report in reports if report.get("host") == host["name"]]
    missing = here - {backend for report in there for backend in _usable_backends(report)}
    differs = []
    if host["ktuned"] != version:
        differs.append(f"ktuned {host['ktuned']}, here {version}")
    if host["python"].split(".")[:2] != platform.python_version().split(".")[:2]:
        differs.append(f"Python {host['python']}, here {platform.python_version()}")
    if there and missing:
        differs.append(f"no backend {', '.join(sorted(missing))}")
    found = f"{host['interpreter']}, {text.count_of(host['cpus'], 'CPU')}, {text.count_of(host['gpus'], 'GPU')}"
    if not differs:
        return Finding(Level.OK, name, found)
    return Finding(Level.WARN, name, f"{found}; {'; '.join(differs)}", host["mend"])


def _usable_backends(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the backends of a report that can be imported."""
    return (name for name, backend in report["backends"].items() if not backend.get("error"))
