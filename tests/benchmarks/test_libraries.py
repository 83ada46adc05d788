"""``benchmarks/libraries.py`` without a GPU: a census that no module can spoil, sides that are kept when cut off."""

import json
import math
import sys
from pathlib import Path

import pytest

from benchmarks import libraries
from benchmarks.libraries import BACKGROUND, CACHED, FIRST, SECOND, TRITON, WAIT, Notes, Sides
from benchmarks.library_adoption import Library, take_census
from benchmarks.private_daemon import private_home

pytestmark = pytest.mark.timeout(180)

MODULES = {
    "__init__.py": "",
    "plain.py": """
        import triton, triton.language as tl
        @triton.autotune([triton.Config({"B": b}) for b in (16, 32)], key=["n"])
        @triton.heuristics({"E": lambda arguments: True})
        @triton.jit
        def plain(x, n, E: tl.constexpr, B: tl.constexpr):
            tl.store(x, 1.0)
    """,
    "derived.py": """
        import triton, triton.language as tl
        from triton.runtime.autotuner import Autotuner
        class Own(Autotuner):
            pass
        @triton.jit
        def kernel(x, n, B: tl.constexpr):
            tl.store(x, 1.0)
        hidden = [Own(kernel, kernel.arg_names, [triton.Config({"B": b}) for b in (16, 32)], ["n"], None, ["x"])]
    """,
    "asks_for_the_device.py": """
        import torch, triton
        assert torch.cuda.get_device_capability() == (9, 0)
        assert triton.runtime.driver.active.get_current_target().arch == 90
        assert torch.ones(2, device="cuda").cuda().to("cuda:0").sum().item() == 2
        with torch.cuda.device(0):
            pass
    """,
    "exits.py": "import sys; sys.exit('no licence')",
    "dies.py": "import os; os._exit(3)",
    "needs.py": "import a_package_that_is_not_there",
    "nested/deeper/inner.py": """
        import triton, triton.language as tl
        def make():
            @triton.autotune([triton.Config({"B": 16})], key=[])
            @triton.jit
            def closure(x, B: tl.constexpr):
                tl.store(x, 1.0)
            return closure
        made = make()
    """,
}
"""Modules of a library that is nowhere else."""

PROGRAM = """
import json, sys, time
print(json.dumps({"first_step_s": 0.5, "keys": 0}), flush=True)
if "--first-config" in sys.argv:
    time.sleep(600)
print(json.dumps({"steady_ms": 2.0, "difference": 0.001}), flush=True)
"""


