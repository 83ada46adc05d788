"""From Builds to sealed artifacts, or to the outcomes that say why there are none."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, time

import anyio
import anyio.to_thread
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream

from ktuned.fleet import (
    DeadlineExpired,
    Fleet,
    NodeAbsent,
    NodeLost,
    RequestFailed,
    Turn,
    Worker,
    WorkerDied,
    is_outside_kill,
)
from ktuned.ipc import replies, requests
from ktuned.model import Event, Outcome, Phase, Role, WorkerError
from ktuned.store import DISK_ERRORS, Artifacts, file_fault
from ktuned.tuning.attempt import Attempt, Compiled, Ended
from ktuned.tuning.batches import COMPILE_S, BatchSize
from ktuned.tuning.compile_groups import GroupSize, share_of_slot
from ktuned.tuning.front_end import FrontEnd
from ktuned.tuning.last_compiles import LAST_OF_SLOT
from ktuned.tuning.trial_detail import TrialDetail
from ktuned.tuning.work import Compiler, Work

_log = structlog.get_logger()


ABSENT_S = 4.0
"""For this long a node is left out that was not there when a worker was to be started on it."""


class CompileStage:
    """Compiles one job's configs; the fleet bounds how many groups at once, :meth:`group` how large they are."""

    def __init__(self, work: Work, fleet: Fleet, artifacts: Artifacts) -> None:
        self._work = work
        self._fleet = fleet
        self._artifacts = artifacts
        self._group_size = GroupSize(work.group_size)
        self._front_end = FrontEnd(work, fleet)
        self._batch_size = BatchSize(COMPILE_S)
        self._directories: list[Path] = []
        self._made = 0
        self._absent: dict[str, float] = {}
        self._last: deque[Attempt] = deque()

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
        if work.lowers:
            await self._front_end.open()

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

    async def compile(self, attempts: Sequence[Attempt]) -> list[Compiled | Ended]:
        """Bring each attempt to its artifact, or to its outcome.

        Raises:
            WorkerError: the backend cannot be loaded at all; or, with code ``source_changed``, the job works from files
                that are no more.
            StoreError: an artifact cannot be kept.
        """
        done: list[Compiled | Ended] = []
        missing = []
        for attempt in attempts:
            # Names may have been learned since it was proposed.
            attempt.unit = self._work.unit(attempt.unit.build)
            key = attempt.unit.key
            if not self._artifacts.holds(key):
                _log.debug("artifact_missing", artifact=key, target=self._work.target)
                missing.append(attempt)
            else:
                attempt.life.tell(Event.ARTIFACT_FOUND)
                sealed = self._artifacts.manifest(key)
                facts, files = ({}, "") if sealed is None else (sealed.facts, sealed.content)
                done.append(Compiled(attempt, facts, self._content(attempt, files)))
        if missing:
            left = missing
            while left:
                compiler = await self._free()
                node = compiler.environment.node
                lost: list[Attempt] = []
                # The slot first: a job that waits for one does not compile, so it must not keep others from having
                # quiet.
                slots, gate = self._fleet.slots_of(node), self._fleet.gate_of(node)
                async with slots.hold(self._work.job.id) as slot, gate.compiling():
                    for attempt in left:
                        attempt.life.tell(Event.COMPILE_STARTED)
                    done += await self._compile_group(left, compiler, lost, slot)
                left = lost
        return done

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
        units = {attempt.unit.key: attempt.unit for attempt in group}
        together = 1 if self._is_batched else len(group)
        deadlines = {**work.deadlines, Phase.COMPILE: work.deadlines[Phase.COMPILE] * together}
        place = f"{environment.node} slot {staging.rpartition('-')[2]}".lstrip()
        slots = self._fleet.slots_of(environment.node)
        failure: WorkerDied | DeadlineExpired | RequestFailed | None = None
        async with (
            self._fleet.compile_slot(environment.node),
            self._fleet.lend(Role.COMPILE, environment) as worker,
        ):
            if work.lowers:
                try:
                    units = await self._all_lowered(group, compiler, items, worker)
                except (WorkerDied, DeadlineExpired, RequestFailed) as error:
                    # The front end's: this worker has done nothing.
                    failure, units = error, {}
            began, until = monotonic(), time()
            if units:
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
        if failure is not None:
            raise failure
        self._batch_size.took(len(items), monotonic() - began)
        if items and all(item.outcome is None for item in items.values()):
            self._group_size.took(len(items), sum(item.seconds for item in items.values()))

    async def _all_lowered(
        self,
        group: Sequence[Attempt],
        compiler: Compiler,
        items: dict[str, replies.CompiledUnit],
        worker: Worker,
    ) -> dict[str, requests.UnitRef]:
        """Return the units of a group without Python; the worker that is to compile them imports its compiler
        meanwhile, if the front end is still importing the user's modules.
        """
        if self._front_end.is_opening:
            with suppress(RequestFailed):
                await worker.exchange(requests.Prepare((self._work.kernel.backend,)), self._work.deadlines)
        units = [await self._lowered(attempt, compiler, items) for attempt in group]
        return {unit.key: unit for unit in units if unit is not None}

    async def _lowered(
        self, attempt: Attempt, compiler: Compiler, items: dict[str, replies.CompiledUnit]
    ) -> requests.UnitRef | None:
        """Return an attempt's unit without Python; ``None`` if that ended it, with its item."""
        unit = attempt.unit
        lowered = await self._front_end.lower(unit, compiler)
        if lowered.outcome is not None:
            items[unit.key] = replies.CompiledUnit(
                unit.key, lowered.outcome, lowered.message, lowered.seconds, {}, observed=lowered.observed
            )
            return None
        attempt.compile_s += lowered.seconds
        return replace(unit, lowered=lowered.code, observed=lowered.observed)

    def _failed(self, attempt: Attempt, error: WorkerDied | DeadlineExpired | RequestFailed) -> Ended:
        if isinstance(error, DeadlineExpired):
            attempt.compile_s += error.deadline_s
        return Ended(attempt, attempt.failure(error, expired=Event.COMPILE_EXPIRED, refused=Event.COMPILE_FAILED))

    async def _take(self, attempt: Attempt, item: replies.CompiledUnit) -> Compiled | Ended:
        await self._work.learn(item.observed)
        attempt.compile_s += item.seconds
        if item.artifact:
            attempt.unit = replace(attempt.unit, key=item.artifact)
        if item.outcome is not None:
            event = Event.CANNOT_RUN if item.outcome is Outcome.UNSUPPORTED else Event.COMPILE_FAILED
            detail = TrialDetail(phase=Phase.COMPILE, facts=item.facts or None)
            return Ended(attempt, attempt.result(event, item.message, detail=detail))
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
        """Remove the directories, and give the front end's worker back; the job is over."""
        self._front_end.close()
        # Not on the loop: those of 500 slots took 0.8 s, and lookups waited.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._remove_directories)

    def _remove_directories(self) -> None:
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
