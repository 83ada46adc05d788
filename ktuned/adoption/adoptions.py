"""Adoption of applications' functions: handles the spool's records, and answers applications' questions about keys.

*A record's way.* Records are untrusted input (:mod:`~ktuned.adoption.spool_reader`). Its files are written, its
kernel is declared, its job is committed, and only then the record is removed. If the daemon is killed between two of
these steps, the next daemon starts over with the record; repeating a finished step does no harm.

======================================  ===============================================================================
problem                                 reaction
======================================  ===============================================================================
its kernel cannot be declared           one notice, and the record is removed
the store cannot be written             the record stays, and is tried again soon
there is no device for it               the record stays, and each survey tries it again: a device may appear
======================================  ===============================================================================

*Order.* Records of one interpreter are taken in one after the other, in the order in which they were left. If one
interpreter hangs, the records of others do not wait for it.

*Many keys.* :mod:`~ktuned.adoption.key_tunings` decides which keys of a function are tuned, and serves the others.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import structlog

from ktuned.adoption.adopted_files import AdoptedDirectory, read_identity
from ktuned.adoption.key_tunings import KeyTunings
from ktuned.adoption.spool_reader import SURVEY_S, SpoolReader
from ktuned.answers import Knowledge, Lookup
from ktuned.catalog import Project, make_root, make_root_environment
from ktuned.lookup import Lookups
from ktuned.model import (
    CallKey,
    Config,
    KernelFileError,
    KernelInfo,
    KtunedError,
    StoreError,
    WinnerKey,
    canonical,
)
from ktuned.protocol import JobState, KeyAnswer, Status
from ktuned.scheduling import Intake, Jobs
from ktuned.spool import (
    CallRecord,
    KeyLaunches,
    LaunchCounts,
    spool_directory,
)

_log = structlog.get_logger()

RETRY_S = 2.0
"""Pause before a record is tried again that the store could not record."""

MAX_COUNTED = 10_000
"""Most keys of unknown functions whose launches are kept until their function is known."""

CHOICE_S = 1.0
"""While keys wait to be chosen, interval at which it is checked whether the last choice's tuning has ended."""

MAX_AT_ONCE = 4
"""Most interpreters whose records are taken in at the same time."""


