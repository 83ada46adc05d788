"""Autotuned functions of a script, which no other process can import: they travel as their source."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
import triton

from ktuned.dropin import NotTunable, account
from ktuned_triton import autotune
from ktuned_triton.call import find_jit_function
from ktuned_triton.script import is_importable, write_module
from tests.fake_daemon_link import FakeDaemonLink
from tests.plugins.triton_calls import clean_account, left_to_triton, link, records, spool

__all__ = ["clean_account", "left_to_triton", "link", "spool"]

SCRIPT = Path(__file__).with_name("triton_app") / "as_script.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return this process's ``__main__``, which is the script."""
    module = ModuleType("__main__")
    module.__file__ = str(SCRIPT)
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(SCRIPT.read_text(), SCRIPT, "exec"), vars(module))
    return module


def imported(text: str, directory: Path, name: str) -> ModuleType:
    """Return a module of a text that has travelled, as another process imports it."""
    file = directory / f"{name}.py"
    file.write_text(text)
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def travelled(spool: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module that the only record holds."""
    (record,) = records(spool)
    ((name, text),) = record.files.items()
    assert name == f"{record.module}.py"
    monkeypatch.setitem(sys.modules, record.module, ModuleType(record.module))
    return imported(text.decode(), directory, record.module)


def test_another_process_has_the_same_function(
    script: ModuleType, link: FakeDaemonLink, spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the functions and globals that it reads, its line numbers and so Triton's digest."""
    launched: list[Any] = []
    monkeypatch.setattr(find_jit_function(script.scaled), "run", lambda *args, **kwargs: launched.append(kwargs))
    x = torch.ones(256)
    script.scaled[(4,)](x, torch.empty_like(x), 256)
    assert account.left_alone == {}
    assert [run["warmup"] for run in launched] == [True, False]
    (record,) = records(spool)
    assert (record.package, record.function) == ("as_script", "scaled")
    module = travelled(spool, tmp_path, monkeypatch)
    assert module.scaled.cache_key == find_jit_function(script.scaled).cache_key
    assert not hasattr(module, "OPEN")
    assert not hasattr(module, "values")


def test_a_closure_travels_with_the_plain_values_that_it_has_captured(
    link: FakeDaemonLink, spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that calls another closure."""
    factor = triton.language.constexpr(3)

    @triton.jit
    def tripled(x):  # type: ignore[no-untyped-def]
        return x * factor

    @triton.jit  # type: ignore[untyped-decorator]
    def inner(x, BLOCK: triton.language.constexpr):  # type: ignore[no-untyped-def]
        offsets = triton.language.arange(0, BLOCK)
        triton.language.store(x + offsets, tripled(triton.language.load(x + offsets)))

    monkeypatch.setattr(inner, "run", lambda *args, **kwargs: None)
    configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]
    autotune(configs, key=[])(inner)[(1,)](torch.ones(8))
    assert account.left_alone == {}
    module = travelled(spool, tmp_path, monkeypatch)
    assert module.inner.cache_key == inner.cache_key
    assert module.factor.value == 3


def test_a_closure_over_an_object_is_left_alone(
    link: FakeDaemonLink, left_to_triton: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other process can make it."""
    captured = {"a": "dict"}

    @triton.jit  # type: ignore[untyped-decorator]
    def inner(x, BLOCK: triton.language.constexpr):  # type: ignore[no-untyped-def]
        triton.language.store(x, captured)

    monkeypatch.setattr(inner, "run", lambda *args, **kwargs: None)
    configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]
    autotune(configs, key=[])(inner)[(1,)](torch.ones(8))
    assert [*account.left_alone.values()] == ["it reads captured, a dict of its own module"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("reads_a_file", "it reads OPEN, a BytesIO of its own module"),
        ("hooked", "a config's pre_hook writes other values than zeros"),
    ],
)
def test_a_function_that_needs_its_own_process_is_left_to_triton(
    name: str,
    reason: str,
    script: ModuleType,
    link: FakeDaemonLink,
    left_to_triton: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are Triton's, with the reason."""
    function = getattr(script, name)
    monkeypatch.setattr(find_jit_function(function), "run", lambda *args, **kwargs: None)
    function[(1,)](torch.ones(8))
    assert [*account.left_alone.values()] == [reason]


def test_an_edited_script_is_the_one_that_runs(script: ModuleType, tmp_path: Path) -> None:
    """What Triton has read counts, not what the file has become; other functions are compared with their code."""
    copy = tmp_path / "as_script.py"
    source = SCRIPT.read_text()
    copy.write_text(source)
    exec(compile(source, copy, "exec"), vars(script))
    before = write_module(script.doubled)
    assert "x * 2" in before
    assert write_module(find_jit_function(script.scaled)).count("def ") == 3
    copy.write_text(source.replace("x * 2", "x * 3").replace("math.prod(grid)", "sum(grid)"))
    assert write_module(script.doubled) == before
    with pytest.raises(NotTunable, match=r"it reads launch_metadata, a function whose source does not stand alone"):
        write_module(find_jit_function(script.scaled))


def test_a_script_may_be_run_by_another_program(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger's or a notebook's module has the script's name and other globals: the function's own count."""
    vars(script)["HALF"] = type(script.HALF)(0.25)
    other = ModuleType("__main__")
    vars(other).update(vars(script), HALF=type(script.HALF)(0.75))
    monkeypatch.setitem(sys.modules, "__main__", other)
    assert "0.25" in write_module(find_jit_function(script.scaled))
    vars(script)["doubled"] = FunctionType(script.launch_metadata.__code__, {"__name__": "__main__"}, "doubled")
    with pytest.raises(NotTunable, match="it reads doubled"):
        write_module(find_jit_function(script.scaled))


def test_a_module_that_no_import_finds_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: FakeDaemonLink, spool: Path
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
        monkeypatch.setattr(find_jit_function(module.scaled), "run", lambda *args, **kwargs: None)
        module.scaled[(1,)](torch.ones(8), torch.ones(8), 8)
    assert account.left_alone == {}
    assert [list(record.files) for record in records(spool)] == [[f"{record.module}.py"] for record in records(spool)]
    assert len(records(spool)) == 3
