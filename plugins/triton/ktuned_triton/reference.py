"""A config run for its results, in the process that measures: compiled, loaded and launched once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ktuned.backends import Absent, Unit, cuda_devices
from ktuned.model import BackendError, Device, DeviceModel, DeviceName, Target
from ktuned_triton.artifact import load
from ktuned_triton.build import Build
from ktuned_triton.compiler import compile_unit, prepare
from ktuned_triton.launch import TritonKernel

MAX_LOADED = 8
"""References of as many calls: a lane works on one at a time."""


def run(build: Build, kernel_file: Path, tensors: Mapping[str, Any]) -> None:
    """Launch a Build on tensors of one device.

    Raises:
        BackendError: the tensors are on no GPU.
    """
    device = next(iter(tensors.values())).device
    found = cuda_devices()
    devices = {} if isinstance(found, Absent) else {entry.name: entry for entry in found}
    name = f"{device.type}:{device.index or 0}"
    if name not in devices:
        raise BackendError(f"a Triton kernel cannot run on {name}")
    found_device = devices[DeviceName(name)]
    _loaded(json.dumps(build.to_plain()), kernel_file, name, found_device.model, found_device.target).bind(tensors)()


@lru_cache(MAX_LOADED)
def _loaded(build: str, kernel_file: Path, device: str, model: str, target: str) -> TritonKernel:
    prepare()
    unit = Unit("reference", Build.from_plain(json.loads(build)), (), kernel_file, "reference", target)
    with tempfile.TemporaryDirectory(prefix="ktuned-triton-") as directory:
        compile_unit(unit, Path(directory))
        return load(directory, Device(DeviceName(device), DeviceModel(model), Target(target)))
