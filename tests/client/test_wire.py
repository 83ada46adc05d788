import struct
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned_client import wire
from ktuned_client.answers import Question
from ktuned_client.knowledge import Knowledge
from ktuned_client.wire import Decoder, Notification, ProtocolError, Request, Response

MESSAGES = [
    (wire.encode_request(0, "hello", {}), Request(0, "hello", {})),
    (wire.encode_request(wire.MAX_ID, "lookup", {"kernel": "k"}), Request(wire.MAX_ID, "lookup", {"kernel": "k"})),
    (wire.encode_response(3, None, [1, {"a": None}]), Response(3, None, [1, {"a": None}])),
    (wire.encode_response(4, {"code": "usage"}, None), Response(4, {"code": "usage"}, None)),
    (wire.encode_notification("event", {"seq": 1}), Notification("event", {"seq": 1})),
]
NO_MESSAGES: list[Any] = [
    None,
    0,
    "text",
    {},
    {"kernel": "k"},
    [],
    [0],
    [0, 1, "m"],
    [0, 1, "m", [], 0],
    [3, 1, "m", []],
    [-1, 1, "m", []],
    [False, 1, "m", []],
    [0.0, 1, "m", []],
    [0, -1, "m", []],
    [0, 2**32, "m", []],
    [0, True, "m", []],
    [0, "1", "m", []],
    [0, 1, b"m", []],
    [0, 1, 5, []],
    [0, 1, "m", {}],
    [0, 1, "m", None],
    [1, 1, None],
    [1, 1, "error", None],
    [1, None, None, None],
    [2, "m"],
    [2, 1, []],
    [2, "m", {}],
    [2, "m", [], 0],
]
HOSTILE = {
    "reserved byte": b"\xc1",
    "claims an array of 2**32 - 1": b"\xdd\xff\xff\xff\xff",
    "claims a map of 2**32 - 1": b"\xdf\xff\xff\xff\xff",
    "nested 10,000 deep": b"\x91" * 10_000,
    "maps nested 10,000 deep": b"\x81\xa1a" * 10_000,
    "an extension type": b"\x94\x00\x01\xa1m\x91\xd4\x05\x00",
    "a string that is not UTF-8": b"\x94\x00\x01\xa1\xff\x90",
    "a map with a list as key": b"\x94\x00\x01\xa1m\x91\x81\x90\x01",
    "a map with a number as key": b"\x94\x00\x01\xa1m\x91\x81\x01\x01",
}


@pytest.mark.parametrize(("data", "message"), MESSAGES)
def test_messages_survive_the_wire(data: bytes, message: wire.Message) -> None:
    """The messages are decoded whole and byte by byte."""
    assert Decoder().feed(data) == [message]
    decoder = Decoder()
    pieces = [decoder.feed(data[index : index + 1]) for index in range(len(data))]
    assert pieces == [[]] * (len(data) - 1) + [[message]]


def test_the_bytes_are_those_of_the_specification() -> None:
    """The arrays are those of MessagePack-RPC, so that clients in any language can speak to the daemon."""
    assert msgpack.unpackb(wire.encode_request(1, "m", {"a": 1})) == [0, 1, "m", [{"a": 1}]]
    assert msgpack.unpackb(wire.encode_response(1, None, 2)) == [1, 1, None, 2]
    assert msgpack.unpackb(wire.encode_notification("m", {"a": 1})) == [2, "m", [{"a": 1}]]


@given(st.lists(st.sampled_from(MESSAGES), max_size=8), st.data())
def test_a_stream_may_be_cut_anywhere(sent: list[tuple[bytes, wire.Message]], data: st.DataObject) -> None:
    """The messages do not depend on how the stream is cut."""
    stream = b"".join(encoded for encoded, _ in sent)
    decoder = Decoder()
    received: list[wire.Message] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += decoder.feed(stream[:size])
        stream = stream[size:]
    assert received == [message for _, message in sent]


@pytest.mark.parametrize("value", NO_MESSAGES, ids=repr)
def test_a_value_that_is_no_message_is_refused(value: Any) -> None:
    """Valid MessagePack that is not MessagePack-RPC is a protocol error."""
    with pytest.raises(ProtocolError):
        Decoder().feed(msgpack.packb(value))


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused_at_once(data: bytes) -> None:
    """Bytes that are not MessagePack, or that claim too much, are refused before memory is reserved."""
    with pytest.raises(ProtocolError):
        Decoder().feed(data)
    decoder = Decoder()
    with pytest.raises(ProtocolError):
        feed_decoder(decoder, split_bytes(data, 1))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    """The decoder returns messages or raises ProtocolError, the same for the whole and for single bytes."""
    assert decode_outcome(data, len(data) or 1) == decode_outcome(data, 1)


def decode_outcome(data: bytes, size: int) -> list[wire.Message] | None:
    decoder = Decoder()
    messages: list[wire.Message] = []
    try:
        for start in range(0, len(data), size):
            messages += decoder.feed(data[start : start + size])
    except ProtocolError:
        return None
    return messages


