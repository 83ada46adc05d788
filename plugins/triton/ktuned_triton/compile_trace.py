"""While ``torch.compile`` traces, an autotuned function shows only its winner, once there is one.

Dynamo and Inductor read an autotuner's configs, and Inductor tunes them itself, in the program. If it sees only one
config, it compiles that config and tunes nothing.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

_log = logging.getLogger("ktuned.triton")

ChooseConfigs = Callable[[], list[Any]]


class TracedConfigs:
    """The configs of one autotuner that traces see; they stay the same during a trace.

    A tuning may end during a trace, but the trace must not mix configs: a grid traced for one is wrong for another.
    """

    def __init__(self, find_common_winner: ChooseConfigs) -> None:
        self._find_common_winner = find_common_winner
        self._configs_by_trace: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

    def find_configs(self) -> list[Any]:
        """Return a list with the config for the current trace; it is empty if none is known, or outside a trace."""
        context = find_tracing_context()
        if context is None:
            return []
        if context not in self._configs_by_trace:
            self._configs_by_trace[context] = self._find_common_winner()
        return self._configs_by_trace[context]


_get_context: Callable[[], Any] | None = None
"""Torch's function that returns the current trace's context. It is kept once found, because each launch calls it."""


def find_tracing_context() -> Any:
    """Return torch's context of the trace, or of the compile after it, that runs in this thread; else ``None``.

    With a torch that has no such context, the result is always ``None``, and Inductor tunes all configs itself.
    """
    global _get_context
    if _get_context is not None:
        return _get_context()
    guards: Any = sys.modules.get("torch._guards")
    if guards is None:
        return None
    context: Any = getattr(guards, "TracingContext", None)
    if not hasattr(context, "try_get"):
        _warn_once(
            f"torch {sys.modules['torch'].__version__} does not report its traces: torch.compile tunes by itself"
        )
        return None
    _get_context = context.try_get
    return _get_context()


@cache
def _warn_once(text: str) -> None:
    _log.warning(text)
