"""Launches a kernel that Triton has compiled, as Triton's launcher does but without a C compiler or Triton."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ktuned.backends import DriverKernel, Launch, unwrap_result
from ktuned.model import Device
from ktuned_triton.arguments import Arguments, require_tensors
from ktuned_triton.launch_plan import LaunchPlan

SHARED_BY_DEFAULT_BYTES = 48 * 1024
"""Dynamic shared memory that a block may have without opt-in."""


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
        cluster = (plan.cluster, 1, 1) if plan.cluster > 1 else ()
        self._config = self.make_launch_config(
            plan.blocks, (plan.threads, 1, 1), plan.shared_bytes, cluster, _make_launch_attributes(plan)
        )
        # Set the attributes of the kernel that its launch needs, as Triton does.
        where = f"{device.name} ({device.model})"
        static_bytes, most_bytes = self.check_block(plan.threads, plan.shared_bytes, where)
        if plan.shared_bytes > SHARED_BY_DEFAULT_BYTES:
            from cuda.bindings import driver

            shared_first = driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED
            unwrap_result(driver.cuFuncSetCacheConfig(self.function, shared_first), "allowing shared memory")
            self.set_kernel_limit("MAX_DYNAMIC_SHARED_SIZE_BYTES", most_bytes - static_bytes, "allowing shared memory")
        if cluster:
            self.allow_cluster(self._config, cluster, where)

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


def _make_launch_attributes(plan: LaunchPlan) -> list[Any]:
    from cuda.bindings import driver

    kinds = driver.CUlaunchAttributeID
    attributes = []
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
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
        spread = driver.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
        attribute.value.clusterSchedulingPolicyPreference = spread
        attributes.append(attribute)
    return attributes
