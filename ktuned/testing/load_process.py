"""The new process of :func:`ktuned.testing.backends.check_load`: loads an artifact, launches it, verifies.

It reads a :class:`LoadRequest` from stdin. A broken promise is a traceback on stderr and a non-zero exit.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec

from ktuned.backends import Backend, Launch, Unit
from ktuned.model import BackendError, Device, FrozenStruct

SLEEP_CYCLES = 500_000_000
"""A quarter of a second on a GPU: a launch and a comparison of tensors are over long before."""

COST_ROUNDS = 50
LAUNCHES_A_ROUND = 20
"""Few enough for the device's queue, so that a launch never waits for the device."""

MAX_LAUNCH_S = 50e-6
"""Twenty times what a driver's launch costs, because the machine may be busy; a launch that looks anything up or packs
arguments in Python's calls takes longer."""


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


class LoadRequest(FrozenStruct):
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
    make_inputs, verify = request.inputs.load_function(), request.verify.load_function()
    tensors = make_inputs(device.name)
    launch = kernel.bind(tensors)
    launch()
    verify(tensors)
    if not tensors:
        return
    if device.name.startswith("cuda") and not backend.times_on_host:
        fresh = make_inputs(device.name)
        check_current_stream(kernel.bind(tensors), tensors, fresh, verify)
        check_host_cost(launch)
    try:
        kernel.bind({})
    except KeyError:
        return
    raise AssertionError("bind() without the tensors that args names must raise KeyError")


def check_current_stream(
    launch: Launch, tensors: Mapping[str, Any], fresh: Mapping[str, Any], verify: Callable[[Mapping[str, Any]], None]
) -> None:
    """Check that a launch goes to torch's current stream, also while this is captured in a graph.

    Args:
        launch: The launch, on ``tensors``.
        tensors: The tensors by name.
        fresh: The same tensors as they are before a launch.
        verify: Checks the tensors after a launch.

    Raises:
        AssertionError: It goes elsewhere.
    """
    import torch

    def restore_inputs() -> None:
        for name, value in fresh.items():
            tensors[name].copy_(value)
        torch.cuda.synchronize()

    def is_unchanged() -> bool:
        return all(torch.equal(to_bytes(tensors[name]), to_bytes(value)) for name, value in fresh.items())

    def to_bytes(tensor: torch.Tensor) -> torch.Tensor:
        # An output that begins as NaN equals itself only in its bits.
        return tensor.contiguous().flatten().view(torch.uint8)

    # The first launch and the first comparison load code, for which some drivers wait until the device is idle.
    launch()
    restore_inputs()
    assert is_unchanged()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        # The launch comes after this sleep only if it is on this stream.
        torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        launch()
    assert not side.query(), "a launch must not wait for the device"
    assert is_unchanged(), "a launch must go to torch's current stream"
    side.synchronize()
    verify(tensors)
    restore_inputs()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    assert is_unchanged(), "a launch must be captured, not run, while torch's current stream is captured"
    graph.replay()
    torch.cuda.synchronize()
    verify(tensors)


def check_host_cost(launch: Launch) -> None:
    """Check that a launch costs the host little: bind() prepares whatever it can.

    Raises:
        AssertionError: It costs more than :data:`MAX_LAUNCH_S`.
    """
    import torch

    costs_s = []
    for _ in range(COST_ROUNDS):
        torch.cuda.synchronize()
        started = perf_counter()
        for _ in range(LAUNCHES_A_ROUND):
            launch()
        costs_s.append((perf_counter() - started) / LAUNCHES_A_ROUND)
    torch.cuda.synchronize()
    assert median(costs_s) < MAX_LAUNCH_S, f"a launch costs the host {median(costs_s) * 1e6:.1f} µs"


if __name__ == "__main__":
    main()