@pytest.mark.parametrize("size", [100, 64 * 1024, 10**9])
def test_a_message_may_be_as_long_as_the_limit_and_no_longer(size: int) -> None:
    """The limit is exact for pieces of any size."""
    room = 300_000 - len(wire.encode_request(1, "m", {"a": "x" * 70_000})) + 70_000
    fits = wire.encode_request(1, "m", {"a": "x" * room})
    decoder = Decoder(max_bytes=300_000)
    for _ in range(3):
        assert [message for piece in split_bytes(fits, size) for message in decoder.feed(piece)]
    with pytest.raises(ProtocolError):
        feed_decoder(decoder, split_bytes(wire.encode_request(1, "m", {"a": "x" * (room + 1), "b": 0}), size))


def test_a_message_that_never_ends_is_refused() -> None:
    """Many small items count like one long string."""
    decoder = Decoder(max_bytes=10_000)
    decoder.feed(b"\x94\x00\x01\xa1m\xdd" + struct.pack(">I", 100_000))
    with pytest.raises(ProtocolError, match="10000 bytes"):
        feed_decoder(decoder, [b"\x01" * 1000] * 20)


@pytest.mark.parametrize("header", [b"\xdb\x40\x00\x00\x00", b"\xc6\x40\x00\x00\x00"], ids=["string", "bytes"])
def test_a_claim_of_1_gib_gets_no_more_room_than_any_message(header: bytes) -> None:
    """A claimed length reserves no memory; what arrives is refused at the limit."""
    decoder = Decoder(max_bytes=10_000)
    tracemalloc.start()
    try:
        assert decoder.feed(b"\x94\x00\x01\xa1m\x91\x81\xa1a" + header) == []
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(ProtocolError, match="10000 bytes"):
        feed_decoder(decoder, [b"x" * 1000] * 20)


def test_many_messages_at_once_may_exceed_the_limit_of_one() -> None:
    """The limit holds for a message, not for a piece."""
    message = wire.encode_request(1, "m", {"a": "x" * 900})
    assert len(Decoder(max_bytes=1000).feed(message * 2000)) == 2000


def feed_decoder(decoder: Decoder, pieces: list[bytes]) -> None:
    for piece in pieces:
        decoder.feed(piece)


def split_bytes(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize(("levels", "is_allowed"), [(wire.MAX_NESTING, True), (wire.MAX_NESTING + 1, False)])
@pytest.mark.parametrize("kind", [list, dict])
def test_nesting_is_limited(levels: int, is_allowed: bool, kind: type) -> None:
    value: Any = {}
    for _ in range(levels - 4):  # the message, its params' array, their map and the innermost map are levels too
        value = [value] if kind is list else {"a": value}
    data = wire.encode_request(1, "m", {"a": value})
    if is_allowed:
        assert Decoder().feed(data)
    else:
        with pytest.raises(ProtocolError, match="nested"):
            Decoder().feed(data)


@pytest.mark.parametrize(
    ("params", "understood"),
    [([{}], {}), ([{"a": 1}], {"a": 1}), ([], {}), ([[]], {}), ([1], None), ([{}, {}], None), ([["a"]], None)],
)
def test_params_are_one_map(params: list[Any], understood: dict[str, Any] | None) -> None:
    """Params that are not one map give an error, unlike missing params."""
    (message,) = Decoder().feed(msgpack.packb([0, 1, "m", params]))
    assert message == Request(1, "m", understood)


@pytest.mark.parametrize(("value", "error"), [(object(), TypeError), ({1, 2}, TypeError), (2**70, ValueError)])
def test_a_value_that_cannot_be_packed_is_the_callers_error(value: Any, error: type[Exception]) -> None:
    """Encoding raises TypeError or ValueError for values that MessagePack cannot carry."""
    with pytest.raises(error):
        wire.encode_request(1, "m", {"a": value})


def test_a_short_name_travels_with_the_directory_of_its_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is that of the process when its client was made; full names and deleted directories need none."""

    def sent(knowledge: Knowledge, kernel: str) -> dict[str, Any]:
        params: dict[str, Any] = msgpack.unpackb(
            knowledge.encode_opening(Question(kernel, kernel, {}, None, None, None)) + msgpack.packb({"M": 1})
        )
        return params

    monkeypatch.chdir(tmp_path)
    knowledge = Knowledge("k.sock", None)
    monkeypatch.chdir("/")
    assert sent(knowledge, "gemm") == {"kernel": "gemm", "directory": str(tmp_path), "problem": {"M": 1}}
    assert sent(knowledge, "p:gemm") == {"kernel": "p:gemm", "problem": {"M": 1}}
    removed = tmp_path / "gone"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    assert sent(Knowledge("k.sock", None), "gemm") == {"kernel": "gemm", "problem": {"M": 1}}
