"""Loading of compiled winners: finds ktuned's loader by its entry point, which has the backend's plugin do the work.

This package knows no backend, and imports no more than the standard library until a winner is loaded.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from ktuned_client.answers import LoadError

if TYPE_CHECKING:
    from ktuned_client.answers import Hit

LOADERS: Final = "ktuned.loaders"
"""Entry-point group of functions ``(artifact, kernel_file, device) -> callable``; ktuned has the one of ``winner``."""


def load(hit: Hit, device: str | None, default: Callable[..., Any] | None) -> Any:
    """Return a hit's winner as a callable, or ``default`` where there is none; see :meth:`Hit.load`.

    Raises:
        LoadError: there is neither, or ktuned is not installed here.
    """
    reason = _why_not(hit)
    if reason:
        if default is not None:
            return default
        raise LoadError(f"{hit.kernel} has no compiled winner for {_problem_in_words(hit.problem)}: {reason}")
    artifact = str(hit.artifact)
    for point in entry_points(group=LOADERS, name="winner"):
        return point.load()(artifact, hit.file, device)
    plugin = _plugin(artifact)
    remedy = f"{sys.executable} -m pip install {plugin}" if plugin else "install its plugin"
    raise LoadError(f"{hit.kernel} cannot be loaded: its backend is not installed for this Python; {remedy}")


def _why_not(hit: Hit) -> str:
    """Return the reason why nothing can be loaded; empty if something can."""
    if hit.artifact is None:
        why = f" ({hit.message})" if hit.message else ""
        return f"the answer is {hit.status!r}{why}"
    if hit.measured is not None:
        # Its launch sizes and scalars are those of the other problem.
        return (
            f"the winner was compiled and measured for {_problem_in_words(hit.measured)}; "
            "launch it with sizes of your own from hit.artifact, or tune this very problem"
        )
    return ""


def _plugin(artifact: str) -> str:
    """Return the distribution that made an artifact, as its manifest names it."""
    try:
        with open(os.path.join(artifact, "manifest.json"), "rb") as stream:
            plugin = json.load(stream)["recipe"]["plugin"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return plugin if isinstance(plugin, str) else ""


def _problem_in_words(problem: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in problem.items()) or "its only problem"
