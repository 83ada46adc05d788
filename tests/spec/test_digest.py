"""Digests: what an edit changes, and above all what it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from ktuned.model.errors import KernelFileError
from ktuned.model.kernel import KernelInfo
from ktuned.spec.digest import describe
from tests.spec.conftest import Project

HELPER = '''
"""A module of the project."""
FACTOR = 2

def rows(p):
    """How many rows."""
    return scaled(p.M)

def scaled(m):
    return m * FACTOR

def unused():
    return 1

class Shape:
    def __init__(self, m): self.m = m
    def size(self): return tall(self.m)

def tall(m):
    return m + 1
'''

FILE = """
import functools
import helper
from helper import Shape, unused as spare
from lib import deep

TILES = [1, 2]
EXTRA = dict(a=1)

def fits(p, c):
    return c.BM <= limit(p)

def limit(p):
    return 64

def reference(A):
    from lib.late import answer
    return dict(A=answer(A))

def make(scale):
    return lambda p: dict(A=tensor(p.M * scale))

@kernel(backend="fake", sources="one.cu", space=space(BM=TILES, where=fits), problems=[dict(M=4)],
        inputs=lambda p: dict(A=tensor((helper.rows(p), Shape(3).size()))), reference=reference)
def one(p, c):
    # a comment
    return Fake(c.BM)

@kernel(backend="fake", space=space(lambda p: deep.configs(p)), problems=lambda: [dict(M=8)],
        inputs=make(3), check=functools.partial(deep.check, tolerance=1), default=dict(x=1))
def two(p, c):
    return Fake(len(EXTRA))
