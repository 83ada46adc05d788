"""Frames: however the bytes arrive, the messages are the same; bytes that are no frame are refused with a reason."""

import contextlib
import itertools
import struct
from collections.abc import Iterable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktuned.ipc import frames
from ktuned.ipc.frames import Decoder, FrameError, encode

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
MESSAGES = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)


def decode_pieces(pieces: Iterable[bytes]) -> list[dict[str, Any]]:
    """Feed pieces to a new decoder and return the messages."""
    decoder = Decoder()
    return [msgpack.unpackb(message) for piece in pieces for message in decoder.feed(piece)]


def test_every_split_in_two_gives_the_same_messages() -> None:
    """No message is lost, doubled or reordered, even if the cut is within a length."""
    messages: list[dict[str, Any]] = [{"phase": "load"}, {}, {"item": {"key": "ab", "facts": [1, 2.5, None, b"\0"]}}]
    stream = b"".join(encode(message) for message in messages)
    for cut in range(len(stream) + 1):
        assert decode_pieces([stream[:cut], stream[cut:]]) == messages
    assert decode_pieces(stream[index : index + 1] for index in range(len(stream))) == messages


@settings(max_examples=40)
@given(st.lists(MESSAGES, max_size=4), st.lists(st.integers(0, 400), max_size=8))
def test_messages_survive_any_split(messages: list[dict[str, Any]], cuts: list[int]) -> None:
    stream = b"".join(encode(message) for message in messages)
    cuts_in_order = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    assert decode_pieces(stream[start:end] for start, end in itertools.pairwise(cuts_in_order)) == messages


@given(st.binary(max_size=300), st.integers(1, 7))
def test_garbage_raises_a_frame_error_alone(garbage: bytes, step: int) -> None:
    """Arbitrary bytes give messages or a FrameError, never another exception."""
    decoder = Decoder()
    with contextlib.suppress(FrameError):
        for start in range(0, len(garbage), step):
            list(decoder.feed(garbage[start : start + step]))


def test_a_hostile_length_is_refused_before_its_body_comes() -> None:
    """Four bytes suffice: nothing is awaited or allocated."""
    with pytest.raises(FrameError, match=f"limit of {frames.MAX_FRAME_BYTES}"):
        decode_pieces([struct.pack(">I", frames.MAX_FRAME_BYTES + 1)])


def test_the_limit_itself_is_allowed() -> None:
    """The largest frame passes both ways; the sender refuses one byte more."""
    payload_bytes = 1000 - len(msgpack.packb({"data": b"x" * 900})) + 900
    assert decode_pieces([encode({"data": b"x" * payload_bytes}, limit=1000)]) == [{"data": b"x" * payload_bytes}]
    with pytest.raises(FrameError, match="1001 bytes exceeds the frame limit of 1000"):
        encode({"data": b"x" * (payload_bytes + 1)}, limit=1000)
