"""Completion of kernels' names in shells, asked of the daemon; docs/cli.md says how a shell is set up.

Short names come first: a shell such as bash ends a word at the colon of a full one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

DEADLINE_S = 0.5
"""Longest wait for a daemon: a key press must not hang."""

MAX_NAMES = 200


def complete_kernel(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of kernels that begin with a word; none without a daemon."""
    return [CompletionItem(name) for name in names(_known(), incomplete)]


def complete_target(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of kernels that begin with a word, or else have the shell complete a path."""
    found = [] if "/" in incomplete else complete_kernel(context, parameter, incomplete)
    return found or [CompletionItem(incomplete, type="file")]


def names(known: Iterable[str], incomplete: str) -> list[str]:
    """Return what may stand for the kernels of these full names: the short name where only one has it. No IO."""
    full = sorted(known)
    short = Counter(name.rpartition(":")[2] for name in full)
    meant = (
        full if ":" in incomplete else [word if short[word := name.rpartition(":")[2]] == 1 else name for name in full]
    )
    return [name for name in meant if name.startswith(incomplete)][:MAX_NAMES]


def _known() -> list[str]:
    from ktuned_client import Client, DaemonError, DaemonUnavailable

    try:
        with Client() as client:
            return [kernel["name"] for kernel in client.call("kernels", deadline_s=DEADLINE_S)["kernels"]]
    except (DaemonUnavailable, DaemonError):
        return []
