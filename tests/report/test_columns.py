"""Columns keep their values as far as a reader can tell them apart."""

from __future__ import annotations

import base64
import json
import math
import random
import zlib
from itertools import accumulate
from typing import Any

import pytest

from ktuned.report.columns import (
    COARSE,
    FINE,
    INSTANTS_PER_S,
    Column,
    PackedColumns,
    code_values,
    pack_columns,
    round_figures,
    step_numbers,
    step_times,
)


def unpack_columns(packed: PackedColumns) -> dict[str, list[Any]]:
    """Decode columns as the page's program does."""
    return {
        name: column if isinstance(column, list) else decode_column(column)
        for name, column in json.loads(zlib.decompress(base64.b64decode(packed.data))).items()
    }


def decode_column(column: dict[str, Any]) -> list[Any]:
    if "codes" in column:
        return [column["values"][code] for code in column["codes"]]
    return [step * column["unit"] for step in accumulate(column["steps"])]


def pack_and_unpack(column: Column) -> list[Any]:
    return unpack_columns(pack_columns(0, {"a": column}))["a"]


def test_codes_keep_values_and_their_types() -> None:
    """1, True, 1.0 and "1" are four values; known values come first."""
    values = [1, True, 1.0, "1", None, 1, *range(300)]
    column = code_values(values, known=["1", 7])
    assert [(type(value), value) for value in pack_and_unpack(column)] == [(type(value), value) for value in values]
    assert column.values[:2] == ["1", 7]


def test_control_characters_are_escaped() -> None:
    """A page would obey marks of text direction."""
    assert pack_and_unpack(code_values(["a\u202eb"])) == ["a\\u202eb"]


@pytest.mark.parametrize("values", [[], [7], [90_001, 90_000, 90_004, 2**31 + 89_999]])
def test_whole_numbers_are_exact(values: list[int]) -> None:
    assert pack_and_unpack(step_numbers(values)) == values


@pytest.mark.parametrize(("digits", "within"), [(FINE, 5e-5), (COARSE, 5e-3)])
def test_figures_keep_their_first_digits(digits: int, within: float) -> None:
    """Infinite figures are absent."""
    source = random.Random(1)
    values = [10 ** source.uniform(0, 6) for _ in range(500)]
    decoded = pack_and_unpack(round_figures([None, math.inf, math.nan, 0.0, -2.0, *values], digits))
    assert decoded[:5] == [None, None, None, 0.0, -2.0]
    assert all(math.isclose(one, other, rel_tol=within) for one, other in zip(decoded[5:], values, strict=True))


def test_times_are_exact_to_a_step() -> None:
    source = random.Random(2)
    values = [1.79e9 + source.uniform(0, 86_400) for _ in range(400)]
    decoded = pack_and_unpack(step_times(values))
    assert max(abs(one - other) for one, other in zip(decoded, values, strict=True)) <= 1 / INSTANTS_PER_S
