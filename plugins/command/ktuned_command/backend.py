"""The backends for programs: they run the commands that prepare an artifact, and load the program as a kernel."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, cast

from ktuned import backends
from ktuned.backends import Absent, Compiled, Unit, compile_singly, cpu, torch_cuda_devices
from ktuned.model import Device, Unsupported
from ktuned_command.build import Build
from ktuned_command.program import C_LOCALE, CommandFailed, Program, run_command

COMMAND_FILE = "command.json"

_CUDA_SUFFIXES = frozenset({".cu", ".cuh", ".ptx", ".cubin"})


class Command(backends.Backend):
    """Programs that use the CPU."""

    name = "command"
    api_version = 1
    build = Build
    required_files = (COMMAND_FILE,)
    times_on_host: ClassVar[bool] = True
    reports_time: ClassVar[bool] = True
    needs_kernel_file: ClassVar[bool] = True

    @classmethod
    def for_sources(cls, sources: Sequence[Path]) -> str:
        """Return ``command_cuda`` if a source is CUDA's, so that the program gets a GPU to itself."""
        return CommandOnCuda.name if any(source.suffix in _CUDA_SUFFIXES for source in sources) else Command.name

    def fingerprint(self) -> Mapping[str, str]:
        """Return this plugin's version; the kernel file names the compilers that ``prepare`` calls."""
        return {"ktuned-command": version("ktuned-command")}

    def devices(self) -> Sequence[Device] | Absent:
        """Return this machine's CPU."""
        return (cpu.device(),)

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Run each unit's ``prepare`` commands; the first that fails is the unit's error."""
        yield from compile_singly(units, into, _prepare_artifact, CommandFailed)

    def load(self, artifact: Path, unit: Unit, device: Device) -> Program:
        """Return the program as a kernel; for a GPU, the program sees only that one.

        Raises:
            Unsupported: it was prepared for another target than this device's.
        """
        if device.target != unit.target:
            raise Unsupported(f"prepared for {unit.target}, and {device.name} is {device.target}")
        visible = {"CUDA_VISIBLE_DEVICES": _find_visible_device(device)} if device.kind == "cuda" else {}
        return Program(cast(Build, unit.build), artifact, unit.kernel_file.parent, visible)


class CommandOnCuda(Command):
    """Programs that use a GPU."""

    name = "command_cuda"

    def devices(self) -> Sequence[Device] | Absent:
        """Return the GPUs that torch finds."""
        return torch_cuda_devices()


def _prepare_artifact(unit: Unit, artifact: Path) -> dict[str, Any]:
    build = cast(Build, unit.build)
    (artifact / COMMAND_FILE).write_text(json.dumps(build.to_plain(), indent=1, sort_keys=True) + "\n")
    env = {**os.environ, **C_LOCALE, **build.make_environment(str(artifact))}
    for command in build.prepare:
        run_command(build.insert_artifact(command, str(artifact)), unit.kernel_file.parent, env)
    return {}


def _find_visible_device(device: Device) -> str:
    """Return a GPU's name for ``CUDA_VISIBLE_DEVICES`` of a program, if this process sees only some GPUs itself."""
    index = int(device.name.rpartition(":")[2])
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return seen[index].strip() if len(seen) > index and seen[index].strip() else str(index)
