"""Energy counters of devices: the backend's own, or that of an NVIDIA GPU.

A module of its own, because the contract that it asks is below NVML's and the driver's modules.
"""

from __future__ import annotations

from ktuned.backends import nvml
from ktuned.backends.contract import Backend, EnergyCounter
from ktuned.backends.cuda import gpu_uuids
from ktuned.model import NO_COUNTER, Device, Unsupported


def energy_counter(backend: Backend, device: Device) -> EnergyCounter:
    """Return what reads the energy of a device of a backend, in joules.

    Raises:
        Unsupported: it has none, or it cannot be read; the message is the rest of a sentence about the device.
    """
    own = backend.energy_counter(device)
    if own is not None:
        return own
    uuid = gpu_uuids().get(device.name) if device.kind == "cuda" else None
    if uuid is None:
        raise Unsupported(NO_COUNTER)
    try:
        gpu = nvml.Gpu(uuid)
        if gpu.is_partitioned():
            raise Unsupported("its energy counter is that of the whole GPU, of which it is a partition")
        gpu.energy_j()
    except nvml.Unsupported as error:
        raise Unsupported(f"{NO_COUNTER} ({error})") from error
    except nvml.Unavailable as error:
        raise Unsupported(f"its energy counter cannot be read: {error}") from error
    return gpu.energy_j


def absence_of_energy(backend: Backend, device: Device) -> str:
    """Return why a device's energy cannot be measured; nothing if it can."""
    try:
        energy_counter(backend, device)
    except Unsupported as error:
        return error.message
    return ""
