"""The origin of a kernel that a program passes to ``ktuned.tune``: the file that workers import, and its name there."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktuned.declaration import Kernel
from ktuned.model import UsageError
from ktuned.python.cells import MARK, write_kernel_text


@dataclass(frozen=True)
class Origin:
    """The file that declares a kernel, and its name there; without a ``path`` the daemon knows the kernel by name."""

    name: str
    path: str = ""


def find_origin(kernel: Kernel | str) -> Origin:
    """Return where a kernel is declared; a notebook's kernel is written to a file first.

    Raises:
        UsageError: no file declares the kernel, or the file cannot be written.
        TypeError: the value is not a kernel.
    """
    if isinstance(kernel, str):
        return Origin(kernel)
    if not isinstance(kernel, Kernel):
        raise TypeError(f"give a kernel or its name, not a value of type {type(kernel).__name__}")
    path = os.path.abspath(kernel.file)
    if os.path.isfile(path):
        return Origin(kernel.name, path)
    shell = find_notebook_shell()
    if shell is None:
        raise UsageError(
            f"the kernel {kernel.name!r} is declared in {kernel.file}, which is not a file",
            hint="workers import the code that declares a kernel: put it into a file, or into a notebook",
        )
    return Origin(kernel.name, _write_kernel_file(kernel, shell))


def find_notebook_shell() -> Any:
    """Return IPython's shell if this process is a notebook or an interactive IPython, else ``None``."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def _write_kernel_file(kernel: Kernel, shell: Any) -> str:
    """Write a notebook's kernel to a kernel file in the working directory, if it differs; return its path.

    From there the kernel finds its sources and modules as the notebook does, and the daemon watches the file.
    """
    names = [name for name, value in shell.user_ns.items() if value is kernel]
    text = write_kernel_text(shell.history_manager.input_hist_parsed, kernel.name, names)
    path = Path.cwd() / f"tune_{kernel.name}_notebook.py"
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before is not None and MARK not in before.partition("\n")[0]:
            hint = "rename it, or give the kernel another name=…"
            raise UsageError(f"{path} was not written from a notebook", hint=hint)
        if before != text:
            # Replaced in one step, because the daemon may read it at any time.
            fresh = path.with_name(f".{path.name}.new")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}",
            hint="a notebook's kernel goes to a file in its working directory: `%cd` to one of yours",
        ) from error
    return str(path)
