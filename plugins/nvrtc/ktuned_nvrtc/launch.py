"""Loads a cubin's kernel with the driver, checks it against the device, and launches it at low host cost.

A launch must cost no more than the driver's own call, because it is timed: arguments are packed once, in ``bind``, and
the launch only looks up the current stream.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ktuned import backends
from ktuned.backends import Absent, Launch, cuda_devices, unknown_tensor
from ktuned.model import BackendError, Device, Unsupported
from ktuned_nvrtc.arguments import Arguments, fill_variable
from ktuned_nvrtc.build import Build, pad_to_three
from ktuned_nvrtc.limits import allow_launch, unwrap_result
from ktuned_nvrtc.scalars import list_tensor_names


class NvrtcKernel(backends.Kernel):
    """A kernel of a loaded cubin, on one device, with its launch sizes."""

    def __init__(
        self,
        cubin: bytes,
        symbol: str,
        build: Build,
        device: Device,
        constants: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Load the cubin into the device's primary context, which torch uses too, and make it current.

        ``constants`` has the symbols of the Build's ``constants``, by name.

        Raises:
            Unsupported: the device cannot run or launch it.
            BackendError: the driver cannot be reached.
        """
        from cuda.bindings import driver

        self._build = build
        self._index = int(device.name.rpartition(":")[2])
        handle = _enter_primary_context(self._index)
        self._module = module = _load_module(cubin, device)
        self._constants = {symbol: build.constants[name] for name, symbol in constants.items()}
        # Not at exit: the context, and the module with it, may no longer exist.
        weakref.finalize(self, driver.cuModuleUnload, module).atexit = False
        self._function = unwrap_result(driver.cuModuleGetFunction(module, symbol.encode()), f"finding {build.entry}")
        self._config = _make_launch_config(build)
        allow_launch(self._function, handle, build, self._config, device)

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a launch on torch's current stream of the device; constants are copied here, once.

        Raises:
            KeyError: ``args`` or ``constants`` name a tensor that ``inputs`` does not declare.
            ValueError: the arguments do not fit the kernel's parameters, or a tensor its variable or texture.
        """
        import torch
        from cuda.bindings import driver

        named = [name for arg in self._build.args for name in list_tensor_names(arg)]
        for name in (*named, *self._build.constants.values()):
            if name not in tensors:
                raise KeyError(unknown_tensor(name, tensors))
        arguments = Arguments(self._build.entry, self._build.args, _read_parameter_sizes(self._function), tensors)
        for symbol, name in self._constants.items():
            fill_variable(self._module, symbol, name, tensors[name])
        launch_kernel, success = driver.cuLaunchKernelEx, driver.CUresult.CUDA_SUCCESS
        # Does what torch.cuda.current_stream(index).cuda_stream does, without a new Stream object for each launch.
        current_stream = torch._C._cuda_getCurrentRawStream
        index, function, config, address = self._index, self._function, self._config, arguments.address
        last_stream = -1

        def launch(*, _keep: object = (self, arguments, tensors)) -> None:
            nonlocal last_stream
            stream = current_stream(index)
            if stream != last_stream:
                config.hStream = last_stream = stream
            (result,) = launch_kernel(config, function, address, 0)
            if result != success:
                unwrap_result((result,), "launching")

        return launch


def _enter_primary_context(index: int) -> Any:
    """Make a device's primary context current and return the device's handle."""
    from cuda.bindings import driver

    try:
        unwrap_result(driver.cuInit(0), "starting the driver")
    except RuntimeError as error:
        absent = cuda_devices()
        message, hint = (absent.message, absent.hint) if isinstance(absent, Absent) else (str(error), "")
        raise BackendError(f"a kernel cannot be loaded: {message}", hint=hint) from error
    handle = unwrap_result(driver.cuDeviceGet(index), f"opening cuda:{index}")
    context = unwrap_result(driver.cuDevicePrimaryCtxRetain(handle), f"opening cuda:{index}")
    unwrap_result(driver.cuCtxSetCurrent(context), f"opening cuda:{index}")
    return handle


def _load_module(cubin: bytes, device: Device) -> Any:
    from cuda.bindings import driver

    error, module = driver.cuModuleLoadData(cubin)
    if error == driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU:
        raise Unsupported(f"the cubin is for another architecture than {device.name}'s, which is {device.target}")
    return unwrap_result((error, module), "loading the cubin")


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


def _read_parameter_sizes(function: Any) -> list[int]:
    """Return the size of each parameter in bytes, in order."""
    from cuda.bindings import driver

    sizes: list[int] = []
    while True:
        error, _, size = driver.cuFuncGetParamInfo(function, len(sizes))
        if error == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            return sizes
        unwrap_result((error,), "reading the kernel's parameters")
        sizes.append(size)
