"""Functions of a loaded ``kernel.so``: binds them to tensors."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

from ktuned import backends
from ktuned.backends import Launch, unknown_tensor
from ktuned.model import Scalar


class TvmFfiKernel(backends.Kernel):
    """A function of a loaded ``kernel.so``, to be called on CPU tensors."""

    def __init__(self, function: Any, args: tuple[Scalar, ...]) -> None:
        self._function = function
        self._args = args

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a call of the function on ``tensors``: any with DLPack, such as torch's.

        Raises:
            KeyError: ``args`` names a tensor that ``inputs`` does not declare.
        """
        bound: list[Any] = []
        for arg in self._args:
            if isinstance(arg, str) and arg not in tensors:
                raise KeyError(unknown_tensor(arg, tensors))
            bound.append(self._convert_tensor(tensors[arg]) if isinstance(arg, str) else arg)
        return cast(Launch, functools.partial(self._function, *bound))

    def _convert_tensor(self, tensor: Any) -> Any:
        """Convert a tensor ahead of calls: a call that converts three torch tensors itself takes twice as long."""
        import tvm_ffi

        return tvm_ffi.from_dlpack(tensor)


class TvmFfiCudaKernel(TvmFfiKernel):
    """A function of a loaded ``kernel.so`` that launches CUDA kernels."""

    def _convert_tensor(self, tensor: Any) -> Any:
        """Return the torch tensor itself: the call takes torch's current stream from it."""
        return tensor
