"""Kernels of cubins: loaded with the driver, checked against the device, and launched at low host cost."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from ktuned import backends
from ktuned.backends import Absent, Launch, cuda_devices
from ktuned.model import BackendError, Device, Unsupported
from ktuned_nvrtc.build import Build, three
from ktuned_nvrtc.limits import allow, checked
from ktuned_nvrtc.scalars import to_bytes

_ALIGNMENT = 16


class NvrtcKernel(backends.Kernel):
    """A kernel of a loaded cubin, on one device, with its launch sizes."""

    def __init__(self, cubin: bytes, symbol: str, build: Build, device: Device) -> None:
        """Load the cubin into the device's primary context, torch's own, and make that current.

        Raises:
            Unsupported: the device cannot run or launch it.
            BackendError: the driver cannot be reached.
        """
        from cuda.bindings import driver

        self._build = build
        self._index = int(device.name.rpartition(":")[2])
        handle = _enter(self._index)
        module = _load(cubin, device)
        # Not at exit: the context, and the module with it, may no longer exist.
        weakref.finalize(self, driver.cuModuleUnload, module).atexit = False
        self._function = checked(driver.cuModuleGetFunction(module, symbol.encode()), f"finding {build.entry}")
        self._config = _launch_config(build)
        allow(self._function, handle, build, self._config, device)

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a launch on torch's current stream of the device; the arguments are packed here, once.

        Raises:
            KeyError: ``args`` names a tensor that ``inputs`` does not declare.
            ValueError: the arguments do not fit the kernel's parameters.
        """
        import torch
        from cuda.bindings import driver

        for arg in self._build.args:
            if isinstance(arg, str) and arg not in tensors:
                raise KeyError(f"args names the tensor {arg!r}; inputs declares {', '.join(sorted(tensors)) or 'none'}")
        values = [tensors[arg].data_ptr() if isinstance(arg, str) else arg for arg in self._build.args]
        arguments = _Arguments(self._build.entry, values, _parameter_sizes(self._function))
        launch_kernel, success = driver.cuLaunchKernelEx, driver.CUresult.CUDA_SUCCESS
        # As torch.cuda.current_stream(index).cuda_stream, without creating a Stream object for each launch.
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
                checked((result,), "launching")

        return launch


class _Arguments:
    """Arguments for the driver: an array of pointers to the values, whose memory lives as long as this object."""

    def __init__(self, entry: str, values: Sequence[Any], sizes: Sequence[int]) -> None:
        if len(values) != len(sizes):
            raise ValueError(f"args has {len(values)} arguments; {entry} has {len(sizes)} parameters")
        offsets = []
        total = 0
        for size in sizes:
            offsets.append(total)
            total += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._values = ctypes.create_string_buffer(max(total, 1))
        start = ctypes.addressof(self._values)
        for number, (value, offset, size) in enumerate(zip(values, offsets, sizes, strict=True), 1):
            try:
                ctypes.memmove(start + offset, to_bytes(value, size), size)
            except ValueError as error:
                raise ValueError(f"argument {number} of {entry}: {error}") from error
        self._pointers = (ctypes.c_void_p * max(len(sizes), 1))(*(start + offset for offset in offsets))
        self.address = ctypes.addressof(self._pointers)


def _enter(index: int) -> Any:
    """Make a device's primary context current and return the device's handle."""
    from cuda.bindings import driver

    try:
        checked(driver.cuInit(0), "starting the driver")
    except RuntimeError as error:
        absent = cuda_devices()
        message, hint = (absent.message, absent.hint) if isinstance(absent, Absent) else (str(error), "")
        raise BackendError(f"a kernel cannot be loaded: {message}", hint=hint) from error
    handle = checked(driver.cuDeviceGet(index), f"opening cuda:{index}")
    context = checked(driver.cuDevicePrimaryCtxRetain(handle), f"opening cuda:{index}")
    checked(driver.cuCtxSetCurrent(context), f"opening cuda:{index}")
    return handle


def _load(cubin: bytes, device: Device) -> Any:
    from cuda.bindings import driver

    error, module = driver.cuModuleLoadData(cubin)
    if error == driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU:
        raise Unsupported(f"the cubin is for another architecture than {device.name}'s, which is {device.target}")
    return checked((error, module), "loading the cubin")


def _launch_config(build: Build) -> Any:
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = three(build.grid)
    config.blockDimX, config.blockDimY, config.blockDimZ = three(build.block)
    config.sharedMemBytes = build.shared_bytes
    if build.cluster:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster = attribute.value.clusterDim
        cluster.x, cluster.y, cluster.z = three(build.cluster)
        config.attrs = [attribute]
        config.numAttrs = 1
    return config


def _parameter_sizes(function: Any) -> list[int]:
    """Return the size of each parameter in bytes, in order."""
    from cuda.bindings import driver

    sizes: list[int] = []
    while True:
        error, _, size = driver.cuFuncGetParamInfo(function, len(sizes))
        if error == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            return sizes
        checked((error,), "reading the kernel's parameters")
        sizes.append(size)
