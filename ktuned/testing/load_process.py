"""The new process of :func:`ktuned.testing.backends.check_load`: loads an artifact, launches it, verifies.

It reads a :class:`LoadRequest` from stdin. A broken promise is a traceback on stderr and a non-zero exit.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ktuned.backends import Backend, Unit
from ktuned.model import BackendError, Device


@dataclass(frozen=True)
class FunctionPlace:
    """A function at the top level of a file, which need not be importable by a name."""

    file: str
    name: str

    def load_function(self) -> Any:
        """Execute the file, and return the function."""
        spec = importlib.util.spec_from_file_location("ktuned_backend_example", self.file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return getattr(module, self.name)


class LoadRequest(msgspec.Struct, frozen=True):
    """What the process is to load.

    Attributes:
        module: The module of the backend's class.
        backend: The name of the class.
        build: The Build of the artifact, as plain data.
        sources: The sources of the unit.
        kernel_file: The file that declares the kernel.
        kernel: The kernel's short name.
        device: The device to load the artifact on.
        has_device: Whether the machine has that device; without it, only loading is tried.
        artifact: The artifact's directory.
        inputs: Makes the tensors.
        verify: Checks the tensors after a launch.
    """

    module: str
    backend: str
    build: Mapping[str, Any]
    sources: tuple[str, ...]
    kernel_file: str
    kernel: str
    device: Device
    has_device: bool
    artifact: str
    inputs: FunctionPlace
    verify: FunctionPlace


def main() -> None:
    """Carry out the request on stdin."""
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=LoadRequest)
    backend: Backend = getattr(importlib.import_module(request.module), request.backend)()
    build, sources = backend.build.from_plain(request.build), tuple(map(Path, request.sources))
    device = request.device
    unit = Unit("good", build, sources, Path(request.kernel_file), request.kernel, device.target)
    try:
        kernel = backend.load(Path(request.artifact), unit, device)
    except BackendError:
        if request.has_device:
            raise
        return
    if not request.has_device:
        return
    tensors = request.inputs.load_function()(device.name)
    launch = kernel.bind(tensors)
    launch()
    request.verify.load_function()(tensors)
    if not tensors:
        return
    try:
        kernel.bind({})
    except KeyError:
        return
    raise AssertionError("bind() without the tensors that args names must raise KeyError")


if __name__ == "__main__":
    main()