class Adoptions:
    """Takes records in as they arrive, and answers applications' questions about their functions."""

    def __init__(
        self,
        home: Path,
        known: Knowledge,
        *,
        intake: Intake,
        keys: KeyTunings,
        lookups: Lookups,
        jobs: Jobs,
    ) -> None:
        self._known = known
        self._spool = SpoolReader(spool_directory(home))
        self._directory = AdoptedDirectory(home)
        self._intake = intake
        self._keys = keys
        self._lookups = lookups
        self._jobs = jobs
        self._without_device: set[str] = set()
        self._kernels: dict[str, str] = {}
        self._launches: dict[str, KeyLaunches] = {}
        self._reading_requested = anyio.Event()
        self._turns: dict[Path, anyio.Lock] = {}
        self._limiter = anyio.CapacityLimiter(MAX_AT_ONCE)

    @property
    def notices(self) -> list[str]:
        """One line for each of the last refused records, and one line about records that wait for a device."""
        if not self._without_device:
            return list(self._spool.notices)
        one = len(self._without_device) == 1
        calls = "a call of an application waits" if one else f"{len(self._without_device)} calls of applications wait"
        return [*self._spool.notices, f"{calls} for a GPU, but none was found here"]

    async def run_until_cancelled(self) -> None:
        """Take records in until cancelled."""
        await anyio.to_thread.run_sync(self._spool.make_directory)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._spool.watch_directory, self.request_reading)
            while True:
                self._reading_requested = anyio.Event()
                records, counts = await anyio.to_thread.run_sync(self._spool.read_files)
                await self._count_known_launches(counts)
                for interpreter, group in self._group_by_interpreter(records).items():
                    # These records follow those that were read before: a lock is granted in the order of requests.
                    turn = self._turns.setdefault(interpreter, anyio.Lock())
                    tasks.start_soon(self._take_in_records, group, turn)
                await self._keys.tune_chosen_keys()
                with anyio.move_on_after(CHOICE_S if self._keys.has_waiting else SURVEY_S):
                    await self._reading_requested.wait()

    def prepare_workers(
        self, tool: str, python: str, variables: Mapping[str, str], library: Mapping[str, Any] | None
    ) -> None:
        """Start workers, because an application imports a framework, and have a front end import a library of it.

        Records of calls will probably follow.
        """
        workers = self._directory.find_workers_directory(tool, python, variables)
        workers.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The records will have the same environment.
        root = make_root(str(workers / "library"), python=python, project=Project(env=variables, workers=".."))
        self._known.machine.environments.prepare_adoption(make_root_environment(root), tool, library)

    def request_reading(self) -> None:
        """Have the spool read at once."""
        self._reading_requested.set()

    def find_answer(self, key: CallKey, *, waiter: Hashable | None = None) -> KeyAnswer:
        """Return the answer for a key.

        If a ``waiter`` is given, it counts as a client that waits for the key's job, which then has precedence.
        """
        kernel = self._find_kernel(key.identity)
        if kernel is None:
            self.request_reading()
            return KeyAnswer(Status.UNKNOWN)
        found = self._look_up(kernel, key)
        answer = found.answer
        job = self._keys.find_live_job(kernel, key.problem, answer.device, key.objective)
        if job is not None and waiter is not None:
            self._jobs.add_waiter(waiter, [job.id])
        is_open = job is not None or self._awaits_near_key(kernel, key)
        has_ended = not is_open and answer.status is not Status.FRESH
        message = self._explain_ending(kernel, key, found) if has_ended else ""
        return KeyAnswer(
            answer.status,
            answer.config,
            is_open=is_open,
            artifact=answer.artifact,
            latency_us=answer.latency_us,
            message=message,
            given_up=0 if is_open else self._keys.count_given_up(kernel, key.problem, answer.device, key.objective),
            default_us=self._find_default_latency(kernel, key, answer.device)
            if answer.status is Status.FRESH
            else None,
        )

    def _find_default_latency(self, kernel: KernelInfo, key: CallKey, device: str | None) -> float | None:
        """Return the latency of the declared default in the job that measured a key's winner."""
        if kernel.default is None or device is None:
            return None
        winner = self._known.store.get_winner(kernel.make_winner_key(key.problem, device, key.objective))
        job = winner and self._known.store.find_job_of_winner(winner)
        return job.default_us if job else None

    def _look_up(self, kernel: KernelInfo, key: CallKey) -> Lookup:
        return self._lookups.look_up(
            kernel.name, key.problem, key.device, tune=False, objective=key.objective, admits=_admit_any_config
        )

    def _awaits_near_key(self, kernel: KernelInfo, key: CallKey) -> bool:
        """Return whether a waiting key may soon get the config of another key, whose tuning is under way."""
        if not self._keys.is_waiting(kernel, key):
            return False
        live = [job for job in self._jobs.list_live_jobs() if job.kernel == kernel.name and not job.plan.configs]
        return any(job.objective == key.objective and key.device in (None, job.device) for job in live)

    def _explain_ending(self, kernel: KernelInfo, key: CallKey, found: Lookup) -> str:
        """Return why the last tuning of a key has no winner; empty if it has one, or no tuning has ended yet.

        A lookup's other messages (not tuned yet, a file is being inspected) do not mean an end: the application keeps
        waiting.
        """
        if found.failure:
            return found.failure
        if self._keys.is_waiting(kernel, key):
            return "it gets the config of a similar key, and its own tuning would gain little"
        job = self._keys.find_last_job(kernel, key)
        return "" if job is None or job.state is JobState.DONE else job.message or f"its tuning is {job.state}"

    def _find_kernel(self, identity: str) -> KernelInfo | None:
        name = self._kernels.get(identity)
        if name is None:
            below = f"{self._directory.path}{os.sep}"
            self._kernels = {
                read_identity(kernel.file): kernel.name
                for kernel in self._known.catalog.kernels
                if kernel.file.startswith(below)
            }
            name = self._kernels.get(identity)
        if name is None:
            return None
        try:
            return self._known.catalog.resolve_kernel(name)
        except KtunedError:
            del self._kernels[identity]
            return None

    # From the spool to jobs

    async def _count_known_launches(self, counts: Iterable[LaunchCounts]) -> None:
        """Add up launches, and pass on to the jobs those of keys that are known by now."""
        for row in (row for one in counts for row in one.launches):
            before = self._launches.get(row.key.text)
            self._launches[row.key.text] = KeyLaunches(row.key, row.number + (before.number if before else 0))
        known: dict[WinnerKey, int] = {}
        for place, row in list(self._launches.items()):
            key, kernel = row.key, self._find_kernel(row.key.identity)
            if kernel is None:
                continue
            del self._launches[place]
            device = self._look_up(kernel, key).answer.device
            if device is not None:
                known[kernel.make_winner_key(key.problem, device, key.objective)] = row.number
                self._keys.count_launches(kernel, key, row.number)
        for place in list(self._launches)[:-MAX_COUNTED]:
            del self._launches[place]
        if known:
            with suppress(StoreError):
                await self._jobs.add_job_launches(known)

    def _group_by_interpreter(
        self, records: Iterable[tuple[str, CallRecord]]
    ) -> dict[Path, list[tuple[str, CallRecord]]]:
        """Return records by the directory of the workers that can import their libraries."""
        groups: dict[Path, list[tuple[str, CallRecord]]] = {}
        for name, record in records:
            place = self._directory.find_workers_directory(record.tool, record.python, record.variables)
            groups.setdefault(place, []).append((name, record))
        return groups

    async def _take_in_records(self, records: Iterable[tuple[str, CallRecord]], turn: anyio.Lock) -> None:
        async with turn, self._limiter:
            for name, record in records:
                try:
                    is_taken = await self._take_in_record(record)
                except StoreError as error:
                    # The record stays, and is taken in once the store can be written again.
                    _log.warning("keep_record_failed", record=name, reason=error.message)
                    await anyio.sleep(RETRY_S)
                    self._spool.release_file(name)
                    self.request_reading()
                    continue
                except (KtunedError, OSError) as error:
                    self._spool.refuse_file(name, str(error).partition("\n")[0])
                else:
                    if not is_taken:
                        # Each survey tries the record again: this daemon, or a later one, may find a device.
                        self._without_device.add(name)
                        self._spool.release_file(name)
                        continue
                    await anyio.to_thread.run_sync(self._spool.remove_file, name)
                self._without_device.discard(name)
            await self._count_known_launches(())

    async def _take_in_record(self, record: CallRecord) -> bool:
        """Take one record in; return False if it must wait for a device.

        The record's key is tuned, unless a fresh winner is among the record's configs. Without a device the record
        waits, unless the settings name an architecture to compile for.

        Raises:
            KtunedError: The record's kernel cannot be declared, or its job cannot be recorded.
            OSError: The record's files cannot be written.
        """
        # Write the record's files and declare its kernel; both may have been done before.
        file, call = await anyio.to_thread.run_sync(self._directory.write_record, record)
        kernel = self._find_kernel(record.identity)
        if kernel is None or kernel.file != str(file):
            added = await self._intake.add_path(str(file), record.python, measures=True)
            if added.errors:
                wrong = added.errors[0]
                raise KernelFileError(wrong.message, path=wrong.path, line=wrong.line, hint=wrong.hint)
            (kernel,) = added.kernels
        key = CallKey(record.identity, record.problem, record.device or None, record.objective)
        if self._is_served(kernel, key, record.configs):
            return True
        # Look for a device, also on other hosts.
        environment = self._known.catalog.find_kernel_environment(kernel)
        await self._known.machine.environments.probe_environment(environment)
        if not self._known.machine.arch and not self._known.machine.has_device(environment, kernel.backend, None):
            await self._known.machine.environments.probe_hosts(environment)
            if not self._known.machine.has_device(environment, kernel.backend, None):
                return False
        await self._keys.take_in_call(kernel, key, call, first=record.configs[0])
        return True

    def _is_served(self, kernel: KernelInfo, key: CallKey, configs: Iterable[Config]) -> bool:
        found = self._look_up(kernel, key).answer
        texts = {canonical(config) for config in configs}
        return found.status is Status.FRESH and found.config is not None and canonical(found.config) in texts


def _admit_any_config(config: Config) -> bool:
    """Admit any config: the application itself leaves out configs that its pruning has removed."""
    return True
