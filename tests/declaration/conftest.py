"""Projects of kernel files, and how the tests load them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.digest import describe_kernel
from ktuned.declaration.loader import LoadedFile, forget_modules, load_file
from ktuned.model.kernel import KernelInfo

HEADER = """\
from dataclasses import dataclass
from ktuned import Unsupported, kernel, space, tensor
from ktuned.backends import Build

@dataclass(frozen=True)
class Fake(Build):
    backend = "fake"
    n: int = 0

"""
HEADER_LINES = HEADER.count("\n")

BASE_ARGUMENTS = {
    "backend": '"fake"',
    "space": "space(BM=[1, 2])",
    "inputs": "lambda p: dict(A=tensor(3))",
    "check": "None",
}


class Project:
    """A project's root below a temporary directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write_file(self, name: str, text: str) -> Path:
        """Write a file and return its path; a kernel file starts with HEADER."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = textwrap.dedent(text)
        path.write_text(HEADER + text if path.name.startswith("tune_") else text)
        return path

    def load_file(self, name: str = "tune_it.py", backends: list[str] | None = None) -> LoadedFile:
        """Load a kernel file as a worker does after a save."""
        forget_modules()
        return load_file(self.root / name, self.root, backends)

    def declare_kernel(self, **arguments: str) -> Kernel:
        """Declare one kernel with these arguments, as source text, and return it; there must be no errors."""
        loaded = self.load_declaration(**arguments)
        assert not loaded.errors, loaded.errors
        return loaded.kernels[0]

    def load_declaration(self, body: str = "return Fake(c.BM)", **arguments: str) -> LoadedFile:
        """Declare the kernel ``it`` with these arguments on top of the base arguments, and load its file."""
        arguments_text = ", ".join(f"{name}={value}" for name, value in (BASE_ARGUMENTS | arguments).items() if value)
        self.write_file("tune_it.py", f"@kernel({arguments_text})\ndef it(p, c):\n    {body}\n")
        return self.load_file()

    def describe_file(self, name: str = "tune_it.py") -> dict[str, KernelInfo]:
        """Load a kernel file and describe its kernels by name; there must be no errors."""
        loaded = self.load_file(name)
        assert not loaded.errors, loaded.errors
        return {kernel.name: describe_kernel(kernel, "project", self.root) for kernel in loaded.kernels}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty project whose modules are forgotten after the test."""
    project = Project(tmp_path.resolve())
    yield project
    forget_modules()
