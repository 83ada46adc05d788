"""Kernel files of applications' functions, written from the spool's records.

```
adopted/triton/3f2a…/            one interpreter and its variables: one set of workers
    fla/0.6.0/                   a library, which is a project
        ktuned.toml
        tune_ops.gla.chunk.chunk_gla_fwd_kernel_o_3022c98000f1a2b3.py
        calls/3022c98000f1a2b3.declaration.json, 91ab….call.json, 77c0….safetensors
```

A kernel file only names the kernel and its identity. Files in ``calls/`` are named by their content. So if a record is
taken in twice, because a daemon was killed in between, the same files are written.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ktuned.spool import CALLS, CallRecord, digest_content

MAX_VARIANTS = 8
"""Most kernels that are kept for one function in one version of a library: each edit by its author makes another one.
The kernel that was recorded longest ago is removed first; its measurements stay in the store."""

_ENVIRONMENT_DIGITS = 8
_IDENTITY_DIGITS = 16
_PRIVATE = 0o700


class AdoptedDirectory:
    """The directory of all adopted functions, below the daemon's state."""

    def __init__(self, home: Path) -> None:
        self.path = home / "adopted"

    def find_workers_directory(self, tool: str, python: str, variables: Mapping[str, str]) -> Path:
        """Return the directory of all libraries that share workers: those of one interpreter with these variables."""
        environment = digest_content(json.dumps([python, sorted(variables.items())]))
        return self.path / tool / environment[:_ENVIRONMENT_DIGITS]

    def find_project(self, record: CallRecord) -> Path:
        """Return the directory of a record's library."""
        place = self.find_workers_directory(record.tool, record.python, record.variables)
        # The last part distinguishes the project from others of the same name.
        return place / record.package / (record.release or place.name)

    def write_record(self, record: CallRecord) -> tuple[Path, str]:
        """Write a record's files, unless they exist; return the kernel file, and the name of the call.

        Raises:
            OSError: A file cannot be written.
        """
        project = self.find_project(record)
        call = digest_content(record.call)
        declaration = json.dumps(record.declaration, sort_keys=True)
        for name, content in record.files.items():
            _write_once(project / CALLS / name, content)
        _write_once(project / CALLS / f"{record.identity}.declaration.json", declaration.encode())
        _write_once(project / CALLS / f"{call}.call.json", record.call.encode())
        _write_once(project / "ktuned.toml", _make_project_text(record).encode())
        file = project / f"tune_{record.function}_{record.identity}.py"
        others = [one for one in _find_variants(project, record.function) if one != file]
        if not file.is_file():
            name = record.function if not others else f"{record.function}-{record.identity[:4]}"
            _write_once(file, _make_kernel_text(record, name).encode())
            for old in sorted(others, key=lambda one: one.stat().st_mtime)[: -(MAX_VARIANTS - 1)]:
                old.unlink()
        else:
            # A variant that is recorded again counts as new, and is kept longest.
            os.utime(file)
        return file, call


def read_identity(kernel_file: str) -> str:
    """Return the identity of the function that an adopted kernel file declares."""
    return Path(kernel_file).stem[-_IDENTITY_DIGITS:]


def read_function(kernel_file: str) -> tuple[str, str] | None:
    """Return the name of the function that an adopted kernel file declares, and the digest of its source.

    Returns:
        ``None`` for any other kernel file.
    """
    file, identity = Path(kernel_file), read_identity(kernel_file)
    try:
        declaration = json.loads((file.parent / CALLS / f"{identity}.declaration.json").read_bytes())
    except (OSError, ValueError):
        return None
    return f"{declaration['name']['package']}.{declaration['name']['function']}", str(declaration["source_digest"])


def _find_variants(project: Path, function: str) -> Iterator[Path]:
    beginning = f"tune_{function}_"
    for path in project.glob("tune_*.py"):
        if path.stem[:-_IDENTITY_DIGITS] == beginning:
            yield path


def _make_kernel_text(record: CallRecord, name: str) -> str:
    # The first line tells the daemon which backend its workers can import in advance.
    return (
        f'# backend="{record.tool}"\n'
        f'"""{record.package}.{record.function}, as an application calls it."""\n\n'
        f"from ktuned_{record.tool}.adoption import adopt\n\n"
        f"adopt(__file__, {name!r}, {record.identity!r})\n"
    )


def _make_project_text(record: CallRecord) -> str:
    # A JSON string is also a TOML string.
    lines = [f"name = {json.dumps(record.package)}", 'workers = "../.."']
    if record.variables:
        lines += ["", "[env]"]
        lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in record.variables.items()]
    return "\n".join(lines) + "\n"


def _write_once(path: Path, content: bytes) -> None:
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    descriptor, staged = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    except BaseException:
        os.unlink(staged)
        raise
