"""Loading kernel files: always fresh, and one clear line for each failure."""

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

KERNEL_TEMPLATE = """
@kernel(backend="fake", space=space(A=[1]), inputs=lambda p: dict(A=tensor(1)), check=None{more})
def {name}(p, c):
    return Fake(c.A)
"""


def make_kernel_text(name: str, more: str = "") -> str:
    return KERNEL_TEMPLATE.format(name=name, more=f", {more}" if more else "")


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
    """The line is the deepest one in the project's own files, with the exception's type and message."""
    path = project.write_file("tune_it.py", make_kernel_text("fine") + text)
    loaded = project.load_file()
    (error,) = loaded.errors
    expected = HEADER_LINES + make_kernel_text("fine").count("\n") + line
    assert error.message.startswith(f"{path}:{expected}: ")
    assert words in error.message
    assert (error.path, error.line) == (str(path), expected)
    assert loaded.kernels == ()


def test_a_kernel_file_that_parses_arguments_gets_a_hint(project: Project) -> None:
    """Workers have no command line to parse."""
    project.write_file(
        "tune_it.py", make_kernel_text("fine") + "import argparse\nargparse.ArgumentParser('it').parse_args(['--no'])\n"
    )
    (error,) = project.load_file().errors
    assert error.message.endswith("SystemExit: 2")
    assert "below `if __name__ == '__main__':`" in error.hint


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("call", "runs_on"),
    [
        ("thread = Thread(target=tune); thread.start(); thread.join()", True),
        ("ThreadPoolExecutor(1).submit(tune).result()", False),
        ("asyncio.run(tune_later())", False),
    ],
    ids=["thread", "executor", "loop"],
)
def test_an_import_ends_at_a_call_of_tune_wherever_it_is(call: str, runs_on: bool, project: Project) -> None:
    """Otherwise a worker that waited for the tuning of its own kernel would wait for itself."""
    text = f"""
import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from ktuned.declaration import end_declarations
{make_kernel_text("fine")}
def tune():
    end_declarations()
    raise RuntimeError("it has asked the daemon")

async def tune_later():
    tune()

{call}
open("follows", "w").close()
"""
    path = project.write_file("tune_it.py", text.replace('"follows"', repr(str(project.root / "follows"))))
    loaded = project.load_file()
    assert (loaded.errors, [one.name for one in loaded.kernels]) == ((), ["fine"])
    assert (path.parent / "follows").exists() == runs_on


def test_an_error_in_an_imported_module_names_that_module(project: Project) -> None:
    """The imported module also counts as a file of the kernel."""
    helper = project.write_file("lib/helper.py", "x = 1\nraise KeyError('why')\n")
    project.write_file("tune_it.py", "import lib.helper\n")
    loaded = project.load_file()
    assert loaded.errors[0].message == f"{helper}:2: KeyError: 'why'"
    assert helper in loaded.files


def test_a_syntax_error_in_an_imported_module_names_that_module(project: Project) -> None:
    helper = project.write_file("helper.py", "x = 1\ny = )\n")
    project.write_file("tune_it.py", "import helper\n")
    assert project.load_file().errors[0].message.startswith(f"{helper}:2: SyntaxError: ")


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
    path = project.write_file("tune_it.py", "")
    path.write_text(text)
    assert project.load_file().errors[0].excerpt == excerpt


def test_a_missing_kernel_file_is_an_error(project: Project) -> None:
    assert "FileNotFoundError" in project.load_file("tune_gone.py").errors[0].message


def test_a_wrong_kernel_does_not_affect_the_others_in_its_file(project: Project) -> None:
    """The other kernels stay in order."""
    project.write_file("tune_it.py", make_kernel_text("a") + make_kernel_text("b", "rtol=-1") + make_kernel_text("c"))
    loaded = project.load_file()
    assert [found.name for found in loaded.kernels] == ["a", "c"]
    assert len(loaded.errors) == 1


