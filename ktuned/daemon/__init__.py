"""The daemon as a whole: assembly, settings, state directory, lifetime.

``run`` is imported when it is first used, so that commands that only read settings do not load every part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ktuned.daemon import logs
from ktuned.daemon.settings import load_settings

if TYPE_CHECKING:
    from ktuned.daemon.process import run


def __getattr__(name: str) -> Any:
    if name == "run":
        from ktuned.daemon.process import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
