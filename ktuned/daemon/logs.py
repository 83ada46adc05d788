"""Format of the daemon's log: one event per line on stderr, for a person, a program or the journal.

Events of a job or a trial have its ids, which are bound once, where its task begins (structlog.contextvars).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from enum import Enum
from typing import Any, TextIO, cast

import structlog
from structlog.typing import Processor

PRIORITIES = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
"""The journal's priorities (syslog(3)) of structlog's levels; each line for the journal begins with one."""


class LogFormat(Enum):
    """Format of a line."""

    LOGFMT = "logfmt"
    JSON = "json"
    JOURNAL = "journal"


def choose_format(environ: Mapping[str, str], descriptor: int, *, as_json: bool) -> LogFormat:
    """Return the format of a log to ``descriptor``: the journal's if it leads there, else JSON or logfmt as chosen."""
    if is_journal_stream(environ, descriptor):
        return LogFormat.JOURNAL
    return LogFormat.JSON if as_json else LogFormat.LOGFMT


def is_journal_stream(environ: Mapping[str, str], descriptor: int) -> bool:
    """Return whether a descriptor is the journal's stream, which ``JOURNAL_STREAM`` names (systemd.exec(5))."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    # Every child inherits the variable, and its stderr may lead elsewhere: the variable alone proves nothing.
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class _LossyStderr:
    """Standard error that drops lines that cannot be written, so that a log on a full disk does not end the daemon."""

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(line)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def configure_logging(level: str, form: LogFormat) -> None:
    """Send log events of ``level`` and above to stderr."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *_list_processors(form),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _LossyStderr())),
        cache_logger_on_first_use=True,
    )


def _list_processors(form: LogFormat) -> list[Processor]:
    explain: Processor = structlog.processors.format_exc_info
    stamp: Processor = structlog.processors.TimeStamper(fmt="iso")
    as_json: Processor = structlog.processors.JSONRenderer()
    if form is LogFormat.JOURNAL:
        # The journal stamps lines itself.
        return [explain, _prefix_priority(structlog.processors.JSONRenderer())]
    if form is LogFormat.JSON:
        return [stamp, explain, as_json]
    return [
        stamp,
        explain,
        structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
    ]


def _prefix_priority(render: structlog.processors.JSONRenderer) -> Processor:
    """Return a renderer whose lines begin with their priority, ``<4>`` (sd-daemon(3))."""

    def render_line(logger: Any, name: str, event: MutableMapping[str, Any]) -> str:
        priority = PRIORITIES.get(event.get("level", "info"), PRIORITIES["info"])
        line = render(logger, name, event)
        return f"<{priority}>{line if isinstance(line, str) else line.decode()}"

    return render_line
