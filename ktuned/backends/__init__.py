"""The contract between ktuned and its backend plugins, and code that plugins share.

A plugin subclasses :class:`Backend` and names it under the entry-point group ``ktuned.backends``. Code for some plugins
alone is imported when its name is first used: the daemon needs none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ktuned.backends.contract import (
    API_VERSION,
    Absence,
    Absent,
    Backend,
    Build,
    Compiled,
    EnergyCounter,
    Kernel,
    Launch,
    Layout,
    Unit,
    compile_together,
    unknown_tensor,
)
from ktuned.backends.cpu import CpuTicks, read_ticks
from ktuned.backends.process_directory import process_directory
from ktuned.backends.programs import compiler_files, on_path
from ktuned.backends.registry import ENTRY_POINT_GROUP, Registry, find_extra, install_hint
from ktuned.backends.variables import (
    COMPILING_VARIABLES,
    MEASURING_VARIABLES,
    digest_own_variables,
    select_deciding_variables,
    select_finding_variables,
)

if TYPE_CHECKING:
    from ktuned.backends import cpu, cubin, cuda_headers, launch_limits, nvml, ptxas
    from ktuned.backends.cuda import (
        DEFAULT_TARGET,
        compute_target,
        cuda_devices,
        gpu_uuids,
        hold_only_context,
        runs_on,
        torch_cuda_devices,
    )
    from ktuned.backends.energy import energy_counter, explain_missing_energy
    from ktuned.backends.launch_limits import occupancy_fact
    from ktuned.backends.ptxas import Resources
    from ktuned.backends.winner import LoadedKernel, load_winner

__all__ = [
    "API_VERSION",
    "COMPILING_VARIABLES",
    "DEFAULT_TARGET",
    "ENTRY_POINT_GROUP",
    "MEASURING_VARIABLES",
    "Absence",
    "Absent",
    "Backend",
    "Build",
    "Compiled",
    "CpuTicks",
    "EnergyCounter",
    "Kernel",
    "Launch",
    "Layout",
    "LoadedKernel",
    "Registry",
    "Resources",
    "Unit",
    "compile_together",
    "compiler_files",
    "compute_target",
    "cpu",
    "cubin",
    "cuda_devices",
    "cuda_headers",
    "digest_own_variables",
    "energy_counter",
    "explain_missing_energy",
    "find_extra",
    "gpu_uuids",
    "hold_only_context",
    "install_hint",
    "launch_limits",
    "load_winner",
    "nvml",
    "occupancy_fact",
    "on_path",
    "process_directory",
    "ptxas",
    "read_ticks",
    "runs_on",
    "select_deciding_variables",
    "select_finding_variables",
    "torch_cuda_devices",
    "unknown_tensor",
]

_MODULES = frozenset({"cpu", "cubin", "cuda_headers", "launch_limits", "nvml", "ptxas"})
_HOMES = {
    "DEFAULT_TARGET": "cuda",
    "LoadedKernel": "winner",
    "Resources": "ptxas",
    "explain_missing_energy": "energy",
    "compute_target": "cuda",
    "cuda_devices": "cuda",
    "energy_counter": "energy",
    "gpu_uuids": "cuda",
    "hold_only_context": "cuda",
    "load_winner": "winner",
    "occupancy_fact": "launch_limits",
    "runs_on": "cuda",
    "torch_cuda_devices": "cuda",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"ktuned.backends.{name}")
    if name in _HOMES:
        return getattr(import_module(f"ktuned.backends.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
