"""A loaded kernel in a lane: binds it to the tensors that a Build names, and launches it through TileLang."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ktuned import backends
from ktuned.backends import Absent, Launch, cuda_devices, runs_on, unknown_tensor
from ktuned.model import BackendError, Device, Unsupported
from ktuned_tilelang.artifact import load_kernel, read_recipe
from ktuned_tilelang.build import Argument
from ktuned_tilelang.recipe import Recipe


class TileLangKernel(backends.Kernel):
    """A kernel that TileLang has loaded, on one device; its launch takes all parameters, outputs included."""

    def __init__(self, kernel: Any, recipe: Recipe, args: tuple[Argument, ...] | None) -> None:
        """Wrap a loaded kernel; ``args`` are the Build's.

        Raises:
            ValueError: there are more or fewer args than the kernel has parameters.
        """
        names = recipe.parameters
        if args is not None and len(args) != len(names):
            raise ValueError(f"args has {len(args)} of {len(names)} values; {recipe.function} takes {', '.join(names)}")
        self._kernel = kernel
        self._args: tuple[Argument, ...] = names if args is None else args

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a call of TileLang's kernel on ``tensors``, on torch's current stream.

        Raises:
            KeyError: ``args`` names a tensor that ``inputs`` does not make.
        """
        values = []
        for value in self._args:
            if isinstance(value, str) and value not in tensors:
                raise KeyError(unknown_tensor(value, tensors))
            values.append(tensors[value] if isinstance(value, str) else value)
        return cast(Launch, functools.partial(_call_kernel, self._kernel.torch_function, *values))


def load_kernel_on(artifact: Path, device: Device, args: tuple[Argument, ...] | None) -> TileLangKernel:
    """Load an artifact on a lane's device.

    Raises:
        Unsupported: it is for another architecture, or another TileLang compiled it.
        BackendError: the device cannot be reached.
    """
    recipe = read_recipe(artifact)
    if not runs_on(recipe.target, device.target):
        raise Unsupported(f"compiled for {recipe.target}, and {device.name} is {device.target}")
    gpus = cuda_devices()
    if isinstance(gpus, Absent):
        raise BackendError(f"a kernel cannot be loaded: {gpus.message}", hint=gpus.hint)
    torch: Any = importlib.import_module("torch")
    with torch.cuda.device(int(device.name.rpartition(":")[2])):
        return TileLangKernel(load_kernel(artifact, recipe, ()), recipe, args)


def _call_kernel(function: Any, *values: Any) -> None:
    """Launch, and drop the result, because ktuned would take a launch's return value for the launch's own timing."""
    function(*values)
