"""What each kernel of the author's project really is: recomputed from nothing, by the preprocessor and a fresh Python.

Run as ``python oracle.py PROJECT``: prints, as JSON, a hash for each kernel over the preprocessed and compiled sources
of each of its configs, and over what its Python code computes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


class Number:
    """Stands for a tensor in a reference: knows what was done to it."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __mul__(self, other: float) -> Number:
        return Number(self.value * other)

    __rmul__ = __mul__


def truth(kernel: Any) -> str:
    """Return the hash of what a loaded kernel does; nothing for one that does not compile."""
    said: list[Any] = [kernel.rtol]
    for problem in kernel.problem_list():
        said.append([repr(spec) for spec in kernel.input_specs(problem).values()])
        said.append(kernel.reference(Number(3.0))["y"].value)
        for config in kernel.bound_space(problem):
            build = kernel.build(problem, config)
            try:
                said.append([build.to_plain(), _compiled(kernel, build)])
            except subprocess.CalledProcessError:
                return ""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _compiled(kernel: Any, build: Any) -> list[str]:
    return [
        hashlib.sha256(
            subprocess.run(
                ["cc", "-O1", "-g0", "-fPIC", *build.options, "-S", "-o", "-", source.name],
                cwd=source.parent,
                check=True,
                capture_output=True,
            ).stdout
        ).hexdigest()
        for source in kernel.source_paths
    ]


def main(project: Path) -> None:
    """Print every kernel's hash."""
    from ktuned.spec.loader import load_file

    found: dict[str, str] = {}
    for path in sorted(project.glob("tune_*.py")):
        if path.name != "tune_marker.py":
            loaded = load_file(path, project)
            assert not loaded.errors, loaded.errors
            found |= {kernel.name: truth(kernel) for kernel in loaded.kernels}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
