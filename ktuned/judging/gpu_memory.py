"""The arena on a GPU, where no process can stop what another one has launched.

So the referee has the sets twice: in memory that both processes have mapped, and in memory of its own, where it writes
inputs and looks at outputs. While its clock runs, it *publishes* the sets, and *collects* them: it copies them to the
common memory, and back when the candidate says that it has finished. What a candidate computes before it says so takes
time, and what it computes later is not in the copy.

*The gate* is a word behind the sets. A candidate's stream waits for it, so that its launches are in the queue before
the inputs are published, and the host's work is not in the time.

The driver's calls for virtual memory (``cuMemCreate`` and others) are used, because the handles of ``cudaIpc`` name the
process that has exported them, which a process in another namespace does not see.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import struct
import weakref
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ktuned.checking import GpuBytes
from ktuned.judging.arena import Arena, Layout
from ktuned.model import Device, KtunedError

if TYPE_CHECKING:
    from ktuned.checking import TensorLibrary

_SHARE = 8
"""Sets may take this part of the GPU's free memory. The referee needs it four times, and candidates need some, too."""

_MOST_BYTES = 1 << 31
"""Most memory for the sets: a ms of copies. A single set may take more."""

_GATE_BYTES = 8

_EVENTS = 20
"""Pairs of events by which is found what events cost."""

_WORK_FILLS, _TRIES, _BUSY = 40, 4, 1.5
"""Work of a known duration: fills of twice the cache, which take about 1 ms; how often it is tried, and how many times
as long it takes beside another process, with which it takes turns.
"""
_PINNED, _ON_DEVICE, _FILE_DESCRIPTOR, _READ_WRITE = 1, 1, 1, 3
_WAIT_UNTIL_EQUAL = 1


class DriverFailed(KtunedError):
    """The driver refuses a call."""

    code = "driver_failed"


def call_driver(name: str, *arguments: Any) -> None:
    """Call a function of the driver.

    Raises:
        DriverFailed: it returns an error.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    if code := getattr(driver, name)(*arguments):
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        raise DriverFailed(f"{name}: {(text.value or b'unknown error').decode()}")


class SharedMemory:
    """Memory of a GPU, as this process has mapped it at an address drawn at random.

    Args:
        device: the GPU, whose context is current.
        size: bytes that are needed.
        descriptor: the memory's file; None makes new memory.

    Raises:
        DriverFailed: the driver cannot share memory.
    """

    def __init__(self, device: Device, size: int, descriptor: int | None = None) -> None:
        index = int(device.name.rpartition(":")[2])
        # CUmemAllocationProp and CUmemAccessDesc
        properties = struct.pack("=4iQ8x", _PINNED, _FILE_DESCRIPTOR, _ON_DEVICE, index, 0)
        access = struct.pack("=3i", _ON_DEVICE, index, _READ_WRITE)
        granularity, handle, address = ctypes.c_size_t(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
        call_driver("cuMemGetAllocationGranularity", ctypes.byref(granularity), properties, 0)
        whole = ctypes.c_size_t(-(-size // granularity.value) * granularity.value)
        if descriptor is None:
            call_driver("cuMemCreate", ctypes.byref(handle), whole, properties, ctypes.c_ulonglong(0))
            found = ctypes.c_int()
            flags = ctypes.c_ulonglong(0)
            call_driver("cuMemExportToShareableHandle", ctypes.byref(found), handle, _FILE_DESCRIPTOR, flags)
            descriptor = found.value
            weakref.finalize(self, os.close, descriptor)
        else:
            file = ctypes.c_void_p(descriptor)
            call_driver("cuMemImportFromShareableHandle", ctypes.byref(handle), file, _FILE_DESCRIPTOR)
        self.descriptor = descriptor
        hint = ctypes.c_ulonglong(0x1000_0000_0000 + (secrets.randbelow(1 << 20) << 25))
        zero = ctypes.c_ulonglong(0)
        call_driver("cuMemAddressReserve", ctypes.byref(address), whole, ctypes.c_size_t(0), hint, zero)
        call_driver("cuMemMap", address, whole, ctypes.c_size_t(0), handle, zero)
        call_driver("cuMemSetAccess", address, whole, access, ctypes.c_size_t(1))
        self.address = address.value
        weakref.finalize(self, _release_memory, address, whole, handle).atexit = False


def _release_memory(address: ctypes.c_ulonglong, whole: ctypes.c_size_t, handle: ctypes.c_ulonglong) -> None:
    call_driver("cuMemUnmap", address, whole)
    call_driver("cuMemAddressFree", address, whole)
    call_driver("cuMemRelease", handle)


def start_gpu(device: Device) -> None:
    """Make the GPU's context, which the driver's calls need."""
    import torch

    torch.cuda.set_device(device.name)
    torch.zeros(1, device=device.name)


def count_set_bytes(device: Device, *, stays_cached: bool) -> int:
    """Return how many bytes the sets on a GPU may take; a quarter of its cache, if they are to stay there."""
    import torch

    if stays_cached:
        return count_cache_bytes(device) // 4
    return min(_MOST_BYTES, torch.cuda.mem_get_info(device.name)[0] // _SHARE)


def count_cache_bytes(device: Device) -> int:
    """Return the size of a GPU's cache."""
    import torch

    properties: Any = torch.cuda.get_device_properties(device.name)
    return int(properties.L2_cache_size)


