"""Which winner of a file a key launches, and why it launches none."""

import json
from pathlib import Path
from typing import Any

import pytest

from ktuned.dropin.winners_file import FileWinner, WinnersFile, read_winners_once
from ktuned.model import LATENCY, CallKey, Problem, with_numerics
from ktuned_client.winners import WinnersError

CONTEXT = {"decided": 1.0, "digest": "d", "toolchain": "t", "device_fingerprint": "f", "measuring_version": 1}
SIZE = {"size": 1}


def winner(block: int, latency_us: float, problem: Problem = SIZE) -> dict[str, Any]:
    """Return an exported winner."""
    return {**CONTEXT, "problem": problem, "config": {"BLOCK": block}, "latency_us": latency_us}


def document(*winners: dict[str, Any], kernel: str = "lib:f", **fields: Any) -> dict[str, Any]:
    """Return an exported document of the function ``lib.f``."""
    known = {"ktuned_winners": 1, "kernel": kernel, "device": "H200", "winners": winners}
    rules: dict[str, Any] = {"default": None, "specialize": None, "bucket": {}, "names": {}}
    return {**known, **rules, "function": {"name": "lib.f", "source": "new"}, **fields}


def find(*documents: dict[str, Any], problem: Problem = SIZE, model: str | None = "H200", **more: Any) -> Any:
    """Return the block of the key's winner and whether it is of this source, or the reason why there is none."""
    files = WinnersFile("w", [(f"w/{number}.json", one) for number, one in enumerate(documents)])
    objective = with_numerics(LATENCY, more.get("numerics"))
    found = files.find_winner("lib.f", "new", CallKey("0123456789abcdef", problem, model, objective))
    return (json.loads(found.config)["BLOCK"], found.is_of_this_source) if isinstance(found, FileWinner) else found


OLD = {"name": "lib.f", "source": "old"}
EXACT = {"exact:latency": [winner(32, 9.0)], "energy": [winner(16, 0.5)]}


@pytest.mark.parametrize(
    ("documents", "found"),
    [
        ([document(winner(64, 2.0))], (64, True)),
        ([document(winner(64, 2.0), function=OLD)], (64, False)),
        ([document(winner(64, 2.0)), document(winner(128, 1.0), kernel="lib:f-2", function=OLD)], (64, True)),
        ([document(winner(64, 2.0)), document(winner(128, 1.0), kernel="lib:f-2")], (128, True)),
        ([document(winner(64, 2.0), objectives=EXACT)], (64, True)),
        ([document(objectives=EXACT)], (16, True)),
    ],
    ids=["only", "other-source", "this-source-first", "fastest", "by-latency", "by-any-objective"],
)
def test_the_preferred_winner_is_found(documents: list[dict[str, Any]], found: tuple[int, bool]) -> None:
    """By the run's objective, then of this source, then the fastest."""
    assert find(*documents) == found


def test_exact_numerics_take_no_other_winner() -> None:
    """It may have other bits."""
    assert find(document(winner(64, 2.0), objectives=EXACT), numerics="exact") == (32, True)
    assert find(document(winner(64, 2.0)), numerics="exact") == "w has no winner with exact numerics for it"


def test_the_device_model_must_be_the_files() -> None:
    """A call without a GPU takes the only model that there is."""
    files = document(winner(64, 2.0)), document(winner(32, 2.0), device="A100")
    assert find(*files, model="A100") == (32, True)
    assert find(*files, model="B200") == "w has it for A100, H200, not for B200"
    assert find(*files, model=None) == "w has it for A100, H200, not for a call without a GPU"
    assert find(files[0], model=None) == (64, True)


def test_a_key_or_a_function_may_be_missing() -> None:
    """Values are compared with their types, as a key's are."""
    assert find(document(winner(64, 2.0)), problem={"size": 1.5}) == "w lacks it"
    assert find(document(winner(64, 2.0), function={"name": "lib.g", "source": "new"})) == "w lacks it"
    assert find({**document(winner(64, 2.0)), "function": OLD}, problem={"size": 2}) == "w lacks it"
    assert find() == "w lacks it"


def test_programs_are_a_source() -> None:
    """Where a key has the digest of its programs, other programs are other source."""
    offered = document(winner(64, 2.0, {**SIZE, "@programs": "p"}), winner(32, 1.0, {**SIZE, "@programs": "q"}))
    assert find(offered, problem={**SIZE, "@programs": "p"}) == (64, True)
    assert find(offered, problem={**SIZE, "@programs": "r"}) == (32, False)


def test_files_are_read_once(tmp_path: Path) -> None:
    """What is replaced later changes nothing in this process; a snapshot is what all processes of a run read."""
    path = tmp_path / "winners.json"
    path.write_text(json.dumps(document(winner(64, 2.0))))
    before = read_winners_once(str(path))
    before.write_snapshot(str(tmp_path / "snapshot"))
    path.write_text("damaged")
    copy = WinnersFile.read_snapshot(str(tmp_path / "snapshot"))
    for files in (read_winners_once(str(path)), copy):
        assert files is not None
        assert isinstance(files.find_winner("lib.f", "new", CallKey("0123456789abcdef", SIZE)), FileWinner)
        assert files.path == str(path)
    assert WinnersFile.read_snapshot("") is None
    gone = WinnersFile.read_snapshot(str(tmp_path / "gone"))
    assert gone is not None
    assert gone.documents == []


@pytest.mark.parametrize("function", ["f", {"name": "lib.f"}, {"name": 1, "source": "s"}])
def test_a_damaged_file_is_one_line(tmp_path: Path, function: Any) -> None:
    """So are two files of one kernel on one device model."""
    (tmp_path / "a.json").write_text(json.dumps(document(function=function)))
    with pytest.raises(WinnersError, match=r"a\.json is invalid: `function` is not a map"):
        WinnersFile.read(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(document()))
    with pytest.raises(WinnersError, match=r"b\.json and .*a\.json both hold lib:f on H200"):
        WinnersFile.read(tmp_path)
