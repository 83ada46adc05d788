"""Python function bound to tensors: its calls, and the meaning of their failures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ktuned import backends
from ktuned.backends import Launch, unknown_tensor
from ktuned.model import Unsupported
from ktuned.spec import iterate_causes

_NEEDS_GPU = (
    # Triton, without a GPU and with one.
    "0 active drivers",
    "cannot be accessed from Triton (cpu tensor?)",
    # torch.cuda, in a build for CPUs alone and without a GPU.
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver on your system",
)
_CANNOT_RUN = (
    # scaled_dot_product_attention, on CUDA and on the CPU, when sdpa_kernel(...) leaves no backend.
    "No available kernel. Aborting execution.",
    "No viable backend for scaled_dot_product_attention",
    *_NEEDS_GPU,
)
"""Parts of the messages of torch and Triton for a device that lacks a requirement; they have no exceptions for it."""


@dataclass(frozen=True)
class Call:
    """A function with its arguments, of which strings name tensors, or else stand for themselves."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    has_tensors: bool = True

    @property
    def named(self) -> frozenset[str]:
        """The tensors that the arguments name."""
        strings = (arg for arg in (*self.args, *self.kwargs.values()) if isinstance(arg, str))
        return frozenset(strings) if self.has_tensors else frozenset()

    def on(self, tensors: Mapping[str, Any]) -> functools.partial[Any]:
        """Return the call on these tensors.

        Raises:
            KeyError: an argument names none of them.
        """
        for name in sorted(self.named - tensors.keys()):
            raise KeyError(unknown_tensor(name, tensors))

        def value(arg: Any) -> Any:
            return tensors[arg] if self.has_tensors and isinstance(arg, str) else arg

        named = {name: value(arg) for name, arg in self.kwargs.items()}
        return functools.partial(self.function, *map(value, self.args), **named)


class TorchKernel(backends.Kernel):
    """A function over tensors; with ``is_made_on_call`` its first call compiles it."""

    def __init__(self, call: Call, *, is_made_on_call: bool) -> None:
        self._call = call
        self._is_made_on_call = is_made_on_call

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a call of the function on ``tensors``.

        A function that is compiled by its first call is called here on copies, so that compiling is not part of a
        launch, and the tensors stay unchanged.

        Raises:
            KeyError: an argument names a tensor that ``inputs`` does not declare.
            Unsupported: this device cannot run it.
        """
        call = self._call.on(tensors)
        if self._is_made_on_call:
            copies = {name: tensors[name].clone() for name in self._call.named}
            self._launch(self._call.on(copies))()
        return self._launch(call)

    def call(self, tensors: Mapping[str, Any]) -> Any:
        """Call the bound function once on ``tensors``, and return what it returns.

        Raises:
            KeyError: an argument names a tensor that is missing.
        """
        return self._call.on(tensors)()

    def _launch(self, call: functools.partial[Any]) -> Launch:
        def launch() -> None:
            try:
                returned = call()
            except Exception as error:
                if why := why_unsupported(error):
                    raise Unsupported(why) from error
                raise
            if returned is None or not self._call.has_tensors:
                return
            if not any(returned is argument for argument in (*call.args, *call.keywords.values())):
                raise TypeError(
                    f"{getattr(call.func, '__name__', call.func)} returned a {type(returned).__name__}, which is "
                    "ignored: it must write into its tensors, as in out.copy_(...)"
                )

        return launch


def why_unsupported(error: BaseException) -> str:
    """Return the message by which an error, or one of its causes, says that the device cannot run this; else ``""``."""
    for each in iterate_causes(error):
        is_too_large = type(each).__name__ == "OutOfResources" and type(each).__module__.startswith("triton.")
        if is_too_large or any(words in str(each) for words in _CANNOT_RUN):
            needs_gpu = any(words in str(each) for words in _NEEDS_GPU)
            return f"it runs on GPUs alone, and this device is none: {each}" if needs_gpu else str(each)
    return ""
