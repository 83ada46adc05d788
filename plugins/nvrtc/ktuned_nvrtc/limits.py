"""Checks a kernel's launch sizes against its device before anything runs.

The driver reports most of these faults only as an invalid launch; here each becomes a message that names the resource.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ktuned.backends import DriverKernel, unwrap_result
from ktuned.model import Device, Unsupported
from ktuned_nvrtc.build import Build, pad_to_three

PORTABLE_CLUSTER_BLOCKS = 8
"""Cluster size that every device with clusters supports; larger ones must be enabled for each kernel."""


def allow_launch(kernel: DriverKernel, build: Build, config: Any, device: Device) -> None:
    """Check a launch, and set the kernel's attributes that it needs.

    Raises:
        Unsupported: the device cannot launch it; the message names the missing resource.
    """
    where = f"{device.name} ({device.model})"
    _check_sizes(kernel, "grid", pad_to_three(build.grid), where)
    _check_sizes(kernel, "block", pad_to_three(build.block), where)
    _check_threads(kernel, prod(build.block), where)
    _allow_shared_memory(kernel, build.shared_bytes, where)
    if build.cluster:
        _allow_cluster(kernel, pad_to_three(build.cluster), pad_to_three(build.grid), config, where)
    else:
        _check_residency(kernel, prod(build.block), build.shared_bytes, where)


def _check_sizes(kernel: DriverKernel, part: str, wanted: tuple[int, int, int], where: str) -> None:
    """Check each dimension of the grid or a block."""
    for axis, size in zip("XYZ", wanted, strict=True):
        most = kernel.read_device_limit(f"MAX_{part.upper()}_DIM_{axis}")
        if size > most:
            raise Unsupported(f"the {part} is {size} in {axis.lower()}; {where} allows {most}")


def _check_threads(kernel: DriverKernel, wanted: int, where: str) -> None:
    """Check a block's threads against the kernel's registers and launch bounds."""
    most = kernel.read_kernel_limit("MAX_THREADS_PER_BLOCK")
    if wanted > most:
        registers = kernel.read_kernel_limit("NUM_REGS")
        raise Unsupported(
            f"a block has {wanted} threads; with {registers} registers a thread and its launch bounds, "
            f"the kernel allows {most} on {where}"
        )


def _allow_shared_memory(kernel: DriverKernel, dynamic_bytes: int, where: str) -> None:
    """Check a block's shared memory, and enable more than the default."""
    static_bytes = kernel.read_kernel_limit("SHARED_SIZE_BYTES")
    most = kernel.read_device_limit("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    if static_bytes + dynamic_bytes > most:
        raise Unsupported(
            f"a block needs {static_bytes} + {dynamic_bytes} bytes of static and dynamic shared memory; "
            f"{where} has {most}"
        )
    if static_bytes + dynamic_bytes > kernel.read_device_limit("MAX_SHARED_MEMORY_PER_BLOCK"):
        kernel.set_kernel_limit("MAX_DYNAMIC_SHARED_SIZE_BYTES", dynamic_bytes, "allowing shared memory")


def _allow_cluster(
    kernel: DriverKernel, cluster: tuple[int, int, int], grid: tuple[int, int, int], config: Any, where: str
) -> None:
    """Check that at least one cluster fits the device, and enable more than the portable size."""
    from cuda.bindings import driver

    if not kernel.read_device_limit("CLUSTER_LAUNCH"):
        raise Unsupported(f"{where} has no clusters")
    if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
        raise Unsupported(f"a grid of {grid} blocks cannot be cut into clusters of {cluster}")
    if prod(cluster) > PORTABLE_CLUSTER_BLOCKS:
        kernel.set_kernel_limit("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, "allowing large clusters")
    error, fitting = driver.cuOccupancyMaxActiveClusters(kernel.function, config)
    if error != driver.CUresult.CUDA_SUCCESS or fitting < 1:
        raise Unsupported(f"a cluster of {prod(cluster)} blocks does not fit {where}")


def _check_residency(kernel: DriverKernel, threads: int, dynamic_bytes: int, where: str) -> None:
    """Check that at least one block fits a multiprocessor."""
    from cuda.bindings import driver

    fitting = unwrap_result(
        driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel.function, threads, dynamic_bytes),
        "asking for the occupancy",
    )
    if fitting < 1:
        raise Unsupported(f"a block of {threads} threads does not fit a multiprocessor of {where}")
