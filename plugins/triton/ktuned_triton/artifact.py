"""An artifact's files, and the two ways to use them in a program: with the driver alone, or through Triton's cache."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ktuned.backends import runs_on
from ktuned.model import Device, Unsupported
from ktuned_triton.launch import TritonKernel
from ktuned_triton.launch_plan import LaunchPlan

CUBIN_FILE = "kernel.cubin"
PTX_FILE = "kernel.ptx"
LAUNCH_FILE = "launch.json"
METADATA_FILE = "metadata.json"
"""Triton's own description of the kernel, with the kernel's key in Triton's cache."""


def load(artifact: str | os.PathLike[str], device: Device) -> TritonKernel:
    """Load ``kernel.cubin`` into a device's primary context, which becomes the current one; Triton is not imported.

    Raises:
        Unsupported: the artifact is for another architecture, or needs more than the device has.
        BackendError: the device cannot be reached.
    """
    directory = Path(artifact)
    plan = LaunchPlan.from_json((directory / LAUNCH_FILE).read_text())
    if not runs_on(plan.target, device.target):
        raise Unsupported(f"compiled for {plan.target}, and {device.name} is {device.target}")
    return TritonKernel((directory / CUBIN_FILE).read_bytes(), plan, device)


def install(artifact: str | os.PathLike[str]) -> str:
    """Put an artifact into Triton's disk cache, and return its key there.

    Triton then compiles nothing when the function is called with this config and matching arguments, in any process
    that has the same ``TRITON_CACHE_DIR``, the same Triton and the same source lines.
    """
    from triton.runtime.cache import get_cache_manager

    directory = Path(artifact)
    plan = LaunchPlan.from_json((directory / LAUNCH_FILE).read_text())
    text = (directory / METADATA_FILE).read_text()
    key: str = json.loads(text)["hash"]
    cache = get_cache_manager(key)
    # Triton cuts names to this length, so that its suffixes still fit a file name.
    name = plan.function[:150]
    files: dict[str, str | bytes] = {
        f"{name}.ptx": (directory / PTX_FILE).read_text(),
        f"{name}.cubin": (directory / CUBIN_FILE).read_bytes(),
        f"{name}.json": text,
    }
    group = {file: cache.put(content, file) for file, content in files.items()}
    # Triton looks for the group, so it is written last.
    cache.put_group(f"{name}.json", group)
    return key
