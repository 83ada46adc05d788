"""The doctor's checks of equipment: compilers, drivers, backends, devices.

As in :mod:`ktuned.cli.doctor`, each check takes its subject as arguments and never raises.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ktuned.backends import install_hint
from ktuned.cli import text
from ktuned.cli.doctor import Finding, Level
from ktuned.ipc import replies
from ktuned.model import Absence, BackendReport, Fault
from ktuned.protocol import EnvironmentInfo, KernelEntry, RootInfo

COMPILERS = ("c++", "g++", "clang++")
PROBE_HERE_S = 60.0
"""Deadline for probing an interpreter's backends; importing torch from a cold disk alone takes ten seconds."""

_VERSION_S = 5.0
_RELEASE = re.compile(r"release (\d+\.\d+)|(\d+\.\d+(?:\.\d+)?)\s*$", re.MULTILINE)
_DRIVER = re.compile(r"\s(\d+\.\d+(?:\.\d+)?)\s")
_CUDA_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
_MAX_TOOLCHAIN_PARTS = 3
_PROBE_HERE = """\
import json, sys
from ktuned.backends import Registry
import msgspec
from ktuned.ipc.requests import Probe
from ktuned.worker.probe import probe_interpreter
sys.__stdout__.write(msgspec.json.encode(probe_interpreter(Registry(), Probe())).decode())
"""


def check_compilers(environ: Mapping[str, str] = os.environ, system: Path = Path("/usr/local/cuda")) -> list[Finding]:
    """Look for a C++ compiler, and for nvcc, which only kernels in CUDA C++ compiled by nvcc need."""
    search_path = environ.get("PATH")
    found = [place for name in COMPILERS if (place := shutil.which(name, path=search_path))]
    cxx = (
        Finding(Level.OK, "c++ compiler", _describe_program(found[0]))
        if found
        else Finding(Level.WARN, "c++ compiler", "none on PATH", "apt-get install g++")
    )
    return [cxx, _check_nvcc(environ, system)]


def _check_nvcc(environ: Mapping[str, str], system: Path) -> Finding:
    for variable in _CUDA_VARIABLES:
        home = environ.get(variable)
        if home:
            place = Path(home, "bin", "nvcc")
            if place.is_file():
                return Finding(Level.OK, "nvcc", f"{_describe_program(str(place))} ({variable})")
            remedy = f"set {variable} to the CUDA Toolkit's directory, or unset it"
            return Finding(Level.WARN, "nvcc", f"{variable}={home} holds no bin/nvcc", remedy)
    on_path = shutil.which("nvcc", path=environ.get("PATH"))
    if on_path:
        return Finding(Level.OK, "nvcc", f"{_describe_program(on_path)} (PATH)")
    if (system / "bin" / "nvcc").is_file():
        return Finding(Level.OK, "nvcc", _describe_program(str(system / "bin" / "nvcc")))
    return Finding(Level.OK, "nvcc", "none; only CUDA C++ through tvm_ffi needs it (set CUDA_HOME to its directory)")


def _describe_program(program: str) -> str:
    """Return a program's path and the version that it prints."""
    try:
        ran = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=_VERSION_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return f"{program}, which does not run"
    release = _RELEASE.search(ran.stdout) or _RELEASE.search(ran.stdout.partition("\n")[0])
    return f"{program} {release[1] or release[2]}" if release else program


def check_gpu(
    environ: Mapping[str, str] = os.environ,
    driver: Path = Path("/proc/driver/nvidia/version"),
    control: Path = Path("/dev/nvidiactl"),
) -> Finding:
    """Look for NVIDIA's driver, and check that this process may use it."""
    try:
        driver_text = driver.read_text()
    except OSError:
        return Finding(Level.OK, "NVIDIA driver", "none; CUDA kernels can be compiled here, but not measured")
    version = _DRIVER.search(driver_text)
    name = version[1] if version else "loaded"
    if not control.exists():
        remedy = "start the container with --gpus all"
        return Finding(Level.WARN, "NVIDIA driver", f"{name}, but {control} is missing", remedy)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return Finding(Level.OK, "NVIDIA driver", name if visible is None else f"{name}; CUDA_VISIBLE_DEVICES={visible}")