"""


@pytest.fixture
def sample(project: Project) -> Project:
    """Two kernels that reach sources, a module, a package and a late import."""
    project.write("tune_it.py", FILE)
    project.write("helper.py", HELPER)
    project.write("lib/__init__.py", "")
    project.write("lib/deep.py", "def configs(p):\n    return [dict(x=1)]\n\ndef check(i, o, tolerance): ...\n")
    project.write("lib/late.py", "def answer(a):\n    return a\n")
    project.write("one.cu", '#include "one.h"\nint one() { return two(); }\n')
    project.write("one.h", "int two();\n")
    return project


def digests(info: KernelInfo) -> tuple[str, str, str]:
    """Return the three digests."""
    return info.digest, info.source_digest, info.plan_digest


def changed(sample: Project, name: str, before: str, after: str) -> dict[str, set[str]]:
    """Edit a file and return, for each kernel, which of its digests that changed."""
    old = sample.describe()
    path = sample.root / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    new = sample.describe()
    return {
        kernel: {
            field
            for field in ("digest", "source_digest", "plan_digest")
            if getattr(old[kernel], field) != getattr(new[kernel], field)
        }
        for kernel in old
    }


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("helper.py", "return m * FACTOR", "return (m *\n            FACTOR)  # scaled"),
        ("helper.py", '"""How many rows."""', '"""Rows."""'),
        ("helper.py", '    """How many rows."""\n', ""),
        ("helper.py", "FACTOR = 2", "FACTOR = 1 + 1"),
        ("helper.py", "return 1", "return 2"),
        ("lib/late.py", "return a", "return a  # late"),
        ("tune_it.py", "    # a comment\n", '    """A docstring."""\n'),
        ("tune_it.py", "TILES = [1, 2]", "\n\nTILES = [\n    1,\n    2,  # two\n]"),
        ("tune_it.py", "import helper\n", "import helper\nimport json\n"),
        ("tune_it.py", "Shape, unused as spare", "FACTOR, Shape, unused as spare"),
        ("tune_it.py", "def limit(p):", "class Other:\n    pass\n\ndef limit(p):"),
        ("tune_it.py", "problems=[dict(M=4)],", "problems=[{'M': 4}],"),
    ],
)
def test_edit_without_meaning_changes_nothing(sample: Project, name: str, before: str, after: str) -> None:
    """Comments, docstrings, formatting and what no kernel reaches leave all three digests of all kernels."""
    assert changed(sample, name, before, after) == {"one": set(), "two": set()}


SOURCE, MEASURED, PLAN = {"source_digest", "digest"}, {"digest"}, {"plan_digest"}


@pytest.mark.parametrize(
    ("name", "before", "after", "one", "two"),
    [
        ("one.cu", "two()", "two() + 1", SOURCE, set()),
        ("one.cu", "int one()", "int one() // a comment, which may swallow the next line", SOURCE, set()),
        ("helper.py", "m * FACTOR", "m + FACTOR", MEASURED, set()),
        ("helper.py", "FACTOR = 2", "FACTOR = 3", MEASURED, set()),
        ("helper.py", "m + 1", "m + 2", MEASURED, set()),
        ("lib/late.py", "return a", "return -a", MEASURED, set()),
        ("lib/deep.py", "dict(x=1)", "dict(x=2)", set(), PLAN),
        ("lib/deep.py", "tolerance): ...", "tolerance): pass", set(), MEASURED),
        ("tune_it.py", "tolerance=1", "tolerance=2", set(), MEASURED),
        ("tune_it.py", "return Fake(c.BM)", "return Fake(c.BM + 1)", MEASURED, set()),
        ("tune_it.py", "len(EXTRA)", "len(EXTRA) + 1", set(), SOURCE),
        ("tune_it.py", "EXTRA = dict(a=1)", "EXTRA = dict(a=2)", set(), SOURCE),
        ("tune_it.py", "make(3)", "make(4)", set(), MEASURED),
        ("tune_it.py", "p.M * scale", "p.M + scale", set(), MEASURED),
        ("tune_it.py", "return 64", "return 32", PLAN, set()),
        ("tune_it.py", "TILES = [1, 2]", "TILES = [1, 2, 4]", PLAN, set()),
        ("tune_it.py", "[dict(M=4)]", "[dict(M=4), dict(M=5)]", PLAN, set()),
        ("tune_it.py", "[dict(M=8)]", "[dict(M=9)]", set(), PLAN),
        ("tune_it.py", "default=dict(x=1)", "default=dict(x=1), trials=5", set(), PLAN),
        ("tune_it.py", "reference=reference", 'reference=reference, specialize="M"', PLAN, set()),
        ("tune_it.py", "reference=reference", "reference=reference, rtol=0.5", MEASURED, set()),
        ("tune_it.py", "reference=reference", 'reference=reference, setup="A"', MEASURED, set()),
        ("tune_it.py", "n: int = 0", "n: int = 1", MEASURED, SOURCE),
    ],
)
def test_edit_changes_just_the_digests_that_it_means(
    sample: Project, name: str, before: str, after: str, one: set[str], two: set[str]
) -> None:
    """An edit changes the digests that its meaning reaches, of the kernels that it reaches, and no others."""
    assert changed(sample, name, before, after) == {"one": one, "two": two}


def test_digests_do_not_depend_on_the_place(sample: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A project elsewhere on the disk, in another process with another hash seed, has the same digests."""
    here = sample.describe()
    elsewhere = Path(shutil.copytree(sample.root, tmp_path_factory.mktemp("elsewhere") / "checkout"))
    script = f"""
from pathlib import Path
from ktuned.spec.digest import describe
from ktuned.spec.loader import load_file
root = Path({str(elsewhere)!r})
for kernel in load_file(root / "tune_it.py", root).kernels:
    info = describe(kernel, "other", root)
    print(info.digest, info.source_digest, info.plan_digest)
"""
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment)
    assert [tuple(line.split()) for line in done.stdout.splitlines()] == [digests(info) for info in here.values()]


def test_stamps_name_every_file(sample: Project) -> None:
    """Stamps hold the kernel file, sources and imported modules; what these include is seen when it is compiled."""
    stamps = {os.path.relpath(path, sample.root): stamp for path, stamp in sample.describe()["one"].stamps.items()}
    assert set(stamps) == {
        *("tune_it.py", "helper.py", "one.cu"),
        *("lib/__init__.py", "lib/deep.py", "lib/late.py"),
    }
    assert all(len(stamp) == 64 for stamp in stamps.values())


@pytest.mark.parametrize(
    ("name", "before", "after", "is_same"),
    [
        ("one.cu", "int one()", "long one()", True),
        ("one.h", "int two();", "long two();", True),
        ("tune_it.py", "    # a comment\n", "    # another\n", False),
        ("lib/late.py", "return a", "return 2 * a", False),
    ],
)
def test_code_digest_is_of_all_but_compiled_sources(
    sample: Project, name: str, before: str, after: str, is_same: bool
) -> None:
    """Any byte of the Python counts, as a statement of a module may set anything in its process; no C source does."""
    old = sample.describe()["one"].code_digest
    path = sample.root / name
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    assert (sample.describe()["one"].code_digest == old) is is_same


