"""Tuning beside a program, simulated: how long twelve keys take, and what they cost the program's steps.

The rule is the real one (:mod:`ktuned.fleet.device_share`); the devices are made up, with the figures of an H100. A
program of two ranks has two devices and two lanes, and each of its steps ends when both ranks' are over. Nothing here
takes real time.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from benchmarks.report import show
from ktuned.fleet.device_share import LOOK_S, LOOKS, DeviceShare

TICK_S = 0.001
LONGEST_S = 600.0

KEYS, CONFIGS, FINALS = 12, 30, 36
"""Keys, the configs of each, and the checks and timings of its finalists."""
HOST_S, DEVICE_S, OPEN_S = 0.01, 0.006, 0.1
"""What a config takes the lane's host and its device, and what opening a key takes the host."""
LANE_SHARE = 0.28
"""A lane's share of the device while a program has work there, too: a step then takes 1.39 times as long."""
BATCH = 16
LOOKS_APART_S = 0.02


@dataclass(frozen=True)
class Program:
    """A program of steps.

    Attributes:
        name: what it is called.
        device_s: what a step takes its device.
        host_s: what a step takes the host afterwards, while the device has nothing to do.
        pause_every: number of steps between two pauses, 0 for none.
        pause_s: length of a pause.
        ranks: number of processes, each with a device of its own.
    """

    name: str
    device_s: float
    host_s: float = 0.0
    pause_every: int = 0
    pause_s: float = 0.0
    ranks: int = 1


PROGRAMS = (
    Program("steps of 10 ms", 0.010),
    Program("steps of 300 ms", 0.300),
    Program("steps of 3 s", 3.0),
    Program("10 ms, half of them on the host", 0.005, 0.005),
    Program("300 ms, loads data for 2 s every 30 steps", 0.300, pause_every=30, pause_s=2.0),
    Program("300 ms, two ranks", 0.300, ranks=2),
    Program("no application", 0.0),
)


@dataclass
class Device:
    """A device, with the work that a program and a lane still have on it, in seconds."""

    program_s: float = 0.0
    lane_s: float = 0.0

    def tick(self) -> None:
        """Work for a tick, for both if both have work."""
        lanes = LANE_SHARE if self.program_s > 0 else 1.0
        programs = 1.0 - LANE_SHARE if self.lane_s > 0 else 1.0
        self.lane_s = max(0.0, self.lane_s - lanes * TICK_S)
        self.program_s = max(0.0, self.program_s - programs * TICK_S)


@dataclass
class World:
    """Some devices and a clock."""

    devices: Sequence[Device]
    now: float = 0.0
    steps: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


def run_program(world: World, program: Program) -> Iterator[None]:
    """Make steps for ever; yield once a tick."""
    for number in cycle(range(1, max(1, program.pause_every) + 1)):
        began = world.now
        for device in world.devices:
            device.program_s = program.device_s
        while any(device.program_s > 0 for device in world.devices):
            yield
        yield from wait(world, program.host_s)
        world.steps.append(world.now - began)
        if program.pause_every and number == program.pause_every:
            yield from wait(world, program.pause_s)


def wait(world: World, seconds: float) -> Iterator[None]:
    """Wait until so many seconds have passed; yield once a tick."""
    until = world.now + seconds - TICK_S / 2
    while world.now < until:
        yield


def run_lane(world: World, device: Device, requests: Iterator[int]) -> Iterator[None]:
    """Measure one request after the other, as the share allows; a request is a number of configs, 0 opens a key."""
    share = DeviceShare(world)
    for configs in requests:
        while pause_s := share.pause_s:
            yield from wait(world, max(TICK_S, min(pause_s, LOOK_S)))
            if pause_s <= LOOK_S:
                continue
            for _ in range(LOOKS):
                if is_used := device.program_s > 0:
                    break
                yield from wait(world, LOOKS_APART_S)
            share.record_use(TICK_S if is_used else 0.0)
        if not configs:
            yield from wait(world, OPEN_S)
        taken_s = 0.0
        for _ in range(configs):
            yield from wait(world, HOST_S)
            began, device.lane_s = world.now, DEVICE_S
            while device.lane_s > 0:
                yield
            if device.program_s > 0:
                taken_s += world.now - began
        if configs:
            share.record_use(taken_s)


def simulate(program: Program) -> dict[str, object]:
    """Return how long the keys take beside a program, and how much longer its steps are meanwhile."""
    world = World([Device() for _ in range(program.ranks)])
    trials, rest = divmod(CONFIGS + FINALS, BATCH)
    requests = iter([0, *[BATCH] * trials, rest] * KEYS)
    lanes = [run_lane(world, device, requests) for device in world.devices]
    others = [run_program(world, program)] if program.device_s else []
    while lanes and world.now < LONGEST_S:
        for task in others:
            next(task)
        lanes = [lane for lane in lanes if next(lane, world) is not world]
        for device in world.devices:
            device.tick()
        world.now += TICK_S
    alone = program.device_s + program.host_s
    return {
        "what": program.name,
        "12 keys s": round(world.now, 1),
        "median step": round(statistics.median(world.steps) / alone, 3) if world.steps else None,
        "mean step": round(statistics.fmean(world.steps) / alone, 3) if world.steps else None,
    }


def main() -> None:
    """Simulate all programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    show("tuning beside a program, simulated", [simulate(program) for program in PROGRAMS], as_json=options.json)


if __name__ == "__main__":
    main()
