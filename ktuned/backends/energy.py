"""Finds a device's energy counter: the backend's own, or an NVIDIA GPU's."""

from __future__ import annotations

from ktuned.backends import nvml
from ktuned.backends.contract import Backend, EnergyCounter
from ktuned.backends.cuda import gpu_uuids
from ktuned.model import NO_COUNTER, Device, Unsupported


def energy_counter(backend: Backend, device: Device) -> EnergyCounter:
    """Return the energy counter of a backend's device, in joules.

    Raises:
        Unsupported: the device has none, or it cannot be read; the message continues a sentence about the device.
    """
    plugin_counter = backend.energy_counter(device)
    if plugin_counter is not None:
        return plugin_counter
    uuid = gpu_uuids().get(device.name) if device.kind == "cuda" else None
    if uuid is None:
        raise Unsupported(NO_COUNTER)
    try:
        gpu = nvml.Gpu(uuid)
        if gpu.is_partitioned():
            raise Unsupported("it is a partition of a GPU, and the energy counter counts the whole GPU")
        gpu.read_energy_j()
    except nvml.Unsupported as error:
        raise Unsupported(f"{NO_COUNTER} ({error})") from error
    except nvml.Unavailable as error:
        raise Unsupported(f"its energy counter cannot be read: {error}") from error
    return gpu.read_energy_j


def explain_missing_energy(backend: Backend, device: Device) -> str:
    """Return why a device's energy cannot be measured; empty if it can."""
    try:
        energy_counter(backend, device)
    except Unsupported as error:
        return error.message
    return ""
