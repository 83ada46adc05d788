"""Loads compiled winners: finds ktuned's loader by its entry point; the loader then calls the backend's plugin.

This package knows no backend, and imports only the standard library until a winner is loaded.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from ktuned_client.answers import LoadError

if TYPE_CHECKING:
    from ktuned_client.answers import Hit, Problem

LOADERS: Final = "ktuned.loaders"
"""Entry-point group of functions ``(artifact, kernel_file, device) -> callable``; ktuned provides ``winner``."""


def load_winner(hit: Hit, device: str | None, default: Callable[..., Any] | None) -> Any:
    """Return a hit's winner as a callable, or ``default`` if there is none; see :meth:`Hit.load`.

    Raises:
        LoadError: there is no compiled winner and no ``default``, or ktuned is not installed here.
    """
    reason = _explain_missing(hit)
    if reason:
        if default is not None:
            return default
        raise LoadError(f"{hit.kernel} has no compiled winner for {_describe_problem(hit.problem)}: {reason}")
    artifact = str(hit.artifact)
    for point in entry_points(group=LOADERS, name="winner"):
        return point.load()(artifact, hit.file, device)
    plugin = _find_plugin(artifact)
    remedy = f"{sys.executable} -m pip install {plugin}" if plugin else "install its plugin"
    raise LoadError(f"{hit.kernel} cannot be loaded: its backend is not installed for this Python; {remedy}")


def _explain_missing(hit: Hit) -> str:
    """Return why a hit has no winner to load; empty if it has one."""
    if hit.artifact is None:
        reason = f" ({hit.message})" if hit.message else ""
        return f"the answer is {hit.status!r}{reason}"
    if hit.measured is not None:
        # The artifact's launch sizes and scalars are those of the other problem.
        return (
            f"the winner was compiled and measured for {_describe_problem(hit.measured)}; "
            "launch it from hit.artifact with your own sizes, or tune this very problem"
        )
    return ""


def _find_plugin(artifact: str) -> str:
    """Return the distribution that made an artifact, from its manifest; empty if that is unknown."""
    try:
        with open(os.path.join(artifact, "manifest.json"), "rb") as stream:
            plugin = json.load(stream)["recipe"]["plugin"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return plugin if isinstance(plugin, str) else ""


def _describe_problem(problem: Problem) -> str:
    return " ".join(f"{key}={value}" for key, value in problem.items()) or "its only problem"
