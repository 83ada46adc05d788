"""Python function bound to tensors: its calls, and the meaning of their failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ktuned import backends
from ktuned.backends import Launch
from ktuned.model import Scalar, Unsupported

_CANNOT_RUN = (
    # scaled_dot_product_attention, on CUDA and on the CPU, when sdpa_kernel(...) leaves no backend.
    "No available kernel. Aborting execution.",
    "No viable backend for scaled_dot_product_attention",
    # Triton, without a GPU and with one.
    "0 active drivers",
    "cannot be accessed from Triton (cpu tensor?)",
)
"""Parts of the messages of torch and Triton for a device that lacks a requirement; they have no exceptions for it."""


class TorchKernel(backends.Kernel):
    """A function over tensors; with ``is_made_on_call`` its first call compiles it."""

    def __init__(self, function: Callable[..., Any], args: tuple[Scalar, ...], *, is_made_on_call: bool) -> None:
        self._function = function
        self._args = args
        self._is_made_on_call = is_made_on_call

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a call of the function on ``tensors``.

        A function that is compiled by its first call is called here on copies, so that compiling is not part of a
        launch, and the tensors stay unchanged.

        Raises:
            KeyError: ``args`` names a tensor that ``inputs`` does not declare.
            Unsupported: this device cannot run it.
        """
        call = _call(self._function, _arguments(self._args, tensors))
        if self._is_made_on_call:
            used = {arg for arg in self._args if isinstance(arg, str)}
            _call(self._function, _arguments(self._args, {name: tensors[name].clone() for name in used}))()
        return call


def why_unsupported(error: BaseException) -> str:
    """Return the message by which an error, or one of its causes, says that the device cannot run this; else ``""``."""
    for each in _causes(error):
        is_too_large = type(each).__name__ == "OutOfResources" and type(each).__module__.startswith("triton.")
        if is_too_large or any(words in str(each) for words in _CANNOT_RUN):
            return str(each)
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        yield following
        seen.add(id(following))
        following = following.__cause__ or following.__context__


def _arguments(args: tuple[Scalar, ...], tensors: Mapping[str, Any]) -> tuple[Any, ...]:
    for arg in args:
        if isinstance(arg, str) and arg not in tensors:
            raise KeyError(f"args names the tensor {arg!r}; inputs declares {', '.join(sorted(tensors)) or 'none'}")
    return tuple(tensors[arg] if isinstance(arg, str) else arg for arg in args)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Launch:
    def launch() -> None:
        try:
            returned = function(*arguments)
        except Exception as error:
            if why := why_unsupported(error):
                raise Unsupported(why) from error
            raise
        if returned is not None and not any(returned is argument for argument in arguments):
            raise TypeError(
                f"{getattr(function, '__name__', function)} returned a {type(returned).__name__}, which is ignored: "
                "it must write into its tensors, as in out.copy_(...)"
            )

    return launch
