"""The compile stage: brings each config of a job to its sealed artifact, or to the outcome that says why it has none.

*The way of a config.* A config's artifact has a key, a digest of everything that decides its bytes. If an artifact with
this key is sealed, nothing is compiled. If another group is compiling it, for this job or another one, the config waits
for that group. Otherwise its own group waits for a slot and is sent to a compile worker in one request, whose results
are taken in as they arrive. If the backend *lowers*, a front end first translates the config's function. That happens
before the group takes a slot, because the front end may import a large library, and others can compile meanwhile.

*Slots.* As many groups are under way as there are slots, and all take their configs from one bounded channel. The stage
reports when no config waits for a slot any more, so that the next job can use idle slots.

*Groups.* A backend compiles a request's configs one by one (a *batch*, whose size is bounded by time), or builds them
as one program (a *group*, whose size is learned: :class:`~ktuned.tuning.limits.GroupSize`). The last configs of a job
are shared out one by one, the longest first, so that all slots end at about the same time.

*Failures.* :mod:`~ktuned.tuning.trial_machine` decides what a failed request says about its configs, and may ask for
smaller requests; this module carries that out. An error that all configs share (a changed source, a backend that cannot
be imported, a full disk) is raised, and ends the job.

*Machines.* A job may compile on several machines that have its toolchain. A machine that cannot be reached is left out
for :data:`ABSENT_S`.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic, time
from typing import Any

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec.structs import replace

from ktuned.fleet import (
    LIBRARY,
    CompileSlot,
    DeadlineExpired,
    Environment,
    Fleet,
    FrontEndKey,
    HostLost,
    Output,
    RequestFailed,
    Worker,
    WorkerDied,
)
from ktuned.ipc import replies, requests
from ktuned.model import Phase, Role, WorkerError
from ktuned.protocol import ChannelInfo
from ktuned.store import DISK_ERRORS, Artifacts, explain_file_error
from ktuned.tuning.job_brief import Compiler, JobBrief
from ktuned.tuning.limits import (
    COMPILE_S,
    MAX_BATCH,
    BatchSize,
    GroupSize,
    describe_stream,
    limit_share,
    receive_waiting,
)
from ktuned.tuning.prior_results import LAST_OF_SLOT
from ktuned.tuning.trial_machine import (
    ArtifactFound,
    Attempt,
    Compile,
    CompilerLeft,
    CompilerTook,
    ConfigCompiled,
    End,
    EndJob,
    Failure,
    Instruction,
    TrialState,
    select_ends,
)

STRAGGLER_S = 2.0
"""A compile is not a straggler before it has taken this long."""

ABSENT_S = 4.0
"""How long a machine that could not be reached is left out."""


Enqueue = Callable[[Attempt], Awaitable[None]]
"""Hands a config to the compilers; blocks while the channel is full."""

PassOn = Callable[[Sequence[Attempt], Sequence[End]], Awaitable[None]]
"""Takes over a compiled group, and the ends of its trials without an artifact."""


class CompileStage:
    """Compiles one job's configs. The fleet bounds how many groups compile at once.

    Args:
        on_all_begun: Called, perhaps more than once, when no config waits for a slot and none will.
    """

    def __init__(
        self, brief: JobBrief, fleet: Fleet, artifacts: Artifacts, *, on_all_begun: Callable[[], None] = lambda: None
    ) -> None:
        self._brief = brief
        self._machine = brief.make_trial_machine()
        self._fleet = fleet
        self._artifacts = artifacts
        self._group_size = GroupSize(brief.group_size)
        self._batch_size = BatchSize(COMPILE_S)
        self._directories: list[Path] = []
        self._made = 0
        self._absent: dict[Environment, float] = {}
        self._last: deque[Attempt] = deque()
        self._spent_s: dict[str, float] = {}
        self._made_as: dict[str, str] = {}
        """The keys of artifacts whose compiles have read files that were not known before, by the key asked for."""
        self._on_all_begun = on_all_begun
        self._to_compile: MemoryObjectSendStream[Attempt] | None = None
        self.has_all = anyio.Event()
        """Set when no more configs will come."""
        self._longest_s = 0.0
        self._running: dict[anyio.CancelScope, tuple[Callable[[], float], int]] = {}

    @property
    def slots(self) -> int:
        """The number of compile slots on all machines that compile for this job."""
        return sum(int(self._fleet.get_slots(one.environment).total_tokens) for one in self._brief.compilers)

    @property
    def groups(self) -> int:
        """Most groups that are under way at once: in the slots, or being sealed."""
        return sum(self._fleet.get_slots(one.environment).most_inside for one in self._brief.compilers)

    async def start_workers(self) -> None:
        """Start workers before there is a config to compile, so that their imports are done by then."""
        brief = self._brief
        for compiler in brief.compilers:
            self._fleet.prepare_compilers(compiler.environment, brief.kernel.backend, besides=int(brief.lowers))
        if brief.lowers and not brief.kernel.is_data:
            # A kernel file of data imports nothing itself: its Builds name the library that has its functions.
            (key, *_), opening = self._find_front_ends({})
            await self._fleet.front_ends.open_front_end(key, opening, brief.job.id, brief.deadlines)

    def describe_channel(self) -> ChannelInfo:
        """Return how full the channel is in which configs wait for a compiler."""
        return ChannelInfo(0, 0) if self._to_compile is None else describe_stream(self._to_compile)

    async def run(
        self, propose: Callable[[Enqueue], Awaitable[None]], pass_on: PassOn, lanes_starve: Callable[[], bool]
    ) -> None:
        """Compile all configs that ``propose`` enqueues; return when it has ended and each group was passed on.

        Raises:
            WorkerError, StoreError: As :meth:`compile_attempts`.
        """
        # This bound suits the fastest compiles. How many configs are proposed is limited elsewhere, by the actual pace.
        most = self.slots * max(self._brief.group_size, MAX_BATCH)
        self._to_compile, arriving = anyio.create_memory_object_stream[Attempt](most)
        async with anyio.create_task_group() as slots, self._to_compile:
            with arriving:
                for _ in range(self.groups):
                    slots.start_soon(self._compile_arriving, arriving.clone(), pass_on, lanes_starve)
            await propose(self._to_compile.send)
            self._to_compile.close()
            self.has_all.set()
            self._report_if_all_begun()

    async def _compile_arriving(
        self, channel: MemoryObjectReceiveStream[Attempt], pass_on: PassOn, lanes_starve: Callable[[], bool]
    ) -> None:
        """Compile one group after the other, until no more come."""
        async with channel:
            while (first := await self._take_next_attempt(channel)) is not None:
                await self._fleet.pace.wait_for_step()
                group = self._collect_group(first, channel, lanes_starve=lanes_starve())
                await pass_on(group, await self.compile_attempts(group))

    def _report_if_all_begun(self) -> None:
        """Report that no config waits in the channel or for a slot, if that is true."""
        if not self.has_all.is_set() or self._last or self.describe_channel().used:
            return
        job = self._brief.job.id
        if not any(job in self._fleet.get_slots(one.environment).waiting for one in self._brief.compilers):
            self._on_all_begun()

    @property
    def running_configs(self) -> int:
        """The number of configs that are with a compiler now."""
        return sum(configs for _, configs in self._running.values())

    def end_stragglers(self, times: float) -> None:
        """End compiles that take ``times`` as long as the longest finished one, as if their deadline had passed."""
        patience_s = max(STRAGGLER_S, times * self._longest_s)
        for scope, (read_worked_s, _) in self._running.items():
            if self._longest_s and read_worked_s() > patience_s:
                scope.cancel()

    async def _take_next_attempt(self, channel: MemoryObjectReceiveStream[Attempt]) -> Attempt | None:
        """Return the config that a slot compiles next, or ``None`` when there are no more.

        The last configs are sorted, the longest expected compile first, so that all slots end at about the same time.
        """
        try:
            first = None if self._last else await channel.receive()
        except anyio.EndOfStream:
            first = None
        if first is None:
            return self._last.popleft() if self._last else None
        now = channel.statistics()
        most = self.slots * (1 if self._saves_time_together else LAST_OF_SLOT)
        if now.open_send_streams or now.current_buffer_used >= most:
            return first
        self._last.extend(sorted(receive_waiting(first, channel), key=lambda attempt: -attempt.expected_s))
        return self._last.popleft()

    def _collect_group(
        self, first: Attempt, channel: MemoryObjectReceiveStream[Attempt], *, lanes_starve: bool
    ) -> list[Attempt]:
        """Return ``first`` with the waiting configs that are compiled in the same request."""
        is_batch = self._machine.compiles_one_by_one
        size = self._batch_size.next_size if is_batch else self._group_size.choose_next_size(lanes_starve=lanes_starve)
        most = limit_share(1 + channel.statistics().current_buffer_used, self.slots)
        return receive_waiting(first, channel, min(size, most))

    @property
    def _saves_time_together(self) -> bool:
        """True if requests of several configs pay; the last configs then stay in the channel to be grouped."""
        return self._batch_size.next_size > 1 if self._machine.compiles_one_by_one else self._group_size.saves_time

    async def compile_attempts(self, attempts: Sequence[Attempt], *, is_reference: bool = False) -> list[End]:
        """Bring each trial to its artifact or to its end; return the ends.

        With ``is_reference``, the compile time is charged to the later trial that finds this artifact sealed.

        Raises:
            WorkerError: The backend cannot be loaded at all; or, with code ``source_changed``, the files that the job
                began with have changed.
            StoreError: An artifact cannot be kept.
        """
        ends: list[End] = []
        suspects = self._brief.in_hand.suspects
        requests_to_make = deque([[one] for one in attempts if one.trial in suspects])
        requests_to_make.append([one for one in attempts if one.trial not in suspects])
        while requests_to_make:
            # Sealed artifacts need no compiler.
            missing = self._use_sealed_artifacts(requests_to_make.popleft())
            if self._brief.lowers and missing:
                # Lower before the group takes a slot: importing a library may take long, and others compile meanwhile.
                lowered = await self._lower_functions(missing)
                ends += lowered
                missing = [attempt for attempt in missing if attempt.outcome is None]
            if not missing:
                self._report_if_all_begun()
                continue
            compiler = await self._await_compiler()
            async with self._fleet.hold_compile_slot(compiler.environment, self._brief.job.id) as slot:
                self._report_if_all_begun()
                # Look again: others may have compiled some of it while this group waited for its slot. Artifacts that
                # others are still compiling are awaited below, without the slot.
                missing = self._use_sealed_artifacts(missing)
                others = [attempt for attempt in missing if not self._may_compile(attempt)]
                mine = [attempt for attempt in missing if attempt not in others]
                if mine:
                    with self._artifacts.mark_in_progress({attempt.unit.key for attempt in mine}):
                        instructions = await self._compile_group(mine, compiler, slot)
                    ends += select_ends(instructions)
                    requests_to_make.extend(list(one.attempts) for one in instructions if isinstance(one, Compile))
            # Whether the others succeeded or failed is found out by starting over with these trials.
            for attempt in others:
                await self._artifacts.await_compiled(attempt.unit.key)
            if others:
                requests_to_make.append(others)
        if is_reference:
            self._spent_s |= {attempt.unit.key: attempt.compile_s for attempt in attempts}
        return ends

    def _may_compile(self, attempt: Attempt) -> bool:
        is_ready = attempt.lowered is not None or not self._brief.lowers
        return is_ready and not self._artifacts.is_compiling(attempt.unit.key)

    def _use_sealed_artifacts(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Move the trials whose artifacts are sealed to their next state; return the others."""
        missing = []
        for attempt in attempts:
            # The key may have changed: names may have been learned since the config was proposed. A compile of the same
            # config for another trial had only the names that it has read itself.
            made_as = self._made_as.get(attempt.unit.key, "")
            attempt.unit = self._brief.make_unit(attempt.unit.build)
            if not self._artifacts.is_sealed(attempt.unit.key) and made_as and self._artifacts.is_sealed(made_as):
                attempt.unit = replace(attempt.unit, key=made_as)
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
        """Return where the next group compiles: the first machine with a free slot, else the first reachable one.

        If no machine with the toolchain can be reached, wait for one.
        """
        while True:
            now = monotonic()
            reachable = [
                one for one in self._brief.compilers if now >= self._absent.get(one.environment, -ABSENT_S) + ABSENT_S
            ]
            free = [one for one in reachable if not self._fleet.get_slots(one.environment).is_full]
            if free or reachable:
                return (free or reachable)[0]
            await anyio.sleep(ABSENT_S / 4)

    async def _compile_group(self, group: list[Attempt], compiler: Compiler, slot: CompileSlot) -> list[Instruction]:
        """Compile a group in one request; return the instructions for the configs without an artifact.

        Raises:
            WorkerError, StoreError: As :meth:`compile_attempts`.
        """
        units: dict[str, replies.CompiledUnit] = {}
        error: Failure | None = None
        instructions = self._machine.handle(CompilerTook(group))
        with self._lend_directory() as directory:
            try:
                async with self._brief.in_hand.hold_trials(self._brief.job.id, [attempt.trial for attempt in group]):
                    await self._request_compile(group, compiler, directory.name, units, slot)
            except (WorkerDied, DeadlineExpired, RequestFailed) as raised:
                error = raised
            await self._fleet.pace.wait_for_step()
            for attempt in group:
                if (unit := units.get(attempt.unit.key)) is not None:
                    instructions += await self._take_in_unit(attempt, unit)
        if isinstance(error, HostLost):
            self._absent[compiler.environment] = monotonic()
        silent = [attempt for attempt in group if attempt.state is TrialState.COMPILING]
        instructions += self._machine.handle(CompilerLeft(silent, error))
        await self._raise_job_error(instructions)
        return instructions

    async def _raise_job_error(self, instructions: Sequence[Instruction]) -> None:
        """Raise the error that ends the job, if there is one, worded for the job's clients."""
        for error in [one.error for one in instructions if isinstance(one, EndJob)]:
            if isinstance(error, RequestFailed) and error.errno in DISK_ERRORS:
                fault = OSError(error.errno, error.message)
                raise explain_file_error(fault, f"{self._brief.job.kernel} cannot be compiled") from error
            if isinstance(error, RequestFailed) and error.code == "source_changed":
                # The watcher follows only known files, and the job waits until the watcher has seen this change.
                await self._brief.learn_names(error.failure.observed)
                raise error
            raise WorkerError(
                f"the backend {self._brief.kernel.backend!r} cannot be loaded: {error.message}",
                hint=error.hint or "`ktuned doctor` says more",
            ) from error

    async def _request_compile(
        self,
        group: list[Attempt],
        compiler: Compiler,
        staging: str,
        reported: dict[str, replies.CompiledUnit],
        slot: CompileSlot,
    ) -> None:
        """Send a group to a worker. ``reported`` receives each config's report, even if the request fails later."""
        brief, environment = self._brief, compiler.environment
        units = {attempt.unit.key: replace(attempt.unit, lowered=attempt.lowered or b"") for attempt in group}
        together = 1 if self._machine.compiles_one_by_one else len(group)
        deadlines = {**brief.deadlines, Phase.COMPILE: brief.deadlines[Phase.COMPILE] * together}
        place = f"{environment.host} slot {staging.rpartition('-')[2]}".lstrip()
        slots = self._fleet.get_slots(compiler.environment)
        async with (
            self._fleet.lend_worker(Role.COMPILE, environment) as worker,
            self._register_request(group, worker) as read_worked_s,
        ):
            paused_s = 0.0

            def take_report(unit: replies.CompiledUnit) -> None:
                nonlocal paused_s
                before, paused_s = paused_s, worker.paused_s
                reported[unit.key] = replace(unit, seconds=max(0.0, unit.seconds - (paused_s - before)))

            until = time()
            request = requests.Compile(
                brief.kernel_ref,
                brief.target,
                staging,
                tuple(units.values()),
                compiler.toolchain,
                # A single config's result is sent at once.
                hold_s=COMPILE_S if len(group) > 1 else 0.0,
                announced=slots.most_inside > slots.total_tokens,
            )
            try:
                with slot.lend_to(worker):
                    await worker.send_request(
                        request,
                        deadlines,
                        on_item=take_report,
                        # The slot is free once the compiler is done, although sealing may still fail.
                        on_computed=slot.give_back,
                    )
            finally:
                for attempt in group:
                    if attempt.unit.key in reported:
                        attempt.record_place("compile", place, until)
                        until += reported[attempt.unit.key].seconds
            worked_s = read_worked_s()
        self._longest_s = max(self._longest_s, worked_s)
        self._batch_size.record_request(len(reported), worked_s)
        if reported and all(unit.outcome is None for unit in reported.values()):
            self._group_size.record_group(len(reported), sum(unit.seconds for unit in reported.values()))

    @asynccontextmanager
    async def _register_request(self, group: Sequence[Attempt], worker: Worker) -> AsyncIterator[Callable[[], float]]:
        """Yield the function that returns how long the worker has worked on a request, in seconds without pauses.

        During the request, :meth:`end_stragglers` may end it.

        Raises:
            DeadlineExpired: The request was ended, and its worker killed.
        """
        began = monotonic()

        def read_worked_s() -> float:
            return monotonic() - began - worker.paused_s

        with anyio.CancelScope() as scope:
            self._running[scope] = read_worked_s, len(group)
            try:
                yield read_worked_s
            finally:
                del self._running[scope]
        if scope.cancelled_caught:
            raise DeadlineExpired(Phase.COMPILE, read_worked_s(), Output())

    def _find_front_ends(self, build: Mapping[str, Any]) -> tuple[list[FrontEndKey], requests.OpenFrontEnd]:
        """Return the front ends that can translate a Build's function, best first, and the request that opens one."""
        brief, library = self._brief, build.get(LIBRARY)
        backend, file = brief.kernel.backend, brief.kernel.file
        keys = [FrontEndKey.for_build(one.environment, backend, file, library) for one in brief.compilers]
        if library:
            return keys, requests.OpenFrontEnd(backend, library=library, build=build)
        return keys, requests.OpenFrontEnd(backend, brief.kernel_ref)

    async def _lower_functions(self, attempts: Sequence[Attempt]) -> list[End]:
        """Have functions translated, so that compiling imports nothing; return the ends of trials where that failed.

        Raises:
            WorkerError: The file or library that has the functions cannot be imported, or a source changed.
        """
        ends: list[End] = []
        for attempt in attempts:
            is_made_by_others = self._artifacts.is_compiling
            while attempt.lowered is None and attempt.outcome is None and not is_made_by_others(attempt.unit.key):
                instructions = await self._lower_function(attempt)
                await self._raise_job_error(instructions)
                ends += select_ends(instructions)
        return ends

    async def _lower_function(self, attempt: Attempt) -> list[Instruction]:
        """Try to have one trial's function translated. A failure counts as a failed compile."""
        brief = self._brief
        keys, opening = self._find_front_ends(attempt.unit.build)
        places = [
            (key, requests.Lower(brief.kernel_ref, brief.target, attempt.unit, one.toolchain))
            for key, one in zip(keys, brief.compilers, strict=True)
        ]
        try:
            async with brief.in_hand.hold_trials(brief.job.id, [attempt.trial]):
                lowered = await self._fleet.front_ends.lower_function(places, opening, brief.job.id, brief.deadlines)
        except (WorkerDied, DeadlineExpired, RequestFailed, HostLost) as error:
            if isinstance(error, HostLost):
                await anyio.sleep(ABSENT_S / 4)
            return [
                *self._machine.handle(CompilerTook([attempt])),
                *self._machine.handle(CompilerLeft([attempt], error)),
            ]
        attempt.compile_s += lowered.seconds
        await brief.learn_names(lowered.observed)
        if lowered.outcome is None:
            attempt.lowered = lowered.code
            return []
        compiled = ConfigCompiled(attempt, lowered.outcome, lowered.message)
        return self._machine.handle(CompilerTook([attempt])) + self._machine.handle(compiled)

    async def _take_in_unit(self, attempt: Attempt, unit: replies.CompiledUnit) -> list[Instruction]:
        """Take in a compiler's report on one config; return the instructions for its trial."""
        await self._brief.learn_names(unit.observed)
        attempt.compile_s += unit.seconds
        attempt.lowered = None
        attempt.facts = unit.facts
        if unit.artifact:
            self._made_as[attempt.unit.key] = unit.artifact
            attempt.unit = replace(attempt.unit, key=unit.artifact)
        if unit.outcome is None:
            self._artifacts.count_added_bytes(unit.bytes)
            attempt.files = unit.content
        return self._machine.handle(ConfigCompiled(attempt, unit.outcome, unit.message))

    @contextmanager
    def _lend_directory(self) -> Iterator[Path]:
        """Lend a staging directory to a group. Directories are reused, but never shared by two groups at a time."""
        if self._directories:
            directory = self._directories.pop()
        else:
            self._made += 1
            directory = self._artifacts.make_staging_directory(f"job{self._brief.job.id}-{self._made}")
        try:
            yield directory
        finally:
            self._directories.append(directory)

    async def close(self) -> None:
        """Remove the directories and give up the front ends: the job is over."""
        self._fleet.front_ends.forget_job(self._brief.job.id)
        # In a thread: for 500 slots this took 0.8 s on the event loop, during which lookups waited.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._remove_directories)

    def _remove_directories(self) -> None:
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
