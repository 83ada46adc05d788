"""Repetition: winners are made again, so that nothing is trusted for ever, and so that noise makes nothing stale.

The observer cannot see everything on which a result depends: a datagram, shared memory, another program's answer. So
for each kernel that is in use, a fresh worker inspects it, and makes its winner's Build, inputs and artifact again, at
the lowest priority (:mod:`ktuned.worker.remake`). The first time, this gives the *baseline*. If a later repetition
differs from it, the kernel's digest changes, so its winners become stale and are tuned again, as after a save. If what
was hidden returns to its old state, so does the digest, and the old winner is fresh again.

The baseline is a name that the kernel learns: ``made:STATE:CONFIG:PARTS:BASELINE``. It is absent while repetitions give
the baseline, so it adds nothing to the digest, and nothing differs from a machine that has never repeated anything.

A part that differs is made once more before the difference counts. Parts that differ in every attempt, such as some
compilers' output, are left out.

**A change asks for a repetition at once**, because most of what code reads decides nothing: a variable, a log, a name
in a directory. If only entries of a kernel's trace have changed, and its winners' inspection, Build, inputs and
artifacts are what they were, then the winners hold in the new state, and the entry's two values count as one from then
on (:attr:`~ktuned.model.Observation.alike`), after a restart, too. Before the first repetition, what the winner's job
made stands in for the baseline. Two kinds of changes are not compared. One is a change of data that the reference,
checks or launches have read, because nothing is launched here. The other is a save of a file that only compilers read,
because the job that follows compiles anyway, and reuses equal artifacts. An entry that was noise three times is
compared by the next repetition only. Winners from elsewhere whose names differ here are compared in the same way.

*Costs.* After a repetition that took a second of CPU time, nothing is repeated for 100 s, which is 1 % of one core for
all kernels together; a kernel is repeated every ten minutes at most, and first soon after the daemon's start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

import anyio
import structlog
from msgspec.structs import replace

from ktuned.answers import Knowledge
from ktuned.catalog import Changes, Traces
from ktuned.fleet import COURTESY_S, Fleet
from ktuned.ipc import replies, requests
from ktuned.model import (
    MADE,
    Config,
    KernelInfo,
    KernelName,
    KtunedError,
    Observation,
    Problem,
    Role,
    canonical,
    reduce_digest,
    sha256,
)
from ktuned.protocol import AnswersChanged, PublishEvent
from ktuned.store import Winner

_log = structlog.get_logger()

FIRST_S = 20.0
"""Time from the start to the first repetition: the start's own work is over by then."""

SHORTEST_S = 600.0
"""Least time between two repetitions of a kernel."""

SHARE = 0.01
"""Share of one core that repetitions may take."""

OVERDUE_S = 3600.0
"""An answer whose kernel was not repeated for this long says so."""

LOOK_S = 5.0
"""Interval of the looks for a kernel to repeat."""

MOST_COMPARED = 8
"""Most winners of a kernel that are made again when an entry of its trace changes: each takes about as long as a trial.
With more of them, the kernel is tuned again."""

_SHORT = 16

_PARTS = ("artifact", "build", "inputs", "inspection", "run")
"""The parts that are compared: what a worker makes again, and what the reference, checks and launches have read."""


class Repeated(NamedTuple):
    """The last repetition of a kernel: when it ended, by the clock, and the CPU time that it took, in seconds."""

    at: float
    cpu_s: float


