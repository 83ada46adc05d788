"""Doubts of a start: which kernels' files are compared at once, and which wait for the watcher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktuned.ipc import stamp
from ktuned.lookup.certainty import LOOK_S, MAX_BYTES, MAX_FILES, Certainty
from tests.assembled import Parts, kernel_text

pytestmark = pytest.mark.anyio


async def test_files_are_compared_once_a_second_and_only_if_they_are_few(parts: Parts, tmp_path: Path) -> None:
    """An inspection ends a doubt; more than a lookup has time for is in doubt until the watcher has caught up."""
    kernel = await parts.inspect(kernel_text())
    sources = [tmp_path / f"{number}.h" for number in range(MAX_FILES + 1)]
    for source in sources:
        source.write_text("int x;")
    stamps = {str(source): stamp(source) for source in sources[:MAX_FILES]} | {str(tmp_path / "missing.h"): ""}
    few = replace(kernel, stamps=dict(list(stamps.items())[1:]))
    now = 0.0
    certainty = Certainty(parts.machine, lambda: now)
    assert certainty.doubt(few, parts.environment) == ""
    sources[1].write_text("int y;")
    changed = f"not looked at since the start: {sources[1]} changed"
    assert certainty.doubt(few, parts.environment) == "", "it was looked at just now"
    now += LOOK_S
    assert certainty.doubt(few, parts.environment) == changed
    inspected = replace(few, stamps={**few.stamps, str(sources[1]): stamp(sources[1])})
    assert certainty.doubt(inspected, parts.environment) == ""
    many = replace(kernel, stamps=stamps)
    sources[2].write_bytes(bytes(MAX_BYTES + 1))
    large = replace(kernel, stamps={str(sources[2]): stamp(sources[2])})
    for too_much in (many, large):
        assert Certainty(parts.machine).doubt(too_much, parts.environment) == (
            "not looked at since the start: its files are many"
        )
    certainty.caught_up()
    assert certainty.doubt(few, parts.environment) == certainty.doubt(many, parts.environment) == ""
