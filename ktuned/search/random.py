"""Configs in a random order, without replacement, lazily over spaces of any size.

An indexable space is walked along a keyed permutation of its indices: a balanced Feistel network over the next
power of four, with cycle walking down to the size (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
CT-RSA 2002). Its only state is the position. The order depends only on the seed and the size, so it is the same in
every process and on every Python.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from ktuned.model import Scalar
from ktuned.search.chain import Point
from ktuned.search.domain import Domain, build_domain, is_sparse
from ktuned.search.strategy import Count, Walk

ROUNDS = 6
"""Feistel rounds: four make a strong permutation of a large domain, the other two help the tiny ones."""

WINDOW = 4096
"""Each next config of a callable's space is drawn from a window of this many: a small space fits completely, and for a
huge one the window takes some MiB."""


class Random(Walk):
    """Tries configs in a seeded random order.

    In a large product of axes with constraints, invalid configs are never generated. A callable's space can only be
    walked, so its order is random only within a sliding window of :data:`WINDOW` configs.
    """

    _valid: Count | None = None

    @property
    def valid(self) -> Count | None:
        """The count of a large space with constraints; other spaces are not counted."""
        return self._valid

    def walk_candidates(self) -> Iterator[dict[str, Scalar] | None]:
        """Walk the permuted indices, or the shuffled window."""
        size = self.space.size
        if size is None:
            return self._walk_shuffled_window()
        if is_sparse(self.space):
            domain = build_domain(self.space)
            self._valid = Count(domain.count, domain.is_exact)
            return _draw_valid_configs(domain, self.seed)
        return (self.space.at(index) for index in permute_indices(size, self.seed))

    def _walk_shuffled_window(self) -> Iterator[dict[str, Scalar] | None]:
        # Only Random.random() is promised to be the same on every Python.
        draw = random.Random(self.seed).random
        source = self.space.walk()
        window: list[dict[str, Scalar]] = []
        for candidate in source:
            if candidate is None:
                yield None
                continue
            window.append(candidate)
            if len(window) >= WINDOW:
                yield _pop_random(window, draw())
        while window:
            yield _pop_random(window, draw())


def _draw_valid_configs(domain: Domain, seed: int) -> Iterator[dict[str, Scalar] | None]:
    """Yield the configs of a constrained space by permuted rank, or if they have no ranks, by drawing one by one."""
    if domain.is_exact:
        for rank in permute_indices(domain.count, seed):
            yield domain.config_at(domain.point_at_rank(rank))
        return
    source = random.Random(seed)
    known: set[Point] = set()
    while True:
        point = domain.draw_point(source)
        if point is None or point in known:
            yield None
            continue
        known.add(point)
        yield domain.config_at(point)


def permute_indices(size: int, seed: int) -> Iterator[int]:
    """Yield each number of ``range(size)`` exactly once, in an order that depends only on ``seed`` and ``size``."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    key = hashlib.sha256(f"ktuned random {seed}".encode()).digest()
    for position in range(size):
        index = _encipher_index(position, half_bits, key)
        while index >= size:
            index = _encipher_index(index, half_bits, key)
        yield index


def _encipher_index(value: int, half_bits: int, key: bytes) -> int:
    mask = (1 << half_bits) - 1
    width = (half_bits + 7) // 8
    left, right = value >> half_bits, value & mask
    for number in range(ROUNDS):
        block = bytes([number]) + right.to_bytes(width, "big")
        mixed = int.from_bytes(_digest_block(block, key, width), "big") & mask
        left, right = right, left ^ mixed
    return left << half_bits | right


def _digest_block(block: bytes, key: bytes, width: int) -> bytes:
    # BLAKE2b is the faster one; its 64 bytes are enough for 2^1024 configs.
    if width <= 64:
        return hashlib.blake2b(block, key=key, digest_size=width).digest()
    return hashlib.shake_256(key + block).digest(width)


def _pop_random(window: list[dict[str, Scalar]], fraction: float) -> dict[str, Scalar]:
    chosen = int(fraction * len(window))
    window[chosen], window[-1] = window[-1], window[chosen]
    return window.pop()
