"""Events: the stream that a connection subscribes to."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ktuned.protocol.method import Method, NoParams


class SubscribeParams(msgspec.Struct, frozen=True):
    """``subscribe``: the start, and filters of events."""

    since: list[int] | None = None
    kernels: list[str] | None = None
    jobs: list[int] | None = None
    types: list[str] | None = None


SUBSCRIBE: Final[Method[SubscribeParams, dict[str, Any]]] = Method("subscribe", SubscribeParams, dict)
UNSUBSCRIBE: Final[Method[NoParams, dict[str, Any]]] = Method("unsubscribe", NoParams, dict)
