"""Columns keep their values within a step of their scale, and take little space."""

from __future__ import annotations

import base64
import math
import random
import zlib
from typing import Any

import pytest

from ktuned.report.columns import COARSE, FINE, INSTANTS, Column, PackedColumns, Packer


def unpack_columns(packed: PackedColumns) -> dict[str, list[Any]]:
    """Decode columns as the page's program does."""
    data, position, columns = zlib.decompress(base64.b64decode(packed.data)), 0, {}
    for column in packed.columns:
        codes = [0] * packed.count
        for byte in range(column.width):
            part = data[position : position + packed.count]
            codes = [code | value << (8 * byte) for code, value in zip(codes, part, strict=True)]
            position += packed.count
        columns[column.name] = decode_column(column, codes)
    assert position == len(data)
    return columns


def decode_column(column: Column, codes: list[int]) -> list[Any]:
    if column.kind == "codes":
        return [column.values[code] for code in codes]
    if column.kind == "whole":
        return [column.low + (sum(codes[: index + 1]) & 0xFFFFFFFF) for index in range(len(codes))]
    if column.kind == "time":
        now, times = 0, []
        for code in codes:
            now = (now + code) & 0xFFFFFFFF
            signed = now - (1 << 32) if now >> 31 else now
            times.append(column.low + signed / column.steps * (column.high - column.low))
        return times
    low, high = (math.log(column.low), math.log(column.high)) if column.kind == "log" else (column.low, column.high)
    figures = [low + (code - 1) * (high - low) / (column.steps - 1) for code in codes]
    figures = [math.exp(figure) if column.kind == "log" else figure for figure in figures]
    return [None if code == 0 else figure for code, figure in zip(codes, figures, strict=True)]


def test_codes_keep_values_and_their_types() -> None:
    """1, True, 1.0 and "1" are four values; known values come first; more than 256 values take two bytes."""
    values = [1, True, 1.0, "1", None, 1, *range(300)]
    packer = Packer(len(values))
    packer.add_codes("a", values, known=["1", 7])
    packed = packer.pack_columns()
    assert [(type(value), value) for value in unpack_columns(packed)["a"]] == [(type(value), value) for value in values]
    assert list(packed.columns[0].values[:2]) == ["1", 7]
    assert packed.columns[0].width == 2


@pytest.mark.parametrize("values", [[], [7], [90_001, 90_000, 90_004, 2**31 + 89_999]])
def test_whole_numbers_are_exact(values: list[int]) -> None:
    """Whole numbers are exact in any order and far from zero."""
    packer = Packer(len(values))
    packer.add_whole_numbers("id", values)
    assert unpack_columns(packer.pack_columns())["id"] == values


@pytest.mark.parametrize(("steps", "within"), [(FINE, 2e-4), (COARSE, 1e-2)])
def test_log_scales_keep_ratios(steps: int, within: float) -> None:
    """Positive figures over six decades keep their ratio; infinite ones are absent."""
    source = random.Random(1)
    values = [10 ** source.uniform(0, 6) for _ in range(500)]
    packer = Packer(3 + len(values))
    packer.add_figures("a", [None, math.inf, math.nan, *values], steps)
    decoded = unpack_columns(packer.pack_columns())["a"]
    assert decoded[:3] == [None, None, None]
    assert all(math.isclose(one, other, rel_tol=within) for one, other in zip(decoded[3:], values, strict=True))


@pytest.mark.parametrize("values", [[0.0, 3.0, -2.0], [0.0, 0.0], [5.0], [], [None, None]])
def test_linear_scales_keep_zeros_negative_and_single_figures(values: list[float | None]) -> None:
    packer = Packer(len(values))
    packer.add_figures("a", values)
    assert unpack_columns(packer.pack_columns())["a"] == pytest.approx(values, abs=1e-3)


def test_times_keep_their_order() -> None:
    """Times over a day are exact to a step."""
    source = random.Random(2)
    values = [1.79e9 + source.uniform(0, 86_400) for _ in range(400)]
    packer = Packer(len(values))
    packer.add_times("a", values)
    decoded = unpack_columns(packer.pack_columns())["a"]
    assert max(abs(one - other) for one, other in zip(decoded, values, strict=True)) <= 86_400 / INSTANTS
