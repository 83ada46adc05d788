"""Idle workers: which one serves a request, which are outdated, and which have idled for too long.

A worker that has opened a kernel file holds what the file's Python did to the process (torch's default dtype, its
threads, its flags), so it serves that file alone, and only while its Python is the same. No IO, and no kills: those
that are not to be kept are returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from time import monotonic

from ktuned.fleet.executor import Environment, KernelCode, Worker
from ktuned.model import Role

KEPT_LOADED = 2
"""Workers of a device that have opened a kernel file, the one in use included: an author's saves alternate between two
files. Each holds some 300 MiB, and 500 MiB of a GPU."""


_Kind = tuple[Role, Environment]
_State = tuple[str, KernelCode | None]
"""A worker's device, and the kernel file that it has opened."""


class IdleWorkers:
    """The workers that wait to be lent, by role and environment, and then by device and kernel file.

    A list of each has the longest idle first. With thousands of slots no question goes through all of them.
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[_Kind, dict[_State, list[tuple[float, Worker]]]] = defaultdict(dict)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Worker]:
        return (worker for states in self._waiting.values() for waiting in states.values() for _, worker in waiting)

    def put(self, worker: Worker) -> None:
        """Keep a worker from now on."""
        states = self._waiting[worker.role, worker.environment]
        states.setdefault((worker.device, worker.code), []).append((monotonic(), worker))
        self._count += 1

    def take(
        self, role: Role, environment: Environment, device: str = "", code: KernelCode | None = None
    ) -> Worker | None:
        """Take out the worker that has opened ``code`` on a device, else an unused one: of that device, or of none."""
        states = self._waiting[role, environment]
        for wanted in ((device, code), (device, None), ("", None)):
            waiting = states.get(wanted, [])
            while waiting:
                _, worker = waiting.pop()
                self._count -= 1
                if not waiting:
                    # Each edit of a kernel file makes a state: none is left behind.
                    del states[wanted]
                if worker.is_alive:
                    return worker
        return None

    def take_cold(self, role: Role, environment: Environment) -> Worker | None:
        """Take out one that has imported what it needs, and has no context on any device."""
        return self.take(role, environment) if self.spares(role, environment, "") else None

    def take_outdated(self, role: Role, environment: Environment, code: KernelCode) -> list[Worker]:
        """Take out those that have opened an earlier state of a kernel file."""
        return self._take_out(
            lambda _, worker: (
                (worker.role, worker.environment) == (role, environment)
                and worker.code is not None
                and worker.code.file == code.file
                and worker.code != code
            )
        )

    def take_environment(self, environment: Environment) -> list[Worker]:
        """Take out those of an environment."""
        return self._take_out(lambda _, worker: worker.environment == environment)

    def take_device(self, device: str) -> list[Worker]:
        """Take out those of a device, whether they have opened a kernel file or not."""
        return self._take_out(lambda _, worker: worker.device == device)

    def take_surplus(self, device: str, kept: int) -> list[Worker]:
        """Take out those that have opened a kernel file on a device, in any environment, but the ``kept`` newest."""
        loaded = self.loaded(device)
        surplus = loaded[: max(0, len(loaded) - kept)]
        return self._take_out(lambda _, worker: worker in surplus)

    def take_excess(self, most: int, most_bytes: int) -> list[Worker]:
        """Take out the longest idle, of whatever role and environment, until no more than so many are left, and those
        of this machine hold no more than so much memory together; the newest one stays.
        """
        entries = sorted(
            (entry for states in self._waiting.values() for waiting in states.values() for entry in waiting),
            key=lambda entry: entry[0],
        )
        left, held = len(entries), sum(worker.memory_bytes for _, worker in entries if not worker.environment.host)
        excess: set[int] = set()
        for _, worker in entries[:-1]:
            if left <= most and held <= most_bytes:
                break
            excess.add(id(worker))
            left -= 1
            held -= 0 if worker.environment.host else worker.memory_bytes
        return self._take_out(lambda _, worker: id(worker) in excess)

    def take_expired(self, limit_s: Callable[[Role], float]) -> list[Worker]:
        """Take out those that have idled for longer than their role's limit."""
        now = monotonic()
        return self._take_out(lambda since, worker: now - since >= limit_s(worker.role))

    def loaded(self, device: str) -> list[Worker]:
        """Return those that have opened a kernel file on a device, the longest idle first."""
        found = [
            entry
            for states in self._waiting.values()
            for (its_device, code), waiting in states.items()
            if its_device == device and code is not None
            for entry in waiting
        ]
        found.sort(key=lambda entry: entry[0])
        return [worker for _, worker in found]

    def alike(self, worker: Worker) -> int:
        """Return how many of a worker's kind there are on its device."""
        states = self._waiting[worker.role, worker.environment]
        return sum(len(waiting) for (device, _), waiting in states.items() if device == worker.device)

    def spares(self, role: Role, environment: Environment, device: str) -> int:
        """Return how many there are for a device (empty: for any) that have opened no kernel file."""
        return sum(worker.is_alive for _, worker in self._waiting[role, environment].get((device, None), ()))

    def _take_out(self, is_taken: Callable[[float, Worker], bool]) -> list[Worker]:
        taken: list[Worker] = []
        for states in self._waiting.values():
            for state, waiting in list(states.items()):
                before = len(taken)
                taken += [worker for since, worker in waiting if is_taken(since, worker)]
                self._count -= len(taken) - before
                waiting[:] = [(since, worker) for since, worker in waiting if not is_taken(since, worker)]
                if not waiting:
                    del states[state]
        return taken
