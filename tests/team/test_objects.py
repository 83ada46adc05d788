"""Objects of a team's store: what is written is read, and nothing else is."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack
import pytest
from msgspec.structs import replace

from ktuned.model.keys import DeviceModel, KernelName, KeyProblem
from ktuned.model.objective import LATENCY, minimize
from ktuned.model.trace import Observation, extend_digest
from ktuned.model.trial import Context
from ktuned.sharing import LearnedName, SharedWinner, make_address
from ktuned_team.objects import (
    DamagedObject,
    NewerObject,
    ObjectName,
    digest_config,
    is_ktuned_name,
    make_kernel_path,
    read_object,
    write_object,
)

ADDRESS = "0" * 32

WINNER = SharedWinner(
    kernel="shop:gemm",
    problem={"n": 64, "dtype": "f32"},
    device="NVIDIA H100",
    digest="d" * 64,
    toolchain="t",
    device_fingerprint="f",
    measuring_version=1,
    config={"BM": 64, "fast": True, "name": "a", "x": 1.5},
    latency_us=12.5,
    spread_us=None,
    decided=1.0,
    metrics={"energy": 0.5},
    names=(LearnedName("b.h", is_source=True), LearnedName("env:X", is_data=True)),
)


def named(plain: dict[str, Any]) -> tuple[str, bytes]:
    """Return an object of any content under the right name."""
    data: bytes = msgpack.packb(plain)
    digest = hashlib.sha256(data).hexdigest()
    return ObjectName(make_kernel_path("shop:gemm"), ADDRESS, digest_config(WINNER.config), digest).path, data


def plain_of(winner: SharedWinner) -> dict[str, Any]:
    """Return what an object of a winner holds."""
    plain: dict[str, Any] = msgpack.unpackb(write_object(winner, ADDRESS)[1])
    return plain


def test_an_object_is_read_as_it_was_written() -> None:
    """A winner survives the trip, with the types of its values."""
    name, data = write_object(WINNER, ADDRESS)
    found = read_object(name, data)
    assert found == WINNER
    assert [type(value) for value in found.config.values()] == [int, bool, str, float]
    assert is_ktuned_name(name)


def test_equal_winners_give_equal_objects() -> None:
    """Whatever the order of their maps and names: two writers of one name write the same bytes."""
    shuffled = replace(
        WINNER,
        problem=dict(reversed([*WINNER.problem.items()])),
        config=dict(reversed([*WINNER.config.items()])),
        names=WINNER.names[::-1],
    )
    assert write_object(shuffled, ADDRESS) == write_object(WINNER, ADDRESS)
    assert write_object(replace(WINNER, decided=2.0), ADDRESS)[0] != write_object(WINNER, ADDRESS)[0]


def test_every_changed_byte_and_every_cut_is_found() -> None:
    """No damage of an object is read as a winner."""
    name, data = write_object(WINNER, ADDRESS)
    for place in range(len(data)):
        for damaged in (data[:place], data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]):
            with pytest.raises(DamagedObject, match="cut off or changed"):
                read_object(name, damaged)
    with pytest.raises(DamagedObject):
        read_object(name, data + b"\0")


@pytest.mark.parametrize(
    "change",
    [
        {"latency_us": float("nan")},
        {"latency_us": -1.0},
        {"latency_us": "fast"},
        {"latency_us": None},
        {"config": {"BM": [64]}},
        {"config": {"BM": 128}},
        {"config": {"BM": float("inf")}},
        {"problem": None},
        {"names": "b.h"},
        {"kernel": "shop:other"},
        {"objective": "speed"},
        {"objective": "min:energy", "metrics": {}},
        {"objective": "min:energy", "metrics": {"energy": -1.0}},
        {"metrics": {"energy": float("inf")}},
        {"ktuned_team": "1"},
        {"ktuned_team": None},
        {"measuring_version": True},
    ],
)
def test_an_object_without_a_winner_is_refused(change: dict[str, Any]) -> None:
    """Under the right name, too: a digest says nothing about the sense of what was written."""
    with pytest.raises(DamagedObject):
        read_object(*named(plain_of(WINNER) | change))


@pytest.mark.parametrize("missing", ["kernel", "config", "latency_us", "digest", "ktuned_team"])
def test_an_object_that_lacks_a_field_is_refused(missing: str) -> None:
    """A winner without its context is none."""
    plain = plain_of(WINNER)
    del plain[missing]
    with pytest.raises(DamagedObject):
        read_object(*named(plain))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x90", b"\x91" * 5000, msgpack.packb({1: 2}), b"\xdf\xff\xff\xff\xff"]
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    """Neither a deep nesting nor a false length is more than one object that is left out."""
    digest = hashlib.sha256(data).hexdigest()
    name = ObjectName(make_kernel_path("shop:gemm"), ADDRESS, digest_config(WINNER.config), digest).path
    with pytest.raises(DamagedObject):
        read_object(name, data)


def test_a_newer_format_is_named() -> None:
    """Its error says what mends it; an unknown field of this format is passed over."""
    with pytest.raises(NewerObject) as caught:
        read_object(*named(plain_of(WINNER) | {"ktuned_team": 2}))
    assert caught.value.hint == "upgrade ktuned"
    assert read_object(*named(plain_of(WINNER) | {"added": 1})) == WINNER


@pytest.mark.parametrize("name", ["", "v1/winners/x", "v2/winners/k/" + ADDRESS, "../../etc/passwd", "v1/winners/../x"])
def test_foreign_names_are_no_objects(name: str) -> None:
    """A sweep leaves them alone, and nothing is read by them."""
    assert not is_ktuned_name(name)
    with pytest.raises(DamagedObject):
        read_object(name, b"")


def test_address_is_that_of_the_context_without_learned_names() -> None:
    """Machines that have learned different names look at one place; any other difference is another place."""
    base = Context(KernelName("p:k"), KeyProblem("{}"), DeviceModel("M"), "ab" * 32, "t", "f", 1)
    learned = [Observation("a.h", "1"), Observation("b.h", "")]
    knows = replace(base, digest=extend_digest(base.digest, learned))
    assert make_address(knows, learned, LATENCY) == make_address(base, [], LATENCY)
    changes: list[dict[str, Any]] = [
        {"kernel": "p:j"}, {"problem": "[]"}, {"device": "N"}, {"digest": "ac" * 32}, {"toolchain": "u"},
        {"device_fingerprint": "g"}, {"measuring_version": 2},
    ]  # fmt: skip
    places = {make_address(replace(base, **change), [], LATENCY) for change in changes}
    assert (
        len({*places, make_address(base, [], LATENCY), make_address(base, [], minimize("energy"))}) == len(changes) + 2
    )


def test_kernels_have_paths_of_their_own() -> None:
    """However alike their names are, and whatever is in them."""
    names = ["a:b", "a-b", "a/b", "../x", "é:k", "", "a" * 300, "a" * 300 + "b"]
    paths = [make_kernel_path(name) for name in names]
    assert len({*paths}) == len(names)
    assert all(ObjectName(path, ADDRESS, "0" * 16, "0" * 64) == ObjectName.parse(
        ObjectName(path, ADDRESS, "0" * 16, "0" * 64).path) for path in paths)  # fmt: skip
