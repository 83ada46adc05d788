"""What has changed since a measurement: every difference is named, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ktuned.model.keys import DeviceModel, KernelName, KeyProblem
from ktuned.protocol.kernels import describe_change
from ktuned.store.contexts import Context, compare_contexts

MEASURED_CONTEXT = Context(KernelName("p:k"), KeyProblem("{}"), DeviceModel("cpu"), "d1", "gcc1", "linux1", 1)
NO_PARTS: tuple[Any, Any] = ({}, {})


def describe_changes(now: Context, **pairs: Any) -> list[str]:
    """Return the changes since the measurement in words."""
    given = {name: pairs.get(name, NO_PARTS) for name in ("parts", "toolchains", "drivers")}
    found = compare_contexts(MEASURED_CONTEXT, now, given["parts"], given["toolchains"], given["drivers"], "tune_k.py")
    return [describe_change(change) for change in found]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"source:k.cu": "1"}, {"source:k.cu": "2"}, "k.cu changed"),
        ({}, {"source:inc/k.h": "2"}, "inc/k.h is new"),
        ({"source:inc/k.h": "2"}, {}, "inc/k.h is gone"),
        ({"source:helper.py": "1"}, {"source:helper.py": "2"}, "helper.py changed"),
        ({"source:lib/deep.py": "1"}, {}, "lib/deep.py is gone"),
        ({"argument:reference": "1"}, {"argument:reference": "2"}, "tune_k.py: `reference` changed"),
        ({"argument:inputs<scale>": "1"}, {"argument:inputs<scale>": "2"}, "tune_k.py: `inputs<scale>` changed"),
        ({"argument:check.func": "1"}, {"argument:check.func": "2"}, "tune_k.py: `check.func` changed"),
        ({"env:FLAGS": "1"}, {"env:FLAGS": "2"}, "$FLAGS changed"),
        ({"env:*": "1"}, {"env:*": "2"}, "an environment variable changed"),
    ],
)
def test_changed_parts_are_named(before: dict[str, str], after: dict[str, str], words: str) -> None:
    """A part is named by its file and its role there."""
    equal_parts = {"source:same.h": "1", "argument:function": "2"}
    assert describe_changes(
        replace(MEASURED_CONTEXT, digest="d2"), parts=({**before, **equal_parts}, {**after, **equal_parts})
    ) == [words]


def test_changed_versions_are_named() -> None:
    """The text says which version of a toolchain or driver changed, from what to what."""
    now = replace(MEASURED_CONTEXT, toolchain="gcc2", device_fingerprint="linux2", measuring_version=2)
    assert describe_changes(
        now,
        toolchains=({"compiler": "12", "flags": "-O3"}, {"compiler": "13", "flags": "-O3"}),
        drivers=({"driver": "550"}, {"driver": "560", "clock": "fixed"}),
    ) == [
        "toolchain: compiler was 12, is 13",
        "driver: clock was absent, is fixed",
        "driver: driver was 550, is 560",
        "measuring: ktuned way of measuring was 1, is 2",
    ]


def test_a_change_is_reported_even_if_its_parts_were_not_kept() -> None:
    now = replace(MEASURED_CONTEXT, digest="d2", toolchain="gcc2")
    assert describe_changes(now, parts=(None, {}), toolchains=(None, {"compiler": "13"})) == [
        "tune_k.py changed; its parts were not recorded",
        "toolchain: toolchain was gcc1, is gcc2",
    ]
    assert describe_changes(MEASURED_CONTEXT) == []
