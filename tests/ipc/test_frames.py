"""Frames: whatever way the bytes arrive, the messages are the same; what is no frame is refused and said."""

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


def decode(pieces: Iterable[bytes]) -> list[dict[str, Any]]:
    """Feed pieces to a new decoder and return the messages."""
    decoder = Decoder()
    return [msgpack.unpackb(message) for piece in pieces for message in decoder.feed(piece)]


def test_every_split_in_two_gives_the_same_messages() -> None:
    """Wherever a stream is cut, also within a length, nothing is lost, doubled or reordered."""
    messages: list[dict[str, Any]] = [{"phase": "load"}, {}, {"item": {"key": "ab", "facts": [1, 2.5, None, b"\0"]}}]
    stream = b"".join(encode(message) for message in messages)
    for cut in range(len(stream) + 1):
        assert decode([stream[:cut], stream[cut:]]) == messages
    assert decode(stream[index : index + 1] for index in range(len(stream))) == messages


@settings(max_examples=40)
@given(st.lists(MESSAGES, max_size=4), st.lists(st.integers(0, 400), max_size=8))
def test_messages_survive_any_split(messages: list[dict[str, Any]], cuts: list[int]) -> None:
    """What MessagePack can carry arrives equal, in order, however the bytes are cut."""
    stream = b"".join(encode(message) for message in messages)
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    assert decode(stream[start:end] for start, end in itertools.pairwise(places)) == messages


@given(st.binary(max_size=300), st.integers(1, 7))
def test_garbage_raises_a_frame_error_alone(garbage: bytes, step: int) -> None:
    """Any bytes at all give messages, or a FrameError; never another exception."""
    decoder = Decoder()
    with contextlib.suppress(FrameError):
        for start in range(0, len(garbage), step):
            list(decoder.feed(garbage[start : start + step]))


def test_a_hostile_length_is_refused_before_its_body_comes() -> None:
    """Four bytes are enough to refuse what is too large: nothing is waited for or allocated."""
    with pytest.raises(FrameError, match=f"limit of {frames.MAX_FRAME_BYTES}"):
        decode([struct.pack(">I", frames.MAX_FRAME_BYTES + 1)])


def test_the_limit_itself_is_allowed() -> None:
    """The largest frame passes both ways; one byte more is refused by the sender."""
    room = 1000 - len(msgpack.packb({"data": b"x" * 900})) + 900
    assert decode([encode({"data": b"x" * room}, limit=1000)]) == [{"data": b"x" * room}]
    with pytest.raises(FrameError, match="1001 bytes exceeds the frame limit of 1000"):
        encode({"data": b"x" * (room + 1)}, limit=1000)
