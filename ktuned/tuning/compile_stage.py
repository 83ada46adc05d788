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
    Environment,
    Fleet,
    FrontEndKey,
    HostLost,
    Output,
    RequestFailed,
    Turn,
    WorkerDied,
)
from ktuned.ipc import replies, requests
from ktuned.model import Phase, Role, WorkerError
from ktuned.store import DISK_ERRORS, Artifacts, file_fault
from ktuned.tuning.batches import COMPILE_S, BatchSize, GroupSize, share_of_slot
from ktuned.tuning.trial_lifecycle import Attempt, TrialState
from ktuned.tuning.trial_machine import (
    ArtifactFound,
    Compile,
    CompilerLeft,
    CompilerTook,
    ConfigCompiled,
    End,
    EndJob,
    Failure,
    Instruction,
    ends_among,
)
from ktuned.tuning.trial_order import LAST_OF_SLOT
from ktuned.tuning.work import Compiler, Work

_log = structlog.get_logger()


STRAGGLER_S = 2.0
"""A compile that is shorter than this is no straggler."""

ABSENT_S = 4.0
"""For this long a machine is left out that was not there when a worker was to be started on it."""


class CompileStage:
    """Compiles one job's configs; the fleet bounds how many groups at once, :meth:`group` how large they are.

    ``on_begun`` is called when fewer of them may wait: a group has got its slot, or needs none.
    """

    def __init__(
        self, work: Work, fleet: Fleet, artifacts: Artifacts, *, on_begun: Callable[[], None] = lambda: None
    ) -> None:
        self._work = work
        self._machine = work.trial_machine()
        self._fleet = fleet
        self._artifacts = artifacts
        self._group_size = GroupSize(work.group_size)
        self._batch_size = BatchSize(COMPILE_S)
        self._directories: list[Path] = []
        self._made = 0
        self._absent: dict[Environment, float] = {}
        self._last: deque[Attempt] = deque()
        self._spent_s: dict[str, float] = {}
        self._on_begun = on_begun
        self._longest_s = 0.0
        self._running: dict[anyio.CancelScope, tuple[float, int]] = {}

    @property
    def slots(self) -> int:
        """The number of compile slots, of all machines that compile for this job."""
        return sum(int(self._fleet.slots_of(one.environment).total_tokens) for one in self._work.compilers)

    @property
    def groups(self) -> int:
        """The number of groups under way at most: those in the slots, and those that are being sealed."""
        return sum(self._fleet.slots_of(one.environment).most_inside for one in self._work.compilers)

    async def open(self) -> None:
        """Have workers start, and import what they need, before there is a config to compile."""
        work = self._work
        for compiler in work.compilers:
            self._fleet.prepare_compilers(compiler.environment, work.kernel.backend, besides=int(work.lowers))
        if work.lowers and not work.kernel.is_data:
            # What the files of data have their functions from is known by their Builds.
            (key, *_), opening = self._front_end({})
            await self._fleet.front_ends.open_front_end(key, opening, work.job.id, work.deadlines)

    def has_waiting(self, in_channel: int) -> bool:
        """Return whether a config waits to be compiled: of those in the channel, or for a slot."""
        if in_channel or self._last:
            return True
        job = self._work.job.id
        return any(job in self._fleet.slots_of(one.environment).waiting for one in self._work.compilers)

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
        is_batch = self._machine.compiles_one_by_one
        size = self._batch_size.now if is_batch else self._group_size.next(lanes_starve=lanes_starve)
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
        return self._batch_size.now > 1 if self._machine.compiles_one_by_one else self._group_size.pays

    async def compile(self, attempts: Sequence[Attempt], *, is_reference: bool = False) -> list[End]:
        """Bring each trial to its artifact or to its end; return the ends.

        An artifact that is being compiled already, by this job or another, is waited for. What a ``reference`` takes is
        the time of the trial that finds its artifact.

        Raises:
            WorkerError: the backend cannot be loaded at all; or, with code ``source_changed``, the job works from files
                that are no more.
            StoreError: an artifact cannot be kept.
        """
        ends: list[End] = []
        requests_to_make = deque([list(attempts)])
        while requests_to_make:
            missing = self._pass_found(requests_to_make.popleft())
            if self._work.lowers and missing:
                # Before there is a slot: a library may take long to be imported, and others compile meanwhile.
                lowered = await self._lower(missing)
                ends += lowered
                missing = [attempt for attempt in missing if attempt.outcome is None]
            if not missing:
                self._on_begun()
                continue
            compiler = await self._await_compiler()
            slots, gate = self._fleet.slots_of(compiler.environment), self._fleet.gate_of(compiler.environment)
            # The slot first: a job that waits for one does not compile, so it must not keep others from having quiet.
            async with slots.hold_turn(self._work.job.id) as slot, gate.hold_for_compile():
                self._on_begun()
                # Looked at again: what only waited for a slot may have been compiled meanwhile.
                missing = self._pass_found(missing)
                others = [attempt for attempt in missing if not self._may_compile(attempt)]
                mine = [attempt for attempt in missing if attempt not in others]
                if mine:
                    with self._artifacts.mark_in_progress({attempt.unit.key for attempt in mine}):
                        instructions = await self._compile_together(mine, compiler, slot)
                    ends += ends_among(instructions)
                    requests_to_make.extend(list(one.attempts) for one in instructions if isinstance(one, Compile))
            for attempt in others:
                await self._artifacts.await_made(attempt.unit.key)
            if others:
                requests_to_make.append(others)
        if is_reference:
            self._spent_s |= {attempt.unit.key: attempt.compile_s for attempt in attempts}
        return ends

    def _may_compile(self, attempt: Attempt) -> bool:
        is_ready = attempt.lowered is not None or not self._work.lowers
        return is_ready and not self._artifacts.is_making(attempt.unit.key)

    def _pass_found(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Have the trials compiled whose artifacts are there; return the others."""
        missing = []
        for attempt in attempts:
            # Names may have been learned since it was proposed.
            attempt.unit = self._work.unit(attempt.unit.build)
            key = attempt.unit.key
            if not self._artifacts.is_sealed(key):
                missing.append(attempt)
                continue
            self._machine.handle(ArtifactFound(attempt))
            attempt.compile_s += self._spent_s.pop(key, 0.0)
            sealed = self._artifacts.read_manifest(key)
            if sealed is not None:
                attempt.facts, attempt.files = sealed.facts, sealed.content
        return missing

    async def _await_compiler(self) -> Compiler:
        """Return where the next group compiles: the first machine with a free slot, this one before others.

        One that is not there is left out for a while; where no other has the toolchain, it is waited for.
        """
        while True:
            now = monotonic()
            there = [
                one for one in self._work.compilers if now >= self._absent.get(one.environment, -ABSENT_S) + ABSENT_S
            ]
            free = [one for one in there if not self._fleet.slots_of(one.environment).is_full]
            if free or there:
                return (free or there)[0]
            await anyio.sleep(ABSENT_S / 4)

    async def _compile_together(self, group: list[Attempt], compiler: Compiler, slot: Turn) -> list[Instruction]:
        """Compile a group in one request; return what is to be done with those that have no artifact.

        Raises:
            WorkerError, StoreError: as :meth:`compile`.
        """
        units: dict[str, replies.CompiledUnit] = {}
        error: Failure | None = None
        self._machine.handle(CompilerTook(group))
        with self._lend_directory() as directory:
            try:
                await self._send(group, compiler, directory.name, units, slot)
            except (WorkerDied, DeadlineExpired, RequestFailed) as raised:
                error = raised
            await self._fleet.pace.wait_for_step()
            instructions: list[Instruction] = []
            for attempt in group:
                if (unit := units.get(attempt.unit.key)) is not None:
                    instructions += await self._take(attempt, unit)
        if isinstance(error, HostLost):
            self._absent[compiler.environment] = monotonic()
        silent = [attempt for attempt in group if attempt.state is TrialState.COMPILING]
        instructions += self._machine.handle(CompilerLeft(silent, error))
        await self._raise_if_over(instructions)
        return instructions

    async def _raise_if_over(self, instructions: Sequence[Instruction]) -> None:
        """Raise the error that ends the job, as its clients are to read it."""
        for error in [one.error for one in instructions if isinstance(one, EndJob)]:
            if isinstance(error, RequestFailed) and error.errno in DISK_ERRORS:
                fault = OSError(error.errno, error.message)
                raise file_fault(fault, f"{self._work.job.kernel} cannot be compiled") from error
            if isinstance(error, RequestFailed) and error.code == "source_changed":
                # The watcher follows what is known alone, and the job waits for it.
                await self._work.learn(error.failure.observed)
                raise error
            raise WorkerError(
                f"the backend {self._work.kernel.backend!r} cannot be loaded: {error.message}",
                hint=error.hint or "`ktuned doctor` says more",
            ) from error

    async def _send(
        self,
        group: list[Attempt],
        compiler: Compiler,
        staging: str,
        reported: dict[str, replies.CompiledUnit],
        slot: Turn,
    ) -> None:
        """Have a worker compile a group; ``reported`` has what it says of each config, also where it then fails."""
        work, environment = self._work, compiler.environment
        units = {attempt.unit.key: replace(attempt.unit, lowered=attempt.lowered or b"") for attempt in group}
        together = 1 if self._machine.compiles_one_by_one else len(group)
        deadlines = {**work.deadlines, Phase.COMPILE: work.deadlines[Phase.COMPILE] * together}
        place = f"{environment.host} slot {staging.rpartition('-')[2]}".lstrip()
        slots = self._fleet.slots_of(compiler.environment)
        async with (
            self._fleet.lend_worker(Role.COMPILE, environment) as worker,
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
                await worker.send_request(
                    request,
                    deadlines,
                    on_item=lambda unit: reported.update({unit.key: unit}),
                    # Though what fails after that is tried once more.
                    on_computed=slot.give_back,
                )
            finally:
                for attempt in group:
                    if attempt.unit.key in reported:
                        attempt.note_place("compile", place, until)
                        until += reported[attempt.unit.key].seconds
        self._longest_s = max(self._longest_s, monotonic() - began)
        self._batch_size.took(len(reported), monotonic() - began)
        if reported and all(unit.outcome is None for unit in reported.values()):
            self._group_size.took(len(reported), sum(unit.seconds for unit in reported.values()))

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
        keys = [FrontEndKey.for_build(one.environment, backend, file, library) for one in work.compilers]
        if library:
            return keys, requests.OpenFrontEnd(backend, library=library, build=build)
        return keys, requests.OpenFrontEnd(backend, work.kernel_ref)

    async def _lower(self, attempts: Sequence[Attempt]) -> list[End]:
        """Have functions translated, so that compiling imports nothing; return the ends of those that cannot be.

        Raises:
            WorkerError: what they are found in cannot be imported, or a source changed.
        """
        ends: list[End] = []
        for attempt in attempts:
            is_made_by_others = self._artifacts.is_making
            while attempt.lowered is None and attempt.outcome is None and not is_made_by_others(attempt.unit.key):
                instructions = await self._lower_one(attempt)
                await self._raise_if_over(instructions)
                ends += ends_among(instructions)
        return ends

    async def _lower_one(self, attempt: Attempt) -> list[Instruction]:
        """Try to have a trial's function translated: a request of its own, with the failures of a compile."""
        work = self._work
        keys, opening = self._front_end(attempt.unit.build)
        places = [
            (key, requests.Lower(work.kernel_ref, work.target, attempt.unit, one.toolchain))
            for key, one in zip(keys, work.compilers, strict=True)
        ]
        try:
            lowered = await self._fleet.front_ends.lower_function(places, opening, work.job.id, work.deadlines)
        except (WorkerDied, DeadlineExpired, RequestFailed, HostLost) as error:
            if isinstance(error, HostLost):
                await anyio.sleep(ABSENT_S / 4)
            self._machine.handle(CompilerTook([attempt]))
            return self._machine.handle(CompilerLeft([attempt], error))
        attempt.compile_s += lowered.seconds
        await work.learn(lowered.observed)
        if lowered.outcome is None:
            attempt.lowered = lowered.code
            return []
        self._machine.handle(CompilerTook([attempt]))
        return self._machine.handle(ConfigCompiled(attempt, lowered.outcome, lowered.message))

    async def _take(self, attempt: Attempt, unit: replies.CompiledUnit) -> list[Instruction]:
        """Take in what a compiler reports on a config."""
        await self._work.learn(unit.observed)
        attempt.compile_s += unit.seconds
        attempt.lowered = None
        attempt.facts = unit.facts
        if unit.artifact:
            attempt.unit = replace(attempt.unit, key=unit.artifact)
        if unit.outcome is None:
            self._artifacts.note_added(unit.bytes)
            attempt.files = unit.content
        return self._machine.handle(ConfigCompiled(attempt, unit.outcome, unit.message))

    @contextmanager
    def _lend_directory(self) -> Iterator[Path]:
        """Lend a directory to one group; the next group uses it again, several at once have one each."""
        if self._directories:
            directory = self._directories.pop()
        else:
            self._made += 1
            directory = self._artifacts.make_staging_directory(f"job{self._work.job.id}-{self._made}")
        try:
            yield directory
        finally:
            self._directories.append(directory)

    async def close(self) -> None:
        """Remove the directories, and need no front end any more; the job is over."""
        self._fleet.front_ends.forget_job(self._work.job.id)
        # Not on the loop: those of 500 slots took 0.8 s, and lookups waited.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._remove_directories)

    def _remove_directories(self) -> None:
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
