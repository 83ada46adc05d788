"""Python that decides a result outside the definitions that a kernel reaches: it counts; what provably cannot, not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spec.conftest import Project

KERNEL = """
@kernel(backend="fake", space=space(A=[1]), problems=[dict(M=1)], inputs=lambda p: dict(A=tensor(1)),
        reference={reference})
def {name}(p, c):
    return Fake(c.A)
"""


def kernel(reference: str = "double", name: str = "it") -> str:
    """Return a kernel with this reference."""
    return KERNEL.format(reference=reference, name=name)


def is_changed(project: Project, files: dict[str, str], name: str, before: str, after: str) -> bool:
    """Return whether an edit of one file changes the digest of the kernel ``it``: all here is about its reference, so
    that no measurement may be carried over such an edit.
    """
    for file, text in files.items():
        project.write(file, text)
    old = project.describe()["it"]
    text = (project.root / name).read_text()
    assert before in text
    (project.root / name).write_text(text.replace(before, after))
    new = project.describe()["it"]
    assert (new.data_digest != old.data_digest) == (new.digest != old.digest)
    return new.digest != old.digest


DOUBLE = "def double(A):\n    return dict(A=2 * A)\n"
REGISTRY = "IMPLEMENTATIONS = {}\n\ndef register(name):\n    def keep(f):\n        IMPLEMENTATIONS[name] = f\n"
REGISTRY += "        return f\n    return keep\n"
WRAPPER = "class Jit:\n    def __init__(self, fn):\n        self.fn = fn\n    def __call__(self, A):\n"
WRAPPER += "        return self.fn(A)\n    def __repr__(self):\n        return 'Jit'\n"


@pytest.mark.parametrize(
    ("files", "name", "before", "after"),
    [
        (
            {
                "tune_it.py": "import pathlib\nfrom importlib import util\nfrom scale import Scale\n"
                "SPEC = util.spec_from_file_location('x', pathlib.Path(__file__).with_name('settings.py'))\n"
                "SPEC.loader.exec_module(util.module_from_spec(SPEC))\n"
                "def double(A): return dict(A=Scale.FACTOR * A)\n" + kernel(),
                "scale.py": "class Scale:\n    FACTOR = 2\n",
                "settings.py": "from scale import Scale\nScale.FACTOR = 2\n",
            },
            "settings.py",
            "= 2",
            "= 3",
        ),
        (
            {
                "tune_it.py": "from modes import Mode\nMODE = Mode.TWO\n"
                "def double(A): return dict(A=MODE.factor() * A)\n" + kernel(),
                "modes.py": "import enum\nclass Mode(enum.Enum):\n    TWO = 1\n    def factor(self): return 2\n",
            },
            "modes.py",
            "return 2",
            "return 3",
        ),
        (
            {
                "tune_it.py": "from sizes import SIZES\ndef double(A): return dict(A=SIZES[0].twice() * A)\n"
                + kernel(),
                "sizes.py": "class Size(int):\n    def twice(self): return 2 * self\nSIZES = [Size(1)]\n",
            },
            "sizes.py",
            "return 2",
            "return 3",
        ),
        *(
            (
                {
                    "tune_it.py": f"import inspect, text\ndef double(A): return dict(A=len({reading}) * A)\n"
                    + kernel(),
                    "text.py": "def source():\n    '''two'''\n    # two\n",
                },
                "text.py",
                "two",
                "three",
            )
            for reading in ("text.source.__doc__", "inspect.getsource(text.source)", "inspect.getdoc(text.source)")
        ),
        (
            {
                "tune_it.py": "from pkg import double\n" + kernel(),
                "pkg/__init__.py": "from .impl import *\n",
                "pkg/impl.py": DOUBLE,
            },
            "pkg/impl.py",
            "2 * A",
            "3 * A",
        ),
        (
            {
                "tune_it.py": "import impl\nfrom registry import IMPLEMENTATIONS\n"
                "def double(A): return IMPLEMENTATIONS['x'](A)\n" + kernel(),
                "registry.py": REGISTRY,
                "impl.py": "from registry import register\n\n@register('x')\n" + DOUBLE,
            },
            "impl.py",
            "2 * A",
            "3 * A",
        ),
        (
            {
                "tune_it.py": "import settings\nfrom scale import Scale\n"
                "def double(A): return dict(A=Scale.FACTOR * A)\n" + kernel(),
                "scale.py": "class Scale:\n    FACTOR = 2\n",
                "settings.py": "from scale import Scale\nScale.FACTOR = 2\n",
            },
            "settings.py",
            "= 2",
            "= 3",
        ),
        (
            {"tune_it.py": "import flags\n" + DOUBLE + kernel(), "flags.py": "import os\nos.environ['TF32'] = '1'\n"},
            "flags.py",
            "'1'",
            "'0'",
        ),
        (
            {
                "tune_it.py": "import flags\n" + DOUBLE + kernel(),
                "flags.py": "import decimal\ndecimal.getcontext().prec = 5\n",
            },
            "flags.py",
            "5",
            "6",
        ),
        (
            {
                "tune_it.py": "def named(A):\n    return 2\n"
                + DOUBLE.replace("2 * A", "globals()['named'](A)")
                + kernel(),
            },
            "tune_it.py",
            "return 2",
            "return 3",
        ),
        (
            {
                "tune_it.py": "from jit import Jit\n@Jit\n" + DOUBLE + kernel(),
                "jit.py": WRAPPER,
            },
            "tune_it.py",
            "2 * A",
            "3 * A",
        ),
        (
            {
                "tune_it.py": "USED = 1\nif USED > 0:\n    def rows(): return 1\nelse:\n    def rows(): return 2\n"
                "def double(A): return rows()\n" + kernel()
            },
            "tune_it.py",
            "USED > 0",
            "USED >= 0",
        ),
        (
            {
                "tune_it.py": "import table\ndef double(A): return getattr(table, 'f' + str(1))(A)\n" + kernel(),
                "table.py": "def f1(A):\n    return 2 * A\n",
            },
            "table.py",
            "2 * A",
            "3 * A",
        ),
        (
            {
                "tune_it.py": "import impl\nfrom base import Base\n"
                "def double(A): return Base.__subclasses__()[0]().f(A)\n" + kernel(),
                "base.py": "class Base: ...\n",
                "impl.py": "from base import Base\nclass Impl(Base):\n    def f(self, A): return 2 * A\n",
            },
            "impl.py",
            "2 * A",
            "3 * A",
        ),
        (
            {
                "tune_it.py": "import importlib\nimpl = importlib.import_module('im' + 'pl')\n"
                "def double(A): return impl.f(A)\n" + kernel(),
                "impl.py": "def g(A): return 2 * A\nf = g\n",
            },
            "impl.py",
            "2 * A",
            "3 * A",
        ),
        (
            {
                "tune_it.py": "import contextlib\n@contextlib.contextmanager\ndef held():\n    yield 2\n"
                + kernel("held"),
            },
            "tune_it.py",
            "yield 2",
            "yield 3",
        ),
        (
            {"tune_it.py": "def f(x): return 2\ndef double(A): return globals()['f'](A)\n" + kernel()},
            "tune_it.py",
            "return 2",
            "return 3",
        ),
    ],
    ids=[
        "a module that is not entered",
        "a method of an enum",
        "a method of a number",
        "a docstring",
        "a source",
        "a cleaned docstring",
        *("star", "registry", "attribute", "environment", "setting", "named", "wrapped", "condition", "getattr"),
        *("subclasses", "import_module", "foreign decorator", "globals"),
    ],
)
def test_code_that_decides_counts(project: Project, files: dict[str, str], name: str, before: str, after: str) -> None:
    """An edit of code that decides the result changes the digest, however that code is reached."""
    assert is_changed(project, files, name, before, after)


HELPER = """
import functools
from dataclasses import dataclass

