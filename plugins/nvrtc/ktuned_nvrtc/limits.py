"""Launch limits of a device and a kernel, checked before anything runs."""

from __future__ import annotations

from math import prod
from typing import Any

from ktuned.model import Device, Unsupported
from ktuned_nvrtc.build import Build, three

PORTABLE_CLUSTER_BLOCKS = 8
"""Every device with clusters launches clusters of this size; larger ones must be enabled for each kernel."""


def checked(result: tuple[Any, ...], doing: str) -> Any:
    """Return the result of a driver call without its error code; the first, where there are several.

    Raises:
        RuntimeError: the call failed while ``doing`` something; the message contains the driver's.
    """
    from cuda.bindings import driver

    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(error)
        raise RuntimeError(f"{doing}: {error.name} ({(text or b'').decode()})")
    return values[0] if values else None


def allow(function: Any, handle: Any, build: Build, config: Any, device: Device) -> None:
    """Set the kernel's attributes that its launch sizes need.

    Raises:
        Unsupported: the device cannot launch it; the message names the missing resource.
    """
    limits = _Limits(function, handle, device)
    limits.sizes("grid", three(build.grid))
    limits.sizes("block", three(build.block))
    limits.threads(prod(build.block))
    limits.shared_memory(build.shared_bytes)
    if build.cluster:
        limits.cluster(three(build.cluster), three(build.grid), config)
    else:
        limits.residency(prod(build.block), build.shared_bytes)


class _Limits:
    """Limits of a device and a kernel."""

    def __init__(self, function: Any, handle: Any, device: Device) -> None:
        self._function = function
        self._handle = handle
        self._on = f"{device.name} ({device.model})"

    def sizes(self, of: str, wanted: tuple[int, int, int]) -> None:
        """Check each dimension of the grid or a block."""
        for axis, size in zip("XYZ", wanted, strict=True):
            most = self._of_device(f"MAX_{of.upper()}_DIM_{axis}")
            if size > most:
                raise Unsupported(f"the {of} is {size} in {axis.lower()}; {self._on} allows {most}")

    def threads(self, wanted: int) -> None:
        """Check a block's threads against the kernel's registers and launch bounds."""
        most = self._of_kernel("MAX_THREADS_PER_BLOCK")
        if wanted > most:
            registers = self._of_kernel("NUM_REGS")
            raise Unsupported(
                f"a block has {wanted} threads; with {registers} registers a thread and its launch bounds, "
                f"the kernel allows {most} on {self._on}"
            )

    def shared_memory(self, dynamic_bytes: int) -> None:
        """Check a block's shared memory, and enable more than the default."""
        from cuda.bindings import driver

        static_bytes = self._of_kernel("SHARED_SIZE_BYTES")
        most = self._of_device("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        if static_bytes + dynamic_bytes > most:
            raise Unsupported(
                f"a block needs {static_bytes} + {dynamic_bytes} bytes of static and dynamic shared memory; "
                f"{self._on} has {most}"
            )
        if static_bytes + dynamic_bytes > self._of_device("MAX_SHARED_MEMORY_PER_BLOCK"):
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(self._function, attribute, dynamic_bytes), "allowing shared memory")

    def cluster(self, cluster: tuple[int, int, int], grid: tuple[int, int, int], config: Any) -> None:
        """Check that at least one cluster fits the device, and enable more than the portable size."""
        from cuda.bindings import driver

        if not self._of_device("CLUSTER_LAUNCH"):
            raise Unsupported(f"{self._on} has no clusters")
        if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
            raise Unsupported(f"a grid of {grid} blocks cannot be cut into clusters of {cluster}")
        if prod(cluster) > PORTABLE_CLUSTER_BLOCKS:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            checked(driver.cuFuncSetAttribute(self._function, attribute, 1), "allowing large clusters")
        error, fitting = driver.cuOccupancyMaxActiveClusters(self._function, config)
        if error != driver.CUresult.CUDA_SUCCESS or fitting < 1:
            raise Unsupported(f"a cluster of {prod(cluster)} blocks does not fit {self._on}")

    def residency(self, threads: int, dynamic_bytes: int) -> None:
        """Check that at least one block fits a multiprocessor."""
        from cuda.bindings import driver

        fitting = checked(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function, threads, dynamic_bytes),
            "asking for the occupancy",
        )
        if fitting < 1:
            raise Unsupported(f"a block of {threads} threads does not fit a multiprocessor of {self._on}")

    def _of_device(self, name: str) -> int:
        from cuda.bindings import driver

        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        value: int = checked(driver.cuDeviceGetAttribute(attribute, self._handle), f"reading {name}")
        return value

    def _of_kernel(self, name: str) -> int:
        from cuda.bindings import driver

        attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        value: int = checked(driver.cuFuncGetAttribute(attribute, self._function), f"reading {name}")
        return value
