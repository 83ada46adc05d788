"""Calls of applications' own functions, whose records lie in the spool: what to launch for each key."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ktuned.model import Scalar
from ktuned.protocol.method import Method


class CalledKey(msgspec.Struct, frozen=True):
    """A function by its identity, a tuning key, and a GPU's model."""

    identity: str
    problem: dict[str, Scalar]
    device: str | None = None


class CallsParams(msgspec.Struct, frozen=True):
    """``calls``: keys of functions. With ``waits`` their tunings go first while the connection lasts; ``beside`` is the
    process that asks, which uses the device.
    """

    keys: list[CalledKey]
    waits: bool = False
    beside: int | None = None
    pin: str | None = None


class LibraryParams(msgspec.Struct, frozen=True):
    """``prepare_library``: what a plugin's front end imports, for an interpreter with such variables."""

    tool: str
    python: str
    library: dict[str, Any]
    variables: dict[str, str] = msgspec.field(default_factory=dict)


CALLS: Final[Method[CallsParams, dict[str, Any]]] = Method("calls", CallsParams, dict)
PREPARE_LIBRARY: Final[Method[LibraryParams, dict[str, Any]]] = Method("prepare_library", LibraryParams, dict)
