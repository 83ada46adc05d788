"""Calls of applications' own functions, whose records lie in the spool: what to launch for each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ktuned.model import CallKey, Config, Status
from ktuned.protocol.method import EmptyAnswer, Method


class CallsParams(msgspec.Struct, frozen=True):
    """``calls``: keys of functions. With ``waits`` their tunings go first while the connection lasts; ``beside`` is the
    process that asks, which uses the device.
    """

    keys: list[CallKey]
    waits: bool = False
    beside: int | None = None
    pin: str | None = None


class KeyAnswer(msgspec.Struct, frozen=True):
    """What the daemon knows about one key of an application's function.

    Attributes:
        status: a lookup's.
        config: the best config known; None without one.
        is_open: whether a tuning of the key waits or runs.
        artifact: the directory of the config's machine code.
        latency_us: its latency, where it was measured for this very key.
        message: why a tuning has ended without a winner; empty before.
    """

    status: Status
    config: Config | None = None
    is_open: bool = False
    artifact: str | None = None
    latency_us: float | None = None
    message: str = ""


class CallsAnswer(msgspec.Struct, frozen=True):
    """The answer for each key, in the order of the keys."""

    answers: Sequence[KeyAnswer]


class LibraryParams(msgspec.Struct, frozen=True):
    """``prepare_library``: what a plugin's front end imports, for an interpreter with such variables."""

    tool: str
    python: str
    library: dict[str, Any]
    variables: dict[str, str] = msgspec.field(default_factory=dict)


CALLS: Final = Method("calls", CallsParams, CallsAnswer)
PREPARE_LIBRARY: Final = Method("prepare_library", LibraryParams, EmptyAnswer)
