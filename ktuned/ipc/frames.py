"""Frames between daemon and workers: a 4-byte big-endian length, then one MessagePack map. No IO.

A length prefix, rather than bare MessagePack, lets a reader refuse a hostile size before it allocates, and tell a
truncated frame from the end of the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""The largest frame: an inspection of a file with hundreds of kernels takes some 100 KiB."""

OUT_OF_MEMORY = 86
"""Exit status of a worker whose allocation failed: it exits instead of answering, to give its memory back."""

_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """The other side sent an invalid frame; nothing more can be read from the stream."""


def _encode_mapping(value: object) -> dict[Any, Any]:
    """Encode a map that is no dict, such as a read-only view of one."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError


_pack = msgspec.msgpack.Encoder(enc_hook=_encode_mapping).encode


def encode(message: Any, limit: int = MAX_FRAME_BYTES) -> bytes:
    """Return one frame.

    Raises:
        FrameError: the message is larger than ``limit``.
    """
    body = _pack(message)
    if len(body) > limit:
        raise FrameError(f"a message of {len(body)} bytes exceeds the frame limit of {limit}")
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Turns a stream of bytes, in pieces of any size, into the bytes of messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes and yield the MessagePack of each message that they complete.

        Raises:
            FrameError: a length beyond :data:`MAX_FRAME_BYTES`.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield body
