"""The daemon's side of workers: processes, the pool, lanes, compile slots, kills, usage."""

from ktuned.fleet import memory
from ktuned.fleet.failures import KILLS_EXCUSED, DeadlineExpired, Output, RequestFailed, WorkerDied, is_outside_kill
from ktuned.fleet.lanes import Bench, CannotOpen, Lane, LaneSick
from ktuned.fleet.pool import Fleet
from ktuned.fleet.priority_semaphore import Turns, aged
from ktuned.fleet.process import Environment, WorkerProcess
from ktuned.fleet.usage import CpuUse, Usage

__all__ = [
    "KILLS_EXCUSED",
    "Bench",
    "CannotOpen",
    "CpuUse",
    "DeadlineExpired",
    "Environment",
    "Fleet",
    "Lane",
    "LaneSick",
    "Output",
    "RequestFailed",
    "Turns",
    "Usage",
    "WorkerDied",
    "WorkerProcess",
    "aged",
    "is_outside_kill",
    "memory",
]
