"""Kernels of applications, as kernel files: written by the application, read by ktuned's workers.

An autotuned function of an application has no kernel file. The drop-in writes one, which imports the function's module
by its name, and beside it a record of each tuning key's call. Both are named by their content and never change, so that
processes may write them at the same time.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from ktuned.model import canonical
from ktuned_triton.build import Build
from ktuned_triton.call import Call, jitted

CALL_KEY = "call"
"""The problem key that names a record; it does not enter the winner's key."""

RECORDS = "calls"
FUNCTION_NAME = "function"
"""The name of the application's function in its kernel file."""

_DIGEST_CHARS = 16
_PRIVATE = 0o700

RTOL, ATOL = 1e-2, 1e-2
"""Two configs' sums of half-precision products differ in their order, and so in the last digits."""

MAX_MISMATCHED_RATIO = 1e-3


@dataclass(frozen=True, slots=True)
class Adopted:
    """An application's function: all that its kernel file says.

    Attributes:
        module: the module that defines it.
        qualname: its name there.
        cache_key: Triton's digest of its source, and of all that it calls.
        specialize: the problem keys that are its tuning key.
        configs: all its configs, as ktuned's.
        tensors: the parameters that are tensors. Each run finds them as they were, and all are compared, because it
            is not known which of them the kernel writes.
        timing: ``events``, or ``graph`` where the application asked for CUDA graphs.
        paths: the application's ``sys.path``.
    """

    module: str
    qualname: str
    cache_key: str
    specialize: tuple[str, ...]
    configs: tuple[Mapping[str, Any], ...]
    tensors: tuple[str, ...]
    timing: str
    paths: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The digest of all of this, and of the interpreter: another one is another kernel."""
        return _digest(json.dumps([asdict(self), sys.executable], sort_keys=True))

    @property
    def project(self) -> str:
        """The name of the directory, and so of the project: the package, and a digest of the environment."""
        package = self.module.partition(".")[0]
        return f"triton-{package}-{_digest(json.dumps([sys.executable, self.paths]))[:8]}"

    @property
    def kernel(self) -> str:
        """The kernel's full name."""
        return f"{self.project}:{self.name}"

    @property
    def name(self) -> str:
        """The kernel's short name."""
        return f"{self.qualname}-{self.digest[:8]}"

    def write(self, directory: Path) -> Path:
        """Write the kernel file, unless it is there, and return its path."""
        fields = ",\n    ".join(f"{name}={value!r}" for name, value in asdict(self).items())
        text = (
            f'"""{self.module}.{self.qualname} as an application calls it; written by ktuned-triton."""\n\n'
            f"from ktuned_triton.adoption import Adopted, adopt\n\n"
            f"{FUNCTION_NAME} = adopt(__file__, Adopted(\n    {fields},\n))\n"
        )
        return _write(directory / self.project / f"tune_{self.qualname.replace('.', '_')}_{self.digest[:8]}.py", text)


def write_record(kernel_file: Path, call: Call) -> str:
    """Write a call beside its kernel file, and return the name that a problem's ``call`` gives it."""
    text = call.to_json()
    name = _digest(text)
    _write(kernel_file.parent / RECORDS / f"{name}.json", text)
    return name


def home() -> Path:
    """Return the directory of all applications' kernel files."""
    if chosen := os.environ.get("KTUNED_HOME"):
        return Path(chosen).absolute() / "triton"
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(base).absolute() / "ktuned" / "triton"


def adopt(file: str, adopted: Adopted) -> Any:
    """Declare the kernel of an application's function and return the ``@triton.jit`` function; for kernel files.

    Raises:
        RuntimeError: the function is another one here than in the application.
    """
    from ktuned.spec import kernel, space

    # At the end: the worker's own modules come first, as they have been imported.
    sys.path += [path for path in adopted.paths if path not in sys.path]
    function = jitted(attrgetter(adopted.qualname)(importlib.import_module(adopted.module)))
    if function.cache_key != adopted.cache_key:
        raise RuntimeError(
            f"{adopted.module}.{adopted.qualname} is not the function that the application has: it changed since the "
            "application started, or the application runs in another environment"
        )
    worker = _Worker(Path(file), adopted)
    kernel(
        backend="triton",
        name=adopted.name,
        space=space([dict(config) for config in adopted.configs], where=worker.admits),
        specialize=adopted.specialize,
        inputs=worker.inputs,
        reference=worker.reference,
        rtol=RTOL,
        atol=ATOL,
        max_mismatched_ratio=MAX_MISMATCHED_RATIO,
        setup=adopted.tensors,
        timing=adopted.timing,
        strategy="exhaustive",
        preset="fast",
    )(worker.build)
    return function


class _Worker:
    """A kernel file's functions: they read the record that a problem names."""

    def __init__(self, file: Path, adopted: Adopted) -> None:
        self._file = file
        self._adopted = adopted
        self._calls: dict[str, Call] = {}
        self._current: Any = None

    def admits(self, p: Any, c: Any) -> bool:
        """Return whether the application's pruning left a config; without a call that is not known, and not asked."""
        return CALL_KEY not in p or canonical(dict(c)) in self._call(p).recipes

    def inputs(self, p: Any) -> Mapping[str, Any]:
        """Declare the tensors of a call, each as a row of all its storage's elements."""
        from ktuned.spec import tensor

        self._current = p
        entries = self._call(p).tensors.items()
        return {name: tensor(entry.elements, entry.dtype, entry.fill, output=True) for name, entry in entries}

    def build(self, p: Any, c: Any) -> Build:
        """Return a config's Build."""
        return self._call(p).build(canonical(dict(c)), FUNCTION_NAME)

    def reference(self, **tensors: Any) -> Mapping[str, Any]:
        """Run the first config that the pruning left, by whose results the others are checked.

        It takes the call whose inputs were declared last: a worker measures one problem at a time.
        """
        from ktuned_triton.reference import run

        call = self._call(self._current)
        run(call.build(call.first, FUNCTION_NAME), self._file, tensors)
        return tensors

    def _call(self, p: Any) -> Call:
        name = p[CALL_KEY]
        if name not in self._calls:
            self._calls[name] = Call.from_json((self._file.parent / RECORDS / f"{name}.json").read_text())
        return self._calls[name]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]


def _write(path: Path, text: str) -> Path:
    """Write a file whose name stands for its content, unless it is there."""
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False) as staged:
        staged.write(text)
    os.replace(staged.name, path)
    return path
