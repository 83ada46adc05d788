"""Records of the spool survive their encoding, and are refused with a reason if a field is invalid."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktuned.model import EXACT, LATENCY, CallKey, with_numerics
from ktuned.spool import CallRecord, InvalidRecord, KeyLaunches, LaunchCounts, digest_content

RECORD = CallRecord(
    tool="triton",
    package="fla",
    release="0.6.0",
    function="ops.gla.chunk.chunk_gla_fwd_kernel_o",
    identity="0123456789abcdef",
    declaration={"configs": ["{}"], "paths": ["/somewhere"], "hooks": []},
    problem={"size": 4096, "scale": 0.5, "is_causal": True, "@types": "f16,f16"},
    call='{"tensors": {}}',
    python="/usr/bin/python3",
    configs=({"BLOCK": 64}, {"BLOCK": 128}),
    files={"77c0.safetensors": b"\0\1", "source_1.py": b"x = 1\n"},
    variables={"TRITON_PTXAS_PATH": "/opt/ptxas"},
    device="NVIDIA H100 80GB HBM3",
)

scalars = st.one_of(st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False), st.text())
plain = st.recursive(
    st.one_of(st.none(), scalars),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)
anything = st.recursive(
    st.one_of(st.none(), scalars, st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


def encode_changed_record(**fields: Any) -> bytes:
    """Return the bytes of a record with changed fields."""
    return bytes(msgpack.packb({"version": 1, **asdict(RECORD), **fields}))


def test_a_record_survives_its_bytes() -> None:
    """Encoding the decoded record gives the same bytes."""
    read = CallRecord.from_bytes(RECORD.to_bytes())
    assert read == RECORD
    assert read.to_bytes() == RECORD.to_bytes()


@given(
    st.dictionaries(st.text(), scalars),
    st.text(),
    st.lists(st.dictionaries(st.text(), scalars, max_size=3), min_size=1, max_size=3),
    st.dictionaries(st.text(), plain, max_size=3),
)
def test_every_record_survives_its_bytes(
    problem: dict[str, Any], call: str, configs: list[dict[str, Any]], declaration: dict[str, Any]
) -> None:
    """Random texts and numbers."""
    record = replace(RECORD, problem=problem, call=call, configs=tuple(configs), declaration=declaration)
    assert CallRecord.from_bytes(record.to_bytes()) == record


def test_a_truncated_record_is_refused() -> None:
    """Every shorter prefix is tried."""
    content = RECORD.to_bytes()
    for length in range(len(content)):
        with pytest.raises(InvalidRecord, match=r"it is damaged|it is not a map"):
            CallRecord.from_bytes(content[:length])
    with pytest.raises(InvalidRecord, match="it is damaged"):
        CallRecord.from_bytes(content + b"\0")


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_record_is_refused_or_valid(data: st.DataObject) -> None:
    """One byte is changed: decoding raises InvalidRecord or gives a valid record."""
    content = bytearray(RECORD.to_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    for kind in (CallRecord, LaunchCounts):
        with suppress(InvalidRecord):
            kind.from_bytes(bytes(content))


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=60), anything.map(msgpack.packb)))
def test_arbitrary_bytes_are_refused(content: bytes) -> None:
    for kind in (CallRecord, LaunchCounts):
        with pytest.raises(InvalidRecord, match=r"."):
            kind.from_bytes(content)


@pytest.mark.parametrize("name", sorted(asdict(RECORD)))
def test_a_record_without_a_field_is_refused(name: str) -> None:
    fields = {"version": 1, **asdict(RECORD)}
    del fields[name]
    with pytest.raises(InvalidRecord, match=f"it lacks {name}"):
        CallRecord.from_bytes(msgpack.packb(fields))


@settings(max_examples=200)
@given(st.sampled_from(sorted(asdict(RECORD))), anything)
def test_an_invalid_field_is_refused(name: str, value: Any) -> None:
    """Values that an application cannot write, and names of other directories."""
    try:
        record = CallRecord.from_bytes(encode_changed_record(**{name: value}))
    except InvalidRecord:
        return
    assert CallRecord.from_bytes(record.to_bytes()) == record
    for part in (record.tool, record.package, record.release, record.function, *record.files):
        assert "/" not in part
        assert part not in (".", "..")
        assert "\0" not in part


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tool", "os; import"),
        ("tool", ""),
        ("package", "../fla"),
        ("package", ".."),
        ("package", ""),
        ("package", "x" * 101),
        ("release", "1/2"),
        ("release", ".."),
        ("release", "."),
        ("function", "a/b"),
        ("function", ".."),
        ("function", "f\n"),
        ("function", ""),
        ("identity", "0123456789ABCDEF"),
        ("identity", "../456789abcdef"),
        ("identity", "0123456789abcdef\n"),
        ("declaration", []),
        ("declaration", {"content": b"bytes"}),
        ("declaration", {"at": [{"inner": msgpack.Timestamp(1)}]}),
        ("problem", {"size": [1]}),
        ("problem", {"size": None}),
        ("problem", []),
        ("call", b"{}"),
        ("python", "python3"),
        ("python", "/usr/bin/python3\0"),
        ("configs", []),
        ("configs", [{"BLOCK": {}}]),
        ("configs", ["BLOCK"]),
        ("files", {"../authorized_keys": b""}),
        ("files", {"a/b": b""}),
        ("files", {".hidden": b""}),
        ("files", {"a": "text"}),
        ("files", {"": b""}),
        ("variables", {"LD_PRELOAD=/x": ""}),
        ("variables", {"A": "\0"}),
        ("variables", {"A": 1}),
        ("device", None),
    ],
)
def test_dangerous_values_are_refused_by_name(name: str, value: Any) -> None:
    """The error has the field and its value."""
    with pytest.raises(InvalidRecord, match=f"its {name} is "):
        CallRecord.from_bytes(encode_changed_record(**{name: value}))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda: msgpack.packb({**asdict(RECORD), "version": 2}), "it is of version 2, and this daemon reads 1"),
        (lambda: msgpack.packb(asdict(RECORD)), "it is of version None"),
        (lambda: msgpack.packb([1, 2]), "it is not a map"),
        (lambda: b"\x91" * 100_000 + b"\x01", "it is damaged"),
        (lambda: encode_changed_record(declaration=nest_maps(1000)), "its declaration is "),
        (lambda: msgpack.packb({1: 2}), "it is damaged"),
        (lambda: b"\xdf\xff\xff\xff\xff", "it is damaged"),
        (lambda: b"", "it is damaged"),
    ],
    ids=["later", "unversioned", "no-map", "deep-list", "deep-map", "number-as-key", "endless-map", "empty"],
)
def test_maps_of_another_version_or_kind_are_refused(content: Callable[[], bytes], why: str) -> None:
    """Deep nesting, which would overflow the interpreter's stack, is refused as well."""
    with pytest.raises(InvalidRecord, match=why):
        CallRecord.from_bytes(content())


