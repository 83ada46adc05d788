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
from ktuned.model import BackendError, Device, NotFound, canonical, listed

ANY = -1
"""Stands for any size in a shape."""

MOST_ACCEPTED = 1_000
"""Most combinations of shapes that a callable remembers as right; a combination takes some 500 bytes."""

GPU_PREFIX = "sm_"
"""Prefix of the targets of NVIDIA's GPUs, and of no other device."""


class LoadedKernel:
    """A winner's kernel, which is called with its tensors, by the names of the kernel file's ``inputs``.

    Positional arguments are in the order of the kernel's own arguments, ``tensors``.
    """

    def __init__(
        self, name: str, kernel: Kernel, tensors: tuple[str, ...], device: str, allowed: Sequence[manifest.Tensors]
    ) -> None:
        self.name = name
        self.tensors = tensors
        self._kernel = kernel
        self._device = device
        self._allowed = allowed
        self._accepted: set[tuple[Any, ...]] = set()

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
        named = tensors if not args and tensors.keys() == set(self.tensors) else self._order_tensors(args, tensors)
        kinds = tuple([_find_kind(named[name]) for name in self.tensors])
        if kinds not in self._accepted:
            self._check_tensors(dict(zip(self.tensors, kinds, strict=True)))
            if len(self._accepted) >= MOST_ACCEPTED:
                self._accepted.clear()
            self._accepted.add(kinds)
        return named

    def _check_tensors(self, kinds: Mapping[str, tuple[Any, ...]]) -> None:
        """Check the dtype, shape and device of each tensor: a kernel that gets others reads past their ends.

        Raises:
            TypeError: a dtype is another one.
            ValueError: a shape or a device is.
        """
        for name, (dtype, shape, device) in kinds.items():
            wanted = [one[name] for one in self._allowed if name in one]
            dtypes = {known for known, _ in wanted}
            found = str(dtype).removeprefix("torch.")
            if dtypes and found not in dtypes:
                raise TypeError(f"{self!r}: {name} is {found}, and the winner was measured with {', '.join(dtypes)}")
            if wanted and not any(_fits(tuple(shape), known) for _, known in wanted):
                such = " or ".join(sorted({_format_shape(known) for _, known in wanted}))
                raise ValueError(f"{self!r}: {name} has the shape {_format_shape(shape)}, and the problem has {such}")
            place = "cpu" if device is None else str(device)
            if place not in (self._device, self._device.removesuffix(":0")):
                raise ValueError(f"{self!r}: {name} is on {place}, and the winner was loaded for {self._device}")

    def _order_tensors(self, args: tuple[Any, ...], tensors: Mapping[str, Any]) -> Mapping[str, Any]:
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


def _find_kind(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, getattr(tensor, "device", None)


def _fits(shape: tuple[int, ...], known: tuple[int, ...]) -> bool:
    """Return whether a shape is a known one; ``ANY`` stands for any size."""
    return len(shape) == len(known) and all(one in (size, ANY) for one, size in zip(known, shape, strict=True))


def _format_shape(shape: Sequence[int]) -> str:
    sizes = ["any" if size == ANY else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def find_allowed_tensors(directory: Path, problem: Mapping[str, Any] | None) -> list[manifest.Tensors]:
    """Return the tensors that an artifact may be called with for a problem: those that it was measured with.

    If it was measured for other problems alone, as in a bucket, their dtypes and numbers of dimensions count.
    """
    known = manifest.read_tensors(directory)
    if problem is not None and (exact := known.get(canonical(problem))) is not None:
        return [exact]
    return [
        {name: (dtype, (ANY,) * len(shape)) for name, (dtype, shape) in tensors.items()} for tensors in known.values()
    ]


def load_winner(
    artifact: str | os.PathLike[str],
    kernel_file: str | None = None,
    device: str | None = None,
    problem: Mapping[str, Any] | None = None,
) -> LoadedKernel:
    """Load a winner's artifact into this process.

    Clients find this function by the entry point ``winner`` of the group ``ktuned.loaders``.

    Args:
        artifact: the artifact's directory.
        kernel_file: the kernel file, for backends whose artifacts call its functions.
        device: a name such as ``cuda:1``; the first device by default.
        problem: the problem that was asked for, which decides the tensors' shapes.

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
    kernel, allowed = backend.load(directory, unit, found_device), find_allowed_tensors(directory, problem)
    return LoadedKernel(recipe.kernel, kernel, build.tensors, str(found_device.name), allowed)


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