LIMIT = max(3, 4)
NAMES = [f"n{i}" for i in range(3)]
try:
    import quick
except ImportError:
    quick = None

@functools.lru_cache(maxsize=None)
def cached(x):
    return x

def scaled(factor):
    def apply(f):
        def call(A):
            return f(A)
        return call
    return apply

@scaled(3)
def others(A):
    return A

@dataclass(frozen=True)
class Shape:
    rows: int = 1

SHAPE = Shape(3)

def rows():
    return 2

if __name__ == "__main__":
    print(rows())
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("max(3, 4)", "max(3, 5)"),
        ("range(3)", "range(4)"),
        ("    return x", "    return x + 1"),
        ("@scaled(3)", "@scaled(4)"),
        ("rows: int = 1", "rows: int = 2"),
        ("Shape(3)", "Shape(4)"),
        ("print(rows())", "print(rows() + 1)"),
        ("return f(A)", "return f(A) + 1"),
    ],
)
def test_definitions_that_are_not_reached_do_not_count(project: Project, before: str, after: str) -> None:
    """A file whose statements provably do no more than define names counts by what a kernel reaches of it."""
    files = {"tune_it.py": "from helper import rows\ndef double(A): return rows()\n" + kernel(), "helper.py": HELPER}
    assert not is_changed(project, files, "helper.py", before, after)
    assert is_changed(project, files, "helper.py", "return 2", "return 3")


