"""Bad kernels, arguments and installations: each ends in its own outcome, or in one clear line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import triton

from ktuned.backends import Unit
from ktuned.model import BackendError
from ktuned_triton import Build, Triton
from ktuned_triton.compiler import prepare_process
from tests.bad_configs import check_bad_configs
from tests.plugins.triton_bad import bad_kernel


def compiled(mode: str, tmp_path: Path) -> Any:
    """Return the result of compiling one of the bad kernels for an sm_90a."""
    build = Build(bad_kernel, ("x", "y", 1 << 20), {"MODE": mode, "BLOCK": 256}, (4096,)).given(
        lambda: dict.fromkeys(("x", "y"), ("float32", (1 << 20,), (1,)))
    )
    (tmp_path / "key").mkdir()
    (result,) = Triton().compile([Unit("key", build, (), Path(__file__), "bad", "sm_90a")], tmp_path)
    return result


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("right", None, ""),
        ("endless", None, ""),
        ("illegal", None, ""),
        ("wrong", None, ""),
        ("shared", "unsupported", "bytes of shared memory; sm_90a has 232448"),
        ("syntax", "compile_error", "triton_bad.py:31: NameError('no_such_function is not defined')"),
    ],
)
def test_each_fault_that_a_compiler_sees_is_a_compile_error(
    mode: str, outcome: str | None, words: str, tmp_path: Path
) -> None:
    """The first line says what is wrong; all else compiles, with no GPU."""
    result = compiled(mode, tmp_path)
    assert result.outcome == outcome, result.message
    assert words in (result.message.splitlines() or [""])[0]


def test_closures_and_arguments_are_refused_where_they_are_written() -> None:
    """No other process finds the one, and a launch does not take the other."""

    @triton.jit
    def inner(x):  # type: ignore[no-untyped-def]
        pass

    with pytest.raises(ValueError, match="inside another function"):
        Build(inner, ("x",))
    with pytest.raises(TypeError, match="is a value of the type object; a tensor is given by its name"):
        Build(bad_kernel, ("x", object(), 1))  # type: ignore[arg-type]


def test_a_missing_triton_is_one_line_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what installs it."""
    monkeypatch.setitem(sys.modules, "triton.compiler", None)
    with pytest.raises(BackendError, match="Triton cannot be imported: ") as raised:
        Triton().prepare()
    assert "pip install" in raised.value.hint


def test_another_major_version_of_triton_is_refused() -> None:
    """Its compiler's interface is unknown: one line says which versions there are."""
    with pytest.raises(BackendError, match=r"Triton 4\.0\.1 is installed, and this plugin is for Triton 3"):
        prepare_process("4.0.1")


@pytest.mark.gpu
def test_each_fault_that_only_a_launch_shows_has_its_outcome(tmp_path: Path) -> None:
    """A kernel that never ends, an illegal address, a wrong output: each has its outcome, and the rest is measured."""
    arguments = '("x", "y", p.n), dict(MODE=c.mode, BLOCK=c.block), (p.n // c.block,)'
    check_bad_configs(tmp_path, "triton", Path(__file__).with_name("triton_bad.py"), "bad_kernel", arguments)
