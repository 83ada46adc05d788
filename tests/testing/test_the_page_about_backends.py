"""The backend that ``docs/reference/write-a-backend.md`` prints passes the conformance suite."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ktuned.testing.backends import BackendExample, check_backend

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """\
#ifndef FACTOR
#define FACTOR 2
#endif
void scale(const float *x, float *y) { for (int i = 0; i < 8; ++i) y[i] = FACTOR * x[i]; }
"""


def make_tensors(device: str) -> dict[str, Any]:
    import numpy as np

    return {"x": np.arange(8, dtype=np.float32), "y": np.zeros(8, dtype=np.float32)}


def check_tensors(tensors: Mapping[str, Any]) -> None:
    assert tensors["y"].tolist() == [2.0 * value for value in range(8)]


def load_page_backend(directory: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Write the page's code to a module and import it."""
    page = (ROOT / "docs/reference/write-a-backend.md").read_text()
    (directory / "ktuned_plain_c.py").write_text(
        re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[0]
    )
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setenv("PYTHONPATH", str(directory), prepend=":")
    spec = importlib.util.spec_from_file_location("ktuned_plain_c", directory / "ktuned_plain_c.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ktuned_plain_c", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: apt install gcc")
def test_the_page_s_backend_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_page_backend(tmp_path, monkeypatch)
    source = tmp_path / "scale.c"
    source.write_text(SOURCE)
    example = BackendExample(
        good=module.Build("scale", ("x", "y")),
        bad=module.Build("scale", ("x", "y"), (("FACTOR", "@"),)),
        complaint="error",
        sources=(source,),
        kernel_file=Path(__file__),
        kernel="scale",
        inputs=make_tensors,
        verify=check_tensors,
    )
    (tmp_path / "scratch").mkdir()
    check_backend(module.PlainC(), example, tmp_path / "scratch")


def test_the_page_s_backend_is_short() -> None:
    """The page says that the backend has some sixty lines."""
    page = (ROOT / "docs/reference/write-a-backend.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 72