def probe_here(python: str = sys.executable, *, deadline_s: float = PROBE_HERE_S) -> EnvironmentInfo:
    """Probe an interpreter's backends in a separate process, as a daemon does."""
    hint = f"{python} -m pip install ktuned"
    try:
        ran = subprocess.run(
            [python, "-c", _PROBE_HERE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            check=False,
        )
        found = msgspec.json.decode(ran.stdout.splitlines()[-1], type=replies.ProbeReport)
        return EnvironmentInfo(python, found.backends, None, found.version, found.nvml, found.strategies)
    except subprocess.TimeoutExpired:
        message = f"its backends did not answer in {deadline_s:.0f} s"
        hint = "a driver or an import hangs: try `import torch` there"
    except OSError as error:
        message = f"cannot be run: {error.strerror}"
    except (msgspec.DecodeError, IndexError):
        errors = ran.stderr.strip().splitlines()
        message = errors[-1] if errors else f"the probe of its backends failed (exit status {ran.returncode})"
    return EnvironmentInfo(python, {}, Fault("worker", message, hint))


def check_backends(environments: Iterable[EnvironmentInfo], roots: Iterable[RootInfo] = ()) -> Iterator[Finding]:
    """Check the equipment of each interpreter: its backends, and each of their devices."""
    users: dict[str, list[str]] = {}
    for root in roots:
        users.setdefault(root.python, []).append(root.name)
    for environment in environments:
        python = environment.python
        used = f"; for {', '.join(users[python])}" if python in users else ""
        if error := environment.error:
            remedy = error.hint or "check the python that the root's config names"
            yield Finding(Level.FAIL, python, text.first_line(error.message) + used, remedy)
            continue
        version = environment.version
        yield Finding(Level.OK, python, f"Python {version}{used}" if version else f"answers{used}")
        absent: dict[Absence, dict[str, BackendReport]] = {}
        for name, backend in environment.backends.items():
            if backend.absent is None or backend.error is not None:
                yield from _judge_backend(name, backend)
            else:
                absent.setdefault(backend.absent, {})[name] = backend
        yield from (_describe_absence(absence, backends) for absence, backends in absent.items())
        if nvml := environment.nvml:
            message = f"cannot see other GPU users, so contention is not detected: {nvml}"
            remedy = f"{python} -m pip install nvidia-ml-py" if "not installed" in nvml else ""
            yield Finding(Level.WARN, "NVML", message, remedy)


def _describe_absence(absence: Absence, backends: Mapping[str, BackendReport]) -> Finding:
    """Return one finding for all backends that lack the same thing, such as a GPU."""
    targets = sorted({backend.target for backend in backends.values() if backend.target})
    still = f"; kernels still compile for {', '.join(targets)}" if targets and absence.reason != "no_compiler" else ""
    what = f"backend{'s' * (len(backends) > 1)} {', '.join(backends)}"
    if absence.reason == "no_hardware":
        # Not a fault: the machine simply has no such device.
        return Finding(Level.OK, what, f"{absence.message}{still}", absence.hint)
    return Finding(Level.WARN, what, f"{absence.reason}: {absence.message}{still}", absence.hint)


def _judge_backend(name: str, backend: BackendReport) -> Iterator[Finding]:
    what = f"backend {name}"
    if error := backend.error:
        yield Finding(Level.FAIL, what, text.first_line(error.message), error.hint or "reinstall its distribution")
        return
    toolchain = list(backend.fingerprint.items())[:_MAX_TOOLCHAIN_PARTS]
    message = ", ".join([backend.version, *(f"{part} {version}" for part, version in toolchain)])
    if not backend.devices:
        yield Finding(Level.WARN, what, "finds no device", "reinstall its distribution")
        return
    yield Finding(Level.OK, what, message.strip(", ") or "is installed")
    for device in backend.devices:
        facts = [device.model, device.target, *(f"{part} {v}" for part, v in device.fingerprint.items())]
        yield Finding(Level.OK, f"{name} on {device.name}", ", ".join(facts))


def check_kernels(
    kernels: Iterable[KernelEntry], environments: Iterable[EnvironmentInfo], roots: Sequence[RootInfo]
) -> Iterator[Finding]:
    """Find the backends that kernels need and their interpreters lack."""
    backends = {environment.python: environment.backends for environment in environments if not environment.error}
    missing: dict[tuple[str, str], list[str]] = {}
    for kernel in kernels:
        for root in roots:
            is_its = root.python in backends and Path(kernel.file).is_relative_to(root.path)
            if is_its and kernel.backend not in backends[root.python]:
                missing.setdefault((root.python, kernel.backend), []).append(kernel.name)
    for (python, backend), names in missing.items():
        remedy = install_hint(backend, python)
        message = f"not installed for {python}, and needed by {', '.join(sorted(set(names)))}"
        yield Finding(Level.FAIL, f"backend {backend}", message, remedy)
