"""NVML, NVIDIA's management library: the driver's version, the processes that use a GPU, and its energy and memory.

Only for workers, because a driver may hang. Processes and energy are read through nvidia-ml-py, which is optional. The
driver's version is part of a device's fingerprint and must always be known, so it is read from the library itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

NOT_INSTALLED = "nvidia-ml-py is not installed (pip install nvidia-ml-py)"

_SUCCESS = 0
_VERSION_BYTES = 96


class Unavailable(Exception):
    """NVML cannot be read; the message is the reason."""


class Unsupported(Unavailable):
    """The GPU does not report this value. Partitions of GPUs, for example, do not report some."""


class Sample(NamedTuple):
    """A process's use of a GPU's multiprocessors, in percent, at a time in µs of Unix time."""

    pid: int
    at_us: int
    percent: int


class Gpu:
    """One GPU, by the driver's UUID (``GPU-…``); as a context manager it shuts NVML down at its end.

    Raises:
        Unavailable: NVML does not start or does not know the GPU; every method raises it, too.
    """

    def __init__(self, uuid: str) -> None:
        self._nvml = _start_nvml()
        try:
            with _translate_errors(self._nvml):
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        except Unavailable:
            self._nvml.nvmlShutdown()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._nvml.nvmlShutdown()

    def list_context_pids(self) -> set[int]:
        """Return the processes that have a context on the GPU."""
        with _translate_errors(self._nvml):
            return {process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}

    def read_energy_j(self) -> float:
        """Return the energy in J that the whole GPU, all partitions included, has used since the driver was loaded."""
        with _translate_errors(self._nvml):
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def is_partitioned(self) -> bool:
        """Return whether the GPU is divided into instances (MIG)."""
        with _translate_errors(self._nvml):
            try:
                current, _ = self._nvml.nvmlDeviceGetMigMode(self._handle)
            except self._nvml.NVMLError_NotSupported:
                return False
            return bool(current)

    def read_samples(self, since_us: int) -> list[Sample]:
        """Return samples of the processes that worked on the GPU; NVML keeps them for some seconds."""
        with _translate_errors(self._nvml):
            try:
                utilization = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, since_us)
            except self._nvml.NVMLError_NotFound:
                # No process worked on the GPU.
                return []
        return [Sample(sample.pid, sample.timeStamp, sample.smUtil) for sample in utilization]


def explain_absence() -> str:
    """Return why NVML cannot be read here; empty if it can."""
    try:
        nvml = _start_nvml()
    except Unavailable as error:
        return str(error)
    nvml.nvmlShutdown()
    return ""


def read_driver_version() -> str | None:
    """Return the driver's own version (``580.159.04``); ``None`` without NVML."""
    with _open_library() as library:
        version = ctypes.create_string_buffer(_VERSION_BYTES)
        if library is None or library.nvmlSystemGetDriverVersion(version, _VERSION_BYTES) != _SUCCESS:
            return None
        return version.value.decode()


def read_memory(uuid: str) -> tuple[int, int] | None:
    """Return a GPU's free and total memory in bytes, without a context on it; ``None`` if that is unknown."""
    with _open_library() as library:
        handle, found = ctypes.c_void_p(), _Memory()
        if library is None or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != _SUCCESS:
            return None
        if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(found)) != _SUCCESS:
            return None
        return int(found.free), int(found.total)


@contextmanager
def _open_library() -> Iterator[ctypes.CDLL | None]:
    """Open NVML's own library, which needs no Python package, within the context; ``None`` without the driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        yield None
        return
    if library.nvmlInit_v2() != _SUCCESS:
        yield None
        return
    try:
        yield library
    finally:
        library.nvmlShutdown()


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _start_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        raise Unavailable(NOT_INSTALLED) from None
    with _translate_errors(pynvml):
        pynvml.nvmlInit()
    return pynvml


@contextmanager
def _translate_errors(nvml: Any) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError_NotSupported as error:
        raise Unsupported(f"NVML: {error}") from error
    except nvml.NVMLError as error:
        raise Unavailable(f"NVML: {error}") from error
