"""A kernel of a cubin, loaded and launched by CUDA's driver at low host cost; for plugins that make cubins.

A launch must cost no more than the driver's own call, because it is timed: arguments are packed once, in ``bind``, and
the launch only looks up the current stream.
"""

from __future__ import annotations

import weakref
from typing import Any

from ktuned.backends.contract import Absent, Kernel, Launch
from ktuned.backends.cuda import cuda_devices
from ktuned.model import BackendError, Device, Unsupported


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
