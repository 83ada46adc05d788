"""Kernels that a test declares in place, without a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ktuned import kernel, space, tensor
from ktuned.backends.contract import Build as AnyBuild
from ktuned.declaration.declared_kernel import Kernel, KernelFunction
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Target

CPU = Device(DeviceName("cpu:0"), DeviceModel("a CPU"), Target("here"))
LENGTH = 16


@dataclass(frozen=True)
class Build(AnyBuild):
    """The Build of these kernels."""

    backend: ClassVar[str] = "fake"
    n: int = 0


def make_doubling_inputs(p: Any) -> Mapping[str, Any]:
    """Return the inputs of y = 2 x."""
    return dict(x=tensor(LENGTH), y=tensor(LENGTH, output=True))


def declare_kernel(function: KernelFunction = lambda p, c: Build(c.n), **arguments: Any) -> Kernel:
    """Declare the kernel ``it``: y = 2 x over a space of four configs, with some arguments replaced."""
    values: dict[str, Any] = {
        "backend": "fake",
        "space": space(n=[1, 2, 3, 4]),
        "inputs": make_doubling_inputs,
        "name": "it",
    }
    if not {"reference", "check"} & arguments.keys():
        values["reference"] = lambda x: dict(y=2 * x)
    return kernel(**(values | arguments))(function)
