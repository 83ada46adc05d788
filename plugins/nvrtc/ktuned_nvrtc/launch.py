"""A kernel that NVRTC has compiled, with its launch sizes and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ktuned.backends import DriverKernel, Launch, unknown_tensor
from ktuned.model import Device
from ktuned_nvrtc.arguments import Arguments, fill_variable
from ktuned_nvrtc.build import Build, pad_to_three
from ktuned_nvrtc.limits import allow_launch
from ktuned_nvrtc.scalars import list_tensor_names


class NvrtcKernel(DriverKernel):
    """A kernel of a loaded cubin, on one device, with its launch sizes."""

    def __init__(
        self,
        cubin: bytes,
        symbol: str,
        build: Build,
        device: Device,
        constants: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Load a cubin; ``constants`` has the symbols of the Build's ``constants``, by name.

        Raises:
            Unsupported: the device cannot run or launch it.
            BackendError: the driver cannot be reached.
        """
        super().__init__(cubin, symbol, device)
        self._build = build
        self._constants = {symbol: build.constants[name] for name, symbol in constants.items()}
        self._config = _make_launch_config(build)
        allow_launch(self, build, self._config, device)

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a launch on torch's current stream of the device; constants are copied here, once.

        Raises:
            KeyError: ``args`` or ``constants`` name a tensor that ``inputs`` does not declare.
            ValueError: the arguments do not fit the kernel's parameters, or a tensor its variable or texture.
        """
        named = [name for arg in self._build.args for name in list_tensor_names(arg)]
        for name in (*named, *self._build.constants.values()):
            if name not in tensors:
                raise KeyError(unknown_tensor(name, tensors))
        arguments = Arguments(self._build.entry, self._build.args, self.read_parameter_sizes(), tensors)
        for symbol, name in self._constants.items():
            fill_variable(self.module, symbol, name, tensors[name])
        return self.make_launch(self._config, arguments.address, arguments, tensors)


def _make_launch_config(build: Build) -> Any:
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = pad_to_three(build.grid)
    config.blockDimX, config.blockDimY, config.blockDimZ = pad_to_three(build.block)
    config.sharedMemBytes = build.shared_bytes
    if build.cluster:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster = attribute.value.clusterDim
        cluster.x, cluster.y, cluster.z = pad_to_three(build.cluster)
        config.attrs = [attribute]
        config.numAttrs = 1
    return config