class GpuArena(Arena):
    """The arena on a GPU.

    Args:
        layout: what it holds.
        library: makes the tensors.
        device: the GPU.
        descriptor: the common memory's file; None makes it, in the referee.
        stays_cached: whether what was published stays in the GPU's cache, as in a graph's timing.

    Raises:
        DriverFailed: the driver cannot share memory.
    """

    def __init__(
        self,
        layout: Layout,
        library: TensorLibrary,
        device: Device,
        descriptor: int | None = None,
        *,
        stays_cached: bool = False,
    ) -> None:
        import torch

        self.layout = layout
        self._library = library
        start_gpu(device)
        size = layout.total_bytes
        memory = SharedMemory(device, size + _GATE_BYTES, descriptor)
        self.descriptor = memory.descriptor
        self._gate_address = memory.address + size
        self._shared = torch.as_tensor(GpuBytes(memory.address, size, memory), device=device.name)
        self._gate = torch.as_tensor(GpuBytes(self._gate_address, _GATE_BYTES, memory), device=device.name)
        self._gate = self._gate.view(torch.int32)
        self._turned = torch.zeros(1, device=device.name)
        self.memory = torch.empty_like(self._shared) if descriptor is None else self._shared
        self._stays_cached = stays_cached
        self.event_us = 0.0
        if descriptor is None:
            self._work = torch.empty(2 * count_cache_bytes(device), dtype=torch.int8, device=device.name)
            self._work_s = min(self._time_work_s() for _ in range(_TRIES))
            if not stays_cached:
                self.event_us = self._measure_event_us()

    def fill_memory(self, byte: int) -> None:
        """Fill the whole memory."""
        self.memory.fill_(byte)
        self._shared.fill_(byte)
        self._gate.zero_()

    def begin_order(self, gate: int) -> None:
        """Have the current stream wait until the gate is opened with this number."""
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        where = ctypes.c_void_p(stream), ctypes.c_ulonglong(self._gate_address), ctypes.c_uint(gate)
        call_driver("cuStreamWaitValue32_v2", *where, _WAIT_UNTIL_EQUAL)
        # The GPU turns to this process, which takes 300 µs, in an order without launches, too. A fill is no kernel.
        self._turned.add_(1)

    def await_launches(self) -> None:
        """Wait for the current stream. Nobody waits for other streams."""
        import torch

        torch.cuda.current_stream().synchronize()

    def open_gate(self, number: int) -> None:
        """Let the streams go on that wait for this number."""
        self._gate.fill_(number)

    def publish_sets(self, count: int, number: int) -> None:
        """Give the first sets to the candidate, with cold caches unless they are to stay warm, and open the gate."""
        size = count * self.layout.set_bytes
        self._shared[:size].copy_(self.memory[:size])
        if not self._stays_cached:
            self._work.zero_()
        self.open_gate(number)

    def collect_sets(self, count: int) -> None:
        """Take the first sets as they are now, and wait until they are here."""
        import torch

        size = count * self.layout.set_bytes
        self.memory[:size].copy_(self._shared[:size])
        torch.cuda.synchronize()

    def release_cache(self) -> None:
        """Have no line of the GPU's cache persist, and wait until the GPU has done all work of this process."""
        import torch

        call_driver("cuCtxResetPersistingL2Cache")
        torch.cuda.synchronize()

    def is_busy(self) -> bool:
        """Return whether another process works on the GPU: then work of a known duration takes longer."""
        return min(self._time_work_s() for _ in range(_TRIES)) > _BUSY * self._work_s

    def _measure_event_us(self) -> float:
        """Return how long two events take with nothing in between."""
        import torch

        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(_EVENTS)]  # type: ignore[no-untyped-call]
        # The host puts the events into the queue meanwhile.
        for _ in range(_WORK_FILLS):
            self._work.zero_()
        for begin, end in pairs:
            begin.record()
            end.record()
        torch.cuda.synchronize()
        return median(1000 * float(begin.elapsed_time(end)) for begin, end in pairs)

    def _time_work_s(self) -> float:
        import torch

        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(_WORK_FILLS):
            self._work.zero_()
        torch.cuda.synchronize()
        return perf_counter() - began
