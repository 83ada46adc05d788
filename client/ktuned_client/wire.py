"""MessagePack-RPC without IO: the codec that both sides of the socket use.

::

    [0, id, method, [params]]    a request: id is an unsigned 32-bit number, params is one map
    [1, id, error, result]       its response: error is nil, or a map {code, message, hint}
    [2, method, [params]]        a notification, which is not answered

The format is that of the MessagePack-RPC specification. Messages follow each other with nothing in between.

No message may cost the receiver much. A decoder therefore limits the size of a message and the length and nesting of
its arrays and maps, and gives the parser only small pieces. A message that exceeds a limit ends the connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

PROTOCOL_VERSION: Final = 1
"""Version of the protocol; increased when a field or a method changes its meaning or is removed, not for additions."""

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The largest message: an answer with some 30,000 trials. Request more trials in parts."""

MAX_REQUEST_BYTES: Final = 1024 * 1024
"""The largest message that a daemon reads. Requests are small, and each connection may keep a half-read message in
memory."""

MAX_ITEMS: Final = 128 * 1024
"""The longest array or map. It is limited because the parser allocates its memory as soon as it reads the header,
before any item has arrived."""

MAX_REQUEST_ITEMS: Final = 4096
"""The longest array or map that a daemon reads; with the parser's 1024 levels, at most 32 MiB are allocated."""

MAX_NESTING: Final = 32
"""The deepest nesting of maps and arrays; a job's plan needs 5 levels, and recursion over it stays cheap."""

MAX_ID: Final = 2**32 - 1
"""Request ids are 32 bits wide, as the specification says."""

MAX_LOOKUPS: Final = 250
"""Most lookups that a client sends in one request; they take the daemon some ms in the worst case."""

_PIECE_BYTES: Final = 256 * 1024
"""Most bytes that the parser gets at once; asyncio reads the same number at a time."""

_NOT_OPENING: Final = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))
"""The bytes that cannot open a map or an array when a value starts with them."""

_REQUEST: Final = 0
RESPONSE: Final = 1
_NOTIFICATION: Final = 2


class ProtocolError(Exception):
    """The peer sent an invalid message or exceeded a limit; the stream cannot be read any further."""


class Request(NamedTuple):
    """A call that expects an answer; ``params`` is ``None`` if they were not one map."""

    id: int
    method: str
    params: dict[str, Any] | None


class Response(NamedTuple):
    """The answer to the request with the same id; ``error`` is ``None`` on success."""

    id: int
    error: Mapping[str, str] | None
    result: Any


class Notification(NamedTuple):
    """A message that is not answered; ``params`` is ``None`` if they were not one map."""

    method: str
    params: dict[str, Any] | None


Message = Request | Response | Notification


def encode_request(request_id: int, method: str, params: Mapping[str, Any]) -> bytes:
    """Return a request's bytes.

    Raises:
        TypeError: ``params`` holds a value that MessagePack cannot carry.
        ValueError: ``params`` is nested deeper than the packer allows, or holds a number beyond 64 bits.
    """
    return _pack_message([_REQUEST, request_id, method, [params]])


def encode_response(request_id: int, error: Mapping[str, str] | None, result: Any) -> bytes:
    """Return a response's bytes; raises as :func:`encode_request` does."""
    return _pack_message([RESPONSE, request_id, error, result])


def encode_notification(method: str, params: Mapping[str, Any]) -> bytes:
    """Return a notification's bytes; raises as :func:`encode_request` does."""
    return _pack_message([_NOTIFICATION, method, [params]])


def encode_question(method: str, params: Mapping[str, Any]) -> bytes:
    """Return a request's bytes from its method on, without its head; raises as :func:`encode_request`."""
    return _pack_message(method) + b"\x91" + _pack_message(params)


LOOKUP: Final = b"\xa6lookup\x91"
"""The bytes of a lookup before its params."""


def encode_lookup_opening(
    kernel: str,
    device: str | None,
    directory: str | None = None,
    objective: str | None = None,
    settle_s: float = 0.0,
) -> bytes:
    """Return the bytes of a lookup's params up to its problem, which comes last."""
    params: dict[str, Any] = {"kernel": kernel}
    if directory is not None:
        params["directory"] = directory
    if device is not None:
        params["device"] = device
    if objective is not None:
        params["objective"] = objective
    if settle_s > 0:
        params["settle"] = settle_s
    fields = b"".join(_pack_message(part) for pair in params.items() for part in pair)
    return bytes((0x81 + len(params),)) + fields + b"\xa7problem"


def encode_lookups(lookups: Sequence[bytes]) -> bytes:
    """Return a ``lookup_many`` request's bytes from its method on, for the encoded params of up to 65,535 lookups."""
    head = b"\xablookup_many\x91\x81\xa7lookups\xdc" + len(lookups).to_bytes(2, "big")
    return head + b"".join(lookups)


_REQUEST_HEADS: Final = tuple(bytes((0x94, _REQUEST, request_id)) for request_id in range(0x80))


def encode_request_head(request_id: int) -> bytes:
    """Return the first bytes of a request, up to its method."""
    if request_id < 0x80:
        return _REQUEST_HEADS[request_id]
    return b"\x94\x00\xce" + request_id.to_bytes(4, "big")


_RESULT_HEADS: Final = tuple(bytes((0x94, RESPONSE, request_id, 0xC0)) for request_id in range(0x80))
_unpack: Final = msgpack.unpackb


