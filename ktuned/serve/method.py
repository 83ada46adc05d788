"""A method's handler, the peer that calls it, and how the server reads what it is called with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from ktuned.model import UsageError
from ktuned.protocol import Method

P = TypeVar("P", bound=msgspec.Struct)
A = TypeVar("A")

MAX_ROWS = 2_000
"""Trials or jobs in one answer, which must stay below the limit of a message."""

_LEAST, _MOST = -(2**63), 2**63 - 1
"""Ends of the integers that the store holds."""


class Peer(ABC):
    """A client as methods and events see it: where bytes can be sent, in a queue that is bounded.

    ``on_writable`` is called whenever it takes bytes again, ``on_gone`` once it never will.
    """

    on_writable: Callable[[], object] | None = None
    on_gone: Callable[[], object] | None = None

    @property
    @abstractmethod
    def is_writable(self) -> bool:
        """True if the peer takes bytes now."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Take an encoded message, or several."""


class Handler(msgspec.Struct, Generic[P, A], frozen=True):
    """A method, and what is called with its params and the peer that sent them.

    An ``async`` function may wait. Any other must not block: where it would have to, it returns a
    :class:`DeferredAnswer`.
    """

    method: Method[P, A]
    handle: Callable[[P, Peer], A | Awaitable[A] | DeferredAnswer]

    def read_params(self, params: dict[str, Any]) -> P:
        """Return the params that a request holds; fields that the method does not have are passed over.

        Raises:
            UsageError: a field is missing or of a wrong type, or holds what no file or row can be named by.
        """
        for name, value in params.items():
            if isinstance(value, int) and not _LEAST <= value <= _MOST:
                raise UsageError(f"{name} is {value}, which does not fit 64 bits")
            if isinstance(value, str) and "\0" in value:
                raise UsageError(f"{name} holds a NUL: {value!r}", hint="no file and no kernel has such a name")
        try:
            return msgspec.convert(params, self.method.params)
        except msgspec.ValidationError as error:
            raise UsageError(str(error), hint="docs/protocol.md has every method's fields") from error


def bound_limit(limit: int) -> int:
    """Return how many rows an answer may have where a request wants ``limit``.

    Raises:
        UsageError: it wants none.
    """
    if limit < 1:
        raise UsageError(f"limit is {limit}", hint="give at least 1")
    return min(limit, MAX_ROWS)


class DeferredAnswer(msgspec.Struct, frozen=True):
    """Returned by a plain method that must wait this time; ``rest`` finishes the answer."""

    rest: Callable[[], Awaitable[Any]]