def test_unknown_fields_are_ignored() -> None:
    """A newer application of the same version may add fields."""
    assert CallRecord.from_bytes(encode_changed_record(later=1)) == RECORD


def test_counts_survive_their_bytes() -> None:
    """Rows have identity, key, device, objective and number."""
    exact = with_numerics(LATENCY, EXACT)
    counts = LaunchCounts((KeyLaunches(CallKey("0123456789abcdef", {"size": 1, "@types": "f16"}, None, exact), 3),))
    assert LaunchCounts.from_bytes(counts.to_bytes()) == counts


@pytest.mark.parametrize(
    "row",
    [
        [],
        ["0123456789abcdef", {}, "", "latency"],
        ["0123456789abcdef", {}, "", "latency", -1],
        ["0123456789abcdef", {}, "", "latency", 1 << 62],
        ["0123456789abcdef", {}, "", "latency", True],
        ["0123456789abcdef", {}, "", "latency", 1.0],
        ["0123456789abcdef", {"size": []}, "", "latency", 1],
        ["0123456789abcdef", {}, None, "latency", 1],
        ["0123456789abcdef", {}, "", "max:tflops", 1],
        ["short", {}, "", "latency", 1],
        "0123456789abcdef",
    ],
)
def test_invalid_counts_are_refused(row: Any) -> None:
    """A wrong number refuses the whole file."""
    with pytest.raises(InvalidRecord, match="its launches are not a list of counts"):
        LaunchCounts.from_bytes(msgpack.packb({"version": 1, "launches": [row]}))


def test_a_digest_depends_on_the_content() -> None:
    """Of text and of bytes."""
    assert digest_content("a") == digest_content(b"a") != digest_content("b")
    assert len(digest_content("a")) == 16


def nest_maps(depth: int) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for _ in range(depth):
        nested = {"inner": nested}
    return nested
