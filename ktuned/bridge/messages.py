"""Typed calls from the daemon to the bridge, and their answers, as frames. No IO.

Calls run side by side: each has a number, which its answers carry. A call is answered with any number of items, and
then its reply or its failure. A call without a number is a *post*, and has no answers. Calls are named
``service.operation``; the first part selects the service.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, NamedTuple, Never, TypeVar, get_args

import msgspec

from ktuned.ipc import InvalidMessage, decoding, frames
from ktuned.model import Fault, KtunedError

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item


class Call(msgspec.Struct, Generic[R, I], frozen=True):
    """One operation of a service; ``R`` is its reply, ``I`` the items that precede it (``Never`` if there are none)."""

    operation: ClassVar[str]
    """``service.operation``, such as ``team.read``."""


class CallFailed(KtunedError):
    """A service cannot carry out a call. The service raises it, and then the daemon's side, with the same message."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class Versions(msgspec.Struct, frozen=True):
    """The bridge's process and interpreter."""

    pid: int
    python: str
    executable: str


class Hello(Call[Versions, Never], frozen=True):
    """Check that the bridge responds; it answers without any service."""

    operation: ClassVar = "bridge.hello"


class CallCancellation(NamedTuple):
    """The daemon no longer waits for a call."""

    number: int


class ReceivedCall(NamedTuple):
    """A received call: the name of its operation, and its fields as plain data. A post has no number."""

    number: int | None
    operation: str
    fields: msgspec.Raw


class Answer(NamedTuple):
    """One answer to a call: ``value`` is an item, or the reply if ``is_last``. A ``fault`` is always the last one."""

    number: int
    value: msgspec.Raw = msgspec.Raw()
    is_last: bool = False
    fault: Fault | None = None


def encode_call(call: Call[Any, Any], number: int | None = None) -> bytes:
    """Return a call's frame; without a number the call is a post.

    Raises:
        FrameError: the frame is too large.
    """
    numbered = {} if number is None else {"id": number}
    return frames.encode({**numbered, "op": call.operation, "call": call})


def encode_cancel(number: int) -> bytes:
    """Return the frame that cancels a call."""
    return frames.encode({"id": number, "cancel": True})


def encode_item(number: int, item: msgspec.Struct) -> bytes:
    """Return the frame of an item.

    Raises:
        FrameError: the frame is too large.
    """
    return frames.encode({"id": number, "item": item})


def encode_reply(number: int, reply: msgspec.Struct) -> bytes:
    """Return the frame of the reply to a call.

    Raises:
        FrameError: the frame is too large.
    """
    return frames.encode({"id": number, "done": reply})


def encode_fault(number: int, fault: Fault) -> bytes:
    """Return the frame of a failure."""
    return frames.encode({"id": number, "failed": fault})


class _CallMessage(msgspec.Struct, frozen=True):
    id: int | None = None
    op: str = ""
    call: msgspec.Raw = msgspec.Raw()
    cancel: bool = False


class _AnswerMessage(msgspec.Struct, frozen=True):
    id: int
    item: msgspec.Raw = msgspec.Raw()
    done: msgspec.Raw = msgspec.Raw()
    failed: Fault | None = None


def decode_call(data: bytes) -> ReceivedCall | CallCancellation:
    """Return the call, or the cancellation of one, that the daemon sent.

    Raises:
        InvalidMessage: the message is no call.
    """
    message = decoding.decode(data, _CallMessage)
    if message.cancel and message.id is not None:
        return CallCancellation(message.id)
    if message.op and bytes(message.call):
        return ReceivedCall(message.id, message.op, message.call)
    raise InvalidMessage("a message that is no call")


def decode_answer(data: bytes) -> Answer:
    """Return the answer that the bridge sent; :func:`decode_value` decodes its value.

    Raises:
        InvalidMessage: the message is no answer.
    """
    message = decoding.decode(data, _AnswerMessage)
    if message.failed is not None:
        return Answer(message.id, is_last=True, fault=message.failed)
    if bytes(message.done):
        return Answer(message.id, message.done, is_last=True)
    if bytes(message.item):
        return Answer(message.id, message.item)
    raise InvalidMessage("a message that is no answer")


def decode_value(call: type[Call[Any, Any]], answer: Answer) -> Any:
    """Return an item or a reply in the type that its call declares.

    Raises:
        InvalidMessage: the value does not fit this type.
    """
    reply, item = get_args(call.__orig_bases__[0])  # type: ignore[attr-defined]
    if not answer.is_last and item is Never:
        raise InvalidMessage(f"{call.operation} has no items")
    return decoding.decode(answer.value, reply if answer.is_last else item)
