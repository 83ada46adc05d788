"""Loading kernel files: fresh each time, and one clear line for each way in which one fails."""

from __future__ import annotations

import hashlib
import os
import py_compile
import sys
from pathlib import Path

import pytest

from ktuned.declaration.digest import describe_kernel
from ktuned.declaration.loader import forget_modules
from tests.declaration.conftest import HEADER_LINES, Project

KERNEL = """
@kernel(backend="fake", space=space(A=[1]), inputs=lambda p: dict(A=tensor(1)), check=None{more})
def {name}(p, c):
    return Fake(c.A)
"""


def kernel(name: str, more: str = "") -> str:
    """Return the text of one kernel."""
    return KERNEL.format(name=name, more=f", {more}" if more else "")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("import nothing_such\n", 1, "ModuleNotFoundError: No module named 'nothing_such'"),
        ("x = 1\ny = (\n", 2, "SyntaxError: '(' was never closed"),
        ("def f():\n    raise ValueError('a\\nb')\n\nf()\n", 2, "ValueError: a b"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
        ("raise SystemExit(3)\n", 1, "SystemExit: 3"),
    ],
)
def test_an_import_error_names_its_line(project: Project, text: str, line: int, words: str) -> None:
    """A file that cannot be imported is one line: the deepest line of the project's own, the type, the message."""
    path = project.write("tune_it.py", kernel("fine") + text)
    loaded = project.load()
    (error,) = loaded.errors
    expected = HEADER_LINES + kernel("fine").count("\n") + line
    assert error.message.startswith(f"{path}:{expected}: ")
    assert words in error.message
    assert (error.path, error.line) == (str(path), expected)
    assert loaded.kernels == ()


def test_a_program_that_ends_in_a_worker_gets_a_hint(project: Project) -> None:
    """Workers have no arguments that it could parse."""
    project.write(
        "tune_it.py", kernel("fine") + "import argparse\nargparse.ArgumentParser('it').parse_args(['--no'])\n"
    )
    (error,) = project.load().errors
    assert error.message.endswith("SystemExit: 2")
    assert "below `if __name__ == '__main__':`" in error.hint


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("call", "follows"),
    [
        ("thread = Thread(target=tune); thread.start(); thread.join()", True),
        ("ThreadPoolExecutor(1).submit(tune).result()", False),
        ("asyncio.run(tune_later())", False),
    ],
    ids=["thread", "executor", "loop"],
)
def test_an_import_ends_at_a_call_of_tune_wherever_it_is(call: str, follows: bool, project: Project) -> None:
    """A worker that waited for the tuning of its own kernel would wait for itself."""
    text = f"""
import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from ktuned.declaration import end_declarations
{kernel("fine")}
def tune():
    end_declarations()
    raise RuntimeError("it has asked the daemon")

async def tune_later():
    tune()

{call}
open("follows", "w").close()
"""
    path = project.write("tune_it.py", text.replace('"follows"', repr(str(project.root / "follows"))))
    loaded = project.load()
    assert (loaded.errors, [one.name for one in loaded.kernels]) == ((), ["fine"])
    assert (path.parent / "follows").exists() == follows


def test_an_error_in_an_imported_module_names_that_module(project: Project) -> None:
    """The line is the project's own deepest, in whichever of its files; that file counts as one that had a part."""
    helper = project.write("lib/helper.py", "x = 1\nraise KeyError('why')\n")
    project.write("tune_it.py", "import lib.helper\n")
    loaded = project.load()
    assert loaded.errors[0].message == f"{helper}:2: KeyError: 'why'"
    assert helper in loaded.files


def test_a_syntax_error_in_an_imported_module_names_that_module(project: Project) -> None:
    """A syntax error has its own place."""
    helper = project.write("helper.py", "x = 1\ny = )\n")
    project.write("tune_it.py", "import helper\n")
    assert project.load().errors[0].message.startswith(f"{helper}:2: SyntaxError: ")


@pytest.mark.parametrize(
    ("text", "excerpt"),
    [
        ("def f():\n    return )\n", "return )\n       ^"),
        ("x = 'a\n", "x = 'a\n    ^"),
        ("if x\n    pass\n", "if x\n    ^"),
        (f"y = '{'z' * 300}' )\n", ""),
        ("x = 1\n\x00", ""),
        ("import nothing_such\n", ""),
    ],
)
def test_a_syntax_error_shows_its_line_and_a_caret(project: Project, text: str, excerpt: str) -> None:
    """The caret is below the fault, without the line's indentation; other errors have no excerpt."""
    path = project.write("tune_it.py", "")
    path.write_text(text)
    assert project.load().errors[0].excerpt == excerpt


