"""Which directories are searched for includes: those that the flags of any config name, each list in its order."""

from __future__ import annotations

import pytest

from ktuned.spec.include_search import MAX_BUILDS, include_searches
from tests.spec.conftest import Project

FLAGGED = """
@dataclass(frozen=True)
class Flagged(Build):
    backend = "fake"
    flags: tuple = ()

@kernel(backend="fake", sources=["one.cc"], space=space({space}), problems=[dict(M=4), dict(M=8)],
        inputs=lambda p: dict(A=tensor(3)), check=None{more})
def one(p, c):
    {body}
"""


def searched(project: Project, space: str, body: str, limit: int = MAX_BUILDS, **more: str) -> set[tuple[str, ...]]:
    """Declare a kernel and return the lists of directories, relative to its file."""
    told = "".join(f", {name}={value}" for name, value in more.items())
    project.write("tune_it.py", FLAGGED.format(space=space, body=body, more=told))
    project.write("one.cc", "int f();\n")
    (kernel,) = project.load().kernels
    return {tuple(place.name for place in places) for places in include_searches(kernel, limit)}


@pytest.mark.parametrize(
    "space",
    [
        "impl=['a', 'b', 'c'], BM=[1, 2]",
        "impl=['a', 'b', 'c'], BM=range(1, 10**9)",
        "BM=range(1, 10**9), impl=['a', 'b', 'c']",
        "lambda p: [dict(impl=impl, BM=BM) for BM in range(30) for impl in 'abc']",
        "[dict(impl=impl, BM=BM) for BM in range(30) for impl in 'abc']",
    ],
)
def test_each_value_of_each_knob_is_asked(project: Project, space: str) -> None:
    """Small or endless, and wherever the knob stands: no directory is left out that one value adds."""
    assert searched(project, space, "return Flagged((f'-I{c.impl}',))") == {("a",), ("b",), ("c",)}


def test_small_space_is_asked_as_a_whole(project: Project) -> None:
    """What it takes two knobs and a problem to add is found too; what some configs refuse hides nothing."""
    body = "return Flagged(('-Ia',) if (c.BM, c.BN, p.M) == (2, 2, 8) else ()) if c.BM < 3 else 1 / 0"
    assert searched(project, "BM=[1, 2, 3], BN=[1, 2]", body) == {(), ("a",)}


def test_faults_and_bounds_end_the_asking_only(project: Project) -> None:
    """A constraint that raises, or more configs than are asked, leaves what the others say."""
    space = "BM=[1, 2, 3], where=lambda p, c: 1 // (c.BM - 2) or True"
    assert searched(project, space, "return Flagged((f'-Ib{c.BM}',))", default="dict(BM=3)") == {("b3",), ("b1",)}
    assert searched(project, "BM=range(1, 60)", "return Flagged((f'-Ib{c.BM}',))", limit=2) == {("b1",)}


def test_each_search_finds_its_own_file(project: Project) -> None:
    """Two configs may mean two files by one name; a file that another always hides is no one's."""
    body = "return Flagged((f'-I{c.impl}', '-Icommon'))"
    project.write("tune_it.py", FLAGGED.format(space="impl=['a', 'b']", body=body, more=""))
    project.write("one.cc", '#include "impl.h"\n#include "hidden.h"\n#include "only_b.h"\n#include "lost.h"\n')
    for name in ("a/impl.h", "b/impl.h", "a/hidden.h", "b/hidden.h", "common/hidden.h", "b/only_b.h"):
        project.write(name, "#define A 1\n")
    first = project.describe()["one"]
    found = {"one.cc", "a/impl.h", "b/impl.h", "a/hidden.h", "b/hidden.h", "b/only_b.h", "one.cc includes lost.h"}
    assert set(first.extra["files"]) == found
    assert first.extra["missing"] == ["one.cc includes lost.h"]
    project.write("b/impl.h", "#define A 2\n")
    edited = project.describe()["one"]
    assert edited.source_digest != first.source_digest
    project.write("common/hidden.h", "#define A 2\n")
    assert project.describe()["one"].source_digest == edited.source_digest
    assert str(project.root / "a/only_b.h") in edited.stamps, "it would be used if it came"
