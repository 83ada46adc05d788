"""Loads a cubin with the CUDA driver and launches it as Triton's launcher does, without a C compiler or Triton.

A launch must cost no more than the driver's own call, because it is timed: arguments are packed once, in ``bind``, and
the launch only looks up the current stream.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from math import prod
from typing import Any

from ktuned import backends
from ktuned.backends import Absent, Launch, cuda_devices
from ktuned.model import BackendError, Device, Unsupported
from ktuned_triton.arguments import Arguments, require_tensors
from ktuned_triton.launch_plan import LaunchPlan

SHARED_BY_DEFAULT_BYTES = 48 * 1024
"""Dynamic shared memory that a block may have without opt-in."""

PORTABLE_CLUSTER_BLOCKS = 8
"""Cluster size that every device with clusters supports; larger ones must be allowed for each kernel."""


class TritonKernel(backends.Kernel):
    """A kernel of a loaded cubin, on one device."""

    def __init__(self, cubin: bytes, plan: LaunchPlan, device: Device) -> None:
        """Load the cubin into the device's primary context, which torch uses too, and make it current.

        Raises:
            Unsupported: the device cannot run or launch it.
            BackendError: the driver cannot be reached.
        """
        from cuda.bindings import driver

        self._plan = plan
        self._index = int(device.name.rpartition(":")[2])
        handle = _enter_primary_context(self._index)
        module = _load_module(cubin, device)
        # Not at exit: by then the context may be gone, and the module with it.
        weakref.finalize(self, driver.cuModuleUnload, module).atexit = False
        self._function = _unwrap_result(
            driver.cuModuleGetFunction(module, plan.symbol.encode()), f"finding {plan.symbol}"
        )
        self._config = _make_launch_config(plan)
        _allow_launch(self._function, self._config, handle, plan, device)

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a launch on torch's current stream of the device.

        Raises:
            KeyError: ``args`` names a tensor that ``inputs`` does not make.
            ValueError: a tensor is not aligned, or the arguments do not fit the kernel's parameters.
        """
        require_tensors(self._plan, tensors)
        import torch
        from cuda.bindings import driver

        scratch = self._allocate_scratch()
        addresses = [0 if memory is None else memory.data_ptr() for memory in scratch]
        arguments = Arguments(self._plan, tensors, addresses, _read_parameter_sizes(self._function))
        launch_kernel, success = driver.cuLaunchKernelEx, driver.CUresult.CUDA_SUCCESS
        # Does what torch.cuda.current_stream(index).cuda_stream does, without a new Stream object for each launch.
        current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _find_current_stream)
        index, function, config, address = self._index, self._function, self._config, arguments.address
        last_stream = -1

        def launch(*, _keep: object = (self, arguments, scratch, tensors)) -> None:
            nonlocal last_stream
            stream = current_stream(index)
            if stream != last_stream:
                config.hStream = last_stream = stream
            (result,) = launch_kernel(config, function, address, 0)
            if result != success:
                _unwrap_result((result,), "launching")

        return launch

    def _allocate_scratch(self) -> list[Any]:
        """Allocate the global scratch memory and the profiler's, each for all blocks; ``None`` where none is needed."""
        import torch

        blocks = prod(self._plan.blocks)
        sizes = (self._plan.global_scratch_bytes, self._plan.profile_scratch_bytes)
        device = torch.device("cuda", self._index)
        return [torch.zeros(size * blocks, dtype=torch.uint8, device=device) if size else None for size in sizes]


def _enter_primary_context(index: int) -> Any:
    """Make a device's primary context current and return the device's handle."""
    try:
        from cuda.bindings import driver

        _unwrap_result(driver.cuInit(0), "starting the driver")
    except (ImportError, RuntimeError) as error:
        absent = cuda_devices()
        message, hint = (absent.message, absent.hint) if isinstance(absent, Absent) else (str(error), "")
        raise BackendError(f"a kernel cannot be loaded: {message}", hint=hint) from error
    handle = _unwrap_result(driver.cuDeviceGet(index), f"opening cuda:{index}")
    context = _unwrap_result(driver.cuDevicePrimaryCtxRetain(handle), f"opening cuda:{index}")
    _unwrap_result(driver.cuCtxSetCurrent(context), f"opening cuda:{index}")
    return handle


