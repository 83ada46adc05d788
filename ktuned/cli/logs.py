"""How the daemon's log is written: one event a line on stderr, as ``key=value`` or as JSON."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor


def configure(level: str, *, as_json: bool) -> None:
    """Send log events of ``level`` and above to stderr."""
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
