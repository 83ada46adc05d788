"""Helpers for tests of backends: compile one Build, run code in a new process, check an example's configs."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ktuned.backends import Absent, Backend, Build, Compiled, Unit
from ktuned.checking.problem_data import ProblemData
from ktuned.declaration.declared_kernel import Kernel
from ktuned.model import Device, Outcome

CompileOne = Callable[..., tuple[Compiled, Path]]


def make_compile_one(backend: Backend, kernel_file: Path, directory: Path) -> CompileOne:
    """Return a function that compiles a Build of a kernel file into a new directory."""
    numbers = itertools.count()

    def compile_one(build: Build, target: str = "sm_90a", file: Path = kernel_file) -> tuple[Compiled, Path]:
        key = f"unit{next(numbers)}"
        (directory / key).mkdir()
        (result,) = backend.compile([Unit(key, build, (), file, "scale", target)], directory)
        return result, directory / key

    return compile_one


def run_python(code: str, *args: object, **environment: str) -> str:
    """Run code in a new process and return what it prints."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    command = [sys.executable, "-c", code, *map(str, args)]
    process = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def find_first_gpu(backend: Backend) -> Device:
    """Return the first GPU."""
    devices = backend.devices()
    assert not isinstance(devices, Absent), devices
    return devices[0]


def make_units(kernel: Kernel, file: Path, configs: Iterable[Mapping[str, Any]], into: Path, target: str) -> list[Unit]:
    """Return the units of some configs of a kernel's first problem, and make their directories."""
    units = []
    for config in configs:
        key = "-".join(map(str, config.values()))
        (into / key).mkdir(exist_ok=True)
        build: Build = kernel.build(kernel.list_problems()[0], config)
        units.append(Unit(key, build, (), file, kernel.name, target))
    return units


def check_outputs_on_gpu(
    backend: Backend,
    kernel: Kernel,
    file: Path,
    configs: Iterable[Mapping[str, Any]],
    scratch: Path,
    outcomes: Iterable[Outcome | None] = (None,),
) -> None:
    """Check some configs of a kernel against its reference on a GPU; compilation must end with one of ``outcomes``."""
    device = find_first_gpu(backend)
    data = ProblemData(kernel, kernel.list_problems()[0], device)
    data.provide_expected_outputs(scratch / "expected.safetensors")
    units = make_units(kernel, file, configs, scratch, device.target)
    for result, unit in zip(backend.compile(units, scratch), units, strict=True):
        assert result.outcome in outcomes, result.message
        if result.outcome is not None:
            continue
        launch = backend.load(scratch / unit.key, unit, device).bind(data.tensors)
        data.reset_tensors()
        launch()
        verdict = data.check_outputs()
        assert verdict.ok, f"{unit.key}: {verdict.message}"
