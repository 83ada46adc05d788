"""The daemon's side of workers: processes, the fleet of them, lanes, compile slots, kills, usage."""

from ktuned.fleet import cluster_messages, memory
from ktuned.fleet.applications import Applications
from ktuned.fleet.cluster import ClusterExecutor, ClusterSettings
from ktuned.fleet.compile_slot import CompileSlot
from ktuned.fleet.executor import DATA_CODE, Environment, Executor, Executors, KernelCode, Worker
from ktuned.fleet.failures import (
    KILLS_EXCUSED,
    CannotOpen,
    DeadlineExpired,
    Health,
    HostLost,
    LaneSick,
    Output,
    ReferenceUnusable,
    RequestFailed,
    WorkerDied,
    is_outside_kill,
)
from ktuned.fleet.fleet import BENCH_MODULES, Fleet, choose_compile_slots, count_compile_workers
from ktuned.fleet.front_ends import LIBRARY, FrontEndKey
from ktuned.fleet.lane_machine import Bench
from ktuned.fleet.lanes import Lane
from ktuned.fleet.local_executor import SET_IN_WORKERS, LocalExecutor, choose_worker_variables
from ktuned.fleet.priority_semaphore import NO_JOB, Turns, age_rank
from ktuned.fleet.process import StartProcess
from ktuned.fleet.program import ProgramFailed, Programs, run_program
from ktuned.fleet.quiet import ALL_CORES, COURTESY_S, Pace, QuietGate
from ktuned.fleet.usage import CpuUse, Usage
