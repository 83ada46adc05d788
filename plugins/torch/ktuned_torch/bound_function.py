"""Binds a Python function to tensors, and finds out whether a failed call means that the device cannot run it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ktuned import backends
from ktuned.backends import Launch, unknown_tensor
from ktuned.declaration import iterate_causes
from ktuned.model import Unsupported
from ktuned_torch.build import Build

_NEEDS_GPU = (
    # Triton, without a GPU and with one.
    "0 active drivers",
    "cannot be accessed from Triton (cpu tensor?)",
    # torch.cuda, in a build only for CPUs and without a GPU.
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver on your system",
)
_CANNOT_RUN = (
    # scaled_dot_product_attention, on CUDA and on the CPU, when sdpa_kernel(...) leaves no backend.
    "No available kernel. Aborting execution.",
    "No viable backend for scaled_dot_product_attention",
    *_NEEDS_GPU,
)
"""Parts of messages of torch and Triton about a device that lacks something; they have no exception types for it."""


def bind_arguments(function: Callable[..., Any], build: Build, tensors: Mapping[str, Any]) -> functools.partial[Any]:
    """Return a call of a function with a Build's arguments, on tensors.

    Raises:
        KeyError: an argument names none of the tensors.
    """
    for name in sorted(set(build.tensors) - tensors.keys()):
        raise KeyError(unknown_tensor(name, tensors))

    def resolve_argument(arg: Any) -> Any:
        return tensors[arg] if build.has_tensors and isinstance(arg, str) else arg

    named = {name: resolve_argument(arg) for name, arg in build.kwargs.items()}
    return functools.partial(function, *map(resolve_argument, build.args), **named)


class TorchKernel(backends.Kernel):
    """A function with a Build's arguments; with ``is_made_on_call`` its first call compiles it."""

    def __init__(self, function: Callable[..., Any], build: Build, *, is_made_on_call: bool) -> None:
        self._function = function
        self._build = build
        self._is_made_on_call = is_made_on_call

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a call of the function on ``tensors``.

        A function that its first call compiles is called here, on copies: compiling must not be part of a launch, and
        the tensors must not change.

        Raises:
            KeyError: an argument names a tensor that ``inputs`` does not declare.
            Unsupported: this device cannot run it.
        """
        call = bind_arguments(self._function, self._build, tensors)
        if self._is_made_on_call:
            copies = {name: tensors[name].clone() for name in self._build.tensors}
            self._make_launch(bind_arguments(self._function, self._build, copies))()
        return self._make_launch(call)

    def call(self, tensors: Mapping[str, Any]) -> Any:
        """Call the function once on ``tensors``, and return its result.

        Raises:
            KeyError: an argument names a tensor that is missing.
        """
        return bind_arguments(self._function, self._build, tensors)()

    def _make_launch(self, call: functools.partial[Any]) -> Launch:
        def launch() -> None:
            try:
                returned = call()
            except Exception as error:
                if reason := explain_unsupported(error):
                    raise Unsupported(reason) from error
                raise
            if returned is None or not self._build.has_tensors:
                return
            if not any(returned is argument for argument in (*call.args, *call.keywords.values())):
                raise TypeError(
                    f"{getattr(call.func, '__name__', call.func)} returned a {type(returned).__name__}, which is "
                    "ignored: it must write into its tensors, as in out.copy_(...)"
                )

        return launch


def explain_unsupported(error: BaseException) -> str:
    """Return the message of an error or its cause that says that the device cannot run this; empty if none does."""
    for each in iterate_causes(error):
        is_too_large = type(each).__name__ == "OutOfResources" and type(each).__module__.startswith("triton.")
        if is_too_large or any(words in str(each) for words in _CANNOT_RUN):
            needs_gpu = any(words in str(each) for words in _NEEDS_GPU)
            return f"it runs only on GPUs, and this device is not one: {each}" if needs_gpu else str(each)
    return ""
