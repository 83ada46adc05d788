"""Checks of what lies beyond this machine: a cluster and, for each node, what is missing there."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ktuned.cli import text
from ktuned.cli.doctor import Finding, Level


def check_cluster(
    status: Mapping[str, Any], environments: Iterable[Mapping[str, Any]], version: str
) -> Iterator[Finding]:
    """Check the cluster of a daemon's ``status``; nothing without one.

    ``environments`` are reports of interpreters, here and on nodes; ``version`` is ktuned's here.
    """
    cluster = status.get("cluster") or {}
    if not cluster:
        return
    address, nodes = cluster["address"], cluster["nodes"]
    if not cluster.get("ray"):
        yield Finding(
            Level.WARN,
            "cluster",
            f"{address} is not joined; the notices say why",
            "the bridge's interpreter ([cluster] python) needs ktuned-ray, and the cluster's Ray and Python",
        )
        return
    said = f"{address}: Ray {cluster['ray']} and Python {cluster['python']}, {text.number(len(nodes), 'node')}"
    yield Finding(Level.OK, "cluster", said)
    reports = list(environments)
    here = {name for report in reports if not report.get("node") for name in _usable(report)}
    for node in nodes:
        yield _check_node(node, reports, here, version)


def _check_node(node: Mapping[str, Any], reports: Iterable[Mapping[str, Any]], here: set[str], version: str) -> Finding:
    name = f"node {node['name']}"
    if node["state"] != "ready":
        reason = text.first_line(node["reason"]) or "its keeper is being started"
        mend = "install ktuned-ray on the node, or bring it by [cluster] runtime_env" if node["reason"] else ""
        return Finding(Level.WARN, name, reason, mend)
    there = [report for report in reports if report.get("node") == node["name"]]
    missing = here - {backend for report in there for backend in _usable(report)}
    differs = []
    if node["ktuned"] != version:
        differs.append(f"ktuned {node['ktuned']}, here {version}")
    if node["python"].split(".")[:2] != platform.python_version().split(".")[:2]:
        differs.append(f"Python {node['python']}, here {platform.python_version()}")
    if there and missing:
        differs.append(f"no backend {', '.join(sorted(missing))}")
    found = f"{node['interpreter']}, {text.number(node['cpus'], 'CPU')}, {text.number(node['gpus'], 'GPU')}"
    if not differs:
        return Finding(Level.OK, name, found)
    mend = f"install the same on {node['host']} for {node['interpreter']}, or bring it by [cluster] runtime_env"
    return Finding(Level.WARN, name, f"{found}; {'; '.join(differs)}", mend)


def _usable(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the backends of a report that can be imported."""
    return (name for name, backend in report["backends"].items() if not backend.get("error"))
