"""Loads a winner's artifact in an application's own process, by its backend's plugin, and makes it callable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ktuned.backends import cpu
from ktuned.backends.contract import Absent, Backend, Kernel, Launch, Unit
from ktuned.backends.cuda import cuda_devices
from ktuned.backends.registry import Registry
from ktuned.ipc import DamagedArtifact, manifest
from ktuned.model import BackendError, Device, NotFound, listed

GPU_PREFIX = "sm_"
"""Prefix of the targets of NVIDIA's GPUs, and of no other device."""


class LoadedKernel:
    """A winner's kernel, which is called with its tensors, by the names of the kernel file's ``inputs``.

    Positional arguments are in the order of the kernel's own arguments, ``tensors``.
    """

    def __init__(self, name: str, kernel: Kernel, tensors: tuple[str, ...]) -> None:
        self.name = name
        self.tensors = tensors
        self._kernel = kernel

    def __call__(self, *args: Any, **tensors: Any) -> Any:
        """Run the kernel once; on a GPU in torch's current stream.

        Raises:
            TypeError: a tensor is missing, or the kernel has no such tensor.
        """
        return self._kernel.call(self._name_tensors(args, tensors))

    def bind(self, *args: Any, **tensors: Any) -> Launch:
        """Return a call without arguments for these tensors only, which costs the host the least time.

        Raises:
            TypeError: a tensor is missing, or the kernel has no such tensor.
        """
        return self._kernel.bind(self._name_tensors(args, tensors))

    def __repr__(self) -> str:
        return f"<{self.name}({', '.join(self.tensors)})>"

    def _name_tensors(self, args: tuple[Any, ...], tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        if not args and tensors.keys() == set(self.tensors):
            return tensors
        if len(args) > len(self.tensors):
            raise TypeError(f"{self!r} takes {len(self.tensors)} tensors, and got {len(args)}")
        named = dict(zip(self.tensors, args, strict=False))
        for name in tensors:
            if name in named or name not in self.tensors:
                fault = "got it twice" if name in named else f"has no such tensor {listed(self.tensors, near=name)}"
                raise TypeError(f"{self!r}: {name!r}: {fault}")
        named.update(tensors)
        missing = [name for name in self.tensors if name not in named]
        if missing:
            raise TypeError(f"{self!r} lacks the tensor{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
        return named


def load_winner(
    artifact: str | os.PathLike[str], kernel_file: str | None = None, device: str | None = None
) -> LoadedKernel:
    """Load a winner's artifact into this process.

    Clients find this function by the entry point ``winner`` of the group ``ktuned.loaders``.

    Args:
        artifact: the artifact's directory.
        kernel_file: the kernel file, for backends whose artifacts call its functions.
        device: a name such as ``cuda:1``; the first device by default.

    Raises:
        BackendError: the backend's plugin is missing, the artifact is damaged, or its device is not here.
        Unsupported: the device cannot run it.
        NotFound: there is no such device.
    """
    directory = Path(artifact)
    try:
        sealed = manifest.read(directory)
        recipe = sealed.recipe
        backend = Registry().load(sealed.backend)
        manifest.verify(directory, required=backend.required_files)
    except DamagedArtifact as error:
        raise BackendError(f"the artifact cannot be loaded: {error}", hint="tune the kernel again") from error
    if backend.needs_kernel_file and kernel_file is None:
        raise BackendError(
            f"a winner of the backend {backend.name!r} needs the kernel file, which this answer does not name",
            hint="look it up with a daemon: exported winners name no files",
        )
    build = backend.build.from_plain(recipe.build)
    unit = Unit(
        key=sealed.key,
        build=build,
        sources=(),
        kernel_file=Path(kernel_file or ""),
        kernel=recipe.kernel,
        target=recipe.target,
    )
    found_device = _find_device(backend, recipe.target, device)
    return LoadedKernel(recipe.kernel, backend.load(directory, unit, found_device), build.tensors)


def _find_device(backend: Backend, target: str, name: str | None) -> Device:
    """Return the device to load an artifact for. Nothing is compiled, so no compiler is needed.

    Raises:
        BackendError: this machine has no device of that kind.
        NotFound: it has no device with that name.
    """
    devices: Sequence[Device] | Absent
    if target.startswith(cpu.TARGET_PREFIX):
        devices = (cpu.device(),)
    elif target.startswith(GPU_PREFIX):
        devices = cuda_devices()
    else:
        devices = backend.devices()
    if isinstance(devices, Absent):
        raise BackendError(f"the winner is for {target}: {devices.message}", hint=devices.hint)
    for device in devices:
        if name in (None, device.name):
            return device
    raise NotFound(f"there is no device {name!r} {listed([str(device.name) for device in devices], near=name or '')}")