@pytest.fixture(scope="module")
def census(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The census of the made-up library."""
    place = tmp_path_factory.mktemp("libraries")
    for name, text in MODULES.items():
        file = place / "made_up_library" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = text.splitlines()
        file.write_text("\n".join(line[8:] if line.startswith(" " * 8) else line for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(place))
        return take_census("made_up_library", target=90)


def test_census_finds_functions_wherever_they_are(census: Library) -> None:
    """In globals, in a list, of a subclass, inside a function, and in a directory without an __init__.py."""
    found = {one["name"].removeprefix("made_up_library."): one for one in census.functions}
    assert sorted(found) == ["derived.kernel", "nested.deeper.inner.make.<locals>.closure", "plain.plain"]
    assert found["derived.kernel"]["class"] == "made_up_library.derived.Own"
    assert found["derived.kernel"]["features"] == ["restore_value"]
    assert found["plain.plain"]["features"] == ["heuristics below"]
    assert "inside a function" in found["nested.deeper.inner.make.<locals>.closure"]["features"]


def test_census_takes_over_what_ktuned_adopts(census: Library) -> None:
    """Each function has a verdict, and the plain one is taken over."""
    assert "made_up_library.plain.plain" in [one["name"] for one in census.adopted]
    assert not [one for one in census.refused if "check itself failed" in one["refusal"]]


def test_census_names_modules_that_are_not_imported(census: Library) -> None:
    """One that exits, one that ends its process and one that lacks a package are named; all others are imported."""
    assert not census.ended
    reasons = {name.rpartition(".")[2]: reason for name, reason in census.not_imported.items()}
    assert reasons.pop("needs") == "ModuleNotFoundError: No module named 'a_package_that_is_not_there'"
    assert reasons.pop("exits") == "SystemExit: no licence"
    assert reasons.pop("dies").startswith("ended with status 3")
    assert not reasons
    assert census.modules == 7


def test_census_of_a_library_that_is_not_there() -> None:
    """It has no functions, and says why."""
    library = take_census("a_package_that_is_not_there", target=90)
    assert library.functions == []
    assert "No module named" in library.not_imported["a_package_that_is_not_there"]


def test_sides_are_kept_when_one_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side has its figures, also the one that was stopped, in memory and in the file; a daemon served ours."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    monkeypatch.setattr(libraries, "SETTLED_S", 0.5)
    monkeypatch.setitem(libraries.PROGRAMS, "norms", str(script))
    notes = Notes(tmp_path / "out")
    notes.directory.mkdir()
    asked = [TRITON, CACHED, FIRST, BACKGROUND, SECOND, WAIT]
    with private_home() as home:
        Sides(notes, "norms", home, limit_s=30.0, steps=3).run([side for side in asked if side != FIRST])
        Sides(notes, "norms", home, limit_s=1.0, steps=3).run([FIRST])
        assert not list(home.iterdir()), "state is left behind"
    for side in asked:
        assert notes.figure("norms", side, "first_step_s") == 0.5
        assert notes.figure("norms", side, "steady_ms") == (None if side == FIRST else 2.0)
    assert notes.figure("norms", FIRST, "ended") == "stopped after 1 s"
    assert notes.figure("norms", BACKGROUND, "all_ended") is True
    assert notes.figure("norms", WAIT, "keys_tuned") == 0
    lines = [json.loads(line) for line in (notes.directory / "libraries.jsonl").read_text().splitlines()]
    assert {line["side"] for line in lines} == set(asked)
    times = {row["what"]: row for row in libraries.time_rows(notes, "norms", asked)}
    assert times[SECOND]["of cached"] == 1.0
    assert (times[FIRST]["of triton"], times[FIRST]["of cached"]) == (1.0, None)
    ends = {row["what"]: row["ended"] for row in libraries.outcome_rows(notes, "norms", asked)}
    assert ends == {**dict.fromkeys(asked, ""), FIRST: "stopped after 1 s"}


def test_goals_say_what_is_met_missed_and_unknown(tmp_path: Path) -> None:
    """A ratio above its limit is missed, and one without both its figures is unknown."""
    notes = Notes(tmp_path)
    notes.add("gdn", TRITON, first_step_s=40.0, process_s=50.0, difference=0.001)
    notes.add("gdn", WAIT, first_step_s=20.0, process_s=49.0, keys_left=0)
    rows = {row["what"]: row["goal"] for row in libraries.goal_rows("gdn", libraries.goals_of(notes, "gdn"))}
    assert rows["gdn: --wait / Triton alone, first step"] == "met"
    assert rows["gdn: --wait / Triton alone, whole process"] == "NOT MET"
    assert rows["gdn: second start's steady step / Triton's"] == "unknown"
    assert rows["gdn: keys left, --wait"] == "met"
    assert rows["gdn: largest difference from torch"] == "met"
    notes.add("gdn", SECOND, difference=math.nan)
    rows = {row["what"]: row["goal"] for row in libraries.goal_rows("gdn", libraries.goals_of(notes, "gdn"))}
    assert rows["gdn: largest difference from torch"] == "NOT MET"


def test_names_are_put_in_their_order() -> None:
    """Sides that need another one's state run after it; an unknown name is refused."""
    read = libraries.names_among([*libraries.SIDES])
    assert read(f"{SECOND},{BACKGROUND}") == [BACKGROUND, SECOND]
    with pytest.raises(Exception, match="'thrid' is none of"):
        read("thrid")


@pytest.mark.gpu
@pytest.mark.parametrize("program", [*libraries.PROGRAMS])
def test_programs_agree_with_torch(program: str, tmp_path: Path) -> None:
    """Outputs and gradients of each program are torch's, with the first config of each list."""
    pytest.importorskip("liger_kernel" if program == "moe" else "fla")
    notes = Notes(tmp_path)
    with private_home() as home:
        Sides(notes, program, home, limit_s=150.0, steps=3).run([FIRST])
    assert notes.figure(program, FIRST, "difference") < libraries.DIFFERENCE_GOAL, sys.version