def test_of_two_kernels_of_one_name_the_first_is_kept(project: Project) -> None:
    """The error points at the second kernel and names the line of the first."""
    project.write_file("tune_it.py", make_kernel_text("a") + make_kernel_text("b", 'name="a"'))
    loaded = project.load_file()
    first, second = HEADER_LINES + 2, HEADER_LINES + 2 + make_kernel_text("a").count("\n")
    assert [found.site.line for found in loaded.kernels] == [first]
    (error,) = loaded.errors
    assert error.line == second
    assert f"the name 'a' is taken by the kernel in line {first}" in error.message


def test_an_unknown_backend_is_an_error(project: Project) -> None:
    """The message suggests installed backends with similar names."""
    project.write_file("tune_it.py", make_kernel_text("a"))
    loaded = project.load_file(backends=["fakes", "real"])
    assert loaded.kernels == ()
    assert "there is no backend 'fake' (did you mean 'fakes'? there are: fakes, real)" in loaded.errors[0].message
    assert not project.load_file(backends=["fake"]).errors


def test_kernels_of_imported_files_are_not_collected(project: Project) -> None:
    """A kernel belongs to the file that declares it, not to files that import it."""
    project.write_file("tune_a.py", make_kernel_text("a"))
    project.write_file("tune_b.py", "import tune_a\n" + make_kernel_text("b"))
    assert [found.name for found in project.load_file("tune_b.py").kernels] == ["b"]


def test_factories_declare_for_the_file_that_calls_them(project: Project) -> None:
    helper = (
        "from ktuned import kernel, space, tensor\n\ndef make(name):\n    @kernel(backend='fake', space=space(A=[1]),"
    )
    helper += " inputs=lambda p: dict(A=tensor(1)), check=None, name=name)\n    def inner(p, c): ...\n"
    project.write_file("factory.py", helper)
    path = project.write_file("tune_it.py", "from factory import make\nmake('x')\nmake('y')\n")
    loaded = project.load_file()
    assert [(found.name, found.file) for found in loaded.kernels] == [("x", path), ("y", path)]


def test_new_code_is_seen_after_forgetting(project: Project) -> None:
    """After ``forget_modules`` the project's modules are imported anew; other modules stay."""
    project.write_file("pkg/__init__.py", "")
    project.write_file("pkg/sizes.py", "NAMES = ['a']\n")
    project.write_file("tune_it.py", f"from pkg.sizes import NAMES\n{make_kernel_text('k', 'name=NAMES[0]')}")
    assert project.load_file().kernels[0].name == "a"
    project.write_file("pkg/sizes.py", "NAMES = ['longer']\n")
    assert project.load_file().kernels[0].name == "longer"
    assert "ktuned.declaration.declaration" in sys.modules


def test_kernel_files_of_one_name_are_separate_modules(project: Project) -> None:
    """Each imports its own neighbours."""
    for name in ("one", "two"):
        project.write_file(f"{name}/neighbour.py", f"NAME = {name!r}\n")
        project.write_file(f"{name}/tune_it.py", f"import neighbour\n{make_kernel_text('k', 'name=neighbour.NAME')}")
    names = [project.load_file(f"{directory}/tune_it.py").kernels[0].name for directory in ("one", "two")]
    assert names == ["one", "two"]


def test_loading_and_forgetting_leave_no_trace(project: Project) -> None:
    """Loading writes no bytecode; forgetting restores ``sys.path`` and ``os.environ``."""
    before = list(sys.path), dict(os.environ)
    project.write_file("helper.py", "import os, sys\nsys.path.append('/here')\nos.environ['HERE'] = 'yes'\n")
    project.write_file("tune_it.py", "import helper\n")
    project.load_file()
    assert not [path for path in project.root.rglob("*") if "__pycache__" in path.parts]
    forget_modules()
    assert (list(sys.path), dict(os.environ)) == before
    assert "helper" not in sys.modules


