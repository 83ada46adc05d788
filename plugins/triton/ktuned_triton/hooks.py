"""Launches with the hooks of a Build around them, as Triton's autotuner runs a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from ktuned import backends
from ktuned.backends import Launch, Unit
from ktuned.spec import functions
from ktuned_triton.build import HOOKS, Build
from ktuned_triton.signature import FakeTensor, make_call_arguments


def wrap_with_hooks(kernel: backends.Kernel, unit: Unit) -> backends.Kernel:
    """Return a kernel whose launches call the Build's hooks; the kernel itself if there are none.

    Raises:
        LookupError: a hook cannot be found.
    """
    return _HookedKernel(kernel, unit) if has_hooks(unit.build) else kernel


def has_hooks(build: backends.Build) -> bool:
    """Return whether a Build's launches call hooks."""
    return any(getattr(build, name) is not None for name in HOOKS)


class _HookedKernel(backends.Kernel):
    def __init__(self, kernel: backends.Kernel, unit: Unit) -> None:
        build = cast(Build, unit.build)
        self._kernel = kernel
        self._before = _find_hook(build.pre_hook, unit)
        self._after = _find_hook(build.post_hook, unit)
        function = functions.find_function(str(build.function), unit.kernel_file)
        self._arguments = {**make_call_arguments(function, build, unit.kernel_file), **build.compiler_options}

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a launch between its hooks."""
        arguments = {name: _insert_tensors(value, tensors) for name, value in self._arguments.items()}
        inner, before, after = self._kernel.bind(tensors), self._before, self._after

        def launch() -> None:
            if before is not None:
                before(arguments)
            inner()
            if after is not None:
                after(arguments, exception=None)

        return launch


def _find_hook(hook: Callable[..., Any] | str | None, unit: Unit) -> Callable[..., Any] | None:
    return None if hook is None else functions.find_function(str(hook), unit.kernel_file)


def _insert_tensors(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_insert_tensors(item, tensors) for item in value)
    return tensors[value.name] if isinstance(value, FakeTensor) else value
