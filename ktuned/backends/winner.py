"""Loads a winner's artifact in an application's own process, by its backend's plugin, and makes it callable."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ktuned.backends import cpu
from ktuned.backends.contract import Absent, Backend, Kernel, Launch, Layout, Unit, read_layout
from ktuned.backends.cuda import cuda_devices
from ktuned.backends.registry import Registry
from ktuned.ipc import DamagedArtifact, manifest
from ktuned.model import BackendError, Device, NotFound, canonical, listed

MOST_ACCEPTED = 1_000
"""Most combinations of layouts that a callable remembers as right; a combination takes some 500 bytes."""

GPU_PREFIX = "sm_"
"""Prefix of the targets of NVIDIA's GPUs, and of no other device."""


class LoadedKernel:
    """A winner's kernel, which is called with its tensors, by the names of the kernel file's ``inputs``.

    Positional arguments are in the order of the kernel's own arguments, ``tensors``.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        tensors: tuple[str, ...],
        device: str,
        known: Mapping[str, manifest.Tensors],
        problem: Mapping[str, Any] | None = None,
        *,
        reads_strides: bool = False,
    ) -> None:
        self.name = name
        self.tensors = tensors
        self._kernel = kernel
        self._device = device
        # If the artifact was measured for other problems alone, as in a bucket, their sizes do not count.
        exact = None if problem is None else known.get(canonical(problem))
        self._takes_any_size = exact is None
        self._known = list(known.values()) if exact is None else [exact]
        self._reads_strides = reads_strides
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
            for name in self.tensors:
                self._check_tensor(name, named[name])
            if len(self._accepted) >= MOST_ACCEPTED:
                self._accepted.clear()
            self._accepted.add(kinds)
        return named

    def _check_tensor(self, name: str, tensor: Any) -> None:
        """Check a tensor's dtype, shape, strides and device: a kernel that gets others reads past its end.

        Raises:
            TypeError: it is no tensor, or its dtype is another one.
            ValueError: its shape, its strides or its device is, or it is read-only.
        """
        if not hasattr(tensor, "stride") and not hasattr(tensor, "strides"):
            raise TypeError(f"{self!r}: {name} is a {type(tensor).__name__}, not a tensor")
        if not getattr(getattr(tensor, "flags", None), "writeable", True):
            raise ValueError(f"{self!r}: {name} is a read-only array: pass a copy of it")
        place = str(getattr(tensor, "device", None) or "cpu")
        if place not in (self._device, self._device.removesuffix(":0")):
            raise ValueError(f"{self!r}: {name} is on {place}, and the winner was loaded for {self._device}")
        layout = read_layout(tensor)
        wanted = [tensors[name] for tensors in self._known if name in tensors]
        if layout is None or not wanted:
            return
        found, shape, strides = layout
        if found not in (dtypes := {dtype for dtype, _, _ in wanted}):
            raise TypeError(f"{self!r}: {name} is {found}, and the winner was measured with {', '.join(dtypes)}")
        fitting = [known for known in wanted if self._fits_shape(shape, known[1])]
        if not fitting:
            such = " or ".join(sorted({_format_shape(known, is_any=self._takes_any_size) for _, known, _ in wanted}))
            raise ValueError(f"{self!r}: {name} has the shape {_format_shape(shape)}, and the problem has {such}")
        if not self._reads_strides and not any(_fits_strides(shape, strides, known) for known in fitting):
            such = " or ".join(sorted({str(known) for _, _, known in fitting}))
            raise ValueError(
                f"{self!r}: {name} has the strides {strides}, and the winner was measured with {such}: "
                "pass a copy that has these"
            )

    def _fits_shape(self, shape: tuple[int, ...], known: tuple[int, ...]) -> bool:
        return len(shape) == len(known) if self._takes_any_size else shape == known

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
    """Return, fast, all that :meth:`LoadedKernel._check_tensor` reads. No two tensors that it tells apart are equal."""
    try:
        strides = tensor.stride() if hasattr(tensor, "stride") else (tensor.strides, tensor.flags.writeable)
        return tensor.dtype, tensor.shape, strides, getattr(tensor, "device", None)
    except (AttributeError, RuntimeError):
        # A sparse tensor has a device to check, and anything else is refused.
        return type(tensor), getattr(tensor, "device", None)


def _fits_strides(shape: tuple[int, ...], strides: tuple[int, ...], known: Layout) -> bool:
    """Return whether strides are those of a known tensor, or both are contiguous; a size of 1 needs no stride."""
    _, known_shape, known_strides = known
    if _is_contiguous(known_shape, known_strides):
        return _is_contiguous(shape, strides)
    return all(size == 1 or one == other for size, one, other in zip(shape, strides, known_strides, strict=True))


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return all(
        size == 1 or stride == math.prod(shape[axis + 1 :])
        for axis, (size, stride) in enumerate(zip(shape, strides, strict=True))
    )


def _format_shape(shape: Sequence[int], *, is_any: bool = False) -> str:
    sizes = ["any" if is_any else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def load_winner(
    artifact: str | os.PathLike[str],
    kernel_file: str | None,
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
    return LoadedKernel(
        recipe.kernel,
        backend.load(directory, unit, found_device),
        build.tensors,
        str(found_device.name),
        manifest.read_tensors(directory),
        problem,
        reads_strides=backend.reads_strides,
    )


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
