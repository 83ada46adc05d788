"""Kernels of applications in ktuned's workers, declared from what an application left; nothing of its own is imported.

A call is data. Only the front end imports the library, because Triton translates Python; lanes and compile workers have
its result. The exception is a function with hooks that are more than data: its kernel file imports the library, and the
workers that open it are its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ktuned.dropin import CALLS, Calls, called_file, declaration_of
from ktuned.model import canonical
from ktuned_triton.build import Build
from ktuned_triton.call import CAPTURED, Call, autotuner_in, hook_names, knobs
from ktuned_triton.library import Library

RTOL, ATOL = 1e-2, 1e-2
"""Two configs' sums of half-precision products differ in their order, and so in the last digits."""

MAX_MISMATCHED_RATIO = 1e-3

_HOOKS = "adopted"
"""The name in a kernel file of what :func:`adopt` returns, where Builds find their hooks."""


def adopt(file: str, name: str, identity: str) -> Any:
    """Declare the kernel of an application's function; for the kernel files that the daemon writes.

    Returns:
        what a Build's hooks are found in.

    Raises:
        RuntimeError: its hooks are user code, and are others here than in the application.
    """
    from ktuned.spec import kernel, space

    declared = declaration_of(Path(file), identity)
    adopted = _AdoptedKernel(Path(file), declared)
    kernel(
        backend="triton",
        name=name,
        space=space(adopted.configs),
        specialize=tuple(declared["specialize"]),
        inputs=adopted.inputs,
        reference="default",
        rtol=RTOL,
        atol=ATOL,
        max_mismatched_ratio=MAX_MISMATCHED_RATIO,
        setup=tuple(declared["tensors"]),
        timing="graph" if declared["is_timed_by_graph"] else "events",
        strategy="exhaustive",
        preset="fast",
        numerics=declared.get("numerics", "tolerance"),
        is_data=not declared["hooks"],
    )(adopted.build)
    return adopted.hooks() if declared["hooks"] else SimpleNamespace()


class _AdoptedKernel:
    """A kernel file's functions: they read the call that a problem names.

    Hooks get the tensors of the call whose inputs were declared last: a worker measures one problem at a time.
    """

    def __init__(self, file: Path, declared: Mapping[str, Any]) -> None:
        self._file = file
        self._declared = declared
        self._calls = Calls(file, Call.from_json)
        self._current: Call | None = None

    def configs(self, p: Any) -> Iterator[dict[str, Any]]:
        """Yield the configs that the application's pruning left, in its order."""
        yield from (json.loads(text) for text in self._calls.find_call(p).recipes)

    def inputs(self, p: Any) -> Mapping[str, Any]:
        """Declare the tensors of a call, each as a row of all its storage's elements."""
        from ktuned.spec import tensor

        self._current = call = self._calls.find_call(p)
        found = {}
        for name, entry in call.tensors.items():
            is_captured = entry.fill == CAPTURED
            spec = tensor(entry.elements, entry.dtype, "zeros" if is_captured else entry.fill, output=True)
            found[name] = replace(spec, file=str(called_file(self._file, call.content))) if is_captured else spec
        return found

    def build(self, p: Any, c: Any) -> Build:
        """Return a config's Build."""
        call, text, origin = self._calls.find_call(p), canonical(dict(c)), self._declared["origin"]
        position = call.recipes[text].position
        hooks = (
            {}
            if position is None
            else {
                "pre_hook": f"{_HOOKS}.pre_hook_{position}",
                "post_hook": f"{_HOOKS}.post_hook_{position}",
            }
        )
        library = Library(
            "" if origin["source"] else origin["module"].partition(".")[0], tuple(self._declared["paths"])
        )
        return call.build(
            text,
            origin["qualname"] if origin["source"] else f"{origin['module']}:{origin['qualname']}",
            library=library.to_plain(),
            source=f"{CALLS}/{origin['module']}.py" if origin["source"] else "",
            cache_key=self._declared["cache_key"],
            globals_read=tuple(self._declared["constants"]),
            **hooks,
        )

    def hooks(self) -> SimpleNamespace:
        """Return what is called before and after a launch of each config, from the library's own autotuner.

        Raises:
            RuntimeError: it has others than the application's.
        """
        origin = self._declared["origin"]
        # At the end: the worker's own modules come first, as they have been imported.
        sys.path += [path for path in self._declared["paths"] if path not in sys.path]
        tuner = autotuner_in(attrgetter(origin["qualname"])(importlib.import_module(origin["module"])))
        known = [] if tuner is None else [canonical(knobs(config)) for config in tuner.configs]
        declared = self._declared["configs"][: len(known)]
        if tuner is None or list(hook_names(tuner)) != list(self._declared["hooks"]) or known != list(declared):
            raise RuntimeError(
                f"{origin['module']}.{origin['qualname']} has other hooks or configs than in the application, so its "
                "hooks cannot be found"
            )
        found: dict[str, Any] = {}
        for position, config in enumerate(tuner.configs):
            before = [config.pre_hook] if config.pre_hook else []
            before += [tuner.pre_hook] if tuner.user_defined_pre_hook else []
            found[f"pre_hook_{position}"] = partial(self._call_hooks, before)
            after = [tuner.post_hook] if tuner.user_defined_post_hook else []
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
