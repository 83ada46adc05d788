"""Repetition: winners in use are made again from time to time, so that nothing is trusted for ever.

The observer cannot see everything on which a result depends: a datagram, shared memory, another program's answer. So
for each kernel that is in use, a fresh worker inspects it, and makes its winner's Build, inputs and artifact again, at
the lowest priority (:mod:`ktuned.worker.remake`). The first time, this gives the *baseline*. If a later repetition
differs from it, the kernel's digest changes, so its winners become stale and are tuned again, as after a save. If what
was hidden returns to its old state, so does the digest, and the old winner is fresh again.

The baseline is a name that the kernel learns: ``made:STATE:CONFIG:PARTS:BASELINE``. It is absent while repetitions give
the baseline, so it adds nothing to the digest, and nothing differs from a machine that has never repeated anything.

What differs is made once more before it counts. Parts that no two attempts make alike, as some compilers' output, are
left out.

*Costs.* After a repetition that took a second of CPU time, nothing is repeated for 100 s, which is 1 % of one core for
all kernels together; a kernel is repeated every ten minutes at most, and first soon after the daemon's start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import monotonic
from typing import NamedTuple

import anyio
import structlog

from ktuned.answers import Knowledge
from ktuned.catalog import Changes, Traces
from ktuned.fleet import COURTESY_S, Fleet
from ktuned.ipc import replies, requests
from ktuned.model import MADE, KernelInfo, KtunedError, Observation, Role, canonical, reduce_digest
from ktuned.protocol import AnswersChanged, PublishEvent
from ktuned.store import Winner

_log = structlog.get_logger()

FIRST_S = 20.0
"""Time from the start to the first repetition: what a start does itself is over by then."""

SHORTEST_S = 600.0
"""Least time between two repetitions of a kernel."""

SHARE = 0.01
"""Share of one core that repetitions may take."""

OVERDUE_S = 3600.0
"""An answer whose kernel was not repeated for this long says so."""

LOOK_S = 5.0
"""Interval at which it is looked for a kernel to repeat."""

_SHORT = 16


class Repeated(NamedTuple):
    """The last repetition of a kernel: when it ended, by the clock, and the CPU time that it took, in seconds."""

    at: float
    cpu_s: float


class Repetition:
    """Repeats the winners of kernels in use.

    Attributes:
        last_repetitions: the last repetition of each kernel by this daemon.
    """

    def __init__(
        self,
        known: Knowledge,
        *,
        fleet: Fleet,
        traces: Traces,
        deadlines: Mapping[str, float],
        list_used_kernels: Callable[[], Iterable[str]],
        on_changes: Callable[[Changes, bool], Awaitable[None]],
        publish: PublishEvent,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._known = known
        self._fleet = fleet
        self._traces = traces
        self._deadlines = deadlines
        self._list_used_kernels = list_used_kernels
        self._on_changes = on_changes
        self._publish = publish
        self._clock = clock
        self._began = clock()
        self._next_at = self._began + FIRST_S
        self.last_repetitions: dict[str, Repeated] = {}

    def find_interval(self, name: str) -> float:
        """Return the seconds between two repetitions of a kernel, as far as its own cost decides."""
        known = self.last_repetitions.get(name)
        return SHORTEST_S if known is None else max(SHORTEST_S, known.cpu_s / SHARE)

    def describe_pace(self, name: str) -> str:
        """Return when a kernel was repeated, and how often it is while it is in use, in words."""
        known, minutes = self.last_repetitions.get(name), self.find_interval(name) / 60.0
        when = "not yet" if known is None else f"{(self._clock() - known.at) / 60.0:.0f} min ago"
        return f"{when}; every {minutes:.0f} min while in use"

    async def run_until_cancelled(self) -> None:
        """Repeat kernels when they are due, one after the other."""
        while True:
            await anyio.sleep(LOOK_S)
            self.note_overdue()
            name = self.choose_due_kernel()
            if name is not None:
                await self.repeat_kernel(name)

    def choose_due_kernel(self) -> str | None:
        """Return the used kernel that has waited longest for its repetition, if one is due now."""
        now = self._clock()
        if now < self._next_at:
            return None
        due = [name for name in self._list_used_kernels() if now - self._find_last(name) >= self._find_wait(name)]
        return min(due, key=self._find_last, default=None)

    def _find_last(self, name: str) -> float:
        known = self.last_repetitions.get(name)
        return self._began if known is None else known.at

    def _find_wait(self, name: str) -> float:
        return self.find_interval(name) if name in self.last_repetitions else FIRST_S

    def note_overdue(self) -> None:
        """Have answers say so if their kernels were not repeated for too long."""
        now = self._clock()
        overdue = {name for name in self._list_used_kernels() if now - self._find_last(name) > OVERDUE_S}
        if overdue != self._known.catalog.unrepeated:
            self._known.catalog.unrepeated = overdue
            self._publish(AnswersChanged())

    async def repeat_kernel(self, name: str) -> None:
        """Make a kernel's newest winner again, and compare it with the baseline."""
        cpu_s = 0.0
        kernel = self._known.catalog.find_kernel(name)
        winner = None if kernel is None else self._find_newest_winner(kernel)
        try:
            if kernel is not None and winner is not None:
                cpu_s = await self._compare_with_baseline(kernel, winner)
        except KtunedError as error:
            # A file may just have changed. Then an inspection follows, and the next repetition is of the new state.
            _log.info("not_repeated", kernel=name, reason=error.message)
        self.record_repetition(name, cpu_s)

    def record_repetition(self, name: str, cpu_s: float) -> None:
        """Record that a kernel was repeated just now."""
        self.last_repetitions[name] = Repeated(self._clock(), cpu_s)
        self._next_at = self._clock() + cpu_s / SHARE

    def _find_newest_winner(self, kernel: KernelInfo) -> Winner | None:
        # Also a winner from before the last repetition differed: what was hidden may be as it was.
        digests = {kernel.digest, reduce_digest(kernel.digest, _list_made(kernel))}
        winners = [one for one in self._known.store.list_winners(kernel.name) if one.context.digest in digests]
        return max(winners, key=lambda one: one.decided or 0.0, default=None)

    async def _compare_with_baseline(self, kernel: KernelInfo, winner: Winner) -> float:
        """Make a winner again, and have the kernel learn what it finds; return the CPU time that this took."""
        known = _list_made(kernel)
        state = reduce_digest(kernel.digest, known)[:_SHORT]
        config = hashlib.sha256(canonical({"problem": winner.problem, "config": winner.config}).encode()).hexdigest()[
            :_SHORT
        ]
        prefix = f"{MADE}{state}:{config}:"
        entry = next((entry for entry in known if entry.name.startswith(prefix)), None)
        first = await self._remake(kernel, winner)
        if entry is None:
            second = await self._remake(kernel, winner)
            stable = sorted(name for name, digest in first.parts.items() if second.parts[name] == digest)
            await self._learn(kernel, known, Observation(f"{prefix}{'+'.join(stable)}:{_join(first, stable)}", ""))
            return first.cpu_s + second.cpu_s
        names, baseline = entry.name.removeprefix(prefix).split(":")
        found = _join(first, names.split("+"))
        now = "" if found == baseline else found
        if now == entry.digest:
            return first.cpu_s
        second = await self._remake(kernel, winner)
        if _join(second, names.split("+")) == found:
            _log.info("repetition_differs", kernel=kernel.name)
            await self._learn(kernel, known, Observation(entry.name, now))
        return first.cpu_s + second.cpu_s

    async def _remake(self, kernel: KernelInfo, winner: Winner) -> replies.Remade:
        environment = self._known.catalog.find_kernel_environment(kernel)
        device = self._known.machine.find_device(environment, kernel.backend, winner.context.device)
        problem = self._known.store.load_job_problems([winner.trial]).get(winner.trial, winner.problem)
        request = requests.Remake(
            requests.KernelRef.from_kernel(kernel, environment.project, environment.cwd),
            problem,
            winner.config,
            device.target,
        )
        async with self._fleet.gate.hold_for_computing(COURTESY_S):
            worker = await self._fleet.acquire_worker(Role.EXPLORE, environment)
            try:
                reply: replies.Remade
                reply, _ = await worker.send_request(request, self._deadlines)
            finally:
                # It runs at the lowest priority from now on.
                worker.kill()
        return reply

    async def _learn(self, kernel: KernelInfo, known: Iterable[Observation], entry: Observation) -> None:
        """Replace what a kernel has learned from repetitions, and act on a change of its digest as on a save."""
        learned = await self._traces.replace_names(kernel, {one.name for one in known}, entry)
        if learned.digest != kernel.digest:
            await self._on_changes(Changes(changed=(kernel.name,)), False)


def _list_made(kernel: KernelInfo) -> list[Observation]:
    return [entry for name, entry in kernel.learned.items() if name.startswith(MADE)]


def _join(made: replies.Remade, names: Iterable[str]) -> str:
    """Return a digest of some parts."""
    text = "\n".join(f"{name} {made.parts.get(name, '')}" for name in names)
    return hashlib.sha256(text.encode()).hexdigest()[:_SHORT]
