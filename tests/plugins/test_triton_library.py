"""Functions of an application's library: found by their names, checked by their digests, without a kernel file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import triton

from ktuned.backends import Compiled, Unit
from ktuned.dropin import list_application_paths
from ktuned.model import BackendError
from ktuned.model.values import Outcome
from ktuned_triton import Build, Triton
from ktuned_triton.build import Library
from ktuned_triton.declaration import is_importable
from ktuned_triton.library import list_constants_read
from ktuned_triton.lowering import Lowered

SOURCE = """\
import triton
import triton.language as tl

TIMES = tl.constexpr(2)


@triton.jit
def doubled(x):
    return x * TIMES


@triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])
@triton.heuristics({"EVEN": lambda args: True})
@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, FUNCTION: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, FUNCTION(tl.load(x + at, mask=at < n)), mask=at < n)
"""


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    """Return a library that no process has imported yet."""
    site = tmp_path / "site"
    (site / "some_library").mkdir(parents=True)
    (site / "some_library" / "__init__.py").touch()
    (site / "some_library" / "ops.py").write_text(SOURCE)
    before = list(sys.path)
    yield Library("some_library", (str(site),))
    sys.path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_library"]:
        del sys.modules[name]


def build(library: Library, **changes: Any) -> Build:
    """Return a config of the library's function."""
    constants = {"BLOCK": 64, "EVEN": True, "FUNCTION": {"function": "some_library.ops:doubled"}}
    wanted = Build(
        "some_library.ops:scale",
        ("x", "y", 1000),
        constants,
        (16,),
        dtypes={"x": "float32", "y": "float32"},
        library=library,
    )
    return replace(wanted, **changes)


def lowered(wanted: Build, kernel_file: Path = Path("/absent/tune_it.py")) -> bytes | Compiled:
    """Translate a Build that has travelled, as a front end does."""
    travelled = Build.from_plain(wanted.to_plain())
    assert wanted.library is not None
    Triton().open_library(wanted.library.to_plain(), travelled)
    return Triton().lower(Unit("it", travelled, (), kernel_file, "it", "sm_90a"))


def function(name: str = "some_library.ops") -> Any:
    """Return the ``@triton.jit`` function as an application has it."""
    return importlib.import_module(name).scale.fn.fn


def test_it_is_found_below_autotuners_and_compiles(library: Library, tmp_path: Path) -> None:
    """A function among its constants is, too; no kernel file is there."""
    made = lowered(build(library))
    assert isinstance(made, bytes)
    (tmp_path / "it").mkdir()
    unit = Unit("it", build(library), (), tmp_path / "absent.py", "it", "sm_90a", made)
    (result,) = Triton().compile([unit], tmp_path)
    assert result.outcome is None, result.message


def test_the_digest_of_the_application_admits_the_same_function_alone(library: Library) -> None:
    """Another one is refused in one line that names it."""
    library.import_modules()
    same = build(library, cache_key=function().cache_key, globals_read=list_constants_read(function()))
    assert isinstance(lowered(same), bytes)
    for other in (replace(same, cache_key="0" * 64), replace(same, globals_read=("TIMES=3",))):
        refused = lowered(other)
        assert isinstance(refused, Compiled)
        assert refused.outcome is Outcome.COMPILE_ERROR
        assert refused.message.startswith("some_library.ops:scale ")
        assert "application" in refused.message
        assert "\n" not in refused.message


def test_a_tensor_that_is_not_aligned_is_compiled_for(library: Library) -> None:
    """Triton assumes nothing of its address; the lane does not require a multiple of 16."""
    library.import_modules()
    made = {}
    for unaligned in ((), ("x",)):
        data = lowered(build(library, unaligned=unaligned))
        assert isinstance(data, bytes)
        made[unaligned] = Lowered.from_bytes(data)
    assumptions = {unaligned: one.text.count("tt.divisibility") for unaligned, one in made.items()}
    assert assumptions["x",] == assumptions[()] - 1
    assert [one.is_aligned for one in made["x",].parameters] == [False, True, True]


class Wrapper:
    """What a library's own decorator makes."""

    def __init__(self, **wrapped: Any) -> None:
        vars(self).update(wrapped)


def test_a_function_is_found_through_a_librarys_own_wrappers(library: Library) -> None:
    """By the application's digest, if there are several."""
    library.import_modules()
    module: Any = importlib.import_module("some_library.ops")
    tuned, digest = module.scale, function().cache_key
    assert is_importable(function())
    scale = function()
    module.scale = Wrapper(fn=Wrapper(fn=module.doubled), jit_function=Wrapper(__wrapped__=tuned))
    assert is_importable(scale)
    assert isinstance(lowered(build(library, cache_key=digest)), bytes)
    module.scale = Wrapper(fn=module.doubled)
    assert not is_importable(scale)
    module.scale.fn = module.scale
    refused = lowered(build(library))
    assert isinstance(refused, Compiled)
    assert refused.message.endswith("no longer exists: a Wrapper wraps no @triton.jit function")


def test_a_function_that_no_import_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's, a closure's, and one of a module that the program loaded under a name of its own."""
    for name in ("__main__", "named", "tests.leaks"):
        file = tmp_path / f"{name.replace('named', 'file')}.py"
        file.write_text(SOURCE)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        assert not is_importable(module.doubled)

    @triton.jit
    def closure(x):  # type: ignore[no-untyped-def]
        return x

    assert not is_importable(closure)


def test_a_function_of_a_directory_that_is_no_longer_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some libraries add a directory for as long as they import from it. A worker gets the directory, too."""
    package = tmp_path / "passing_by"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "ops.py").write_text(SOURCE)
    with monkeypatch.context() as searched:
        searched.syspath_prepend(str(tmp_path))
        module: Any = importlib.import_module("passing_by.ops")
    monkeypatch.setitem(sys.modules, "passing_by", sys.modules["passing_by"])
    monkeypatch.setitem(sys.modules, "passing_by.ops", module)
    assert is_importable(module.doubled)
    paths = list_application_paths("passing_by.ops")
    assert paths[-1] == str(tmp_path)
    code = f"import sys; sys.path += {paths!r}; import passing_by.ops; print(passing_by.ops.doubled.cache_key)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == module.doubled.cache_key


def test_a_function_that_is_gone_is_the_configs_error(library: Library) -> None:
    """The library has been upgraded."""
    refused = lowered(build(library, function="some_library.ops:gone"))
    assert isinstance(refused, Compiled)
    assert (refused.outcome, refused.message.partition(": ")[0]) == (
        Outcome.COMPILE_ERROR,
        "the function 'some_library.ops:gone' no longer exists",
    )


@pytest.mark.parametrize("text", ["raise RuntimeError('no GPU here')", "import not_installed_at_all"])
def test_a_library_that_cannot_be_imported_is_a_backend_error(library: Library, text: str) -> None:
    """The error names the module."""
    (Path(library.paths[0]) / "some_library" / "ops.py").write_text(text)
    with pytest.raises(BackendError, match=r"some_library\.ops cannot be imported: "):
        lowered(build(library))


def test_builds_without_a_library_have_no_new_fields() -> None:
    """Artifacts are known by it."""
    assert not {"library", "cache_key", "globals_read"} & Build("f").to_plain().keys()
