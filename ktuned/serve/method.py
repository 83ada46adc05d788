"""A method's handler, the peer that calls it, and the decoding of its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from ktuned.model import FrozenStruct, UsageError, listed
from ktuned.protocol import Method, Params

P = TypeVar("P", bound=Params)
A = TypeVar("A")

MAX_ROWS = 2_000
"""Trials or jobs in one answer, because a message has a size limit."""

_LEAST, _MOST = -(2**63), 2**63 - 1
"""The least and the greatest integer that the store can hold."""


class Peer(ABC):
    """A client as methods and events see it: bytes can be sent to it, through a bounded queue.

    Attributes:
        on_writable: Called whenever the peer accepts bytes again.
        on_gone: Called once, when the peer is gone.
        repeats: How often the peers got the last answer to the request that is answered now.
    """

    on_writable: Callable[[], object] | None = None
    on_gone: Callable[[], object] | None = None
    repeats: int = 0

    @property
    @abstractmethod
    def is_writable(self) -> bool:
        """True if the peer accepts bytes now."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send one or more encoded messages to the peer."""


class Handler(FrozenStruct, Generic[P, A]):
    """A method, and the function that answers it.

    Attributes:
        method: The method, with the types of its params and its answer.
        handle: Called with the params and the peer that sent them. An ``async`` function may wait. A plain one must
            not block; if it would have to, it returns a :class:`DeferredAnswer`.
        ends_with_peer: Whether a function that waits is cancelled when the peer is gone.
    """

    method: Method[P, A]
    handle: Callable[[P, Peer], A | Awaitable[A] | DeferredAnswer]
    ends_with_peer: bool = False

    def read_params(self, params: dict[str, Any]) -> P:
        """Return the params of a request.

        Raises:
            UsageError: a field is unknown, missing or of a wrong type, an integer does not fit 64 bits, or a text has
                a NUL.
        """
        for name, value in params.items():
            if isinstance(value, int) and not _LEAST <= value <= _MOST:
                raise UsageError(f"{name} is {value}, which does not fit 64 bits")
            if isinstance(value, str) and "\0" in value:
                raise UsageError(f"{name} holds a NUL: {value!r}", hint="no file and no kernel has such a name")
        try:
            return msgspec.convert(params, self.method.params)
        except msgspec.ValidationError as error:
            fields = [field.encode_name for field in msgspec.structs.fields(self.method.params)]
            for name in params:
                if name not in fields:
                    fault = f"{self.method.name} has no field {name[:100]!r} {listed(fields, near=name)}"
                    raise UsageError(fault, hint="correct the name, or leave the field out") from error
            raise UsageError(str(error), hint="docs/reference/protocol.md has every method's fields") from error


def bound_limit(limit: int) -> int:
    """Return how many rows the answer to a request for ``limit`` rows may have.

    Raises:
        UsageError: ``limit`` is less than 1.
    """
    if limit < 1:
        raise UsageError(f"limit is {limit}", hint="give at least 1")
    return min(limit, MAX_ROWS)


class DeferredAnswer(FrozenStruct):
    """Returned by a plain method that has to wait for once; ``rest`` computes the answer."""

    rest: Callable[[], Awaitable[Any]]
