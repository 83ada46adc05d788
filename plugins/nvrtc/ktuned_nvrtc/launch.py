"""A kernel that NVRTC has compiled, with its launch sizes and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from ktuned.backends import DriverKernel, Launch, unknown_tensor, unwrap_result
from ktuned.model import Device, Unsupported
from ktuned_nvrtc.arguments import Arguments, fill_variable
from ktuned_nvrtc.build import Build, pad_to_three


class NvrtcKernel(DriverKernel):
    """A kernel of a loaded cubin, on one device, with its launch sizes."""

    def __init__(
        self,
        cubin: bytes,
        symbol: str,
        build: Build,
        device: Device,
        constants: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Load a cubin; ``constants`` has the symbols of the Build's ``constants``, by name.

        Raises:
            Unsupported: the device cannot run or launch it.
            BackendError: the driver cannot be reached.
        """
        super().__init__(cubin, symbol, device)
        self._build = build
        self._constants = {symbol: build.constants[name] for name, symbol in constants.items()}
        self._config = self.make_launch_config(
            pad_to_three(build.grid),
            pad_to_three(build.block),
            build.shared_bytes,
            pad_to_three(build.cluster) if build.cluster else (),
        )
        self._allow_launch(f"{device.name} ({device.model})")

    def _allow_launch(self, where: str) -> None:
        """Check the launch, and set the kernel's attributes that it needs.

        The driver reports most of these faults only as an invalid launch; here each becomes a message that names the
        resource.

        Raises:
            Unsupported: the device cannot launch it; the message names the missing resource.
        """
        from cuda.bindings import driver

        build = self._build
        grid, block, threads = pad_to_three(build.grid), pad_to_three(build.block), prod(build.block)
        for part, sizes in (("grid", grid), ("block", block)):
            for axis, size in zip("XYZ", sizes, strict=True):
                most = self.read_device_limit(f"MAX_{part.upper()}_DIM_{axis}")
                if size > most:
                    raise Unsupported(f"the {part} is {size} in {axis.lower()}; {where} allows {most}")
        static_bytes, _ = self.check_block(threads, build.shared_bytes, where)
        if static_bytes + build.shared_bytes > self.read_device_limit("MAX_SHARED_MEMORY_PER_BLOCK"):
            self.set_kernel_limit("MAX_DYNAMIC_SHARED_SIZE_BYTES", build.shared_bytes, "allowing shared memory")
        if build.cluster:
            cluster = pad_to_three(build.cluster)
            if not self.read_device_limit("CLUSTER_LAUNCH"):
                raise Unsupported(f"{where} has no clusters")
            if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
                raise Unsupported(f"a grid of {grid} blocks cannot be cut into clusters of {cluster}")
            self.allow_cluster(self._config, cluster, where)
            return
        fitting = unwrap_result(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, build.shared_bytes),
            "asking for the occupancy",
        )
        if fitting < 1:
            raise Unsupported(f"a block of {threads} threads does not fit a multiprocessor of {where}")

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a launch on torch's current stream of the device; constants are copied here, once.

        Raises:
            KeyError: ``args`` or ``constants`` name a tensor that ``inputs`` does not declare.
            ValueError: the arguments do not fit the kernel's parameters, or a tensor its variable or texture.
        """
        for name in self._build.tensors:
            if name not in tensors:
                raise KeyError(unknown_tensor(name, tensors))
        arguments = Arguments(self._build.entry, self._build.args, self.read_parameter_sizes(), tensors)
        for symbol, name in self._constants.items():
            fill_variable(self.module, symbol, name, tensors[name])
        return self.make_launch(self._config, arguments.address, arguments, tensors)
