"""While ``torch.compile`` traces, an autotuned function shows only its winner, once that is known.

Dynamo and Inductor read an autotuner's configs, and Inductor tunes them itself, in the program. If it sees the winner
alone, it compiles that and tunes nothing.
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
    """The configs that traces see of one autotuner: the same from the beginning of a trace to its end.

    A tuning may end during a trace, but a grid that was traced for one config is wrong for another.
    """

    def __init__(self, choose: ChooseConfigs) -> None:
        self._choose = choose
        self._shown: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

    def find_configs(self) -> list[Any]:
        """Return the config for the current trace, in a list; an empty list if none is known, or outside a trace."""
        context = find_tracing_context()
        if context is None:
            return []
        if context not in self._shown:
            self._shown[context] = self._choose()
        return self._shown[context]


_get_context: Callable[[], Any] | None = None
"""Torch's function for it, kept once it is found, because each launch calls it."""


def find_tracing_context() -> Any:
    """Return torch's context of this thread's current trace, also while its graph is compiled; else ``None``.

    A torch without such a context counts as one that never traces; Inductor then tunes all configs itself.
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
