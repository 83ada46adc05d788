"""The daemon itself: who serves here, how every part does, settings, artifacts, devices' limits."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ktuned.protocol.method import Method, NoParams


class PeaksParams(msgspec.Struct, frozen=True):
    """``peaks``: what is kept; with ``measure`` also what is not yet, with ``again`` all once more."""

    measure: bool = False
    again: bool = False


class CollectParams(msgspec.Struct, frozen=True):
    """``gc``: ``dry_run`` lists what would be removed; the size to reach in GiB (by default the cap)."""

    dry_run: bool = False
    keep_gib: float | None = None


HELLO: Final[Method[NoParams, dict[str, Any]]] = Method("hello", NoParams, dict)
STATUS: Final[Method[NoParams, dict[str, Any]]] = Method("status", NoParams, dict)
BACKENDS: Final[Method[NoParams, dict[str, Any]]] = Method("backends", NoParams, dict)
PEAKS: Final[Method[PeaksParams, dict[str, Any]]] = Method("peaks", PeaksParams, dict)
COLLECT: Final[Method[CollectParams, dict[str, Any]]] = Method("gc", CollectParams, dict)
RELOAD: Final[Method[NoParams, dict[str, Any]]] = Method("reload", NoParams, dict)
SHUTDOWN: Final[Method[NoParams, dict[str, Any]]] = Method("shutdown", NoParams, dict)
