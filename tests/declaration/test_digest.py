"""Digests: what an edit changes, and what it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ktuned.declaration.digest import describe_kernel
from ktuned.model.errors import KernelFileError
from ktuned.model.kernel import KernelInfo
from tests.declaration.conftest import Project

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


KERNEL = """
@kernel(backend="fake", space=space(A=[1]), problems=[dict(M=1)], inputs=lambda p: dict(A=tensor(1)), reference=dict)
def it(p, c):
    return Fake(c.A)
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
            for field in ("digest", "source_digest", "plan_digest", "data_digest")
            if getattr(old[kernel], field) != getattr(new[kernel], field)
        }
        for kernel in old
    }


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("helper.py", "return m * FACTOR", "return (m *\n            FACTOR)  # scaled"),
        ("helper.py", "FACTOR = 2", "FACTOR = 0x2"),
        ("lib/deep.py", "def check", "# a comment\n\n\ndef check"),
        ("tune_it.py", "    # a comment\n", ""),
        ("tune_it.py", "TILES = [1, 2]", "\n\nTILES = [\n    1,\n    2,  # two\n]"),
        ("tune_it.py", 'backend="fake", sources', "backend='fake', sources"),
    ],
)
def test_comments_and_layout_change_nothing(sample: Project, name: str, before: str, after: str) -> None:
    """Comments, formatting and the quotes of strings leave all digests of all kernels."""
    assert changed(sample, name, before, after) == {"one": set(), "two": set()}


PYTHON = {"digest", "plan_digest"}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("helper.py", "m * FACTOR", "m + FACTOR"),
        ("helper.py", "FACTOR = 2", "FACTOR = 1 + 1"),
        ("helper.py", "    return 1", "    return 2"),
        ("helper.py", '"""How many rows."""', '"""Rows."""'),
        ("helper.py", "def rows(p):", "def unreached(): ...\n\ndef rows(p):"),
        ("lib/__init__.py", "", "import json"),
        ("lib/deep.py", "dict(x=1)", "dict(x=2)"),
        ("tune_it.py", "tolerance=1", "tolerance=2"),
        ("tune_it.py", "EXTRA = dict(a=1)", "EXTRA = dict(a=1, b=2)"),
        ("tune_it.py", "import functools\nimport helper\n", "import helper\nimport functools\n"),
        ("tune_it.py", "[dict(M=8)]", "[dict(M=9)]"),
        ("tune_it.py", "n: int = 0", "n: int = 1"),
    ],
)
def test_any_edit_of_python_counts_for_all_that_import_it(sample: Project, name: str, before: str, after: str) -> None:
    """A file counts whole, reached or not: for what is measured, and without sources for what is compiled.

    Measurements of equal artifacts are taken over, unless the file's own code judges them.
    """
    assert changed(sample, name, before, after) == {
        "one": PYTHON,
        "two": PYTHON | {"source_digest", "data_digest"},
    }


def test_a_source_is_compiled_again_by_its_bytes(sample: Project) -> None:
    """A comment in C may swallow the next line, and so it counts; what decides besides stays as it was."""
    edited = changed(sample, "one.cu", "int one()", "int one() // a comment")
    assert edited == {"one": {"digest", "source_digest"}, "two": set()}


@pytest.mark.parametrize("argument", ["rtol=0.5", 'setup="A"', 'timing="graph"'])
def test_what_judges_outputs_changes_the_data_digest(sample: Project, argument: str) -> None:
    """With another tolerance, say, no measurement is taken over."""
    edited = changed(sample, "tune_it.py", "reference=reference)", f"reference=reference, {argument})")
    assert edited["one"] == PYTHON | {"data_digest"}


@pytest.mark.parametrize(
    "reading",
    ["inspect.getsource(helper)", "helper.rows.__code__.co_firstlineno", "sys._getframe().f_lineno"],
)
def test_python_whose_text_is_read_counts_by_its_bytes(sample: Project, reading: str) -> None:
    """Where code may read the text of what it imported, or numbers of lines, comments count as well."""
    text = (sample.root / "tune_it.py").read_text()
    (sample.root / "tune_it.py").write_text(f"import inspect, sys\nREAD = lambda: {reading}\n" + text)
    assert "digest" in changed(sample, "helper.py", "return 1", "return 1  # a comment")["two"]


def test_a_file_that_executes_another_counts_with_it(sample: Project) -> None:
    """A loader that enters no module is no way around."""
    text = (sample.root / "tune_it.py").read_text()
    sample.write("hidden.py", "FACTOR = 2\n")
    loading = "import importlib.util as u, pathlib\n"
    loading += "S = u.spec_from_file_location('x', pathlib.Path(__file__).with_name('hidden.py'))\n"
    (sample.root / "tune_it.py").write_text(loading + "S.loader.exec_module(u.module_from_spec(S))\n" + text)
    assert changed(sample, "hidden.py", "2", "3")["one"] == PYTHON


