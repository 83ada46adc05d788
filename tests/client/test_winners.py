"""Exported files: what is read, what is refused, and what a lookup gets from them without a daemon."""

import json
from pathlib import Path
from typing import Any

import pytest

from ktuned_client import Client
from ktuned_client.winners import WinnersError, make_file_name, render_document

DEFAULT = {"BM": 64}
WINNER = {
    "problem": {"M": 1},
    "config": {"BM": 32},
    "latency_us": 1.5,
    "spread_us": 0.1,
    "decided": 10.0,
    "digest": "d",
    "toolchain": "t",
    "device_fingerprint": "f",
    "measuring_version": 1,
    "artifact": "abc",
}


def make_document(**changes: Any) -> Any:
    """Return the content of an exported file."""
    return {
        "ktuned_winners": 1,
        "kernel": "p:gemm",
        "device": "GPU",
        "default": {"BM": 16},
        "specialize": None,
        "bucket": {},
        "names": {},
        "winners": [WINNER],
        **changes,
    }


def write_winners(path: Path, **changes: Any) -> Path:
    """Write an exported file and return its path."""
    path.write_text(render_document(make_document(**changes)))
    return path


def test_a_file_serves_lookups_with_no_daemon(tmp_path: Path) -> None:
    """Winners are stale, with the reason; other problems get the file's default, or the caller's if it has none."""
    with Client(tmp_path / "nobody.sock", winners=write_winners(tmp_path / "w.json")) as client:
        hit = client.lookup("gemm", {"M": 1}, DEFAULT)
        assert (hit.kernel, hit.device, hit.status, hit.config, hit.latency_us, hit.decided, hit.artifact) == (
            "p:gemm",
            "GPU",
            "stale",
            {"BM": 32},
            1.5,
            10.0,
            None,
        )
        assert "w.json: not checked" in hit.message
        assert client.lookup("p:gemm", {"M": 1}) == hit
        assert client.lookup("gemm", {"M": 1}) is client.lookup("gemm", {"M": 1})
        hits = [
            client.lookup("gemm", {"M": 2}, DEFAULT),
            client.lookup("gemm", {"M": 1.0}, DEFAULT),
            client.lookup("gemm", {"M": 1}, DEFAULT, device="CPU"),
            client.lookup("other", {}, DEFAULT),
        ]
        assert [(hit.status, hit.config) for hit in hits] == [
            ("default", {"BM": 16}),
            ("default", {"BM": 16}),
            ("default", {"BM": 16}),
            ("unknown", DEFAULT),
        ]
        assert [hit.status for hit in client.lookup_many([("gemm", {"M": 1}), ("other", {})])] == ["stale", "unknown"]


def test_a_directory_serves_the_winners_of_all_its_files(tmp_path: Path) -> None:
    """Device models, and kernels of one name, are distinguished; two files for one kernel and device are refused."""
    for number, (kernel, device) in enumerate(
        [("p:gemm", "GPU"), ("p:gemm", "CPU"), ("p:one", "GPU"), ("q:one", "GPU")]
    ):
        write_winners(tmp_path / f"{number}.json", kernel=kernel, device=device)
    with Client(winners=tmp_path) as client:
        assert client.lookup("gemm", {"M": 1}, device="CPU").device == "CPU"
        for kernel, candidates in (("gemm", "CPU, GPU"), ("one", "p:one, q:one")):
            hit = client.lookup(kernel, {"M": 1}, DEFAULT)
            assert (hit.status, hit.config) == ("unavailable", DEFAULT)
            assert candidates in hit.message
    write_winners(tmp_path / "5.json")
    with pytest.raises(WinnersError, match="both hold p:gemm on GPU"):
        Client(winners=tmp_path)


@pytest.mark.parametrize("problem", [{"M": b"bytes"}, {"M": 1, 2: 3}])
def test_a_problem_that_no_file_can_hold_gives_the_default(tmp_path: Path, problem: dict[Any, Any]) -> None:
    """MessagePack can carry such a problem, JSON cannot."""
    with Client(winners=write_winners(tmp_path / "w.json")) as client:
        hit = client.lookup("gemm", problem, {"BM": 7})
    assert (hit.status, hit.config) == ("invalid", {"BM": 7})
    assert "a problem" in hit.message


def test_artifacts_are_found_beside_the_file(tmp_path: Path) -> None:
    """A path that leads elsewhere is refused."""
    (tmp_path / "art" / "abc").mkdir(parents=True)
    path = write_winners(tmp_path / "w.json", artifacts="art")
    with Client(winners=path) as client:
        assert client.lookup("gemm", {"M": 1}).artifact == str(tmp_path / "art" / "abc")
    write_winners(path, artifacts="art", winners=[{**WINNER, "artifact": "../art/abc"}])
    with Client(winners=path) as client:
        assert client.lookup("gemm", {"M": 1}).artifact is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "holds no winners"),
        ('{"ktuned_winners": true}', "holds no winners"),
        (json.dumps(make_document(ktuned_winners=2)), "format 2, and this version reads up to 1: upgrade ktuned"),
        (json.dumps(make_document(device=None)), "`device` is missing"),
        (json.dumps(make_document(specialize="M")), "`specialize`"),
        (json.dumps(make_document(default={"BM": []})), "its default"),
        (json.dumps(make_document(names=["a.h"])), "`names`"),
        (json.dumps(make_document(names={"a.h": "source"})), "`names`"),
        (json.dumps(make_document(winners=[7])), "winner 1 is not a map"),
        (json.dumps(make_document(winners=[WINNER, {**WINNER, "latency_us": -1.0}])), "winner 2: a latency of -1.0"),
        (json.dumps(make_document(winners=[{**WINNER, "config": {"BM": None}}])), "winner 1: its config"),
        (json.dumps(make_document(winners=[{**WINNER, "digest": 3}])), "winner 1: `digest`"),
    ],
)
def test_an_invalid_file_ends_with_one_line_that_names_it(tmp_path: Path, content: str, message: str) -> None:
    """Cases: no file of winners, one of a newer version, a broken one."""
    path = tmp_path / "w.json"
    path.write_text(content)
    with pytest.raises(WinnersError, match=message) as error:
        Client(winners=path)
    assert str(path) in str(error.value)


def test_a_missing_file_or_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    """A client without winners would fail silently."""
    with pytest.raises(WinnersError, match="cannot be read"):
        Client(winners=tmp_path / "none.json")
    with pytest.raises(WinnersError, match="holds no file of winners"):
        Client(winners=tmp_path)


def test_equal_winners_give_equal_files() -> None:
    """Whatever the order of the winners, each has a line of its own, so that a diff shows what changed."""
    winners = [{**WINNER, "problem": {"M": size}} for size in (1, 2, 3)]
    text = render_document(make_document(winners=winners))
    assert render_document(make_document(winners=winners[::-1])) == text
    assert json.loads(text) == make_document(winners=winners)
    changed = render_document(make_document(winners=[*winners[:2], {**winners[2], "latency_us": 9.0}]))
    assert sum(line != other for line, other in zip(text.splitlines(), changed.splitlines(), strict=True)) == 1


def test_names_of_files_are_plain_and_differ() -> None:
    """The name of a file is safe whatever the device is called, and two devices have two names."""
    names = [
        make_file_name("p:gemm", device) for device in ("NVIDIA H200", "NVIDIA-H200!", "a/../b", "a b", "a(b", "…")
    ]
    assert names[0] == "p-gemm@NVIDIA-H200.json"
    assert len(set(names)) == len(names)
    assert all("/" not in name and not name.startswith(".") for name in names)