def test_stale_bytecode_is_not_run(project: Project) -> None:
    """A module is compiled from its source even if bytecode of the same size and time exists."""
    helper = project.write_file("helper.py", "NAME = 'old'\n")
    times = helper.stat()
    py_compile.compile(str(helper))
    helper.write_text("NAME = 'new'\n")
    os.utime(helper, ns=(times.st_atime_ns, times.st_mtime_ns))
    project.write_file("tune_it.py", f"import helper\n{make_kernel_text('k', 'name=helper.NAME')}")
    assert project.load_file().kernels[0].name == "new"


def test_the_digest_is_of_the_bytes_that_ran(project: Project) -> None:
    """A file that is saved while it is imported has the digest of the code that was compiled."""
    helper = project.write_file(
        "helper.py", "import pathlib\npathlib.Path(__file__).write_text('NAME = 2')\nNAME = 'ran'\n"
    )
    content = helper.read_bytes()
    project.write_file("tune_it.py", f"import helper\n{make_kernel_text('k', 'name=helper.NAME')}")
    loaded = project.load_file()
    assert loaded.kernels[0].name == "ran"
    expected = hashlib.sha256(content).hexdigest()
    assert loaded.files[helper] == expected
    assert describe_kernel(loaded.kernels[0], "project", project.root).stamps[str(helper)] == expected


def test_code_beside_the_root_is_imported_again(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Modules outside the root are forgotten and listed like modules below it."""
    shared_directory = tmp_path_factory.mktemp("shared").resolve()
    module = shared_directory / "beside.py"
    setup = f"import sys\nsys.path.insert(1, {str(shared_directory)!r})\nimport beside\n"
    project.write_file("tune_it.py", f"{setup}{make_kernel_text('k', 'name=beside.NAME')}")
    for name in ("first", "second"):
        module.write_text(f"NAME = {name!r}\n")
        loaded = project.load_file()
        assert loaded.kernels[0].name == name
        assert module in loaded.files


def test_functions_import_when_they_are_called(project: Project) -> None:
    """An import inside a function runs after the load and still finds modules beside the kernel file."""
    project.write_file("lazy.py", "SHAPE = 3\n")
    text = make_kernel_text("k").replace("lambda p: dict(A=tensor(1))", "made")
    project.write_file(
        "tune_it.py", "def made(p):\n    from lazy import SHAPE\n    return dict(A=tensor(SHAPE))\n" + text
    )
    specs = project.load_file().kernels[0].evaluate_inputs({})
    assert specs["A"].shape == (3,)


def test_installed_code_in_the_root_is_foreign(project: Project) -> None:
    """Modules of a virtual environment inside the root are not the project's, except modules of no distribution."""
    site = project.root / "env/lib/site-packages"
    project.write_file("env/lib/site-packages/installed.py", "x = 1\n")
    project.write_file("env/lib/site-packages/bare.py", "x = 1\n")
    project.write_file("env/lib/site-packages/installed-1.0.dist-info/RECORD", "installed.py,,\n")
    project.write_file("tune_it.py", f"import sys\nsys.path.append({str(site)!r})\nimport installed, bare\n")
    try:
        # At the second load, the distribution's module is still imported; the other one is imported anew.
        for _ in range(2):
            assert sorted(path.name for path in project.load_file().files) == ["bare.py", "tune_it.py"]
    finally:
        sys.path[:] = [entry for entry in sys.path if entry != str(site)]
        del sys.modules["installed"]


def test_only_the_projects_own_files_are_listed(project: Project) -> None:
    project.write_file("helper.py", "x = 1\n")
    project.write_file("tune_it.py", "import json, helper\n")
    assert sorted(path.name for path in project.load_file().files) == ["helper.py", "tune_it.py"]


def test_a_relative_path_is_loaded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write_file("tune_it.py", make_kernel_text("a"))
    monkeypatch.chdir(project.root)
    from ktuned.declaration.loader import load_file

    assert load_file(Path("tune_it.py"), Path()).kernels[0].file == project.root / "tune_it.py"
