"""The NVIDIA GPUs of this machine, found without torch, without a context and without GPU memory.

The driver itself (``libcuda.so.1``) lists them, so they have the numbers that every CUDA program in this environment
sees, for any ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``. Plugins for CUDA import this module in workers; it
imports only the standard library.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import runpy
from collections.abc import Sequence
from pathlib import Path

from ktuned.backends import nvml
from ktuned.backends.contract import Absence, Absent
from ktuned.model import Device, DeviceModel, DeviceName, Target

DRIVER_HINT = "install NVIDIA's driver (in a container: start it with --gpus all); nvidia-smi must work"

DEFAULT_TARGET = "sm_90a"
"""Target of CUDA kernels if there is no GPU and no target was given: H100, H200."""

_SUCCESS = 0
_NO_DEVICE = 100
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_FIRST_ARCHITECTURE_SPECIFIC = 9
_NAME_BYTES = 256
_UUID_BYTES = 16
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"


class DriverError(Exception):
    """The driver is installed but does not work; the message is the driver's."""


def cuda_devices() -> Sequence[Device] | Absent:
    """Return the GPUs that this process may use as ``cuda:0``, ``cuda:1``, …, or the reason for their absence.

    A device's target is the architecture of its kernels (see :func:`compute_target`). Its fingerprint is the driver's
    version; devices with equal fingerprints share winners.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        if _has_nvidia_hardware():
            message = "there is an NVIDIA GPU, but its driver is not installed here (no libcuda.so.1)"
            return Absent(Absence.NO_DRIVER, message, DRIVER_HINT)
        return Absent(Absence.NO_HARDWARE, "no NVIDIA GPU in this machine")
    try:
        count = _count_devices(driver)
        devices = [_describe_device(driver, index) for index in range(count)]
    except DriverError as error:
        return Absent(Absence.NO_DRIVER, f"the NVIDIA driver does not start: {error}", DRIVER_HINT)
    if devices:
        return devices
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        message = f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU"
        return Absent(Absence.HIDDEN, message, "unset CUDA_VISIBLE_DEVICES, or name a GPU that nvidia-smi -L lists")
    return Absent(Absence.NO_HARDWARE, "NVIDIA's driver is installed, but it finds no GPU")


def gpu_uuids() -> dict[str, str]:
    """Return the UUIDs (``GPU-…``) of the GPUs that this process may use, by name (``cuda:0``); empty on failure."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        return {f"cuda:{index}": _read_uuid(driver, index) for index in range(_count_devices(driver))}
    except (OSError, DriverError):
        return {}


def hold_only_context() -> bool:
    """Make the GPU's primary context if this process may use exactly one GPU; return whether it holds it.

    torch uses the same context, and makes it if it does not exist yet.
    """
    # Load modules when they are first used. torch sets this, too, before it starts the driver, which reads it once.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        if _count_devices(driver) != 1:
            return False
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        _check_result(driver, driver.cuDeviceGet(ctypes.byref(handle), 0))
        _check_result(driver, driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle))
    except (OSError, DriverError):
        # Opening a problem will fail for the same reason, and report it.
        return False
    return True


def torch_cuda_devices() -> Sequence[Device] | Absent:
    """Return the result of :func:`cuda_devices`, or an absence if this interpreter's torch cannot use GPUs.

    For backends whose kernels are bound to torch's tensors. torch is not imported; its version file is read.
    """
    gpus = cuda_devices()
    if isinstance(gpus, Absent):
        return gpus
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return Absent(Absence.NO_LIBRARY, "torch is not installed", "pip install torch")
    built_for = runpy.run_path(str(Path(spec.origin).with_name("version.py"))).get("cuda")
    if built_for is None:
        return Absent(
            Absence.NO_LIBRARY,
            "there is a GPU, but torch here is a build without CUDA",
            "install torch with CUDA: https://pytorch.org/get-started/locally",
        )
    return gpus


def has_gpu() -> bool:
    """Return whether this process may use at least one GPU."""
    return not isinstance(cuda_devices(), Absent)


def compute_target(major: int, minor: int) -> str:
    """Return the target of a device of this compute capability: ``sm_80``, ``sm_90a``, ``sm_120a``.

    From 9.0 on it has the suffix ``a``, because the instructions that make those devices fast (wgmma, tcgen05) only
    exist in the architecture-specific feature set (CUDA C++ Programming Guide, *Feature Set Compiler Targets*).
    """
    suffix = "a" if major >= _FIRST_ARCHITECTURE_SPECIFIC else ""
    return f"sm_{major}{minor}{suffix}"


def runs_on(built_for: str, target: str) -> bool:
    """Return whether machine code for ``built_for`` (``sm_90``, ``sm_90a``) runs on a device of target ``target``.

    Plain code runs on its own and later minor versions of the same major version, and so does family-specific code
    (``f``). Architecture-specific code (``a``) only runs on its own version (CUDA C++ Programming Guide, *Binary
    Compatibility*).
    """
    if built_for == target:
        return True
    if built_for.endswith("a"):
        return False
    built, device = (name.removeprefix("sm_").rstrip("af") for name in (built_for, target))
    if not (built.isdigit() and device.isdigit()):
        return False
    return built[:-1] == device[:-1] and built[-1] <= device[-1]


def _count_devices(driver: ctypes.CDLL) -> int:
    code = driver.cuInit(0)
    if code == _NO_DEVICE:
        return 0
    _check_result(driver, code)
    count = ctypes.c_int()
    _check_result(driver, driver.cuDeviceGetCount(ctypes.byref(count)))
    return count.value


def _describe_device(driver: ctypes.CDLL, index: int) -> Device:
    handle = ctypes.c_int()
    _check_result(driver, driver.cuDeviceGet(ctypes.byref(handle), index))
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _check_result(driver, driver.cuDeviceGetName(name, _NAME_BYTES, handle))
    major, minor = (_read_attribute(driver, handle, attribute) for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR))
    return Device(
        DeviceName(f"cuda:{index}"),
        DeviceModel(name.value.decode()),
        Target(compute_target(major, minor)),
        {"driver": nvml.read_driver_version() or _read_cuda_version(driver)},
    )


def _read_uuid(driver: ctypes.CDLL, index: int) -> str:
    handle = ctypes.c_int()
    _check_result(driver, driver.cuDeviceGet(ctypes.byref(handle), index))
    raw = (ctypes.c_ubyte * _UUID_BYTES)()
    _check_result(driver, driver.cuDeviceGetUuid(raw, handle))
    digits = bytes(raw).hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _read_attribute(driver: ctypes.CDLL, handle: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int()
    _check_result(driver, driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle))
    return value.value


def _read_cuda_version(driver: ctypes.CDLL) -> str:
    version = ctypes.c_int()
    _check_result(driver, driver.cuDriverGetVersion(ctypes.byref(version)))
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def _check_result(driver: ctypes.CDLL, code: int) -> None:
    if code == _SUCCESS:
        return
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    raise DriverError(name.value.decode() if name.value else f"error {code}")


def _has_nvidia_hardware() -> bool:
    """Return whether the PCI bus has an NVIDIA display controller, with or without a driver."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS):
            return True
    return False
