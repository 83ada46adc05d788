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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ktuned.model import canonical
from ktuned_triton.build import Build
from ktuned_triton.call import CAPTURED, HOOKS_NAME, Call, autotuner_in, hook_names, jitted, knobs

CALL_KEY = "call"
"""The problem key that names a record; it does not enter the winner's key."""

RECORDS = "calls"
SUFFIX = ".safetensors"
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
        hooks: the names of its hooks, as :func:`~ktuned_triton.call.hook_names` gives them.
    """

    module: str
    qualname: str
    cache_key: str
    specialize: tuple[str, ...]
    configs: tuple[Mapping[str, Any], ...]
    tensors: tuple[str, ...]
    timing: str
    paths: tuple[str, ...]
    hooks: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The digest of all of this, and of the interpreter: another one is another kernel."""
        return _digest(json.dumps([asdict(self), sys.executable], sort_keys=True).encode())

    @property
    def project(self) -> str:
        """The name of the directory, and so of the project: the package, and a digest of the environment."""
        package = self.module.partition(".")[0]
        return f"triton-{package}-{_digest(json.dumps([sys.executable, self.paths]).encode())[:8]}"

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
            f"from ktuned_triton.adoption import Adopted, adopt, hooks_of\n\n"
            f"{FUNCTION_NAME} = adopt(__file__, Adopted(\n    {fields},\n))\n"
        )
        if self.hooks:
            text += f"{HOOKS_NAME} = hooks_of(__file__)\n"
        name = f"tune_{self.qualname.replace('.', '_')}_{self.digest[:8]}.py"
        return _write(directory / self.project / name, text.encode())


def write_record(kernel_file: Path, call: Call, content: Mapping[str, Any]) -> str:
    """Write a call beside its kernel file, and return the name that a problem's ``call`` gives it.

    ``content`` are those of its tensors, on the CPU, whose content is the call's own.
    """
    directory = kernel_file.parent / RECORDS
    if content:
        from safetensors.torch import save

        data = save(dict(content))
        call = replace(call, content=f"{_digest(data)}{SUFFIX}")
        _write(directory / call.content, data)
    text = call.to_json().encode()
    name = _digest(text)
    _write(directory / f"{name}.json", text)
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
        RuntimeError: the function, or its autotuner's hooks, are others here than in the application.
    """
    from ktuned.spec import kernel, space

    # At the end: the worker's own modules come first, as they have been imported.
    sys.path += [path for path in adopted.paths if path not in sys.path]
    found = attrgetter(adopted.qualname)(importlib.import_module(adopted.module))
    function = jitted(found)
    if function.cache_key != adopted.cache_key:
        raise RuntimeError(
            f"{adopted.module}.{adopted.qualname} is not the function that the application has: it changed since the "
            "application started, or the application runs in another environment"
        )
    worker = _workers[file] = _Worker(Path(file), adopted, found)
    kernel(
        backend="triton",
        name=adopted.name,
        space=space([dict(config) for config in adopted.configs], where=worker.admits),
        specialize=adopted.specialize,
        inputs=worker.inputs,
        reference="default",
        rtol=RTOL,
        atol=ATOL,
        max_mismatched_ratio=MAX_MISMATCHED_RATIO,
        setup=adopted.tensors,
        timing=adopted.timing,
        strategy="exhaustive",
        preset="fast",
    )(worker.build)
    return function


def hooks_of(file: str) -> SimpleNamespace:
    """Return the hooks of a kernel file's function by the names that Builds have for them; for kernel files."""
    return _workers[file].hooks()


class _Worker:
    """A kernel file's functions: they read the record that a problem names.

    Hooks get the tensors of the call whose inputs were declared last: a worker measures one problem at a time.
    """

    def __init__(self, file: Path, adopted: Adopted, found: Any) -> None:
        self._directory = file.parent / RECORDS
        self._adopted = adopted
        self._calls: dict[str, Call] = {}
        self._current: Call | None = None
        if not adopted.hooks:
            return
        self._tuner = autotuner_in(found)
        if (
            self._tuner is None
            or hook_names(self._tuner) != adopted.hooks
            or [canonical(knobs(config)) for config in self._tuner.configs] != [*map(canonical, adopted.configs)]
        ):
            raise RuntimeError(
                f"{adopted.module}.{adopted.qualname} has other hooks or configs than in the application, so its hooks "
                "cannot be found"
            )

    def admits(self, p: Any, c: Any) -> bool:
        """Return whether the application's pruning left a config; without a call that is not known, and not asked."""
        return CALL_KEY not in p or canonical(dict(c)) in self._call(p).recipes

    def inputs(self, p: Any) -> Mapping[str, Any]:
        """Declare the tensors of a call, each as a row of all its storage's elements."""
        from ktuned.spec import tensor

        self._current = call = self._call(p)
        found = {}
        for name, entry in call.tensors.items():
            is_captured = entry.fill == CAPTURED
            spec = tensor(entry.elements, entry.dtype, "zeros" if is_captured else entry.fill, output=True)
            found[name] = replace(spec, file=str(self._directory / call.content)) if is_captured else spec
        return found

    def build(self, p: Any, c: Any) -> Build:
        """Return a config's Build."""
        return self._call(p).build(canonical(dict(c)), FUNCTION_NAME)

    def hooks(self) -> SimpleNamespace:
        """Return what is called before and after a launch of each config."""
        own = self._tuner
        found: dict[str, Any] = {}
        for position, config in enumerate(own.configs):
            before = [config.pre_hook] if config.pre_hook else []
            before += [own.pre_hook] if own.user_defined_pre_hook else []
            found[f"pre_hook_{position}"] = partial(self._call_hooks, before)
            after = [own.post_hook] if own.user_defined_post_hook else []
            found[f"post_hook_{position}"] = partial(self._call_hooks, after)
        return SimpleNamespace(**found)

    def _call_hooks(self, hooks: Sequence[Any], arguments: Mapping[str, Any], **more: Any) -> None:
        """Call hooks with a launch's arguments, the tensors read as the application's are."""
        known = self._current.tensors if self._current is not None else {}
        given = {
            name: value.as_strided(known[name].shape, known[name].strides) if name in known else value
            for name, value in arguments.items()
        }
        for hook in hooks:
            hook(given, **more)

    def _call(self, p: Any) -> Call:
        name = p[CALL_KEY]
        if name not in self._calls:
            self._calls[name] = Call.from_json((self._directory / f"{name}.json").read_text())
        return self._calls[name]


_workers: dict[str, _Worker] = {}
"""The functions of each kernel file, as it was imported last."""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS]


def _write(path: Path, content: bytes) -> Path:
    """Write a file whose name stands for its content, unless it is there."""
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=".", delete=False) as staged:
        staged.write(content)
    os.replace(staged.name, path)
    return path
