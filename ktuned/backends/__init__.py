"""The contract between ktuned and its backend plugins, and code that plugins share.

A plugin subclasses :class:`Backend` and names it under the entry-point group ``ktuned.backends``. Code that only some
plugins need is imported when its name is first used, because the daemon does not need it.
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
    read_layout,
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
    from ktuned.backends.compiling import (
        MAX_MESSAGE_CHARS,
        compile_singly,
        cut_message,
        find_version,
        lend_scratch_directory,
        list_macro_options,
        move_error_first,
        redirect_compiler,
        refuse_unit,
        write_sources,
    )
    from ktuned.backends.cuda import (
        DEFAULT_TARGET,
        compute_target,
        cuda_devices,
        gpu_uuids,
        hold_only_context,
        runs_on,
        torch_cuda_devices,
    )
    from ktuned.backends.driver_kernel import DriverKernel, unwrap_result
    from ktuned.backends.energy import energy_counter, explain_missing_energy
    from ktuned.backends.launch_limits import occupancy_fact
    from ktuned.backends.ptxas import Resources
    from ktuned.backends.winner import LoadedKernel, load_winner

__all__ = [
    "API_VERSION",
    "COMPILING_VARIABLES",
    "DEFAULT_TARGET",
    "ENTRY_POINT_GROUP",
    "MAX_MESSAGE_CHARS",
    "MEASURING_VARIABLES",
    "Absence",
    "Absent",
    "Backend",
    "Build",
    "Compiled",
    "CpuTicks",
    "DriverKernel",
    "EnergyCounter",
    "Kernel",
    "Launch",
    "Layout",
    "LoadedKernel",
    "Registry",
    "Resources",
    "Unit",
    "compile_singly",
    "compile_together",
    "compiler_files",
    "compute_target",
    "cpu",
    "cubin",
    "cuda_devices",
    "cuda_headers",
    "cut_message",
    "digest_own_variables",
    "energy_counter",
    "explain_missing_energy",
    "find_extra",
    "find_version",
    "gpu_uuids",
    "hold_only_context",
    "install_hint",
    "launch_limits",
    "lend_scratch_directory",
    "list_macro_options",
    "load_winner",
    "move_error_first",
    "nvml",
    "occupancy_fact",
    "on_path",
    "process_directory",
    "ptxas",
    "read_layout",
    "read_ticks",
    "redirect_compiler",
    "refuse_unit",
    "runs_on",
    "select_deciding_variables",
    "select_finding_variables",
    "torch_cuda_devices",
    "unknown_tensor",
    "unwrap_result",
    "write_sources",
]

_MODULES = frozenset({"cpu", "cubin", "cuda_headers", "launch_limits", "nvml", "ptxas"})
_HOMES = {
    "DEFAULT_TARGET": "cuda",
    "MAX_MESSAGE_CHARS": "compiling",
    "DriverKernel": "driver_kernel",
    "LoadedKernel": "winner",
    "Resources": "ptxas",
    "compile_singly": "compiling",
    "explain_missing_energy": "energy",
    "compute_target": "cuda",
    "cuda_devices": "cuda",
    "cut_message": "compiling",
    "energy_counter": "energy",
    "find_version": "compiling",
    "gpu_uuids": "cuda",
    "hold_only_context": "cuda",
    "lend_scratch_directory": "compiling",
    "list_macro_options": "compiling",
    "load_winner": "winner",
    "move_error_first": "compiling",
    "occupancy_fact": "launch_limits",
    "redirect_compiler": "compiling",
    "refuse_unit": "compiling",
    "runs_on": "cuda",
    "torch_cuda_devices": "cuda",
    "unwrap_result": "driver_kernel",
    "write_sources": "compiling",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"ktuned.backends.{name}")
    if name in _HOMES:
        return getattr(import_module(f"ktuned.backends.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