def test_missing_source_is_an_error(sample: Project) -> None:
    """A source that does not exist is one line with the kernel's place."""
    (sample.root / "one.cu").unlink()
    kernel = sample.load().kernels[0]
    with pytest.raises(KernelFileError, match=r"one: the source 'one\.cu' does not exist"):
        describe(kernel, "project", sample.root)


def test_info_crosses_to_the_daemon(sample: Project) -> None:
    """A description survives MessagePack, and says knobs, problems, space and digests of each part."""
    info = sample.describe()["one"]
    assert KernelInfo.from_wire(msgpack.unpackb(msgpack.packb(info.to_wire()))) == info
    assert (info.name, info.backend, info.problems) == ("project:one", "fake", ({"M": 4},))
    assert info.extra["knobs"] == ["BM"]
    assert info.space["axes"] == {"BM": [1, 2]}
    assert set(info.extra["files"]) == {"one.cu"}
    assert {"function", "inputs", "reference", "helper.py:rows", "helper.py:FACTOR"} <= set(info.extra["definitions"])


def test_two_lambdas_on_one_line_are_told_apart(project: Project) -> None:
    """A lambda is found by its place, also beside another one."""
    line = "inputs=lambda p: dict(A=tensor(1)), check=lambda i, o: {answer}"
    text = f"@kernel(backend='fake', space=space(A=[1]), {line})\ndef it(p, c): return Fake(c.A)\n"
    infos = []
    for answer in ("True", "False"):
        project.write("tune_it.py", text.format(answer=answer))
        infos.append(project.describe()["it"])
    before, after = (info.extra["definitions"] for info in infos)
    assert {name for name in before if before[name] != after[name]} == {"check"}


def test_factories_kernels_differ_by_what_they_captured(project: Project) -> None:
    """Kernels that a factory declares differ in their closures, and each keeps its digest when another changes."""
    text = """
    def declare(scale):
        @kernel(backend="fake", space=space(A=[1]), inputs=lambda p: dict(A=tensor(scale)), check=None, name=f"k{{n}}")
        def inner(p, c):
            return Fake(scale)

    for n, scale in enumerate([{scales}]):
        declare(scale)
    """
    project.write("tune_it.py", text.format(scales="3, 4"))
    before = project.describe()
    assert before["k0"].digest != before["k1"].digest
    project.write("tune_it.py", text.format(scales="3, 5"))
    after = project.describe()
    assert (before["k0"].digest == after["k0"].digest, before["k1"].digest == after["k1"].digest) == (True, False)


def test_recursion_and_cycles_end(project: Project) -> None:
    """Functions that call each other, closures that hold themselves and objects in circles are followed once."""
    project.write(
        "tune_it.py",
        """
        class Node:
            def __init__(self): self.me = self

        def closed():
            node = Node()
            def loop(i, o): return loop(i, o) or node.me or even(3)
            return loop

        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n != 0 and even(n - 1)

        @kernel(backend="fake", space=space(A=[1]), inputs=lambda p: dict(A=tensor(1)), check=closed())
        def it(p, c):
            return Fake(even(4))
        """,
    )
    assert {"tune_it.py:even", "tune_it.py:odd"} <= set(project.describe()["it"].extra["definitions"])


def test_kernel_that_another_reaches_counts_by_its_function(project: Project) -> None:
    """Where one kernel calls another, the other's function counts, not its declaration."""
    text = """
    @kernel(backend="fake", space=space(A=[1]), inputs=lambda p: dict(A=tensor(1)), check=None{more})
    def base(p, c):
        return Fake({n})

    @kernel(backend="fake", space=space(A=[1]), inputs=lambda p: dict(A=tensor(1)), check=None)
    def user(p, c):
        return base(p, c)
    """
    found = []
    for more, n in (("", 1), (", trials=3", 1), ("", 2)):
        project.write("tune_it.py", text.format(more=more, n=n))
        found.append(project.describe()["user"].digest)
    assert (found[0] == found[1], found[0] == found[2]) == (True, False)
