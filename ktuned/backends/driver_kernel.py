"""A kernel of a cubin, loaded and launched by CUDA's driver at low host cost; for plugins that make cubins.

A launch must cost no more than the driver's own call, because it is timed: arguments are packed once, in ``bind``, and
the launch only looks up the current stream.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

from ktuned.backends.contract import Absent, Kernel, Launch
from ktuned.backends.cuda import cuda_devices
from ktuned.model import BackendError, Device, Unsupported

PORTABLE_CLUSTER_BLOCKS = 8
"""Cluster size that every device with clusters supports; larger ones must be enabled for each kernel."""


class DriverKernel(Kernel):
    """A function of a loaded cubin, on one device.

    Attributes:
        index: the device's number.
        handle: the driver's handle of the device.
        module: the loaded cubin.
        function: the kernel.
    """

    def __init__(self, cubin: bytes, symbol: str, device: Device) -> None:
        """Load a cubin into the device's primary context, which torch uses too, and make it current.

        Raises:
            Unsupported: it is for another architecture.
            BackendError: the driver cannot be reached.
        """
        self.index = int(device.name.rpartition(":")[2])
        self.handle = _enter_primary_context(self.index)
        self.module = _load_module(cubin, device)
        from cuda.bindings import driver

        # Do not unload at exit: by then the context may be gone, and the module with it.
        weakref.finalize(self, driver.cuModuleUnload, self.module).atexit = False
        self.function = unwrap_result(driver.cuModuleGetFunction(self.module, symbol.encode()), f"finding {symbol}")

    def make_launch_config(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        cluster: Sequence[int],
        attributes: Sequence[Any] = (),
    ) -> Any:
        """Return the driver's ``CUlaunchConfig``.

        Args:
            grid: blocks in x, y, z.
            block: threads of a block in x, y, z.
            shared_bytes: dynamic shared memory of a block.
            cluster: blocks of a cluster in x, y, z; empty for a launch without clusters.
            attributes: further ``CUlaunchAttribute`` objects.
        """
        from cuda.bindings import driver

        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared_bytes
        attributes = list(attributes)
        if cluster:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            sizes = attribute.value.clusterDim
            sizes.x, sizes.y, sizes.z = cluster
            attributes.append(attribute)
        if attributes:
            config.attrs = attributes
            config.numAttrs = len(attributes)
        return config

    def check_block(self, threads: int, shared_bytes: int, where: str) -> tuple[int, int]:
        """Check a block's threads and its dynamic shared memory against the device, whose name is ``where``.

        Returns:
            the kernel's static shared memory, and the most shared memory that a block may have, in bytes.

        Raises:
            Unsupported: the device cannot launch such a block; the message says what it lacks.
        """
        most_threads = self.read_kernel_limit("MAX_THREADS_PER_BLOCK")
        if threads > most_threads:
            registers = self.read_kernel_limit("NUM_REGS")
            raise Unsupported(
                f"a block has {threads} threads; with {registers} registers a thread and its launch bounds, "
                f"the kernel allows {most_threads} on {where}"
            )
        static_bytes = self.read_kernel_limit("SHARED_SIZE_BYTES")
        most_bytes = self.read_device_limit("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        if static_bytes + shared_bytes > most_bytes:
            raise Unsupported(
                f"a block needs {static_bytes} + {shared_bytes} bytes of static and dynamic shared memory; "
                f"{where} has {most_bytes}"
            )
        return static_bytes, most_bytes

    def allow_cluster(self, config: Any, cluster: Sequence[int], where: str) -> None:
        """Enable clusters above the portable size, and check that at least one fits the device.

        Raises:
            Unsupported: none fits.
        """
        from cuda.bindings import driver

        blocks = prod(cluster)
        if blocks > PORTABLE_CLUSTER_BLOCKS:
            self.set_kernel_limit("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, "allowing large clusters")
        error, fitting = driver.cuOccupancyMaxActiveClusters(self.function, config)
        if error != driver.CUresult.CUDA_SUCCESS or fitting < 1:
            raise Unsupported(f"a cluster of {blocks} blocks does not fit {where}")

    def make_launch(self, config: Any, address: int, *kept: object) -> Launch:
        """Return a launch on torch's current stream of the device.

        Args:
            config: the driver's ``CUlaunchConfig``.
            address: the address of the array of pointers to the arguments.
            kept: objects that must live as long as the launch.
        """
        import torch
        from cuda.bindings import driver

        launch_kernel, success = driver.cuLaunchKernelEx, driver.CUresult.CUDA_SUCCESS
        # Use this instead of torch.cuda.current_stream(index).cuda_stream, which makes a Stream object for each launch.
        current_stream = torch._C._cuda_getCurrentRawStream
        index, function = self.index, self.function
        last_stream = -1

        def launch(*, _keep: object = (self, kept)) -> None:
            nonlocal last_stream
            stream = current_stream(index)
            if stream != last_stream:
                config.hStream = last_stream = stream
            (result,) = launch_kernel(config, function, address, 0)
            if result != success:
                unwrap_result((result,), "launching")

        return launch

    def read_parameter_sizes(self) -> list[int]:
        """Return the size of each kernel parameter in bytes, in order."""
        from cuda.bindings import driver

        sizes: list[int] = []
        while True:
            error, _, size = driver.cuFuncGetParamInfo(self.function, len(sizes))
            if error == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
                return sizes
            unwrap_result((error,), "reading the kernel's parameters")
            sizes.append(size)

    def read_kernel_limit(self, name: str) -> int:
        """Return an attribute of the kernel: ``NUM_REGS``."""
        from cuda.bindings import driver

        attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        value: int = unwrap_result(driver.cuFuncGetAttribute(attribute, self.function), f"reading {name}")
        return value

    def read_device_limit(self, name: str) -> int:
        """Return an attribute of the device: ``MAX_SHARED_MEMORY_PER_BLOCK``."""
        from cuda.bindings import driver

        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        value: int = unwrap_result(driver.cuDeviceGetAttribute(attribute, self.handle), f"reading {name}")
        return value

    def set_kernel_limit(self, name: str, value: int, doing: str) -> None:
        """Set an attribute of the kernel; ``doing`` says what for."""
        from cuda.bindings import driver

        attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        unwrap_result(driver.cuFuncSetAttribute(self.function, attribute, value), doing)


def unwrap_result(result: tuple[Any, ...], doing: str) -> Any:
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


def _enter_primary_context(index: int) -> Any:
    """Make a device's primary context current and return the device's handle."""
    try:
        from cuda.bindings import driver

        unwrap_result(driver.cuInit(0), "starting the driver")
    except (ImportError, RuntimeError) as error:
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
