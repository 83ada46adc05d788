"""Exit statuses of every command; docs/cli.md lists them.

A module of its own: every command imports it, and the program imports every command.
"""

from __future__ import annotations

from enum import IntEnum

USAGE_CODES = frozenset({"usage", "ambiguous", "settings"})
"""Codes of errors in the command line or the settings."""


class Exit(IntEnum):
    """Exit status of a command; 130 is Ctrl-C, 141 a closed stdout."""

    DONE = 0
    NOT_REACHED = 1
    USAGE = 2
    NO_DAEMON = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141
