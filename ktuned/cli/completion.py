"""Completion of kernels' names in shells, with names from the daemon; docs/reference/cli.md says how a shell is set up.

Short names are preferred, because a shell such as bash ends a word at the colon of a full name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

DEADLINE_S = 0.5
"""Longest wait for the daemon, so that a key press does not hang."""

MAX_NAMES = 200


def complete_kernel(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of kernels that begin with a word; none without a daemon."""
    return [CompletionItem(name) for name in complete_kernel_names(_known_kernels(), incomplete)]


def complete_target(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of kernels that begin with a word; if there are none, let the shell complete a path."""
    found = [] if "/" in incomplete else complete_kernel(context, parameter, incomplete)
    return found or [CompletionItem(incomplete, type="file")]


def complete_kernel_names(known: Iterable[str], incomplete: str) -> list[str]:
    """Return the completions for kernels with these full names: the short name if only one kernel has it. No IO.

    A short name that several kernels have is completed to their full names.
    """
    full = sorted(known)
    if ":" in incomplete:
        return [name for name in full if name.startswith(incomplete)][:MAX_NAMES]
    short = {name: name.rpartition(":")[2] for name in full}
    count = Counter(short.values())
    begun = [name for name in full if short[name].startswith(incomplete)]
    begun += [name for name in full if name not in begun and count[short[name]] > 1 and name.startswith(incomplete)]
    return [short[name] if count[short[name]] == 1 else name for name in begun][:MAX_NAMES]


def _known_kernels() -> list[str]:
    # Imported here, because `--help` needs no daemon.
    from ktuned.protocol import KERNELS, call_method
    from ktuned_client import Client, DaemonError, DaemonUnavailable

    try:
        with Client() as client:
            return [kernel.name for kernel in call_method(client, KERNELS, deadline_s=DEADLINE_S).kernels]
    except (DaemonUnavailable, DaemonError):
        return []
