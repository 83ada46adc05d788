"""A method of the protocol: its name, and the types of its params and its answer.

Params and answers are frozen structs; on the wire they are the maps of docs/reference/protocol.md. The daemon returns
an answer as its type, and :func:`call_method` returns the same type to the caller, so neither side reads maps by hand.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from ktuned.model import FrozenStruct
from ktuned_client.answers import CALL_DEADLINE_S


class Params(FrozenStruct, omit_defaults=True, forbid_unknown_fields=True):
    """Base of params: a misspelt field is refused, because ignoring it would do something that nobody asked for."""


P = TypeVar("P", bound=Params)
A = TypeVar("A")


class NoParams(Params):
    """Params of a method that takes none."""


class EmptyAnswer(FrozenStruct):
    """Answer of a method that returns nothing."""


class Method(FrozenStruct, Generic[P, A]):
    """One method: its name on the wire, the type of its params, the type of its answer."""

    name: str
    params: type[P]
    answer: type[A]

    def read_answer(self, answer: Any) -> A:
        """Return a daemon's answer as its type.

        Raises:
            msgspec.ValidationError: a field is missing or of another type.
        """
        return msgspec.convert(answer, self.answer)


class _Client(Protocol):
    def call(self, method: str, *, deadline_s: float = ..., **params: Any) -> Any: ...


class _AsyncClient(Protocol):
    def call(self, method: str, *, deadline_s: float = ..., **params: Any) -> Awaitable[Any]: ...


def call_method(
    client: _Client, method: Method[P, A], params: P | None = None, *, deadline_s: float = CALL_DEADLINE_S
) -> A:
    """Send a request and return its answer: ``call_method(client, JOBS, JobsParams(kernel="matmul")).jobs``.

    Raises:
        DaemonError: the daemon refused the request.
        DaemonUnavailable: no daemon answered within ``deadline_s``.
        msgspec.ValidationError: the answer is not of the method's type.
    """
    return method.read_answer(
        client.call(method.name, deadline_s=deadline_s, **msgspec.to_builtins(params or NoParams()))
    )


async def call_method_async(
    client: _AsyncClient, method: Method[P, A], params: P | None = None, *, deadline_s: float = CALL_DEADLINE_S
) -> A:
    """Send a request with the client for ``async`` programs; otherwise as :func:`call_method`."""
    found = await client.call(method.name, deadline_s=deadline_s, **msgspec.to_builtins(params or NoParams()))
    return method.read_answer(found)
