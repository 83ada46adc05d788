"""The conformance suite for backends: the promises of :class:`ktuned.backends.Backend`, checked on a real example.

A plugin's tests call :func:`check_backend`; if that fails, the functions that it calls check one promise each. Each
raises :class:`AssertionError` with one line that names the broken promise; none needs pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import getsourcefile
from pathlib import Path
from typing import Any

import msgpack
import msgspec
from msgspec.structs import replace

from ktuned.backends import API_VERSION, Absent, Backend, Build, Compiled, Unit
from ktuned.ipc import manifest
from ktuned.model import Device, DeviceModel, DeviceName, Outcome, Target
from ktuned.testing.load_process import FunctionPlace, LoadRequest
from ktuned.testing.rules import require_rule

LOAD_DEADLINE_S = 120.0
"""Deadline of a new process that imports the backend, loads, launches and verifies: torch alone takes seconds."""


@dataclass(frozen=True)
class BackendExample:
    """A kernel that a backend can build and one that it cannot, with what the good one must compute.

    Attributes:
        good: compiles; its ``args`` name at least one tensor, unless ``inputs`` makes none.
        bad: is refused by the compiler, with a message that contains ``complaint``.
        complaint: part of the compiler's own message about ``bad``.
        sources: the sources of both, absolute.
        kernel_file: the file that declares the kernel, for a backend whose ``Build`` names a Python function.
        kernel: the kernel's short name.
        inputs: makes the tensors for a device, given its name (``cpu:0``); a function at a module's top level,
            because a new process loads it from its file.
        verify: raises AssertionError unless the tensors hold the expected values after one launch; likewise.
        target: the target to compile for if the backend has no device.
        is_deterministic: compiling twice gives the same bytes.
    """

    good: Build
    bad: Build
    complaint: str
    sources: tuple[Path, ...]
    kernel_file: Path
    kernel: str
    inputs: Callable[[str], Mapping[str, Any]]
    verify: Callable[[Mapping[str, Any]], None]
    target: str = ""
    is_deterministic: bool = True

    def unit(self, key: str, build: Build, target: str) -> Unit:
        """Return one of the builds as a unit."""
        return Unit(key, build, self.sources, self.kernel_file, self.kernel, target)


def check_backend(backend: Backend, example: BackendExample, scratch: Path) -> None:
    """Check everything that a backend promises, with files below ``scratch`` (an empty directory).

    A backend without a device is checked up to loading.

    Raises:
        AssertionError: a promise is broken; the message names it.
    """
    check_identity(backend, example)
    check_fingerprint(backend)
    devices = check_devices(backend)
    check_build(example)
    target = devices[0].target if devices else example.target
    artifact = check_compile(backend, example, target, scratch / "first")
    if example.is_deterministic:
        check_deterministic(backend, example, target, artifact, scratch / "second")
    if backend.lowers:
        check_lowering(backend, example, target, artifact, scratch / "lowered")
    check_damage(backend, artifact, scratch / "damaged")
    # Artifacts are sealed by renaming them; one that contains its path would fail here.
    sealed = artifact.rename(scratch / "sealed")
    for device in devices:
        if device.target == target:
            check_load(backend, example, device, sealed)
    if not devices:
        check_load_without_device(backend, example, target, sealed)


def check_identity(backend: Backend, example: BackendExample) -> None:
    """Check that the class states its name, its API version, its Build and the files it requires."""
    require_rule(backend.name.isidentifier(), f"name must be an identifier, not {backend.name!r}")
    require_rule(
        1 <= backend.api_version <= API_VERSION, f"api_version {backend.api_version} is not within 1 to {API_VERSION}"
    )
    family = backend.build.backend
    require_rule(
        backend.name == family or backend.name.startswith(f"{family}_"),
        f"build.backend is {family!r}, the backend is {backend.name!r}",
    )
    chosen = backend.for_sources(example.sources)
    require_rule(
        chosen == backend.name, f"for_sources() gives the example's sources to {chosen!r}, not to {backend.name!r}"
    )
    require_rule(
        isinstance(example.good, backend.build), f"the example's good Build is no {backend.build.__qualname__}"
    )
    require_rule(len(backend.required_files) > 0, "required_files is empty: an empty artifact would count as whole")


def check_fingerprint(backend: Backend) -> None:
    """Check that the fingerprint is a flat map of strings, and the same for every instance and call."""
    first: Mapping[Any, Any] = backend.fingerprint()
    require_rule(
        all(isinstance(key, str) and isinstance(value, str) for key, value in first.items()),
        f"fingerprint() must map strings to strings: {first}",
    )
    require_rule(dict(first) == dict(backend.fingerprint()), "fingerprint() changes from call to call")
    require_rule(dict(first) == dict(type(backend)().fingerprint()), "fingerprint() differs between two instances")


def check_devices(backend: Backend) -> tuple[Device, ...]:
    """Check that devices are returned, or their absence with its reason; return them."""
    found = backend.devices()
    if isinstance(found, Absent):
        require_rule(bool(found.message), f"the absence {found.reason} comes without a message")
        return ()
    devices = tuple(found)
    require_rule(len(devices) > 0, "devices() is empty: return Absent with the reason")
    require_rule(len({device.name for device in devices}) == len(devices), "two devices have the same name")
    for device in devices:
        require_rule(device.name.rpartition(":")[2].isdigit(), f"a device's name is kind:index, not {device.name!r}")
        require_rule(bool(device.model and device.target), f"{device.name} has no model or no target")
        travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(device), type=Device)
        require_rule(travelled == device, f"{device.name} does not survive MessagePack: {travelled}")
    return devices


def check_build(example: BackendExample) -> None:
    """Check that both builds are equal after a round trip through MessagePack."""
    for build in (example.good, example.bad):
        travelled = type(build).from_plain(msgpack.unpackb(msgpack.packb(build.to_plain())))
        require_rule(travelled == build, f"the Build does not survive MessagePack: {build} became {travelled}")


def check_compile(backend: Backend, example: BackendExample, target: str, into: Path) -> Path:
    """Check a group of a bad unit between two good ones and return the first good one's artifact, with manifest.

    Each unit yields one result; the bad one's is the compiler's message, and the others are unaffected.
    """
    units = [
        example.unit("good", example.good, target),
        example.unit("bad", example.bad, target),
        example.unit("after", example.good, target),
    ]
    results = _compile_units(backend, units, into)
    bad = results["bad"]
    require_rule(bad.outcome is Outcome.COMPILE_ERROR, f"the bad unit ended as {bad.outcome}, not as compile_error")
    require_rule(example.complaint in bad.message, f"the compiler's {example.complaint!r} is not in: {bad.message!r}")
    for key in ("good", "after"):
        result = results[key]
        require_rule(result.outcome is None, f"the good unit {key!r} ended as {result.outcome}: {result.message}")
        require_rule(result.seconds > 0, f"the good unit {key!r} says that it took {result.seconds} s")
        for name in backend.required_files:
            require_rule((into / key / name).is_file(), f"the required file {name} is missing after compiling")
        manifest.write(into / key, key=key, backend=backend.name, facts=result.facts)
        found = manifest.verify(into / key, required=backend.required_files)
        require_rule(found.facts == dict(result.facts), f"the facts do not survive the manifest: {result.facts}")
    return into / "good"


def check_deterministic(backend: Backend, example: BackendExample, target: str, artifact: Path, into: Path) -> None:
    """Check that compiling the good unit again, under another key and elsewhere, gives the same bytes."""
    _compile_units(backend, [example.unit("again", example.good, target)], into)
    again = manifest.write(into / "again", key="again", backend=backend.name, facts={})
    files = manifest.read(artifact).files
    differing = sorted(name for name in files.keys() | again.files.keys() if files.get(name) != again.files.get(name))
    require_rule(not differing, f"compiling twice leaves different bytes in {', '.join(differing)}")


def check_lowering(backend: Backend, example: BackendExample, target: str, artifact: Path, into: Path) -> None:
    """Check that a unit which was lowered compiles to the same bytes and facts, and without its kernel file.

    A bad unit is refused on one of the two ways.
    """
    lowered = backend.lower(example.unit("good", example.good, target))
    if isinstance(lowered, Compiled):
        raise AssertionError(f"lower() refuses the good unit: {lowered}")
    require_rule(lowered != b"", "lower() returns nothing for the good unit, and the backend says that it lowers")
    absent = into / "there_is_no_kernel_file.py"
    unit = replace(example.unit("good", example.good, target), kernel_file=absent, lowered=lowered)
    (result,) = _compile_units(backend, [unit], into).values()
    require_rule(result.outcome is None, f"what lower() made ended as {result.outcome}: {result.message}")
    whole = manifest.read(artifact)
    made = manifest.write(into / "good", key="good", backend=backend.name, facts=result.facts)
    if example.is_deterministic:
        files = whole.files.keys() | made.files.keys()
        differing = sorted(name for name in files if whole.files.get(name) != made.files.get(name))
        require_rule(not differing, f"compiling what lower() made leaves different bytes in {', '.join(differing)}")
    require_rule(made.facts == whole.facts, f"what lower() made has other facts: {made.facts}, not {whole.facts}")
    bad = example.unit("bad", example.bad, target)
    refused = backend.lower(bad)
    if not isinstance(refused, Compiled):
        (refused,) = _compile_units(backend, [replace(bad, kernel_file=absent, lowered=refused)], into).values()
    require_rule(
        refused.outcome is Outcome.COMPILE_ERROR and example.complaint in refused.message,
        f"the bad unit, lowered, ended as {refused.outcome}: {refused.message!r}",
    )


def check_damage(backend: Backend, artifact: Path, scratch: Path) -> None:
    """Check that the manifest detects a missing and a damaged required file."""
    for name in backend.required_files:
        for damage in (Path.unlink, _flip_last_byte):
            shutil.copytree(artifact, scratch)
            damage(scratch / name)
            try:
                manifest.verify(scratch, required=backend.required_files)
            except manifest.DamagedArtifact:
                shutil.rmtree(scratch)
            else:
                raise AssertionError(f"the manifest does not notice that {name} is damaged or missing")


def check_load(backend: Backend, example: BackendExample, device: Device, artifact: Path) -> None:
    """Check, in a new process, that the good unit loads, computes the right result and refuses a missing tensor."""
    _load_in_new_process(backend, example, device, artifact, has_device=True)


def check_load_without_device(backend: Backend, example: BackendExample, target: str, artifact: Path) -> None:
    """Check, in a new process, that the good unit loads, or that a BackendError reports the missing device."""
    _load_in_new_process(
        backend,
        example,
        Device(DeviceName("absent:0"), DeviceModel("absent"), Target(target)),
        artifact,
        has_device=False,
    )


def _load_in_new_process(
    backend: Backend, example: BackendExample, device: Device, artifact: Path, *, has_device: bool
) -> None:
    request = LoadRequest(
        module=type(backend).__module__,
        backend=type(backend).__qualname__,
        build=example.good.to_plain(),
        sources=tuple(map(str, example.sources)),
        kernel_file=str(example.kernel_file),
        kernel=example.kernel,
        device=device,
        has_device=has_device,
        artifact=str(artifact),
        inputs=_locate_function(example.inputs),
        verify=_locate_function(example.verify),
    )
    done = subprocess.run(
        [sys.executable, "-m", "ktuned.testing.load_process"],
        input=msgspec.msgpack.encode(request),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=LOAD_DEADLINE_S,
    )
    stderr = done.stderr.decode(errors="replace").strip()
    require_rule(done.returncode == 0, f"in a new process on {device.name} (exit {done.returncode}): {stderr}")


def _compile_units(backend: Backend, units: list[Unit], into: Path) -> dict[str, Compiled]:
    """Compile a group as a worker does and return the results by key."""
    for unit in units:
        (into / unit.key).mkdir(parents=True)
    results = list(backend.compile(units, into))
    keys = sorted(result.key for result in results)
    require_rule(keys == sorted(unit.key for unit in units), f"each unit must yield one result; these came: {keys}")
    return {result.key: result for result in results}


def _locate_function(function: Callable[..., Any]) -> FunctionPlace:
    file = getsourcefile(function)
    name = function.__qualname__
    require_rule(file is not None and name.isidentifier(), f"{name} must be a function at the top level of a file")
    return FunctionPlace(str(file), name)


def _flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes() or b"\0")
    data[-1] ^= 0xFF
    path.write_bytes(data)
