"""What each config of the author's project really is: rebuilt from nothing, in a new home, by a fresh Python.

Run as ``python oracle.py PROJECT``: prints, as JSON, for each kernel a map from its configs (canonical text) to a hash
over all that decides a measurement: the compiled bytes of its sources, its arguments, its inputs, what its reference
computes, its tolerance, the variables of the root, what its third launch reads; behind a colon, the hash of the
compiled bytes alone. A kernel that does not compile has no configs. The hash of a config that is wrong, in one of three
launches or beside its output, begins with :data:`WRONG`.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

WRONG = "wrong "

LATE = "late.txt"

SIZE, MARGIN = 64, 16
"""Elements of the tensors that configs are tried on, and beside them."""


class Number:
    """Stands for a tensor in a reference: knows what was done to it."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __mul__(self, other: float) -> Number:
        return Number(self.value * other)

    __rmul__ = __mul__


def truths(kernel: Any, env: dict[str, str], home: Path) -> dict[str, str]:
    """Return the hash of each config of a loaded kernel."""
    found = {}
    for problem in kernel.list_problems():
        inputs = [repr(spec) for spec in kernel.evaluate_inputs(problem).values()]
        computed = kernel.reference(Number(3.0))["y"].value
        for config in kernel.bind_space(problem):
            build = kernel.build(problem, config)
            made = home / f"{kernel.name}_{len(os.listdir(home))}.so"
            try:
                library = _compiled(kernel, build, made)
            except subprocess.CalledProcessError:
                return {}
            verdict = "" if _is_right(made, computed / 3.0) else WRONG
            said = [env, kernel.rtol, inputs, computed, build.to_plain(), library, _read_late(kernel)]
            text = json.dumps(dict(config), sort_keys=True, separators=(",", ":"))
            found[text] = f"{verdict}{hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()}:{library}"
    return found


def _read_late(kernel: Any) -> str:
    """Return what a kernel's third launch reads."""
    return str((kernel.file.parent / LATE).read_text()) if kernel.name == "f1" else ""


def _is_right(library: Path, scale: float) -> bool:
    """Return whether each launch computes what it should, and nothing beside it."""
    run = ctypes.CDLL(str(library)).run
    run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)
    run.restype = None
    for launch in range(1, 4):
        given = (ctypes.c_float * SIZE)(*(launch + number for number in range(SIZE)))
        found = (ctypes.c_float * (SIZE + 2 * MARGIN))(*([-1.0] * (SIZE + 2 * MARGIN)))
        run(ctypes.addressof(found) + 4 * MARGIN, ctypes.addressof(given), SIZE)
        margin = [-1.0] * MARGIN
        if list(found) != [*margin, *(scale * number for number in given), *margin]:
            return False
    return True


def _compiled(kernel: Any, build: Any, library: Path) -> str:
    base = kernel.source_paths[0].parent
    names = [os.path.relpath(source, base) for source in kernel.source_paths]
    command = [os.environ["AUTHOR_CC"], "-O1", "-g0", "-shared", "-fPIC", *build.options, "-o", str(library), *names]
    subprocess.run(command, cwd=base, check=True, capture_output=True)
    return hashlib.sha256(library.read_bytes()).hexdigest()


def main(project: Path) -> None:
    """Print every kernel's hashes."""
    settings = tomllib.loads((project / "ktuned.toml").read_text())
    env: dict[str, str] = settings.get("env", {})
    os.environ |= env
    from ktuned.declaration.loader import load_file

    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as home:
        for path in sorted(project.glob("tune_*.py")):
            if path.name != "tune_marker.py":
                loaded = load_file(path, project)
                assert not loaded.errors, loaded.errors
                found |= {kernel.name: truths(kernel, env, Path(home)) for kernel in loaded.kernels}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
