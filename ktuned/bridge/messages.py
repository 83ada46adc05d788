"""Typed calls from the daemon to the bridge, and their answers, as frames. No IO.

Calls run side by side: each has a number, which its answers carry. A call is answered with any number of items, and
then its reply or its failure. A call without a number is a *post*, and has no answers. Calls are named
``service.operation``; the first part selects the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Never, TypeVar, get_args

from ktuned.ipc import InvalidMessage, frames, from_plain, to_plain
from ktuned.model import Fault, KtunedError, Record, record

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item


class Call(Record, Generic[R, I]):
    """One operation of a service; ``R`` is its reply, ``I`` the items that precede it (``Never`` if there are none)."""

    operation: ClassVar[str]
    """``service.operation``, such as ``team.read``."""


class CallFailed(KtunedError):
    """A service cannot carry out a call. The service raises it, and then the daemon's side, with the same message."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


@record
class Versions(Record):
    """The bridge's process and interpreter."""

    pid: int
    python: str
    executable: str


@record
class Hello(Call[Versions, Never]):
    """Check that the bridge responds; it answers without any service."""

    operation: ClassVar = "bridge.hello"


@dataclass(frozen=True, slots=True)
class CallCancellation:
    """The daemon no longer waits for a call."""

    number: int


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    """A received call: the name of its operation, and its fields as plain data. A post has no number."""

    number: int | None
    operation: str
    fields: object


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a call: ``value`` is an item, or the reply if ``is_last``. A ``fault`` is always the last one."""

    number: int
    value: object = None
    is_last: bool = False
    fault: Fault | None = None


def encode_call(call: Call[Any, Any], number: int | None = None) -> bytes:
    """Return a call's frame; without a number the call is a post.

    Raises:
        FrameError: the frame is too large.
    """
    numbered = {} if number is None else {"id": number}
    return frames.encode({**numbered, "op": call.operation, "call": to_plain(call)})


def encode_cancel(number: int) -> bytes:
    """Return the frame that cancels a call."""
    return frames.encode({"id": number, "cancel": True})


def encode_item(number: int, item: Record) -> bytes:
    """Return the frame of an item.

    Raises:
        FrameError: the frame is too large.
    """
    return frames.encode({"id": number, "item": to_plain(item)})


def encode_reply(number: int, reply: Record) -> bytes:
    """Return the frame of the reply to a call.

    Raises:
        FrameError: the frame is too large.
    """
    return frames.encode({"id": number, "done": to_plain(reply)})


def encode_fault(number: int, fault: Fault) -> bytes:
    """Return the frame of a failure."""
    return frames.encode({"id": number, "failed": to_plain(fault)})


def decode_call(data: Mapping[str, Any]) -> ReceivedCall | CallCancellation:
    """Return the call, or the cancellation of one, that the daemon sent.

    Raises:
        InvalidMessage: the message is no call.
    """
    match data:
        case {"id": int(number), "cancel": True}:
            return CallCancellation(number)
        case {"id": int(number), "op": str(operation), "call": fields}:
            return ReceivedCall(number, operation, fields)
        case {"op": str(operation), "call": fields}:
            return ReceivedCall(None, operation, fields)
    raise InvalidMessage(f"no call: a message of {', '.join(map(str, data)) or 'nothing'}"[:200])


def decode_answer(data: Mapping[str, Any]) -> Answer:
    """Return the answer that the bridge sent; :func:`decode_value` decodes its value.

    Raises:
        InvalidMessage: the message is no answer.
    """
    match data:
        case {"id": int(number), "item": value}:
            return Answer(number, value)
        case {"id": int(number), "done": value}:
            return Answer(number, value, is_last=True)
        case {"id": int(number), "failed": value}:
            return Answer(number, is_last=True, fault=from_plain(Fault, value))
    raise InvalidMessage(f"no answer: a message of {', '.join(map(str, data)) or 'nothing'}"[:200])


def decode_value(call: type[Call[Any, Any]], answer: Answer) -> Any:
    """Return an item or a reply in the type that its call declares.

    Raises:
        InvalidMessage: the value does not fit this type.
    """
    reply, item = get_args(call.__orig_bases__[0])  # type: ignore[attr-defined]
    if not answer.is_last and item is Never:
        raise InvalidMessage(f"{call.operation} has no items")
    return from_plain(reply if answer.is_last else item, answer.value)
