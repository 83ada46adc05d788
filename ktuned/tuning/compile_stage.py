"""From Builds to sealed artifacts, or to the outcomes that say why there are none."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, time
from typing import Any

import anyio
import anyio.to_thread
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream

from ktuned.fleet import (
    LIBRARY,
    DeadlineExpired,
    Fleet,
    FrontEndKey,
    NodeAbsent,
    NodeLost,
    Output,
    RequestFailed,
    Turn,
    WorkerDied,
    is_outside_kill,
)
from ktuned.ipc import replies, requests
from ktuned.model import Event, Outcome, Phase, Role, WorkerError
from ktuned.store import DISK_ERRORS, Artifacts, file_fault
from ktuned.tuning.attempt import Attempt, Compiled, Ended
from ktuned.tuning.batches import COMPILE_S, BatchSize
from ktuned.tuning.compile_groups import GroupSize, share_of_slot
from ktuned.tuning.last_compiles import LAST_OF_SLOT
from ktuned.tuning.trial_detail import TrialDetail
from ktuned.tuning.work import Compiler, Work

_log = structlog.get_logger()


STRAGGLER_S = 2.0
"""A compile that is shorter than this is no straggler."""

ABSENT_S = 4.0
"""For this long a node is left out that was not there when a worker was to be started on it."""


class CompileStage:
    """Compiles one job's configs; the fleet bounds how many groups at once, :meth:`group` how large they are.

    ``on_begun`` is called when fewer of them may wait: a group has got its slot, or needs none.
    """

    def __init__(
        self, work: Work, fleet: Fleet, artifacts: Artifacts, *, on_begun: Callable[[], None] = lambda: None
    ) -> None:
        self._work = work
        self._fleet = fleet
        self._artifacts = artifacts
        self._group_size = GroupSize(work.group_size)
        self._batch_size = BatchSize(COMPILE_S)
        self._directories: list[Path] = []
        self._made = 0
        self._absent: dict[str, float] = {}
        self._last: deque[Attempt] = deque()
        self._spent_s: dict[str, float] = {}
        self._on_begun = on_begun
        self._longest_s = 0.0
        self._running: dict[anyio.CancelScope, tuple[float, int]] = {}

    @property
    def slots(self) -> int:
        """The number of compile slots, of all machines that compile for this job."""
        return sum(int(self._fleet.slots_of(one.environment.node).total_tokens) for one in self._work.compilers)

    @property
    def groups(self) -> int:
        """The number of groups under way at most: those in the slots, and those that are being sealed."""
        return sum(self._fleet.slots_of(one.environment.node).most_inside for one in self._work.compilers)

    async def open(self) -> None:
        """Have workers start, and import what they need, before there is a config to compile."""
        work = self._work
        for compiler in work.compilers:
            self._fleet.spares.prepare_compilers(compiler.environment, work.kernel.backend, besides=int(work.lowers))
        if work.lowers and not work.kernel.is_data:
            # What the files of data have their functions from is known by their Builds.
            (key, *_), opening = self._front_end({})
            await self._fleet.front_ends.open(key, opening, work.job.id, work.deadlines)

    def has_waiting(self, in_channel: int) -> bool:
        """Return whether a config waits to be compiled: of those in the channel, or for a slot."""
        if in_channel or self._last:
            return True
        job = self._work.job.id
        return any(job in self._fleet.slots_of(one.environment.node).waiting for one in self._work.compilers)

    @property
    def running(self) -> int:
        """The number of configs that are with a compiler now."""
        return sum(configs for _, configs in self._running.values())

    def end_stragglers(self, times: float) -> None:
        """Have the deadline pass of compiles that take ``times`` as long as the longest that came to its end."""
        patience_s = max(STRAGGLER_S, times * self._longest_s)
        for scope, (began, _) in self._running.items():
            if self._longest_s and monotonic() - began > patience_s:
                scope.cancel()

    async def next(self, channel: MemoryObjectReceiveStream[Attempt]) -> Attempt | None:
        """Return what a slot compiles next; of the last ones that which is expected to take longest, so that all slots
        end at about the same time. ``None`` when there is nothing more.
        """
        try:
            first = None if self._last else await channel.receive()
        except anyio.EndOfStream:
            first = None
        if first is None:
            return self._last.popleft() if self._last else None
        now = channel.statistics()
        most = self.slots * (1 if self._pays_together else LAST_OF_SLOT)
        if now.open_send_streams or now.current_buffer_used >= most:
            return first
        last = [first]
        with suppress(anyio.EndOfStream):
            while True:
                last.append(channel.receive_nowait())
        self._last.extend(sorted(last, key=lambda attempt: -attempt.expected_s))
        return self._last.popleft()

    def group(
        self, first: Attempt, channel: MemoryObjectReceiveStream[Attempt], *, lanes_starve: bool
    ) -> list[Attempt]:
        """Return ``first`` and as many of those that wait in the channel as are to be compiled with it."""
        group = [first]
        size = self._batch_size.now if self._is_batched else self._group_size.next(lanes_starve=lanes_starve)
        most = share_of_slot(waiting=1 + channel.statistics().current_buffer_used, slots=self.slots)
        for _ in range(min(size, most) - 1):
            try:
                group.append(channel.receive_nowait())
            except (anyio.WouldBlock, anyio.EndOfStream):
                break
        return group

    @property
    def _pays_together(self) -> bool:
        """True if a slot is to take several configs at once; the last ones are shared out one by one."""
        return self._batch_size.now > 1 if self._is_batched else self._group_size.pays

    @property
    def _is_batched(self) -> bool:
        """True if configs that travel together are compiled one after the other, because a group gains nothing."""
        return self._work.group_size == 1 and not self._work.lowers

    async def compile(self, attempts: Sequence[Attempt], *, is_reference: bool = False) -> list[Compiled | Ended]:
        """Bring each attempt to its artifact, or to its outcome.

        An artifact that is being compiled already, by this job or another, is waited for. What a ``reference`` takes is
        the time of the trial that finds its artifact.

        Raises:
            WorkerError: the backend cannot be loaded at all; or, with code ``source_changed``, the job works from files
                that are no more.
            StoreError: an artifact cannot be kept.
        """
        done: list[Compiled | Ended] = []
        left = self._take_found(attempts, done)
        if not left:
            self._on_begun()
        while left:
            if self._work.lowers:
                # Before there is a slot: a library may take long to be imported, and others compile meanwhile.
                left = await self._lower(left, done)
                if not left:
                    break
            compiler = await self._free()
            node = compiler.environment.node
            lost: list[Attempt] = []
            # The slot first: a job that waits for one does not compile, so it must not keep others from having quiet.
            slots, gate = self._fleet.slots_of(node), self._fleet.gate_of(node)
            async with slots.hold(self._work.job.id) as slot, gate.compiling():
                self._on_begun()
                # Asked here: what only waits for a slot compiles nothing yet.
                left = self._take_found(left, done)
                mine = [
                    attempt
                    for attempt in left
                    if not self._artifacts.is_making(attempt.unit.key)
                    and not (self._work.lowers and attempt.lowered is None)
                ]
                others = [attempt for attempt in left if attempt not in mine]
                if mine:
                    with self._artifacts.making({attempt.unit.key for attempt in mine}):
                        for attempt in mine:
                            attempt.life.tell(Event.COMPILE_STARTED)
                        ended = await self._compile_group(mine, compiler, lost, slot)
                    done += ended
                    if is_reference:
                        self._spent_s |= {one.attempt.unit.key: one.attempt.compile_s for one in ended}
            for attempt in others:
                await self._artifacts.await_made(attempt.unit.key)
            left = lost + self._take_found(others, done)
        return done

    def _take_found(self, attempts: Sequence[Attempt], done: list[Compiled | Ended]) -> list[Attempt]:
        """Add to what is done the attempts whose artifacts are there; return the others."""
        missing = []
        for attempt in attempts:
            # Names may have been learned since it was proposed.
            attempt.unit = self._work.unit(attempt.unit.build)
            key = attempt.unit.key
            if not self._artifacts.holds(key):
                missing.append(attempt)
                continue
            attempt.life.tell(Event.ARTIFACT_FOUND)
            attempt.compile_s += self._spent_s.pop(key, 0.0)
            sealed = self._artifacts.manifest(key)
            facts, files = ({}, "") if sealed is None else (sealed.facts, sealed.content)
            done.append(Compiled(attempt, facts, self._content(attempt, files)))
        return missing

    async def _free(self) -> Compiler:
        """Return where the next group compiles: the first machine with a free slot, this one before nodes.

        A node that is not there is left out for a while; where no other has the toolchain, it is waited for.
        """
        while True:
            now = monotonic()
            there = [
                one
                for one in self._work.compilers
                if now >= self._absent.get(one.environment.node, -ABSENT_S) + ABSENT_S
            ]
            free = [one for one in there if not self._fleet.slots_of(one.environment.node).is_full]
            if free or there:
                return (free or there)[0]
            await anyio.sleep(ABSENT_S / 4)

    async def _compile_group(
        self, group: list[Attempt], compiler: Compiler, lost: list[Attempt], slot: Turn
    ) -> list[Compiled | Ended]:
        """Compile a group in one request; one that fails as a whole is halved until the config at fault is alone.

        The ``slot`` is given back when the last one is compiled, though what fails after that is tried once more.
        With their node, attempts are ``lost``: they are to be compiled elsewhere.
        Of a batch the first without a result is at fault; the others have not begun.
        """
        items: dict[str, replies.CompiledUnit] = {}
        done: list[Compiled | Ended] = []
        failure: WorkerDied | DeadlineExpired | RequestFailed | None = None
        is_lost = False
        with self._staged() as directory:
            try:
                await self._request(group, compiler, directory.name, items, slot)
            except (NodeAbsent, NodeLost):
                self._absent[compiler.environment.node] = monotonic()
                is_lost = True
            except (WorkerDied, DeadlineExpired, RequestFailed) as error:
                await self._raise_if_general(error)
                failure = error
            await self._fleet.pace.step()
            rest = [attempt for attempt in group if attempt.unit.key not in items]
            for attempt in group:
                if attempt not in rest:
                    done.append(await self._take(attempt, items[attempt.unit.key]))
        if is_lost:
            for attempt in rest:
                attempt.life.tell(Event.KILLED)
            lost += rest
            return done
        if failure is None:
            silent, detail = "the backend reported nothing about this config", TrialDetail(phase=Phase.COMPILE)
            done += [Ended(attempt, attempt.result(Event.COMPILE_FAILED, silent, detail=detail)) for attempt in rest]
            return done
        if not rest:
            return done
        at_work = rest[:1] if self._is_batched else rest
        excused = [attempt for attempt in at_work if attempt.excuse_kill(failure)]
        if excused:
            for attempt in excused:
                attempt.life.tell(Event.COMPILE_STARTED)
            blamed = [self._failed(attempt, failure) for attempt in at_work if attempt not in excused]
            return [*done, *blamed, *await self._compile_group(excused + rest[len(at_work) :], compiler, lost, slot)]
        if self._is_batched:
            done.append(self._failed(rest[0], failure))
            return [*done, *await self._compile_group(rest[1:], compiler, lost, slot)] if rest[1:] else done
        if len(rest) == 1:
            return [*done, self._failed(rest[0], failure)]
        half = len(rest) // 2
        done += await self._compile_group(rest[:half], compiler, lost, slot)
        return done + await self._compile_group(rest[half:], compiler, lost, slot)

    async def _raise_if_general(self, error: WorkerDied | DeadlineExpired | RequestFailed) -> None:
        """Raise a failure that is no config's fault.

        Raises:
            WorkerError: the backend cannot be imported, or a source changed.
            StoreError: the disk cannot be written.
        """
        if isinstance(error, RequestFailed) and error.code == "source_changed":
            # The watcher follows what is known alone, and the job waits for it.
            await self._work.learn(error.failure.observed)
            raise error
        if error.phase == Phase.LOAD and not is_outside_kill(error):
            raise WorkerError(
                f"the backend {self._work.kernel.backend!r} cannot be loaded: {error.message}",
                hint=error.hint or "`ktuned doctor` says more",
            ) from error
        if isinstance(error, RequestFailed) and error.errno in DISK_ERRORS:
            fault = OSError(error.errno, error.message)
            raise file_fault(fault, f"{self._work.job.kernel} cannot be compiled") from error

    async def _request(
        self,
        group: list[Attempt],
        compiler: Compiler,
        staging: str,
        items: dict[str, replies.CompiledUnit],
        slot: Turn,
    ) -> None:
        work, environment = self._work, compiler.environment
        units = {attempt.unit.key: replace(attempt.unit, lowered=attempt.lowered or b"") for attempt in group}
        together = 1 if self._is_batched else len(group)
        deadlines = {**work.deadlines, Phase.COMPILE: work.deadlines[Phase.COMPILE] * together}
        place = f"{environment.node} slot {staging.rpartition('-')[2]}".lstrip()
        slots = self._fleet.slots_of(environment.node)
        async with (
            self._fleet.compile_slot(environment.node),
            self._fleet.lend(Role.COMPILE, environment) as worker,
            self._may_straggle(group) as began,
        ):
            until = time()
            request = requests.Compile(
                work.kernel_ref,
                work.target,
                staging,
                tuple(units.values()),
                compiler.toolchain,
                # Of a single one nothing is held back.
                hold_s=COMPILE_S if len(group) > 1 else 0.0,
                announced=slots.most_inside > slots.total_tokens,
            )
            try:
                await worker.exchange(
                    request,
                    deadlines,
                    on_item=lambda item: items.update({item.key: item}),
                    on_computed=slot.give_back,
                )
            finally:
                for attempt in group:
                    if attempt.unit.key in items:
                        attempt.worked("compile", place, until)
                        until += items[attempt.unit.key].seconds
        self._longest_s = max(self._longest_s, monotonic() - began)
        self._batch_size.took(len(items), monotonic() - began)
        if items and all(item.outcome is None for item in items.values()):
            self._group_size.took(len(items), sum(item.seconds for item in items.values()))

    @asynccontextmanager
    async def _may_straggle(self, group: Sequence[Attempt]) -> AsyncIterator[float]:
        """Let :meth:`end_stragglers` end a request, whose worker is killed by that; yield when it began.

        Raises:
            DeadlineExpired: it was ended.
        """
        began = monotonic()
        with anyio.CancelScope() as scope:
            self._running[scope] = began, len(group)
            try:
                yield began
            finally:
                del self._running[scope]
        if scope.cancelled_caught:
            raise DeadlineExpired(Phase.COMPILE, monotonic() - began, Output())

    def _front_end(self, build: Mapping[str, Any]) -> tuple[list[FrontEndKey], requests.OpenFrontEnd]:
        """Return where a Build's function may be translated, the first machine first, and what is imported for it."""
        work, library = self._work, build.get(LIBRARY)
        backend, file = work.kernel.backend, work.kernel.file
        keys = [FrontEndKey.of(one.environment, backend, file, library) for one in work.compilers]
        if library:
            return keys, requests.OpenFrontEnd(backend, library=library, build=build)
        return keys, requests.OpenFrontEnd(backend, work.kernel_ref)

    async def _lower(self, attempts: Sequence[Attempt], done: list[Compiled | Ended]) -> list[Attempt]:
        """Have functions translated, so that compiling imports nothing; return the attempts that go on.

        Raises:
            WorkerError: what they are found in cannot be imported, or a source changed.
        """
        going_on = []
        for attempt in attempts:
            ended = None
            while attempt.lowered is None and ended is None and not self._artifacts.is_making(attempt.unit.key):
                ended = await self._lower_one(attempt)
            if ended is None:
                going_on.append(attempt)
            else:
                done.append(ended)
        return going_on

    async def _lower_one(self, attempt: Attempt) -> Ended | None:
        """Have an attempt's function translated; return its end if that failed, and nothing else if it is to be tried
        again.
        """
        work = self._work
        keys, opening = self._front_end(attempt.unit.build)
        places = [
            (key, requests.Lower(work.kernel_ref, work.target, attempt.unit, one.toolchain))
            for key, one in zip(keys, work.compilers, strict=True)
        ]
        try:
            lowered = await self._fleet.front_ends.lower(places, opening, work.job.id, work.deadlines)
        except (NodeAbsent, NodeLost):
            await anyio.sleep(ABSENT_S / 4)
            return None
        except (WorkerDied, DeadlineExpired, RequestFailed) as error:
            await self._raise_if_general(error)
            attempt.life.tell(Event.COMPILE_STARTED)
            return None if attempt.excuse_kill(error) else self._failed(attempt, error)
        attempt.compile_s += lowered.seconds
        await work.learn(lowered.observed)
        if lowered.outcome is None:
            attempt.lowered = lowered.code
            return None
        attempt.life.tell(Event.COMPILE_STARTED)
        return self._refused(attempt, lowered.outcome, lowered.message)

    def _failed(self, attempt: Attempt, error: WorkerDied | DeadlineExpired | RequestFailed) -> Ended:
        if isinstance(error, DeadlineExpired):
            attempt.compile_s += error.deadline_s
        return Ended(attempt, attempt.failure(error, expired=Event.COMPILE_EXPIRED, refused=Event.COMPILE_FAILED))

    def _refused(
        self, attempt: Attempt, outcome: Outcome, message: str, facts: Mapping[str, Any] | None = None
    ) -> Ended:
        event = Event.CANNOT_RUN if outcome is Outcome.UNSUPPORTED else Event.COMPILE_FAILED
        detail = TrialDetail(phase=Phase.COMPILE, facts=facts or None)
        return Ended(attempt, attempt.result(event, message, detail=detail))

    async def _take(self, attempt: Attempt, item: replies.CompiledUnit) -> Compiled | Ended:
        await self._work.learn(item.observed)
        attempt.compile_s += item.seconds
        if item.artifact:
            attempt.unit = replace(attempt.unit, key=item.artifact)
        attempt.lowered = None
        if item.outcome is not None:
            return self._refused(attempt, item.outcome, item.message, item.facts)
        self._artifacts.note_added(item.bytes)
        attempt.life.tell(Event.COMPILE_DONE)
        return Compiled(attempt, item.facts, self._content(attempt, item.content))

    def _content(self, attempt: Attempt, files: str) -> str:
        return self._work.measured_content(attempt.unit.build, files) if files else ""

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """Lend a directory to one group; the next group uses it again, several at once have one each."""
        if self._directories:
            directory = self._directories.pop()
        else:
            self._made += 1
            directory = self._artifacts.stage(f"job{self._work.job.id}-{self._made}")
        try:
            yield directory
        finally:
            self._directories.append(directory)

    async def close(self) -> None:
        """Remove the directories, and need no front end any more; the job is over."""
        self._fleet.front_ends.leave(self._work.job.id)
        # Not on the loop: those of 500 slots took 0.8 s, and lookups waited.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._remove_directories)

    def _remove_directories(self) -> None:
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