def test_other_kernels_of_a_file_do_not_count(project: Project) -> None:
    """Of two kernels in one file each has its own reference and its own body."""
    text = DOUBLE + DOUBLE.replace("double", "triple") + kernel() + kernel("triple", "other")
    files = {"tune_it.py": text}
    assert not is_changed(
        project, files, "tune_it.py", "def triple(A):\n    return dict(A=2", "def triple(A):\n    return dict(A=3"
    )
    assert not is_changed(
        project, files, "tune_it.py", "def other(p, c):\n    return", "def other(p, c):\n    c.A\n    return"
    )


def installed(directory: Path, version: str, text: str) -> None:
    """Install a package with one module."""
    site = directory / "lib/site-packages"
    shutil.rmtree(site, ignore_errors=True)
    (site / "far").mkdir(parents=True)
    (site / "far/__init__.py").write_text(text)
    info = site / f"far_away-{version}.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"far/__init__.py,sha256={hash(text)},{len(text)}\n{info.name}/RECORD,,\n")


def test_installed_package_counts_by_its_distribution(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A package that the project imports counts by its version and by what its RECORD lists, not by its text."""
    elsewhere = tmp_path_factory.mktemp("environment").resolve()
    setup = f"import sys\nsys.path.append({str(elsewhere / 'lib/site-packages')!r})\nimport far\n"
    project.write("tune_it.py", setup + "def double(A): return far.f(A)\n" + kernel())
    digests = []
    try:
        for version, text in (("1.0", "def f(A): ...\n"), ("1.1", "def f(A): ...\n"), ("1.1", "def f(A): return A\n")):
            installed(elsewhere, version, text)
            sys.modules.pop("far", None)
            info = project.describe()["it"]
            digests.append(info.digest)
            assert str(elsewhere / f"lib/site-packages/far_away-{version}.dist-info/RECORD") in info.stamps
            assert str(elsewhere / "lib/site-packages/far/__init__.py") not in info.stamps
    finally:
        sys.modules.pop("far", None)
    assert len(set(digests)) == 3


def test_installed_kernels_count_by_content(tmp_path: Path) -> None:
    """Of the distribution that a kernel file is installed with, all that it reaches counts by content."""
    site = tmp_path.resolve() / "lib/site-packages"
    project = Project(site / "mine")
    project.write("rows.py", "def rows(): return 2\n")
    project.write("tune_it.py", "from rows import rows\ndef double(A): return rows()\n" + kernel())
    before = project.describe()["it"]
    project.write("rows.py", "def rows(): return 3\n")
    assert project.describe()["it"].digest != before.digest
    assert str(site / "mine/rows.py") in before.stamps


def test_code_outside_the_project_is_named_by_its_module(project: Project, tmp_path: Path) -> None:
    """The digest of a kernel does not depend on where a module beside the project lies."""
    text = "import os, sys\nsys.path.append(os.environ['SHARED'])\nfrom beside import rows\n"
    project.write("tune_it.py", text + "def double(A): return rows()\n" + kernel())
    script = f"""
import sys
from pathlib import Path
from ktuned.spec.digest import describe
from ktuned.spec.loader import load_file
root = Path({str(project.root)!r})
print(describe(load_file(root / "tune_it.py", root).kernels[0], "p", root).digest)
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
