"""The daemon's side of workers: processes, the fleet of them, lanes, compile slots, kills, usage."""

from ktuned.fleet import memory
from ktuned.fleet.bridge import Bridge
from ktuned.fleet.calls import BridgeDown, BridgeSlow
from ktuned.fleet.cluster import Cluster
from ktuned.fleet.courtesy import Applications, Courtesy
from ktuned.fleet.executor import DATA_CODE, Environment, Executor, KernelCode, Worker
from ktuned.fleet.executors import Executors
from ktuned.fleet.failures import (
    KILLS_EXCUSED,
    DeadlineExpired,
    NodeAbsent,
    NodeLost,
    Output,
    RequestFailed,
    WorkerDied,
    is_outside_kill,
)
from ktuned.fleet.fleet import Fleet, compilers_for
from ktuned.fleet.front_ends import LIBRARY, FrontEndKey, FrontEnds
from ktuned.fleet.health import Health
from ktuned.fleet.lanes import Bench, CannotOpen, Lane, LaneSick, ReferenceUnusable
from ktuned.fleet.local_executor import LocalExecutor
from ktuned.fleet.node_link import NodeLink
from ktuned.fleet.pace import Pace
from ktuned.fleet.priority_semaphore import NO_JOB, Turn, Turns, aged
from ktuned.fleet.process import StartProcess
from ktuned.fleet.quiet import ALL_CORES, COURTESY_S, QuietGate
from ktuned.fleet.remote_executor import RemoteExecutor
from ktuned.fleet.spares import BENCH_MODULES
from ktuned.fleet.usage import CpuUse, Usage
from ktuned.fleet.warden import RUNS

__all__ = [
    "ALL_CORES",
    "BENCH_MODULES",
    "COURTESY_S",
    "DATA_CODE",
    "KILLS_EXCUSED",
    "LIBRARY",
    "NO_JOB",
    "RUNS",
    "Applications",
    "Bench",
    "Bridge",
    "BridgeDown",
    "BridgeSlow",
    "CannotOpen",
    "Cluster",
    "Courtesy",
    "CpuUse",
    "DeadlineExpired",
    "Environment",
    "Executor",
    "Executors",
    "Fleet",
    "FrontEndKey",
    "FrontEnds",
    "Health",
    "KernelCode",
    "Lane",
    "LaneSick",
    "LocalExecutor",
    "NodeAbsent",
    "NodeLink",
    "NodeLost",
    "Output",
    "Pace",
    "QuietGate",
    "ReferenceUnusable",
    "RemoteExecutor",
    "RequestFailed",
    "StartProcess",
    "Turn",
    "Turns",
    "Usage",
    "Worker",
    "WorkerDied",
    "aged",
    "compilers_for",
    "is_outside_kill",
    "memory",
]
