"""Byte streams of a broken or hostile peer: random ones, and mutations of good ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgpack

from ktuned_client import wire

QUESTIONS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("hello", {}),
    ("lookup", {"kernel": "gemm", "problem": {"M": 4096, "dtype": "float16", "x": 1.5, "t": True}, "tune": False}),
    ("lookup", {"kernel": "a:b", "problem": {}, "device": "cuda:0"}),
    ("lookup_many", {"lookups": [{"kernel": "gemm", "problem": {"M": 1}}] * 3}),
    ("jobs", {"limit": 3, "state": "done"}),
    ("kernels", {"kernel": "gemm"}),
    ("results", {"kernel": "gemm", "order": "newest", "limit": 5}),
    ("cancel", {"job": 1}),
    ("tune", {"kernel": "gemm", "problem": {"M": 1}, "trials": 1}),
    ("subscribe", {"since": [1, 2], "types": ["winner"], "kernels": ["a:b"]}),
    ("unsubscribe", {}),
    ("status", {}),
)
"""What good peers ask; nothing that stops the daemon, or changes what it keeps."""

_HEADERS: Final = bytes([0xC1, 0xC4, 0xC5, 0xC6, 0xC7, 0xC9, 0xD4, 0xD9, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF, 0x9F, 0x8F])
"""The bytes that open something long, something of another type, or nothing."""

_SEEDS: Final = tuple(
    [wire.encode_request(number, method, params) for number, (method, params) in enumerate(QUESTIONS)]
    + [wire.encode_notification(method, params) for method, params in QUESTIONS]
    + [wire.encode_response(7, None, {"a": [1, 2]}), wire.encode_response(2**32 - 1, {"code": "x"}, None)]
)

_MAX_BYTES: Final = 400


def make_noise(source: random.Random) -> bytes:
    return source.randbytes(source.randrange(1, 40))


def flip_bits(source: random.Random) -> bytes:
    data = bytearray(source.choice(_SEEDS))
    for _ in range(source.randrange(1, 5)):
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    return bytes(data)


def replace_bytes(source: random.Random) -> bytes:
    data = bytearray(source.choice(_SEEDS))
    for _ in range(source.randrange(1, 4)):
        data[source.randrange(len(data))] = source.choice(_HEADERS)
    return bytes(data)


def cut_stream(source: random.Random) -> bytes:
    data = source.choice(_SEEDS)
    return data[: source.randrange(len(data))]


def splice_streams(source: random.Random) -> bytes:
    first, second = source.choice(_SEEDS), source.choice(_SEEDS)
    return first[: source.randrange(len(first))] + second[source.randrange(len(second)) :]


def insert_bytes(source: random.Random) -> bytes:
    data = source.choice(_SEEDS)
    index = source.randrange(len(data) + 1)
    return data[:index] + source.randbytes(source.randrange(1, 6)) + data[index:]


def join_messages(source: random.Random) -> bytes:
    return (
        b"".join(source.choice(_SEEDS) for _ in range(source.randrange(2, 5)))
        + make_noise(source)[: source.randrange(4)]
    )


def nest_value(source: random.Random) -> bytes:
    opening = source.choice([b"\x91", b"\x81", b"\x81\xa1k", b"\xdc\x00\x01", b"\xde\x00\x01\x01"])
    head = source.choice([b"", b"\x94\x00\x01\xa5hello", b"\x93\x02\xa5hello"])
    return head + (opening * source.randrange(1, 150))[:_MAX_BYTES] + source.choice([b"", b"\xc0", b"\x80"])


def make_message(source: random.Random) -> bytes:
    """Return a message of the right shape with any content."""
    return bytes(msgpack.packb([source.choice([0, 1, 2, 3, -1, None]), *(make_value(source, 3) for _ in range(3))]))


def make_value(source: random.Random, levels: int) -> Any:
    kind = source.randrange(9 if levels else 6)
    if kind == 0:
        return source.choice([0, 1, -1, 2**31, 2**32, 2**63, 2**64 - 1, -(2**63)])
    if kind == 1:
        return source.choice([0.0, -0.0, 1e308, float("inf"), float("nan")])
    if kind == 2:
        return source.choice(["", "lookup", "status", "kernel", "problem", "\0", "\x7f" * 40, "😀"])
    if kind == 3:
        return source.choice([None, True, False])
    if kind == 4:
        return source.randbytes(source.randrange(4))
    if kind == 5:
        return msgpack.Timestamp(source.randrange(2**32), 0)
    if kind == 6:
        return [make_value(source, levels - 1) for _ in range(source.randrange(4))]
    return {make_key(source): make_value(source, levels - 1) for _ in range(source.randrange(4))}


def make_key(source: random.Random) -> Any:
    return source.choice(["kernel", "problem", "since", "limit", "", 1, None, 2.5, b"x"])


_KINDS: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    make_noise,
    flip_bits,
    replace_bytes,
    cut_stream,
    splice_streams,
    insert_bytes,
    join_messages,
    nest_value,
    make_message,
)


def make_streams(count: int, seed: int) -> Iterator[bytes]:
    """Yield ``count`` streams of at most some hundred bytes; equal seeds give equal streams."""
    source = random.Random(seed)
    for _ in range(count):
        yield source.choice(_KINDS)(source)
