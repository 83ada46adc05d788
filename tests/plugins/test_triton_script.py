"""Autotuned functions of a script, which no other process can import: they travel as their source."""

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from ktuned.backends.contract import Unit
from ktuned.dropin import CALL_KEY, account
from ktuned.spec.loader import load_file
from ktuned_triton import Triton
from ktuned_triton.call import LeftAlone, jitted
from ktuned_triton.script import is_importable, module_of
from tests.fake_tunings import FakeTunings
from tests.plugins.triton_calls import left_to_triton, tunings

__all__ = ["left_to_triton", "tunings"]

SCRIPT = Path(__file__).with_name("triton_app") / "as_script.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return this process's ``__main__``, which is the script."""
    module = ModuleType("__main__")
    module.__file__ = str(SCRIPT)
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(SCRIPT.read_text(), SCRIPT, "exec"), vars(module))
    account.left_alone.clear()
    yield module
    account.left_alone.clear()


def test_another_process_has_the_same_function(
    script: ModuleType, tunings: FakeTunings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the functions and globals that it reads, its line numbers and so Triton's digest; each config compiles."""
    launched: list[Any] = []
    monkeypatch.setattr(jitted(script.scaled), "run", lambda *args, **kwargs: launched.append(kwargs))
    x = torch.ones(256)
    script.scaled[(4,)](x, torch.empty_like(x), 256)
    assert account.left_alone == {}
    assert len(launched) == 1
    ((request, _),) = tunings.asked
    assert request.adopted.function == "__main__.scaled"
    file = request.adopted.write(tmp_path)
    problem = {**request.problem, CALL_KEY: request.write_call(file)}
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    loaded = load_file(file, file.parent)
    assert loaded.errors == ()
    (kernel,) = loaded.kernels
    (module,) = [one for name, one in sys.modules.items() if name.startswith("script_")]
    assert module.scaled.cache_key == jitted(script.scaled).cache_key
    assert not hasattr(module, "OPEN")
    assert not hasattr(module, "values")
    for number, config in enumerate(kernel.bound_space(problem)):
        (tmp_path / str(number)).mkdir()
        unit = Unit(str(number), kernel.build(problem, config), (), file, kernel.name, "sm_90a")
        (result,) = Triton().compile([unit], tmp_path)
        assert result.outcome is None, result.message


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("reads_a_file", "it reads OPEN, a BytesIO of the script's"),
        ("hooked", "it has hooks, and is defined in __main__, where no other process finds them"),
    ],
)
def test_some_need_the_scripts_own_process(
    name: str, reason: str, script: ModuleType, tunings: FakeTunings, left_to_triton: list[Any]
) -> None:
    """They are Triton's, with the reason."""
    getattr(script, name)[(1,)](torch.ones(8))
    assert account.left_alone == {f"__main__.{name}": reason}


def test_an_edited_script_is_the_one_that_runs(script: ModuleType, tmp_path: Path) -> None:
    """What Triton has read counts, not what the file has become; other functions are compared with their code."""
    copy = tmp_path / "as_script.py"
    source = SCRIPT.read_text()
    copy.write_text(source)
    exec(compile(source, copy, "exec"), vars(script))
    before = module_of(script.doubled)
    assert "x * 2" in before
    assert module_of(jitted(script.scaled)).count("def ") == 3
    copy.write_text(source.replace("x * 2", "x * 3").replace("math.prod(grid)", "sum(grid)"))
    assert module_of(script.doubled) == before
    with pytest.raises(LeftAlone, match=r"it reads launch_metadata, a function .* whose source does not stand alone"):
        module_of(jitted(script.scaled))


def test_a_script_may_be_run_by_another_program(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger's or a notebook's module has the script's name and other globals: the function's own count."""
    vars(script)["HALF"] = type(script.HALF)(0.25)
    other = ModuleType("__main__")
    vars(other).update(vars(script), HALF=type(script.HALF)(0.75))
    monkeypatch.setitem(sys.modules, "__main__", other)
    assert "0.25" in module_of(jitted(script.scaled))
    vars(script)["doubled"] = FunctionType(script.launch_metadata.__code__, {"__name__": "__main__"}, "doubled")
    with pytest.raises(LeftAlone, match="it reads doubled"):
        module_of(jitted(script.scaled))


def test_a_module_that_no_import_finds_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tunings: FakeTunings, left_to_triton: list[Any]
) -> None:
    """One that a program has loaded from a file, under a name of its own or in the place of another module."""
    for name, is_there in (("loaded_by_path", False), ("tests.plugins.loaded_by_path", False), ("tests.leaks", True)):
        file = tmp_path / f"{name}.py"
        file.write_text(SCRIPT.read_text())
        spec = spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        assert is_importable(name) == is_there
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        account.left_alone.clear()
        module.scaled[(1,)](torch.ones(8), torch.ones(8), 8)
        assert account.left_alone == {f"{name}.scaled": f"no other process can import {name}"}
    assert tunings.asked == []
    account.left_alone.clear()
