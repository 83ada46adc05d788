"""Plain values: they cross the wire unchanged, and their canonical text identifies them."""

import itertools
import json
import math
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.model.device import Device
from ktuned.model.kernel import KernelInfo, SpaceInfo
from ktuned.model.keys import DeviceModel, DeviceName, KernelName, KeyProblem, Target
from ktuned.model.plan import PRESETS, Plan
from ktuned.model.values import RETRIED_BY_NEXT_JOB, Outcome, Problem, canonical
from ktuned.protocol.jobs import Priority
from ktuned.store.contexts import MEASURING_VERSION, Context
from tests.trials import make_trial

SCALARS = (
    st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
MAPS = st.dictionaries(st.text(min_size=1, max_size=6), SCALARS, max_size=6)
CONTEXT = Context(KernelName("p:k"), KeyProblem("{}"), DeviceModel("model"), "digest", "toolchain", "driver")


def make_kernel(**changes: Any) -> KernelInfo:
    """Return a kernel with every field set."""
    values: dict[str, Any] = {
        "project": "proj",
        "kernel": "gemm",
        "file": "/p/tune_gemm.py",
        "line": 3,
        "backend": "fake",
        "digest": "d",
        "source_digest": "s",
        "plan_digest": "p",
        "sources": ("/p/a.cc", "/p/b.cc"),
        "stamps": {"/p/a.cc": "00", "/p/missing.h": ""},
        "problems": ({"M": 64, "dtype": "float16"}, {"M": 128, "dtype": "float16"}),
        "default": {"BM": 8, "fast": True},
        "specialize": ("M",),
        "space": SpaceInfo(size=12),
        "plan": Plan(strategy="exhaustive", time_limit_s=2.5, deadlines={"timing": 1.0}),
    }
    return KernelInfo(**(values | changes))


def send_over_wire(value: Any) -> Any:
    """Return what the other side of a MessagePack connection gets."""
    return msgpack.unpackb(msgpack.packb(value), strict_map_key=False)


@given(MAPS)
def test_canonical_text_ignores_order_and_keeps_every_value(values: dict[str, Any]) -> None:
    assert canonical(dict(reversed(values.items()))) == canonical(values)
    assert json.loads(canonical(values)) == values


@pytest.mark.parametrize(("left", "right"), [(1, True), (0, False), (1, 1.0), ("1", 1), (0.0, -0.0)])
def test_canonical_text_tells_types_apart(left: object, right: object) -> None:
    """Python calls these values equal, but to a kernel they are different configs."""
    assert canonical({"x": left}) != canonical({"x": right})


def test_a_device_survives_the_wire() -> None:
    """Its kind follows from its name."""
    device = Device(DeviceName("cuda:1"), DeviceModel("H200"), Target("sm_90a"), {"driver": "570.1"})
    assert msgspec.convert(send_over_wire(msgspec.to_builtins(device)), Device) == device
    assert (device.kind, Device(DeviceName("cpu:0"), DeviceModel("m"), Target("t")).kind) == ("cuda", "cpu")


@pytest.mark.parametrize("changes", [{}, {"default": None, "specialize": None}, {"problems": (), "sources": ()}])
@pytest.mark.parametrize("carrier", [send_over_wire, lambda value: json.loads(json.dumps(value))], ids=["wire", "json"])
def test_a_kernel_survives_the_wire(changes: dict[str, Any], carrier: Any) -> None:
    """MessagePack and the store's JSON keep it equal, with tuples as tuples."""
    assert msgspec.convert(carrier(msgspec.to_builtins(make_kernel(**changes))), KernelInfo) == make_kernel(**changes)


def test_the_key_holds_the_specialised_problem() -> None:
    """Without ``specialize`` the key holds the whole problem, otherwise only the named keys."""
    problem: Problem = {"M": 64, "dtype": "float16"}
    assert make_kernel(specialize=None).select_key_values(problem) == problem
    assert make_kernel().select_key_values(problem) == {"M": 64}
    assert make_kernel(specialize=()).select_key_values(problem) == {}
    assert make_kernel().name == "proj:gemm"


@pytest.mark.parametrize("field", Context.__struct_fields__)
def test_every_field_of_a_context_counts(field: str) -> None:
    """Measurements are comparable only if kernel, problem, device, digest, versions and the way of measuring agree."""
    change: Any = MEASURING_VERSION + 1 if field == "measuring_version" else "other"
    other = msgspec.structs.replace(CONTEXT, **{field: change})
    assert msgspec.structs.replace(CONTEXT) == CONTEXT != other


def test_trials_have_the_protocols_fields() -> None:
    promised_fields = (
        "id job kernel problem device config outcome latency_us spread_us compile_s lane_s message artifact"
    )
    wire = msgspec.to_builtins(make_trial(7, {"B": 2}, Outcome.HUNG, latency_us=None, message="no"))
    assert set(promised_fields.split()) <= set(wire)
    assert send_over_wire(wire) == wire


def test_each_preset_is_more_thorough_than_the_one_before() -> None:
    assert {name: preset.name for name, preset in PRESETS.items()} == {name: name for name in PRESETS}
    presets = [PRESETS[name] for name in ("fast", "default", "thorough")]
    sizes = [
        (
            preset.warmup,
            preset.repetitions,
            preset.timing_s,
            preset.finalists,
            preset.finalist_rounds,
            preset.most_rounds,
            preset.straggler_times or math.inf,
        )
        for preset in presets
    ]
    for smaller, larger in itertools.pairwise(sizes):
        assert all(small <= large for small, large in zip(smaller, larger, strict=True))
        assert sum(small < large for small, large in zip(smaller, larger, strict=True)) >= 6


def test_outcomes_that_do_not_depend_on_the_config_are_retried() -> None:
    """The next job retries exactly the outcomes that others caused."""
    assert {"contended", "cancelled", "interrupted"} == RETRIED_BY_NEXT_JOB


def test_priorities_rise_with_how_much_somebody_waits() -> None:
    """Whoever waits comes first, then who has asked and left, then saves, lookups, the background, and verification."""
    assert sorted(Priority, reverse=True) == [
        Priority.WAITED_FOR,
        Priority.REQUESTED,
        Priority.SAVED,
        Priority.ASKED,
        Priority.BACKGROUND,
        Priority.VERIFY,
    ]
