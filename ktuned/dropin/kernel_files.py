"""Files of applications' kernels: written by an application, read by ktuned's workers.

An application's autotuned function has no kernel file. A drop-in writes one, which imports the function's module by its
name, and beside it a record of each tuning key's call. Both are named by their content and never change, so that
processes may write them at the same time.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

CALL_KEY: Final = "call"
"""The problem key that names a record; it does not enter the winner's key."""

RECORDS: Final = "calls"
"""The directory beside a kernel file for all that is read with it."""

_DIGEST_CHARS = 16
_PRIVATE = 0o700


def home(tool: str) -> Path:
    """Return the directory of the kernel files that a drop-in writes: ``triton``, ``tilelang``."""
    if chosen := os.environ.get("KTUNED_HOME"):
        return Path(chosen).absolute() / tool
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(base).absolute() / "ktuned" / tool


def digest(content: str | bytes) -> str:
    """Return the name that stands for a content."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS]


def write_once(path: Path, content: str | bytes) -> Path:
    """Write a file whose name stands for its content, unless it is there, and return its path."""
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=".", delete=False) as staged:
        staged.write(content.encode() if isinstance(content, str) else content)
    os.replace(staged.name, path)
    return path


def write_record(kernel_file: Path, text: str) -> str:
    """Write a call's text beside its kernel file, and return the name that a problem's ``call`` gives it."""
    name = digest(text)
    write_once(kernel_file.parent / RECORDS / f"{name}.json", text)
    return name


def read_record(kernel_file: Path, name: str) -> str:
    """Return the text of a record."""
    return (kernel_file.parent / RECORDS / f"{name}.json").read_text()


def all_records(kernel_file: Path) -> Iterator[str]:
    """Yield the texts of the calls that are recorded in a kernel file's directory."""
    for path in sorted((kernel_file.parent / RECORDS).glob("*.json")):
        yield path.read_text()


def write_tensors(kernel_file: Path, tensors: Mapping[str, Any]) -> str:
    """Write tensors of the CPU beside a kernel file, as safetensors, and return their file's name."""
    from safetensors.torch import save

    data = save(dict(tensors))
    name = f"{digest(data)}.safetensors"
    write_once(kernel_file.parent / RECORDS / name, data)
    return name


def tensors_file(kernel_file: Path, name: str) -> Path:
    """Return the path of a file of :func:`write_tensors`."""
    return kernel_file.parent / RECORDS / name


def own_paths() -> tuple[str, ...]:
    """Return the application's own entries of ``sys.path``: those that the interpreter does not bring."""
    brought = tuple(f"{os.path.abspath(prefix)}{os.sep}" for prefix in {sys.prefix, sys.base_prefix})
    paths = dict.fromkeys(os.path.abspath(path) for path in sys.path)
    return tuple(path for path in paths if not f"{path}{os.sep}".startswith(brought))
