"""The new process of :func:`ktuned.testing.backends.check_load`: loads an artifact, launches it, verifies.

Reads one MessagePack map from stdin; a broken promise is a traceback on stderr and a non-zero exit.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import msgpack

from ktuned.backends import Backend, Unit
from ktuned.ipc import from_plain
from ktuned.model import BackendError, Device


def main() -> None:
    """Do what stdin asks for."""
    request = msgpack.unpackb(sys.stdin.buffer.read())
    module, name = request["backend"]
    backend: Backend = getattr(importlib.import_module(module), name)()
    device = from_plain(Device, request["device"])
    unit = Unit(
        "good",
        backend.build.from_plain(request["build"]),
        tuple(Path(path) for path in request["sources"]),
        Path(request["kernel_file"]),
        request["kernel"],
        device.target,
    )
    try:
        kernel = backend.load(Path(request["artifact"]), unit, device)
    except BackendError:
        if request["is_there"]:
            raise
        return
    if not request["is_there"]:
        return
    tensors = _function(*request["inputs"])(device.name)
    launch = kernel.bind(tensors)
    launch()
    _function(*request["verify"])(tensors)
    if not tensors:
        return
    try:
        kernel.bind({})
    except KeyError:
        return
    raise AssertionError("bind() without the tensors that args names must raise KeyError")


def _function(file: str, name: str) -> Any:
    """Return a function of the example by its file, which need not be importable by a name."""
    spec = importlib.util.spec_from_file_location("ktuned_backend_example", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


if __name__ == "__main__":
    main()