def _load_module(cubin: bytes, device: Device) -> Any:
    from cuda.bindings import driver

    error, module = driver.cuModuleLoadData(cubin)
    if error == driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU:
        raise Unsupported(f"the cubin is for another architecture than {device.name}'s, which is {device.target}")
    return _unwrap_result((error, module), "loading the cubin")


def _make_launch_config(plan: LaunchPlan) -> Any:
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = plan.blocks
    config.blockDimX, config.blockDimY, config.blockDimZ = plan.threads, 1, 1
    config.sharedMemBytes = plan.shared_bytes
    attributes = []
    kinds = driver.CUlaunchAttributeID
    if plan.is_dependent:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    if plan.is_cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    if plan.cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster = attribute.value.clusterDim
        cluster.x, cluster.y, cluster.z = plan.cluster, 1, 1
        attributes.append(attribute)
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
        spread = driver.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
        attribute.value.clusterSchedulingPolicyPreference = spread
        attributes.append(attribute)
    if attributes:
        config.attrs = attributes
        config.numAttrs = len(attributes)
    return config


def _allow_launch(function: Any, config: Any, handle: Any, plan: LaunchPlan, device: Device) -> None:
    """Set the kernel's attributes that its launch needs, as Triton does.

    Raises:
        Unsupported: the device cannot launch it; the message says what it lacks.
    """
    from cuda.bindings import driver

    attributes = driver.CUfunction_attribute
    where = f"{device.name} ({device.model})"

    def read_kernel_attribute(attribute: Any) -> int:
        value: int = _unwrap_result(driver.cuFuncGetAttribute(attribute, function), "reading the kernel's attributes")
        return value

    threads = read_kernel_attribute(attributes.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    if plan.threads > threads:
        registers = read_kernel_attribute(attributes.CU_FUNC_ATTRIBUTE_NUM_REGS)
        raise Unsupported(
            f"a block has {plan.threads} threads; with {registers} registers a thread {where} allows {threads}"
        )
    asked = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    most = _unwrap_result(driver.cuDeviceGetAttribute(asked, handle), "reading the device's attributes")
    static_bytes = read_kernel_attribute(attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    if static_bytes + plan.shared_bytes > most:
        raise Unsupported(
            f"a block needs {static_bytes + plan.shared_bytes} bytes of shared memory; {where} has {most}"
        )
    if plan.shared_bytes > SHARED_BY_DEFAULT_BYTES:
        shared_first = driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED
        _unwrap_result(driver.cuFuncSetCacheConfig(function, shared_first), "allowing shared memory")
        attribute = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _unwrap_result(driver.cuFuncSetAttribute(function, attribute, most - static_bytes), "allowing shared memory")
    if plan.cluster > PORTABLE_CLUSTER_BLOCKS:
        attribute = attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        _unwrap_result(driver.cuFuncSetAttribute(function, attribute, 1), "allowing large clusters")
    if plan.cluster > 1:
        error, fitting = driver.cuOccupancyMaxActiveClusters(function, config)
        if error != driver.CUresult.CUDA_SUCCESS or fitting < 1:
            raise Unsupported(f"a cluster of {plan.cluster} blocks does not fit {where}")


def _read_parameter_sizes(function: Any) -> list[int]:
    """Return the size of each kernel parameter in bytes, in order."""
    from cuda.bindings import driver

    sizes: list[int] = []
    while True:
        error, _, size = driver.cuFuncGetParamInfo(function, len(sizes))
        if error == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            return sizes
        _unwrap_result((error,), "reading the kernel's parameters")
        sizes.append(size)


def _unwrap_result(result: tuple[Any, ...], doing: str) -> Any:
    """Return the value of a driver call's result.

    Raises:
        RuntimeError: the call failed; the message says what it was ``doing``, and the driver's reason.
    """
    from cuda.bindings import driver

    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(error)
        raise RuntimeError(f"{doing}: {error.name} ({(text or b'').decode()})")
    return values[0] if values else None


def _find_current_stream(index: int) -> int:
    import torch

    return int(torch.cuda.current_stream(index).cuda_stream)
