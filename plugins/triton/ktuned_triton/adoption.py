"""Kernels of applications, as kernel files: written by the application, read by ktuned's workers."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from ktuned import dropin
from ktuned.dropin import (
    CALL_KEY,
    RECORDS,
    AdoptedRequest,
    Calls,
    tensors_file,
    write_once,
    write_record,
    write_tensors,
)
from ktuned.model import canonical
from ktuned_triton.build import Build
from ktuned_triton.call import CAPTURED, HOOKS_NAME, Call, LeftAlone, autotuner_in, hook_names, jitted, knobs
from ktuned_triton.evaluation import constants_read

FUNCTION_NAME = "function"
"""The name of the application's function in its kernel file."""

RTOL, ATOL = 1e-2, 1e-2
"""Two configs' sums of half-precision products differ in their order, and so in the last digits."""

MAX_MISMATCHED_RATIO = 1e-3

_LATER_FIELDS = ("evaluation", "constants", "variables", "script")


@dataclass(frozen=True, kw_only=True)
class Adopted(dropin.Adopted):
    """An application's function: all that its kernel file says.

    Attributes:
        cache_key: Triton's digest of its source, and of all that it calls.
        specialize: the problem keys that are its tuning key.
        tensors: the parameters that are tensors. Each run finds them as they were, and all are compared, because it
            is not known which of them the kernel writes.
        paths: the application's ``sys.path``.
        hooks: the names of its hooks, as :func:`~ktuned_triton.call.hook_names` gives them.
        evaluation: the digest of what the application alone runs: pruning and heuristics.
        constants: the values of globals that it is compiled with, of which ``cache_key`` says nothing.
        variables: the application's variables that change what Triton makes.
        script: the name of a module that is written beside the kernel file, for a function of the application's script.
        source: the text of that module, which the kernel file does not repeat.
    """

    tool: ClassVar[str] = "triton"

    cache_key: str
    specialize: tuple[str, ...]
    tensors: tuple[str, ...]
    paths: tuple[str, ...]
    hooks: tuple[str, ...] = ()
    evaluation: str = ""
    constants: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    script: str = ""
    source: str = ""

    def fields(self) -> dict[str, Any]:
        """Return all that the kernel file says; no empty fields of later versions: older kernels keep their names."""
        found = {name: value for name, value in super().fields().items() if name != "source"}
        return {name: value for name, value in found.items() if value or name not in _LATER_FIELDS}

    def environment(self) -> list[Any]:
        """Return the interpreter, the path, and variables where there are any."""
        return [sys.executable, self.paths, *filter(None, [self.variables])]

    def text(self) -> str:
        """Return the text of the kernel file."""
        hooks = f"{HOOKS_NAME} = hooks_of(__file__)\n" if self.hooks else ""
        return (
            f'"""{self.function} as an application calls it; written by ktuned-triton."""\n\n'
            f"from ktuned_triton.adoption import Adopted, adopt, hooks_of\n\n"
            f"{FUNCTION_NAME} = adopt(__file__, Adopted(\n    {self.arguments()},\n))\n{hooks}"
        )

    def file_name(self) -> str:
        """Return the name of the kernel file, by which an export knows the function."""
        return f"tune_{self.qualname.replace('.', '_')}_{self.digest[:8]}.py"

    def write(self, directory: Path) -> Path:
        """Write a Triton function's kernel file, unless it is there, after its variables and script's module."""
        if self.variables:
            # JSON's strings are TOML's.
            env = "\n".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in self.variables)
            write_once(directory / self.project / "ktuned.toml", f"[env]\n{env}\n")
        if self.source:
            write_once(directory / self.project / RECORDS / f"{self.script}.py", self.source)
        return super().write(directory)


@dataclass(frozen=True, slots=True)
class Request(AdoptedRequest):
    """A tuning key of an adopted function, with one call that has it.

    ``content`` are copies on the CPU of those of its tensors whose content is the call's own, ``device`` is the model
    of the GPU that they are on.
    """

    adopted: Adopted
    problem: Mapping[str, Any]
    call: Call
    content: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None

    def write_call(self, kernel_file: Path) -> str:
        """Write the call and its tensors beside the kernel file, and return its name."""
        call = self.call
        if self.content:
            call = replace(call, content=write_tensors(kernel_file, self.content))
        return write_record(kernel_file, call.to_json())

    def without_content(self) -> Request:
        """Return this without the copies of tensors."""
        return replace(self, content={})


def adopt(file: str, adopted: Adopted) -> Any:
    """Declare the kernel of an application's function and return the ``@triton.jit`` function; for kernel files.

    Raises:
        RuntimeError: the function, or its autotuner's hooks, are others here than in the application.
    """
    from ktuned.spec import kernel, space

    # At the end: the worker's own modules come first, as they have been imported.
    paths = [*adopted.paths, str(Path(file).parent / RECORDS)] if adopted.script else adopted.paths
    sys.path += [path for path in paths if path not in sys.path]
    module = importlib.import_module(adopted.script or adopted.module)
    try:
        found = attrgetter(adopted.qualname)(module)
        function = jitted(found)
    except (AttributeError, LeftAlone):
        found = function = None
    if (
        function is None
        or function.cache_key != adopted.cache_key
        or (adopted.constants and constants_read(function) != adopted.constants)
    ):
        name, no = f"{adopted.module}.{adopted.qualname}", "no longer" if function is None else "not"
        raise RuntimeError(
            f"{name} is {no} the function that the application has: it changed since the application started, or the "
            "application runs in another environment"
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
        self._file = file
        self._adopted = adopted
        self._calls = Calls(file, Call.from_json)
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
        return CALL_KEY not in p or canonical(dict(c)) in self._calls.of(p).recipes

    def inputs(self, p: Any) -> Mapping[str, Any]:
        """Declare the tensors of a call, each as a row of all its storage's elements."""
        from ktuned.spec import tensor

        self._current = call = self._calls.of(p)
        found = {}
        for name, entry in call.tensors.items():
            is_captured = entry.fill == CAPTURED
            spec = tensor(entry.elements, entry.dtype, "zeros" if is_captured else entry.fill, output=True)
            found[name] = replace(spec, file=str(tensors_file(self._file, call.content))) if is_captured else spec
        return found

    def build(self, p: Any, c: Any) -> Build:
        """Return a config's Build."""
        return self._calls.of(p).build(canonical(dict(c)), FUNCTION_NAME)

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


_workers: dict[str, _Worker] = {}
"""The functions of each kernel file, as it was imported last."""