def test_a_missing_kernel_file_is_an_error(project: Project) -> None:
    """A file that went away while it was asked for is an error like others."""
    assert "FileNotFoundError" in project.load("tune_gone.py").errors[0].message


def test_a_wrong_kernel_leaves_the_files_others(project: Project) -> None:
    """A wrong kernel is one error; the kernels before and after it are there, in order."""
    project.write("tune_it.py", kernel("a") + kernel("b", "rtol=-1") + kernel("c"))
    loaded = project.load()
    assert [found.name for found in loaded.kernels] == ["a", "c"]
    assert len(loaded.errors) == 1


def test_of_two_kernels_of_one_name_the_first_is_kept(project: Project) -> None:
    """Of two kernels of one name the first stays; the error stands at the second and names the first's line."""
    project.write("tune_it.py", kernel("a") + kernel("b", 'name="a"'))
    loaded = project.load()
    first, second = HEADER_LINES + 2, HEADER_LINES + 2 + kernel("a").count("\n")
    assert [found.site.line for found in loaded.kernels] == [first]
    (error,) = loaded.errors
    assert error.line == second
    assert f"the name 'a' is taken by the kernel in line {first}" in error.message


def test_an_unknown_backend_is_an_error(project: Project) -> None:
    """Where the installed backends are given, a kernel for another one is an error with near names."""
    project.write("tune_it.py", kernel("a"))
    loaded = project.load(backends=["fakes", "real"])
    assert loaded.kernels == ()
    assert "there is no backend 'fake' (did you mean 'fakes'? there are: fakes, real)" in loaded.errors[0].message
    assert not project.load(backends=["fake"]).errors


def test_kernels_of_imported_files_are_not_collected(project: Project) -> None:
    """A kernel belongs to the file that declares it, not to those that import it."""
    project.write("tune_a.py", kernel("a"))
    project.write("tune_b.py", "import tune_a\n" + kernel("b"))
    assert [found.name for found in project.load("tune_b.py").kernels] == ["b"]


def test_factories_declare_for_the_file_that_calls_them(project: Project) -> None:
    """A helper that declares kernels does so for the kernel file that calls it."""
    helper = (
        "from ktuned import kernel, space, tensor\n\ndef make(name):\n    @kernel(backend='fake', space=space(A=[1]),"
    )
    helper += " inputs=lambda p: dict(A=tensor(1)), check=None, name=name)\n    def inner(p, c): ...\n"
    project.write("factory.py", helper)
    path = project.write("tune_it.py", "from factory import make\nmake('x')\nmake('y')\n")
    loaded = project.load()
    assert [(found.name, found.file) for found in loaded.kernels] == [("x", path), ("y", path)]


def test_new_code_is_seen_after_forgetting(project: Project) -> None:
    """After ``forget_modules`` a load sees what the project's modules say now, and nothing foreign is dropped."""
    project.write("pkg/__init__.py", "")
    project.write("pkg/sizes.py", "NAMES = ['a']\n")
    project.write("tune_it.py", f"from pkg.sizes import NAMES\n{kernel('k', 'name=NAMES[0]')}")
    assert project.load().kernels[0].name == "a"
    project.write("pkg/sizes.py", "NAMES = ['longer']\n")
    assert project.load().kernels[0].name == "longer"
    assert "ktuned.declaration.declaration" in sys.modules


def test_kernel_files_of_one_name_are_separate_modules(project: Project) -> None:
    """Two kernel files of one name in two directories are two modules, each beside its own neighbours."""
    for name in ("one", "two"):
        project.write(f"{name}/neighbour.py", f"NAME = {name!r}\n")
        project.write(f"{name}/tune_it.py", f"import neighbour\n{kernel('k', 'name=neighbour.NAME')}")
    names = [project.load(f"{directory}/tune_it.py").kernels[0].name for directory in ("one", "two")]
    assert names == ["one", "two"]


