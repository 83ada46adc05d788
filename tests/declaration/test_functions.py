"""Functions in a Build: what travels is a name that finds the function again, or there is an error at once."""

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

FILE = """
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
    """Has a method."""

    def method(self) -> None:
        """Do nothing."""


class Callable:
    """An object that can be called."""

    def __call__(self) -> None:
        """Do nothing."""


def local() -> Any:
    """Return a function that only this call knows."""

    def inner() -> None:
        pass

    return inner


@pytest.fixture
def file(project: Project) -> Path:
    """A kernel file that takes one of its functions from a module beside it."""
    project.write("helper.py", "def tripled(x):\n    return 3 * x\n")
    path = project.write("tune_it.py", FILE)
    project.load()
    return path


@pytest.mark.parametrize(
    ("attribute", "name"), [("doubled", "doubled"), ("hidden", "doubled"), ("tripled", "helper:tripled")]
)
def test_a_function_is_found_again_by_its_name(project: Project, file: Path, attribute: str, name: str) -> None:
    """The kernel file's own by its qualified name, another module's with that module; also after a new import."""
    function = getattr(get_kernel_module(file), attribute)
    assert functions.name_function(function) == name
    assert functions.find_function(name, file) is function
    project.load()
    again = functions.find_function(name, file)
    assert again is not function
    assert again(2) == function(2)


def test_a_method_is_found_by_its_name(file: Path) -> None:
    """A static method's name has its class."""
    halved = get_kernel_module(file).Scale.halved
    assert functions.name_function(halved) == "Scale.halved"
    assert functions.find_function("Scale.halved", file)(3) == 1.5


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "a lambda has no name"),
        (local(), "local.<locals>.inner is inside another function"),
        (functools.partial(print, 1), "a partial has no name"),
        (Callable(), "an object of type Callable has no name"),
        (Holder().method, "Holder.method in .* is not the function that was given"),
        ("a b", "'a b' is not the name of a function"),
        ("", "'' is not the name of a function"),
        ("f:", "'f:' is not the name of a function"),
    ],
)
def test_a_function_without_a_name_is_an_error(function: Any, words: str) -> None:
    """It says what was given, and where to define it."""
    with pytest.raises(ValueError, match=words):
        functions.name_function(function)


def test_a_value_that_is_no_function_is_an_error() -> None:
    """A number is reported by its type."""
    with pytest.raises(TypeError, match="expected a function, not a value of type int"):
        functions.name_function(3)  # type: ignore[arg-type]


def test_a_name_of_another_function_is_an_error(file: Path) -> None:
    """A wrapper that goes by the wrapped function's name would be left out without a word."""
    with pytest.raises(ValueError, match=r"doubled in .* is not the function that was given"):
        functions.name_function(get_kernel_module(file).doubled_again)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone", "tune_it.py: there is no function 'gone'"),
        ("Scale.gone", "there is no function 'Scale.gone'"),
        ("nowhere:f", "there is no function 'nowhere:f': No module named 'nowhere'"),
        ("five", "'five' is of type int, which cannot be called"),
    ],
)
def test_an_unknown_function_name_is_an_error(file: Path, name: str, words: str) -> None:
    """The error names the kernel file and the name."""
    with pytest.raises(LookupError, match=words):
        functions.find_function(name, file)


def test_a_name_in_a_broken_kernel_file_is_its_import_error(project: Project) -> None:
    """Its own error comes through, and nothing of it stays."""
    path = project.write("tune_it.py", "import nothing_such\n")
    before = set(sys.modules)
    with pytest.raises(KernelFileError, match="No module named 'nothing_such'"):
        functions.find_function("f", path)
    assert not [name for name in sys.modules.keys() - before if name.endswith("_tune_it")]


def test_an_application_finds_functions_in_its_own_module(tmp_path: Path) -> None:
    """Beside no worker's observation: its own module where it runs the file, else a plain import, once."""
    path = tmp_path / "tune_app.py"
    path.write_text("def doubled(x):\n    return 2 * x\n")
    script = (
        "import sys, importlib\nfrom pathlib import Path\nfrom ktuned.declaration import functions\n"
        "path = Path(sys.argv[1])\nbefore = list(sys.path)\n"
        "found = functions.find_function('doubled', path)\nassert found(2) == 4\n"
        "assert functions.find_function('doubled', path) is found\nassert sys.path == before\n"
    )
    for head in ("", "sys.path.insert(0, sys.argv[2])\nimport tune_app\n"):
        text = script.replace("path = Path", f"{head}path = Path")
        if head:
            text += "assert found is tune_app.doubled\n"
        subprocess.run([sys.executable, "-c", text, str(path), str(tmp_path)], check=True)
