"""Which configs applications launch for the keys of their own functions; the calls' records are in the spool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ktuned.model import CallKey, Config, FrozenStruct
from ktuned.protocol.method import EmptyAnswer, Method, Params
from ktuned.protocol.winners import Status


class CallsParams(Params):
    """``calls``: keys of functions. With ``waits``, their tunings have priority while the connection lasts. ``beside``
    is the pid of the application, which uses the device during the tuning.
    """

    keys: list[CallKey]
    waits: bool = False
    beside: int | None = None


class KeyAnswer(FrozenStruct):
    """What the daemon knows about one key of an application's function.

    Attributes:
        status: the status that a lookup would have.
        config: the best config known; None if none is known.
        is_open: whether a tuning of the key waits or runs.
        artifact: the directory of the config's machine code.
        latency_us: the config's latency, if it was measured for exactly this key.
        message: why a tuning ended without a winner; else empty.
        given_up: the number of configs whose compiles were given up for time, and that are compiled later.
        default_us: the latency of the declared default in the winner's job, if a default is declared.
    """

    status: Status
    config: Config | None = None
    is_open: bool = False
    artifact: str | None = None
    latency_us: float | None = None
    message: str = ""
    given_up: int = 0
    default_us: float | None = None


class CallsAnswer(FrozenStruct):
    """The answer for each key, in the order of the keys."""

    answers: Sequence[KeyAnswer]


class PrepareParams(Params):
    """``prepare_workers``: the plugin whose framework an application imports, in an interpreter with these environment
    variables, and the library for the plugin's front end to import, if there is one.
    """

    tool: str
    python: str
    library: dict[str, Any] | None = None
    variables: dict[str, str] = {}


CALLS = Method("calls", CallsParams, CallsAnswer)
PREPARE_WORKERS = Method("prepare_workers", PrepareParams, EmptyAnswer)
