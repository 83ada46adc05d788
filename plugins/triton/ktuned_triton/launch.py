"""Launches a kernel that Triton has compiled, as Triton's launcher does but without a C compiler or Triton."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ktuned.backends import DriverKernel, Launch, unwrap_result
from ktuned.model import Device, Unsupported
from ktuned_triton.arguments import Arguments, require_tensors
from ktuned_triton.launch_plan import LaunchPlan

SHARED_BY_DEFAULT_BYTES = 48 * 1024
"""Dynamic shared memory that a block may have without opt-in."""

PORTABLE_CLUSTER_BLOCKS = 8
"""Cluster size that every device with clusters supports; a kernel with larger clusters must be allowed to have them."""


class TritonKernel(DriverKernel):
    """A kernel of a loaded cubin, on one device."""

    def __init__(self, cubin: bytes, plan: LaunchPlan, device: Device) -> None:
        """Load a cubin.

        Raises:
            Unsupported: the device cannot run or launch it.
            BackendError: the driver cannot be reached.
        """
        super().__init__(cubin, plan.symbol, device)
        self._plan = plan
        self._config = _make_launch_config(plan)
        _allow_launch(self, self._config, plan, device)

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a launch on torch's current stream of the device.

        Raises:
            KeyError: ``args`` names a tensor that ``inputs`` does not make.
            ValueError: a tensor is not aligned, or the arguments do not fit the kernel's parameters.
        """
        require_tensors(self._plan, tensors)
        scratch = self._allocate_scratch()
        addresses = [0 if memory is None else memory.data_ptr() for memory in scratch]
        arguments = Arguments(self._plan, tensors, addresses, self.read_parameter_sizes())
        return self.make_launch(self._config, arguments.address, arguments, scratch, tensors)

    def _allocate_scratch(self) -> list[Any]:
        """Allocate the global scratch memory and the profiler's, each for all blocks; ``None`` if it is not needed."""
        import torch

        blocks = prod(self._plan.blocks)
        sizes = (self._plan.global_scratch_bytes, self._plan.profile_scratch_bytes)
        device = torch.device("cuda", self.index)
        return [torch.zeros(size * blocks, dtype=torch.uint8, device=device) if size else None for size in sizes]


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


def _allow_launch(kernel: DriverKernel, config: Any, plan: LaunchPlan, device: Device) -> None:
    """Set the attributes of a kernel that its launch needs, as Triton does.

    Raises:
        Unsupported: the device cannot launch it; the message says what it lacks.
    """
    from cuda.bindings import driver

    where = f"{device.name} ({device.model})"
    threads = kernel.read_kernel_limit("MAX_THREADS_PER_BLOCK")
    if plan.threads > threads:
        registers = kernel.read_kernel_limit("NUM_REGS")
        raise Unsupported(
            f"a block has {plan.threads} threads; with {registers} registers a thread {where} allows {threads}"
        )
    most = kernel.read_device_limit("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    static_bytes = kernel.read_kernel_limit("SHARED_SIZE_BYTES")
    if static_bytes + plan.shared_bytes > most:
        raise Unsupported(
            f"a block needs {static_bytes + plan.shared_bytes} bytes of shared memory; {where} has {most}"
        )
    if plan.shared_bytes > SHARED_BY_DEFAULT_BYTES:
        shared_first = driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED
        unwrap_result(driver.cuFuncSetCacheConfig(kernel.function, shared_first), "allowing shared memory")
        kernel.set_kernel_limit("MAX_DYNAMIC_SHARED_SIZE_BYTES", most - static_bytes, "allowing shared memory")
    if plan.cluster > PORTABLE_CLUSTER_BLOCKS:
        kernel.set_kernel_limit("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, "allowing large clusters")
    if plan.cluster > 1:
        error, fitting = driver.cuOccupancyMaxActiveClusters(kernel.function, config)
        if error != driver.CUresult.CUDA_SUCCESS or fitting < 1:
            raise Unsupported(f"a cluster of {plan.cluster} blocks does not fit {where}")
