"""Declares an application's function as a kernel in ktuned's workers, from the record that the application left.

A call is plain data, so the kernel file imports nothing of the application. Only the front end imports its library,
because Triton translates Python; compile workers and lanes take the front end's result. The exception is a function
whose hooks are user code: its kernel file imports the library, and so it gets workers of its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ktuned.dropin import CALLS, Calls, called_file, declaration_of
from ktuned.model import Config, canonical
from ktuned_triton.build import Build
from ktuned_triton.call import CAPTURED, Call, find_autotuner, list_hook_names, read_knobs
from ktuned_triton.declaration import Declaration
from ktuned_triton.library import Library

RTOL, ATOL = 1e-2, 1e-2
"""Configs sum half-precision products in different orders, so their last digits differ."""

MAX_MISMATCHED_RATIO = 1e-3

_HOOKS = "adopted"
"""The variable of a kernel file that holds :func:`adopt`'s result; Builds name their hooks by it."""


def adopt(file: str, name: str, identity: str) -> Any:
    """Declare the kernel of an application's function; called by the kernel files that the daemon writes.

    Returns:
        a namespace with the hooks of each config.

    Raises:
        RuntimeError: its hooks are user code, and the library's hooks are not the application's.
    """
    from ktuned.spec import kernel, space

    declared = Declaration.from_plain(declaration_of(Path(file), identity))
    adopted = _AdoptedKernel(Path(file), declared)
    kernel(
        backend="triton",
        name=name,
        space=space(adopted.yield_configs),
        specialize=declared.specialize,
        inputs=adopted.declare_inputs,
        reference="default",
        rtol=RTOL,
        atol=ATOL,
        max_mismatched_ratio=MAX_MISMATCHED_RATIO,
        setup=declared.tensors,
        timing="graph" if declared.is_timed_by_graph else "events",
        strategy="exhaustive",
        preset="fast",
        numerics=declared.numerics,
        is_data=not declared.hooks,
    )(adopted.make_build)
    return adopted.find_hooks() if declared.hooks else SimpleNamespace()


class _AdoptedKernel:
    """The space, inputs and Builds of an adopted kernel, all read from the recorded call that a problem names.

    Hooks get the tensors of the call whose inputs were declared last: a worker measures one problem at a time.
    """

    def __init__(self, file: Path, declared: Declaration) -> None:
        self._file = file
        self._declared = declared
        self._calls = Calls(file, Call.from_json)
        self._current: Call | None = None

    def yield_configs(self, p: Any) -> Iterator[Config]:
        """Yield the configs that are left after the application's pruning, in its order."""
        yield from (json.loads(text) for text in self._calls.find_call(p).recipes)

    def declare_inputs(self, p: Any) -> Mapping[str, Any]:
        """Declare the tensors of a call, each as one row of elements up to the end of its storage."""
        from ktuned.spec import tensor

        self._current = call = self._calls.find_call(p)
        specs = {}
        for name, entry in call.tensors.items():
            is_captured = entry.fill == CAPTURED
            spec = tensor(entry.elements, entry.dtype, "zeros" if is_captured else entry.fill, output=True)
            specs[name] = replace(spec, file=str(called_file(self._file, call.content))) if is_captured else spec
        return specs

    def make_build(self, p: Any, c: Any) -> Build:
        """Return a config's Build."""
        call, text, origin = self._calls.find_call(p), canonical(dict(c)), self._declared.origin
        position = call.recipes[text].position
        hooks = (
            {}
            if position is None
            else {
                "pre_hook": f"{_HOOKS}.pre_hook_{position}",
                "post_hook": f"{_HOOKS}.post_hook_{position}",
            }
        )
        library = Library("" if origin.source else origin.module.partition(".")[0], self._declared.paths)
        return call.make_build(
            text,
            origin.name,
            library=library.to_plain(),
            source=f"{CALLS}/{origin.module}.py" if origin.source else "",
            cache_key=self._declared.cache_key,
            globals_read=self._declared.constants,
            **hooks,
        )

    def find_hooks(self) -> SimpleNamespace:
        """Import the library and return the hooks of each config, from its autotuner.

        Raises:
            RuntimeError: the library's hooks or configs are not the application's.
        """
        origin = self._declared.origin
        # At the end, so that the worker's own modules keep priority.
        sys.path += [path for path in self._declared.paths if path not in sys.path]
        tuner = find_autotuner(attrgetter(origin.qualname)(importlib.import_module(origin.module)))
        configs = [] if tuner is None else [canonical(read_knobs(config)) for config in tuner.configs]
        declared = self._declared.configs[: len(configs)]
        if tuner is None or list(list_hook_names(tuner)) != list(self._declared.hooks) or configs != list(declared):
            raise RuntimeError(
                f"{origin.module}.{origin.qualname} has other hooks or configs than in the application: "
                "restart the application, so that it records its present ones"
            )
        hooks: dict[str, Callable[..., None]] = {}
        for position, config in enumerate(tuner.configs):
            before = [config.pre_hook] if config.pre_hook else []
            before += [tuner.pre_hook] if tuner.user_defined_pre_hook else []
            hooks[f"pre_hook_{position}"] = partial(self._call_hooks, before)
            after = [tuner.post_hook] if tuner.user_defined_post_hook else []
            hooks[f"post_hook_{position}"] = partial(self._call_hooks, after)
        return SimpleNamespace(**hooks)

    def _call_hooks(self, hooks: Sequence[Any], arguments: Mapping[str, Any], **more: Any) -> None:
        """Call hooks with a launch's arguments; tensors get the shapes and strides of the application's."""
        tensors = self._current.tensors if self._current is not None else {}
        shaped_arguments = {
            name: value.as_strided(tensors[name].shape, tensors[name].strides) if name in tensors else value
            for name, value in arguments.items()
        }
        for hook in hooks:
            hook(shaped_arguments, **more)
