"""Checks a kernel's launch sizes against its device before anything runs.

The driver reports most of these faults only as an invalid launch; here each becomes a message that names the resource.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ktuned.model import Device, Unsupported
from ktuned_nvrtc.build import Build, pad_to_three

PORTABLE_CLUSTER_BLOCKS = 8
"""Cluster size that every device with clusters supports; larger ones must be enabled for each kernel."""


def unwrap_result(result: tuple[Any, ...], doing: str) -> Any:
    """Return the first value of a driver call's result.

    Raises:
        RuntimeError: the call failed; the message says what it was ``doing``, and the driver's reason.
    """
    from cuda.bindings import driver

    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(error)
        raise RuntimeError(f"{doing}: {error.name} ({(text or b'').decode()})")
    return values[0] if values else None


def allow_launch(function: Any, handle: Any, build: Build, config: Any, device: Device) -> None:
    """Check a launch, and set the kernel's attributes that it needs.

    Raises:
        Unsupported: the device cannot launch it; the message names the missing resource.
    """
    limits = _Limits(function, handle, device)
    limits.check_sizes("grid", pad_to_three(build.grid))
    limits.check_sizes("block", pad_to_three(build.block))
    limits.check_threads(prod(build.block))
    limits.check_shared_memory(build.shared_bytes)
    if build.cluster:
        limits.check_cluster(pad_to_three(build.cluster), pad_to_three(build.grid), config)
    else:
        limits.check_residency(prod(build.block), build.shared_bytes)


class _Limits:
    """The limits of one device and one kernel; each check raises ``Unsupported``."""

    def __init__(self, function: Any, handle: Any, device: Device) -> None:
        self._function = function
        self._handle = handle
        self._on = f"{device.name} ({device.model})"

    def check_sizes(self, of: str, wanted: tuple[int, int, int]) -> None:
        """Check each dimension of the grid or a block."""
        for axis, size in zip("XYZ", wanted, strict=True):
            most = self._read_device_limit(f"MAX_{of.upper()}_DIM_{axis}")
            if size > most:
                raise Unsupported(f"the {of} is {size} in {axis.lower()}; {self._on} allows {most}")

    def check_threads(self, wanted: int) -> None:
        """Check a block's threads against the kernel's registers and launch bounds."""
        most = self._read_kernel_limit("MAX_THREADS_PER_BLOCK")
        if wanted > most:
            registers = self._read_kernel_limit("NUM_REGS")
            raise Unsupported(
                f"a block has {wanted} threads; with {registers} registers a thread and its launch bounds, "
                f"the kernel allows {most} on {self._on}"
            )

    def check_shared_memory(self, dynamic_bytes: int) -> None:
        """Check a block's shared memory, and enable more than the default."""
        from cuda.bindings import driver

        static_bytes = self._read_kernel_limit("SHARED_SIZE_BYTES")
        most = self._read_device_limit("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        if static_bytes + dynamic_bytes > most:
            raise Unsupported(
                f"a block needs {static_bytes} + {dynamic_bytes} bytes of static and dynamic shared memory; "
                f"{self._on} has {most}"
            )
        if static_bytes + dynamic_bytes > self._read_device_limit("MAX_SHARED_MEMORY_PER_BLOCK"):
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            unwrap_result(driver.cuFuncSetAttribute(self._function, attribute, dynamic_bytes), "allowing shared memory")

    def check_cluster(self, cluster: tuple[int, int, int], grid: tuple[int, int, int], config: Any) -> None:
        """Check that at least one cluster fits the device, and enable more than the portable size."""
        from cuda.bindings import driver

        if not self._read_device_limit("CLUSTER_LAUNCH"):
            raise Unsupported(f"{self._on} has no clusters")
        if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
            raise Unsupported(f"a grid of {grid} blocks cannot be cut into clusters of {cluster}")
        if prod(cluster) > PORTABLE_CLUSTER_BLOCKS:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            unwrap_result(driver.cuFuncSetAttribute(self._function, attribute, 1), "allowing large clusters")
        error, fitting = driver.cuOccupancyMaxActiveClusters(self._function, config)
        if error != driver.CUresult.CUDA_SUCCESS or fitting < 1:
            raise Unsupported(f"a cluster of {prod(cluster)} blocks does not fit {self._on}")

    def check_residency(self, threads: int, dynamic_bytes: int) -> None:
        """Check that at least one block fits a multiprocessor."""
        from cuda.bindings import driver

        fitting = unwrap_result(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function, threads, dynamic_bytes),
            "asking for the occupancy",
        )
        if fitting < 1:
            raise Unsupported(f"a block of {threads} threads does not fit a multiprocessor of {self._on}")

    def _read_device_limit(self, name: str) -> int:
        from cuda.bindings import driver

        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        value: int = unwrap_result(driver.cuDeviceGetAttribute(attribute, self._handle), f"reading {name}")
        return value

    def _read_kernel_limit(self, name: str) -> int:
        from cuda.bindings import driver

        attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        value: int = unwrap_result(driver.cuFuncGetAttribute(attribute, self._function), f"reading {name}")
        return value