class _Asked(NamedTuple):
    """A comparison that a change asks for: the kernel before it, and whether it was saved just now."""

    before: KernelInfo
    saved: bool


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
        list_used_kernels: Callable[[], Iterable[str]],
        list_live_kernels: Callable[[], Iterable[str]],
        on_changes: Callable[[Changes, bool], Awaitable[None]],
        publish: PublishEvent,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._known = known
        self._fleet = fleet
        self._traces = traces
        self._list_used_kernels = list_used_kernels
        self._list_live_kernels = list_live_kernels
        self._on_changes = on_changes
        self._publish = publish
        self._clock = clock
        self._began = clock()
        self._next_at = self._began + FIRST_S
        self.last_repetitions: dict[str, Repeated] = {}
        self._asked: dict[str, _Asked] = {}
        self._was_asked = anyio.Event()

    async def react_to_changes(self, changes: Changes, saved: bool) -> None:
        """Compare kernels of which only entries of the trace have changed; pass the other changes on."""
        asked: dict[str, _Asked] = {}
        for name in changes.changed:
            known = self._asked.get(name)
            before = changes.before.get(KernelName(name)) if known is None else known.before
            kernel = self._known.catalog.find_kernel(name)
            if before is not None and kernel is not None:
                one = _Asked(before, saved or (known is not None and known.saved))
                asked |= {name: one} if self._list_comparable(one, kernel) else {}
        passed_on = {*changes.changed, *changes.removed, *changes.replanned} - asked.keys()
        self._asked = {name: one for name, one in self._asked.items() if name not in passed_on} | asked
        self._show_compared()
        if asked:
            self._was_asked.set()
        await self._on_changes(
            replace(changes, changed=tuple(name for name in changes.changed if name not in asked)), saved
        )

    def _show_compared(self) -> None:
        """Have answers say which kernels are compared."""
        before, compared = self._known.catalog.compared, {*self._asked}
        if compared != before:
            self._known.catalog.compared = compared
            for name in before ^ compared:
                self._publish(AnswersChanged(kernel=KernelName(name)))

    def _list_comparable(self, asked: _Asked, kernel: KernelInfo) -> list[Winner]:
        """Return the winners to make again after a change; none if that could not show that they hold."""
        before = asked.before
        same = (kernel.version, kernel.plan_digest) == (before.version, before.plan_digest)
        if not same or kernel.name in self._list_live_kernels() or _digest_run(kernel) != _digest_run(before):
            return []
        if asked.saved and any(one.is_source and not one.is_data for one in _list_changed(before, kernel)):
            return []
        winners = [one for one in self._known.store.list_winners(kernel.name) if one.context.digest == before.digest]
        return winners if len(winners) <= MOST_COMPARED else []

    async def compare_until_cancelled(self) -> None:
        """Make winners again when a change asks for it."""
        while True:
            await self._was_asked.wait()
            self._was_asked = anyio.Event()
            await self.compare_asked()

    async def compare_asked(self) -> None:
        """Make the winners of changed kernels again, one kernel after the other; pass on the changes that decide."""
        while self._asked:
            name, asked = next(iter(self._asked.items()))
            is_equal = await self._compare_change(name, asked)
            if self._asked.get(name) is not asked:
                # The kernel has changed once more: that change was passed on, or is compared next.
                continue
            _log.info("change_compared", kernel=name, is_equal=is_equal)
            if not is_equal:
                # Answers are in doubt until the kernel's jobs are queued.
                await self._on_changes(Changes(changed=(KernelName(name),)), asked.saved)
            if self._asked.get(name) is asked:
                del self._asked[name]
                self._show_compared()

    async def _compare_change(self, name: str, asked: _Asked) -> bool:
        """Return whether a kernel's winners are what they were before a change; then they hold from now on."""
        kernel = self._known.catalog.find_kernel(name)
        if kernel is None:
            return False
        winners = self._list_comparable(asked, kernel)
        try:
            for winner in winners:
                baseline = self.find_baseline(asked.before, winner)
                made = await self._remake_winner(kernel, winner, is_awaited=True) if baseline else None
                if made is None or _join(made.parts, _PARTS) != baseline:
                    return False
            changed = [
                one.with_equal_value(asked.before.learned[one.name].decisive)
                for one in _list_changed(asked.before, kernel)
                if one.name in asked.before.learned
            ]
            names = [one.name for one in changed]
            return bool(winners) and await self._traces.replace_names(kernel, names, changed, winners) is not None
        except KtunedError as error:
            _log.info("compare_change_failed", kernel=name, reason=error.message)
            return False

    def find_baseline(self, kernel: KernelInfo, winner: Winner) -> str:
        """Return what a winner's job, or the first repetition after it, has made; empty if a part is unknown."""
        prefix = _name_baseline(kernel, winner)
        for entry in _list_made(kernel):
            names, _, baseline = entry.name.removeprefix(prefix).partition(":")
            if entry.name.startswith(prefix) and names == "+".join(_PARTS):
                return entry.digest or baseline
        trial = self._known.store.get_trial(winner.trial)
        artifact = self._known.artifacts.read_manifest(winner.artifact) if winner.artifact else None
        if trial is None or artifact is None:
            return ""
        parts = {
            "artifact": artifact.content,
            "build": sha256(canonical(trial.detail.compiled.build)),
            "inputs": trial.detail.compiled.inputs,
            "inspection": kernel.version,
            "run": _digest_run(kernel),
        }
        return _join(parts, _PARTS) if all(parts.values()) else ""

    async def make_again(self, kernel: KernelInfo, device: str, problem: Problem, config: Config) -> str:
        """Make a config in a kernel's present state; return what :meth:`find_baseline` returns of an equal winner.

        Raises:
            KtunedError: it could not be made.
        """
        return _join((await self._remake(kernel, device, problem, config, is_awaited=True)).parts, _PARTS)

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
        """Make a kernel's newest winner again, and compare it with the baseline; all winners, if noise has changed."""
        cpu_s = 0.0
        kernel = self._known.catalog.find_kernel(name)
        winner = None if kernel is None else self._find_newest_winner(kernel)
        try:
            if kernel is not None and winner is not None:
                noise = [one for one in kernel.learned.values() if one.is_noise and one.value not in one.alike]
                if noise:
                    cpu_s = await self._compare_noise(kernel, noise)
                else:
                    cpu_s = await self._compare_with_baseline(kernel, winner)
        except KtunedError as error:
            # A file may just have changed. Then an inspection follows, and the next repetition is of the new state.
            _log.info("repetition_failed", kernel=name, reason=error.message)
        self.record_repetition(name, cpu_s)

    def record_repetition(self, name: str, cpu_s: float) -> None:
        """Record that a kernel was repeated just now."""
        self.last_repetitions[name] = Repeated(self._clock(), cpu_s)
        self._next_at = self._clock() + cpu_s / SHARE

    async def _compare_noise(self, kernel: KernelInfo, noise: Sequence[Observation]) -> float:
        """Make all winners of the present state again, because entries that were noise have changed.

        If one differs, these entries count by their values again, so that the winners are stale.
        """
        cpu_s = 0.0
        for winner in self._known.store.list_winners(kernel.name):
            if winner.context.digest == kernel.digest:
                made = await self._remake_winner(kernel, winner)
                cpu_s += made.cpu_s
                if _join(made.parts, _PARTS) != self.find_baseline(kernel, winner):
                    _log.info("noise_changed_result", kernel=kernel.name, names=[one.name for one in noise])
                    await self._learn(kernel, noise, [replace(one, alike=()) for one in noise])
                    break
        return cpu_s

    def _find_newest_winner(self, kernel: KernelInfo) -> Winner | None:
        # Also a winner from before the last repetition differed: what was hidden may be as it was.
        digests = {kernel.digest, reduce_digest(kernel.digest, _list_made(kernel))}
        winners = [one for one in self._known.store.list_winners(kernel.name) if one.context.digest in digests]
        return max(winners, key=lambda one: one.decided or 0.0, default=None)

    async def _compare_with_baseline(self, kernel: KernelInfo, winner: Winner) -> float:
        """Make a winner again, and have the kernel learn what it finds; return the CPU time that this took."""
        known = _list_made(kernel)
        prefix = _name_baseline(kernel, winner)
        entry = next((entry for entry in known if entry.name.startswith(prefix)), None)
        first = await self._remake_winner(kernel, winner)
        if entry is None:
            second = await self._remake_winner(kernel, winner)
            stable = sorted(name for name, digest in first.parts.items() if second.parts[name] == digest)
            await self._learn(
                kernel, known, [Observation(f"{prefix}{'+'.join(stable)}:{_join(first.parts, stable)}", "")]
            )
            return first.cpu_s + second.cpu_s
        names, baseline = entry.name.removeprefix(prefix).split(":")
        found = _join(first.parts, names.split("+"))
        now = "" if found == baseline else found
        if now == entry.digest:
            return first.cpu_s
        second = await self._remake_winner(kernel, winner)
        if _join(second.parts, names.split("+")) == found:
            _log.info("repetition_differs", kernel=kernel.name)
            await self._learn(kernel, known, [Observation(entry.name, now)])
        return first.cpu_s + second.cpu_s

    async def _remake_winner(self, kernel: KernelInfo, winner: Winner, *, is_awaited: bool = False) -> replies.Remade:
        problem = self._known.store.load_job_problems([winner.trial]).get(winner.trial, winner.problem)
        return await self._remake(kernel, winner.context.device, problem, winner.config, is_awaited=is_awaited)

    async def _remake(
        self, kernel: KernelInfo, device: str, problem: Problem, config: Config, *, is_awaited: bool
    ) -> replies.Remade:
        environment = self._known.catalog.find_kernel_environment(kernel)
        found = self._known.machine.find_device(environment, kernel.backend, device)
        request = requests.Remake(
            requests.KernelRef.from_kernel(kernel, environment.project, environment.cwd),
            problem,
            config,
            found.target,
            is_awaited,
        )
        async with self._fleet.gate.hold_for_computing(COURTESY_S):
            worker = await self._fleet.acquire_worker(Role.EXPLORE, environment)
            try:
                reply: replies.Remade
                reply, _ = await worker.send_request(request, self._fleet.deadlines)
            finally:
                # It may run at the lowest priority from now on.
                worker.kill()
        return replace(reply, parts={**reply.parts, "run": _digest_run(kernel)})

    async def _learn(self, kernel: KernelInfo, known: Iterable[Observation], entries: Sequence[Observation]) -> None:
        """Replace what a kernel has learned from repetitions, and act on a change of its digest as on a save."""
        learned = await self._traces.replace_names(kernel, {one.name for one in known}, entries)
        if learned is not None and learned.digest != kernel.digest:
            await self._on_changes(Changes(changed=(kernel.name,)), False)


