"""Functions in a Build travel by a name that finds the function again; a function without such a name is an error at
once.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ktuned.declaration import functions
from ktuned.declaration.loader import get_kernel_module
from ktuned.model.errors import KernelFileError
from tests.declaration.conftest import Project

KERNEL_FILE = """
from helper import tripled

def doubled(x):
    return 2 * x

class Scale:
    @staticmethod
    def halved(x):
        return x / 2

def wrapped(f):
    def inner(x):
        return f(x)
    inner.__qualname__ = f.__qualname__
    return inner

hidden = doubled
doubled_again = wrapped(doubled)
five = 5
"""


class Holder:
    """A class with a method."""

    def method(self) -> None:
        """Do nothing."""


class CallableObject:
    """An object that can be called."""

    def __call__(self) -> None:
        """Do nothing."""


def make_local_function() -> Any:
    """Return a function inside a function."""

    def inner() -> None:
        pass

    return inner


@pytest.fixture
def kernel_path(project: Project) -> Path:
    """A kernel file that imports one of its functions from a module beside it."""
    project.write_file("helper.py", "def tripled(x):\n    return 3 * x\n")
    path = project.write_file("tune_it.py", KERNEL_FILE)
    project.load_file()
    return path


@pytest.mark.parametrize(
    ("attribute", "name"), [("doubled", "doubled"), ("hidden", "doubled"), ("tripled", "helper:tripled")]
)
def test_a_function_is_found_again_by_its_name(project: Project, kernel_path: Path, attribute: str, name: str) -> None:
    """The kernel file's own functions go by qualified name, others with their module. A new import finds the new
    function.
    """
    function = getattr(get_kernel_module(kernel_path), attribute)
    assert functions.name_function(function) == name
    assert functions.find_function(name, kernel_path) is function
    project.load_file()
    reloaded = functions.find_function(name, kernel_path)
    assert reloaded is not function
    assert reloaded(2) == function(2)


def test_a_static_method_is_found_by_its_name(kernel_path: Path) -> None:
    """The name of a static method includes its class."""
    halved = get_kernel_module(kernel_path).Scale.halved
    assert functions.name_function(halved) == "Scale.halved"
    assert functions.find_function("Scale.halved", kernel_path)(3) == 1.5


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "a lambda has no name"),
        (make_local_function(), "make_local_function.<locals>.inner is inside another function"),
        (functools.partial(print, 1), "a partial has no name"),
        (CallableObject(), "an object of type CallableObject has no name"),
        (Holder().method, "Holder.method in .* is not the function that was given"),
        ("a b", "'a b' is not the name of a function"),
        ("", "'' is not the name of a function"),
        ("f:", "'f:' is not the name of a function"),
    ],
)
def test_a_function_without_a_name_is_an_error(function: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        functions.name_function(function)


def test_a_value_that_is_no_function_is_an_error() -> None:
    with pytest.raises(TypeError, match="expected a function, not a value of type int"):
        functions.name_function(3)  # type: ignore[arg-type]


def test_a_name_of_another_function_is_an_error(kernel_path: Path) -> None:
    """Otherwise a wrapper with the wrapped function's name would be silently dropped."""
    with pytest.raises(ValueError, match=r"doubled in .* is not the function that was given"):
        functions.name_function(get_kernel_module(kernel_path).doubled_again)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone", "tune_it.py: there is no function 'gone'"),
        ("Scale.gone", "there is no function 'Scale.gone'"),
        ("nowhere:f", "there is no function 'nowhere:f': No module named 'nowhere'"),
        ("five", "'five' is of type int, which cannot be called"),
    ],
)
def test_an_unknown_function_name_is_an_error(kernel_path: Path, name: str, words: str) -> None:
    with pytest.raises(LookupError, match=words):
        functions.find_function(name, kernel_path)


def test_a_name_in_a_broken_kernel_file_is_its_import_error(project: Project) -> None:
    """The file's own error is raised, and no half-imported module stays."""
    path = project.write_file("tune_it.py", "import nothing_such\n")
    before = set(sys.modules)
    with pytest.raises(KernelFileError, match="No module named 'nothing_such'"):
        functions.find_function("f", path)
    assert not [name for name in sys.modules.keys() - before if name.endswith("_tune_it")]


def test_an_application_finds_functions_in_its_own_module(tmp_path: Path) -> None:
    """An application that imported the file itself gets functions of that module; otherwise the file is imported
    once.
    """
    path = tmp_path / "tune_app.py"
    path.write_text("def doubled(x):\n    return 2 * x\n")
    script = (
        "import sys, importlib\nfrom pathlib import Path\nfrom ktuned.declaration import functions\n"
        "path = Path(sys.argv[1])\nbefore = list(sys.path)\n"
        "found = functions.find_function('doubled', path)\nassert found(2) == 4\n"
        "assert functions.find_function('doubled', path) is found\nassert sys.path == before\n"
    )
    for preparation in ("", "sys.path.insert(0, sys.argv[2])\nimport tune_app\n"):
        text = script.replace("path = Path", f"{preparation}path = Path")
        if preparation:
            text += "assert found is tune_app.doubled\n"
        subprocess.run([sys.executable, "-c", text, str(path), str(tmp_path)], check=True)