def decode_result(data: bytes, request_id: int) -> Response | None:
    """Return the response in ``data`` if ``data`` is exactly one complete response without an error (the usual case).

    ``request_id`` must be below 128. If this returns ``None``, give ``data`` to a :class:`Decoder`.
    """
    if not data.startswith(_RESULT_HEADS[request_id]) or len(data) > _PIECE_BYTES:
        return None
    try:
        return tuple.__new__(Response, (request_id, None, _unpack(data[4:])))
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        return None


class Unsendable(ValueError):
    """A message holds an integer that does not fit 64 bits, or text that is not Unicode."""


def describe_undecodable(text: str) -> str:
    """Return the error in a text with lone surrogates, which mostly is the name of a file that is not UTF-8."""
    try:
        shown = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:
        shown = text.encode(errors="backslashreplace").decode()
    return f"{shown} is not UTF-8; rename the file or directory"


def _pack_message(message: Any) -> bytes:
    # Packers are reused, because making one costs more than using it. Each is taken out of the list while in use,
    # because threads must not share one.
    try:
        packer = _idle_packers.pop()
    except IndexError:
        packer = msgpack.Packer()
    try:
        packed: bytes = packer.pack(message)
    except OverflowError as error:
        raise Unsendable("a number is beyond 64 bits, which the protocol cannot carry: give a smaller one") from error
    except UnicodeEncodeError as error:
        raise Unsendable(describe_undecodable(error.object)) from error
    if len(packed) <= _PIECE_BYTES:  # a packer keeps the memory of its largest message
        _idle_packers.append(packer)
    return packed


_idle_packers: list[msgpack.Packer] = []


class Decoder:
    """Decodes pieces of bytes of any size into messages; each connection and direction has its own decoder.

    ``max_bytes`` limits one message, ``max_items`` one array or map.
    """

    __slots__ = ("_end", "_max_bytes", "_received", "_unpacker")

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES, max_items: int = MAX_ITEMS) -> None:
        self._max_bytes = max_bytes
        self._received = 0
        self._end = 0  # of the last whole message, counted in bytes of the stream
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=max_bytes + _PIECE_BYTES,
            max_array_len=max_items,
            max_map_len=max_items,
            ext_hook=_reject_extension,
        )

    @property
    def is_between_messages(self) -> bool:
        """True if the bytes fed so far end exactly with a message."""
        return self._received == self._end

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes and return the messages that they complete.

        Raises:
            ProtocolError: the bytes are not a message, or exceed a limit; the connection must be closed.
        """
        if len(data) <= _PIECE_BYTES:
            return self._feed_piece(data)
        messages: list[Message] = []
        for start in range(0, len(data), _PIECE_BYTES):
            messages += self._feed_piece(data[start : start + _PIECE_BYTES])
        return messages

    def _feed_piece(self, data: bytes) -> list[Message]:
        unpacker = self._unpacker
        messages: list[Message] = []
        # Each level of nesting needs a byte that may open a map or an array: with few such bytes, skip the check.
        is_flat = self._received == self._end and len(data.translate(None, _NOT_OPENING)) <= MAX_NESTING
        self._received += len(data)
        try:
            unpacker.feed(data)
            for value in unpacker:
                messages.append(_parse_message(value, is_flat))
                end = unpacker.tell()
                if end - self._end > self._max_bytes:
                    break
                self._end = end
        except ProtocolError:
            raise
        # The parser's error depends on the faulty byte; its pure-Python version recurses and raises RecursionError.
        except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
            raise ProtocolError(f"not MessagePack within the limits: {str(error) or type(error).__name__}") from error
        if self._received - self._end > self._max_bytes:
            raise ProtocolError(f"a message of more than {self._max_bytes} bytes")
        return messages


def _parse_message(value: Any, is_flat: bool) -> Message:
    """Return a decoded value as a message; with ``is_flat`` the nesting is not checked.

    Raises:
        ProtocolError: it is not a message.
    """
    if type(value) is not list or not value or type(value[0]) is not int:
        raise ProtocolError(f"a {type(value).__name__}, which is not a message")
    if not is_flat:
        _check_nesting(value, MAX_NESTING)
    kind = value[0]
    if kind == _REQUEST and len(value) == 4:
        _, request_id, method, params = value
        if _is_request_id(request_id) and type(method) is str and type(params) is list:
            return Request(request_id, method, _parse_params(params))
    elif kind == RESPONSE and len(value) == 4:
        _, request_id, error, result = value
        if _is_request_id(request_id) and (error is None or type(error) is dict):
            return Response(request_id, error, result)
    elif kind == _NOTIFICATION and len(value) == 3:
        _, method, params = value
        if type(method) is str and type(params) is list:
            return Notification(method, _parse_params(params))
    raise ProtocolError("an array that is neither a request, a response nor a notification")


def _is_request_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ID


def _parse_params(params: list[Any]) -> dict[str, Any] | None:
    """Return the one map of a message's params. No params, or an empty array (Lua's empty table), is an empty map."""
    if len(params) == 1 and type(params[0]) is dict:
        return params[0]
    return {} if params in ([], [[]]) else None


def _check_nesting(value: Any, levels: int) -> None:
    kind = type(value)
    if kind is not dict and kind is not list:
        return
    if not levels:
        raise ProtocolError(f"a message nested deeper than {MAX_NESTING} levels")
    for item in value.values() if kind is dict else value:
        if type(item) is dict or type(item) is list:
            _check_nesting(item, levels - 1)


def _reject_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"an extension type ({code}), which no method uses")