def _list_changed(before: KernelInfo, now: KernelInfo) -> list[Observation]:
    """Return the entries of a kernel's trace whose values count, and differ from before."""
    known = before.learned
    return [
        one for one in now.learned.values() if one.decisive != (known[one.name].decisive if one.name in known else "")
    ]


def _digest_run(kernel: KernelInfo) -> str:
    """Return a digest of what the reference, checks and launches have read: it must be equal, because nothing runs
    here.
    """
    return sha256(
        canonical({name: one.decisive for name, one in kernel.learned.items() if one.is_run and one.decisive})
    )


def _name_baseline(kernel: KernelInfo, winner: Winner) -> str:
    """Return the beginning of the name that stands for a winner's baseline in a kernel's state."""
    state = reduce_digest(kernel.digest, _list_made(kernel))[:_SHORT]
    config = sha256(canonical({"problem": winner.problem, "config": winner.config}))[:_SHORT]
    return f"{MADE}{state}:{config}:"


def _list_made(kernel: KernelInfo) -> list[Observation]:
    return [entry for name, entry in kernel.learned.items() if name.startswith(MADE)]


def _join(parts: Mapping[str, str], names: Iterable[str]) -> str:
    """Return a digest of some parts."""
    return sha256("\n".join(f"{name} {parts.get(name, '')}" for name in names))[:_SHORT]
