"""Digests: which edits change them."""

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

HELPER_MODULE = '''
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

KERNEL_FILE = """
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
def sample_project(project: Project) -> Project:
    """Two kernels that reach sources, a module, a package and a late import."""
    project.write_file("tune_it.py", KERNEL_FILE)
    project.write_file("helper.py", HELPER_MODULE)
    project.write_file("lib/__init__.py", "")
    project.write_file("lib/deep.py", "def configs(p):\n    return [dict(x=1)]\n\ndef check(i, o, tolerance): ...\n")
    project.write_file("lib/late.py", "def answer(a):\n    return a\n")
    project.write_file("one.cu", '#include "one.h"\nint one() { return two(); }\n')
    project.write_file("one.h", "int two();\n")
    return project


def get_digests(info: KernelInfo) -> tuple[str, str, str]:
    """Return a kernel's digests of content, sources and plan."""
    return info.digest, info.source_digest, info.plan_digest


def edit_and_compare(sample_project: Project, name: str, before: str, after: str) -> dict[str, set[str]]:
    """Edit a file and return, for each kernel, which of its digests changed."""
    old = sample_project.describe_file()
    path = sample_project.root / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    new = sample_project.describe_file()
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
def test_comments_and_layout_change_nothing(sample_project: Project, name: str, before: str, after: str) -> None:
    """Comments, formatting and the kind of quotes leave all digests of all kernels."""
    assert edit_and_compare(sample_project, name, before, after) == {"one": set(), "two": set()}


PYTHON_DIGESTS = {"digest", "plan_digest"}


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
def test_any_edit_of_python_counts_for_all_that_import_it(
    sample_project: Project, name: str, before: str, after: str
) -> None:
    """A whole file counts, reached or not: always for what is measured, and for what is compiled if the kernel has
    no sources. Measurements of equal artifacts are reused unless the file's own code judges them.
    """
    assert edit_and_compare(sample_project, name, before, after) == {
        "one": PYTHON_DIGESTS,
        "two": PYTHON_DIGESTS | {"source_digest", "data_digest"},
    }


def test_a_source_is_compiled_again_by_its_bytes(sample_project: Project) -> None:
    """Comments in C count, because they may swallow the next line; the other digests stay."""
    edited = edit_and_compare(sample_project, "one.cu", "int one()", "int one() // a comment")
    assert edited == {"one": {"digest", "source_digest"}, "two": set()}


@pytest.mark.parametrize("argument", ["rtol=0.5", 'setup="A"', 'timing="graph"'])
def test_what_judges_outputs_changes_the_data_digest(sample_project: Project, argument: str) -> None:
    """No measurement is reused after, for example, a change of tolerance."""
    edited = edit_and_compare(sample_project, "tune_it.py", "reference=reference)", f"reference=reference, {argument})")
    assert edited["one"] == PYTHON_DIGESTS | {"data_digest"}


@pytest.mark.parametrize(
    "reading",
    ["inspect.getsource(helper)", "helper.rows.__code__.co_firstlineno", "sys._getframe().f_lineno"],
)
def test_python_whose_text_is_read_counts_by_its_bytes(sample_project: Project, reading: str) -> None:
    """If code may read source text or line numbers, comments count, too."""
    text = (sample_project.root / "tune_it.py").read_text()
    (sample_project.root / "tune_it.py").write_text(f"import inspect, sys\nREAD = lambda: {reading}\n" + text)
    assert "digest" in edit_and_compare(sample_project, "helper.py", "return 1", "return 1  # a comment")["two"]


def test_a_file_that_executes_another_counts_with_it(sample_project: Project) -> None:
    """Even a loader that registers no module is noticed."""
    text = (sample_project.root / "tune_it.py").read_text()
    sample_project.write_file("hidden.py", "FACTOR = 2\n")
    loading = "import importlib.util as u, pathlib\n"
    loading += "S = u.spec_from_file_location('x', pathlib.Path(__file__).with_name('hidden.py'))\n"
    (sample_project.root / "tune_it.py").write_text(loading + "S.loader.exec_module(u.module_from_spec(S))\n" + text)
    assert edit_and_compare(sample_project, "hidden.py", "2", "3")["one"] == PYTHON_DIGESTS


def test_digests_are_the_same_in_another_directory(
    sample_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Another directory, process and hash seed give the same digests."""
    described = sample_project.describe_file()
    elsewhere = Path(shutil.copytree(sample_project.root, tmp_path_factory.mktemp("elsewhere") / "checkout"))
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
    process = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    assert [tuple(line.split()) for line in process.stdout.splitlines()] == [
        get_digests(info) for info in described.values()
    ]


def test_stamps_name_every_file_of_the_inspection(sample_project: Project) -> None:
    """The stamps hold the kernel file, its sources and imported modules. Included headers are found when the sources
    are compiled.
    """
    stamps = {
        os.path.relpath(path, sample_project.root): stamp
        for path, stamp in sample_project.describe_file()["one"].stamps.items()
    }
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
    sample_project: Project, name: str, before: str, after: str, is_same: bool
) -> None:
    """Every byte of Python counts, because any statement may change its process; C sources do not count."""
    old = sample_project.describe_file()["one"].code_digest
    path = sample_project.root / name
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    assert (sample_project.describe_file()["one"].code_digest == old) is is_same


def test_a_missing_source_is_an_error(sample_project: Project) -> None:
    (sample_project.root / "one.cu").unlink()
    kernel = sample_project.load_file().kernels[0]
    with pytest.raises(KernelFileError, match=r"one: the source 'one\.cu' does not exist"):
        describe_kernel(kernel, "project", sample_project.root)


def test_a_description_survives_the_wire(sample_project: Project) -> None:
    """MessagePack keeps the knobs, problems, space and the digests of each part."""
    info = sample_project.describe_file()["one"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=KernelInfo) == info
    assert (info.name, info.backend, info.problems) == ("project:one", "fake", ({"M": 4},))
    assert info.knobs == ("BM",)
    assert info.space.axes == {"BM": (1, 2)}
    assert set(info.file_parts) == {"one.cu"}
    assert {"tune_it.py", "helper.py", "lib/deep.py"} <= set(info.python_parts)
    assert {"function", "inputs", "reference", "rtol"} <= set(info.argument_parts)


def test_kernels_of_a_factory_differ_by_their_closures(project: Project) -> None:
    text = """
    def declare(scale):
        @kernel(backend="fake", space=space(A=[1]), inputs=lambda p: dict(A=tensor(scale)), check=None, name=f"k{n}")
        def inner(p, c):
            return Fake(scale)

    for n, scale in enumerate([3, 4]):
        declare(scale)
    """
    project.write_file("tune_it.py", text)
    described = project.describe_file()
    assert described["k0"].digest != described["k1"].digest


def install_package(directory: Path, version: str, text: str) -> None:
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
    """An imported package counts by its version and by what its RECORD lists, not by its text."""
    elsewhere = tmp_path_factory.mktemp("environment").resolve()
    setup = f"import sys\nsys.path.append({str(elsewhere / 'lib/site-packages')!r})\nimport far\n"
    project.write_file("tune_it.py", setup + KERNEL)
    version_digests = []
    try:
        for version, text in (("1.0", "def f(A): ...\n"), ("1.1", "def f(A): ...\n"), ("1.1", "def f(A): return A\n")):
            install_package(elsewhere, version, text)
            sys.modules.pop("far", None)
            info = project.describe_file()["it"]
            version_digests.append((info.digest, info.data_digest))
            assert str(elsewhere / f"lib/site-packages/far_away-{version}.dist-info/RECORD") in info.stamps
            assert str(elsewhere / "lib/site-packages/far/__init__.py") not in info.stamps
    finally:
        sys.modules.pop("far", None)
    assert [len(set(column)) for column in zip(*version_digests, strict=True)] == [3, 3]


def test_an_installed_kernel_file_and_its_imports_count_by_content(tmp_path: Path) -> None:
    """If a kernel file itself is installed, all modules of its distribution count by content."""
    site = tmp_path.resolve() / "lib/site-packages"
    project = Project(site / "mine")
    project.write_file("rows.py", "def rows(): return 2\n")
    project.write_file("tune_it.py", "from rows import rows\n" + KERNEL)
    before = project.describe_file()["it"]
    project.write_file("rows.py", "def rows(): return 3\n")
    assert project.describe_file()["it"].digest != before.digest
    assert str(site / "mine/rows.py") in before.stamps


def test_code_outside_the_project_is_labelled_by_its_module(project: Project, tmp_path: Path) -> None:
    """A kernel's digest does not depend on where a module outside the project lies."""
    text = "import os, sys\nsys.path.append(os.environ['SHARED'])\nfrom beside import rows\n"
    project.write_file("tune_it.py", text + KERNEL)
    script = f"""
import sys
from pathlib import Path
from ktuned.declaration.digest import describe_kernel
from ktuned.declaration.loader import load_file
root = Path({str(project.root)!r})
print(describe_kernel(load_file(root / "tune_it.py", root).kernels[0], "p", root).digest)
"""
    outputs = []
    for directory in ("a", "deeper/b"):
        shared = tmp_path.parent / f"{tmp_path.name}-shared" / directory
        shared.mkdir(parents=True)
        (shared / "beside.py").write_text("def rows(): return 2\n")
        process = subprocess.run(
            [sys.executable, "-c", script], env={"SHARED": str(shared)}, capture_output=True, text=True, check=True
        )
        outputs.append(process.stdout)
    assert outputs[0] == outputs[1]
