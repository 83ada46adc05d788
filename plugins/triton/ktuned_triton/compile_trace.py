"""``torch.compile``: while it traces, an autotuned function has one config, once that is known.

Dynamo and Inductor read an autotuner's configs, and Inductor tunes them itself, in the program. Given the winner alone,
it compiles that and tunes nothing.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

_log = logging.getLogger("ktuned.triton")

Choose = Callable[[], list[Any]]


class Traced:
    """The face of one autotuner for traces: for each of them the same from its beginning to its end.

    A grid that was traced for one config is wrong for another, which a tuning may bring meanwhile.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._shown: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

    def configs(self) -> list[Any]:
        """Return the only config, in a list, for the trace that goes on; nothing if none is known, or outside."""
        context = tracing_context()
        if context is None:
            return []
        if context not in self._shown:
            self._shown[context] = self._choose()
        return self._shown[context]


_ask: Callable[[], Any] | None = None
"""Torch's own question, once it is known: each launch asks it."""


def tracing_context() -> Any:
    """Return torch's context of the trace that goes on in this thread, also while its graph is compiled.

    A torch that does not say so is taken for one that never traces: Inductor tunes all configs itself then.
    """
    global _ask
    if _ask is not None:
        return _ask()
    guards: Any = sys.modules.get("torch._guards")
    if guards is None:
        return None
    context: Any = getattr(guards, "TracingContext", None)
    if not hasattr(context, "try_get"):
        _say_once(f"torch {sys.modules['torch'].__version__}: traces of torch.compile are not seen, which tunes itself")
        return None
    _ask = context.try_get
    return _ask()


@cache
def _say_once(text: str) -> None:
    _log.warning(text)