def test_loading_and_forgetting_leave_no_trace(project: Project) -> None:
    """Loading writes no bytecode; forgetting leaves ``sys.path`` and ``os.environ`` as they were."""
    before = list(sys.path), dict(os.environ)
    project.write("helper.py", "import os, sys\nsys.path.append('/here')\nos.environ['HERE'] = 'yes'\n")
    project.write("tune_it.py", "import helper\n")
    project.load()
    assert not [path for path in project.root.rglob("*") if "__pycache__" in path.parts]
    forget_modules()
    assert (list(sys.path), dict(os.environ)) == before
    assert "helper" not in sys.modules


def test_stale_bytecode_is_not_run(project: Project) -> None:
    """A module is compiled from its source, whatever bytecode of the same size and time lies beside it."""
    helper = project.write("helper.py", "NAME = 'old'\n")
    times = helper.stat()
    py_compile.compile(str(helper))
    helper.write_text("NAME = 'new'\n")
    os.utime(helper, ns=(times.st_atime_ns, times.st_mtime_ns))
    project.write("tune_it.py", f"import helper\n{kernel('k', 'name=helper.NAME')}")
    assert project.load().kernels[0].name == "new"


def test_the_digest_is_of_the_bytes_that_ran(project: Project) -> None:
    """A file that is saved again while it is imported has the digest of the code that was compiled."""
    helper = project.write("helper.py", "import pathlib\npathlib.Path(__file__).write_text('NAME = 2')\nNAME = 'ran'\n")
    content = helper.read_bytes()
    project.write("tune_it.py", f"import helper\n{kernel('k', 'name=helper.NAME')}")
    loaded = project.load()
    assert loaded.kernels[0].name == "ran"
    expected = hashlib.sha256(content).hexdigest()
    assert loaded.files[helper] == expected
    assert describe_kernel(loaded.kernels[0], "project", project.root).stamps[str(helper)] == expected


def test_code_beside_the_root_is_imported_again(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Modules that lie outside the root are dropped and counted like those below it."""
    beside = tmp_path_factory.mktemp("shared").resolve()
    module = beside / "beside.py"
    setup = f"import sys\nsys.path.insert(1, {str(beside)!r})\nimport beside\n"
    project.write("tune_it.py", f"{setup}{kernel('k', 'name=beside.NAME')}")
    for name in ("first", "second"):
        module.write_text(f"NAME = {name!r}\n")
        loaded = project.load()
        assert loaded.kernels[0].name == name
        assert module in loaded.files


def test_functions_import_when_they_are_called(project: Project) -> None:
    """A module beside the kernel file is found by an import inside a function, too, which runs after the load."""
    project.write("lazy.py", "SHAPE = 3\n")
    text = kernel("k").replace("lambda p: dict(A=tensor(1))", "made")
    project.write("tune_it.py", "def made(p):\n    from lazy import SHAPE\n    return dict(A=tensor(SHAPE))\n" + text)
    specs = project.load().kernels[0].evaluate_inputs({})
    assert specs["A"].shape == (3,)


def test_installed_code_in_the_root_is_foreign(project: Project) -> None:
    """Modules of a virtual environment inside the root are not the project's, but for those of no distribution."""
    site = project.root / "env/lib/site-packages"
    project.write("env/lib/site-packages/installed.py", "x = 1\n")
    project.write("env/lib/site-packages/bare.py", "x = 1\n")
    project.write("env/lib/site-packages/installed-1.0.dist-info/RECORD", "installed.py,,\n")
    project.write("tune_it.py", f"import sys\nsys.path.append({str(site)!r})\nimport installed, bare\n")
    try:
        # The second time, the process has the distribution's module already, and the other one anew.
        for _ in range(2):
            assert sorted(path.name for path in project.load().files) == ["bare.py", "tune_it.py"]
    finally:
        sys.path[:] = [place for place in sys.path if place != str(site)]
        del sys.modules["installed"]


def test_only_the_projects_own_files_are_listed(project: Project) -> None:
    """``files`` names the kernel file and the project's modules that it imported."""
    project.write("helper.py", "x = 1\n")
    project.write("tune_it.py", "import json, helper\n")
    assert sorted(path.name for path in project.load().files) == ["helper.py", "tune_it.py"]


def test_a_relative_path_is_loaded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths mean the same as absolute ones."""
    project.write("tune_it.py", kernel("a"))
    monkeypatch.chdir(project.root)
    from ktuned.declaration.loader import load_file

    assert load_file(Path("tune_it.py"), Path()).kernels[0].file == project.root / "tune_it.py"