def test_digests_are_the_same_in_another_directory(sample: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A project elsewhere on the disk, in another process with another hash seed, has the same digests."""
    here = sample.describe()
    elsewhere = Path(shutil.copytree(sample.root, tmp_path_factory.mktemp("elsewhere") / "checkout"))
    script = f"""
from pathlib import Path
from ktuned.declaration.digest import describe_kernel
from ktuned.declaration.loader import load_file
root = Path({str(elsewhere)!r})
for kernel in load_file(root / "tune_it.py", root).kernels:
    info = describe_kernel(kernel, "other", root)
    print(info.digest, info.source_digest, info.plan_digest)
"""
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment)
    assert [tuple(line.split()) for line in done.stdout.splitlines()] == [digests(info) for info in here.values()]


def test_stamps_name_every_file_of_the_inspection(sample: Project) -> None:
    """Stamps hold the kernel file, sources and imported modules; what these include is seen when it is compiled."""
    stamps = {os.path.relpath(path, sample.root): stamp for path, stamp in sample.describe()["one"].stamps.items()}
    assert set(stamps) == {
        *("tune_it.py", "helper.py", "one.cu"),
        *("lib/__init__.py", "lib/deep.py"),
    }
    assert all(len(stamp) == 64 for stamp in stamps.values())


@pytest.mark.parametrize(
    ("name", "before", "after", "is_same"),
    [
        ("one.cu", "int one()", "long one()", True),
        ("one.h", "int two();", "long two();", True),
        ("tune_it.py", "    # a comment\n", "    # another\n", False),
        ("lib/deep.py", "dict(x=1)", "dict(x=2)", False),
    ],
)
def test_the_code_digest_ignores_compiled_sources(
    sample: Project, name: str, before: str, after: str, is_same: bool
) -> None:
    """Any byte of the Python counts, as a statement of a module may set anything in its process; no C source does."""
    old = sample.describe()["one"].code_digest
    path = sample.root / name
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    assert (sample.describe()["one"].code_digest == old) is is_same


def test_a_missing_source_is_an_error(sample: Project) -> None:
    """A source that does not exist is one line with the kernel's place."""
    (sample.root / "one.cu").unlink()
    kernel = sample.load().kernels[0]
    with pytest.raises(KernelFileError, match=r"one: the source 'one\.cu' does not exist"):
        describe_kernel(kernel, "project", sample.root)


def test_a_description_survives_the_wire(sample: Project) -> None:
    """A description survives MessagePack, and says knobs, problems, space and digests of each part."""
    info = sample.describe()["one"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=KernelInfo) == info
    assert (info.name, info.backend, info.problems) == ("project:one", "fake", ({"M": 4},))
    assert info.knobs == ("BM",)
    assert info.space.axes == {"BM": (1, 2)}
    assert set(info.file_parts) == {"one.cu"}
    assert {"tune_it.py", "helper.py", "lib/deep.py"} <= set(info.python_parts)
    assert {"function", "inputs", "reference", "rtol"} <= set(info.argument_parts)


def test_kernels_of_a_factory_differ_by_their_closures(project: Project) -> None:
    """Kernels that a factory declares have closures of their own."""
    text = """
    def declare(scale):
        @kernel(backend="fake", space=space(A=[1]), inputs=lambda p: dict(A=tensor(scale)), check=None, name=f"k{n}")
        def inner(p, c):
            return Fake(scale)

    for n, scale in enumerate([3, 4]):
        declare(scale)
    """
    project.write("tune_it.py", text)
    found = project.describe()
    assert found["k0"].digest != found["k1"].digest


def installed(directory: Path, version: str, text: str) -> None:
    """Install a package with one module."""
    site = directory / "lib/site-packages"
    shutil.rmtree(site, ignore_errors=True)
    (site / "far").mkdir(parents=True)
    (site / "far/__init__.py").write_text(text)
    info = site / f"far_away-{version}.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"far/__init__.py,sha256={hash(text)},{len(text)}\n{info.name}/RECORD,,\n")


def test_an_installed_package_counts_by_its_distribution(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A package that the project imports counts by its version and by what its RECORD lists, not by its text."""
    elsewhere = tmp_path_factory.mktemp("environment").resolve()
    setup = f"import sys\nsys.path.append({str(elsewhere / 'lib/site-packages')!r})\nimport far\n"
    project.write("tune_it.py", setup + KERNEL)
    digests = []
    try:
        for version, text in (("1.0", "def f(A): ...\n"), ("1.1", "def f(A): ...\n"), ("1.1", "def f(A): return A\n")):
            installed(elsewhere, version, text)
            sys.modules.pop("far", None)
            info = project.describe()["it"]
            digests.append((info.digest, info.data_digest))
            assert str(elsewhere / f"lib/site-packages/far_away-{version}.dist-info/RECORD") in info.stamps
            assert str(elsewhere / "lib/site-packages/far/__init__.py") not in info.stamps
    finally:
        sys.modules.pop("far", None)
    assert [len(set(found)) for found in zip(*digests, strict=True)] == [3, 3]


def test_installed_kernels_count_by_content(tmp_path: Path) -> None:
    """Of the distribution that a kernel file is installed with, all that it imports counts by content."""
    site = tmp_path.resolve() / "lib/site-packages"
    project = Project(site / "mine")
    project.write("rows.py", "def rows(): return 2\n")
    project.write("tune_it.py", "from rows import rows\n" + KERNEL)
    before = project.describe()["it"]
    project.write("rows.py", "def rows(): return 3\n")
    assert project.describe()["it"].digest != before.digest
    assert str(site / "mine/rows.py") in before.stamps


def test_code_outside_the_project_is_labelled_by_its_module(project: Project, tmp_path: Path) -> None:
    """The digest of a kernel does not depend on where a module beside the project lies."""
    text = "import os, sys\nsys.path.append(os.environ['SHARED'])\nfrom beside import rows\n"
    project.write("tune_it.py", text + KERNEL)
    script = f"""
import sys
from pathlib import Path
from ktuned.declaration.digest import describe_kernel
from ktuned.declaration.loader import load_file
root = Path({str(project.root)!r})
print(describe_kernel(load_file(root / "tune_it.py", root).kernels[0], "p", root).digest)
"""
    found = []
    for place in ("a", "deeper/b"):
        shared = tmp_path.parent / f"{tmp_path.name}-shared" / place
        shared.mkdir(parents=True)
        (shared / "beside.py").write_text("def rows(): return 2\n")
        done = subprocess.run(
            [sys.executable, "-c", script], env={"SHARED": str(shared)}, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)
    assert found[0] == found[1]
