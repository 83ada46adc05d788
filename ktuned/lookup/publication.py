"""Publication of answers in the table of winners, where clients find them without a request.

The answer to a lookup is published at once, so that no other process has to request it, and so is the winner of a job
that has ended. In the background all other winners follow, the most recently used kernels first, so that clients also
find problems that were never looked up before. If the table is full, the least recently used kernels leave it.

An entry answers every problem of its key, and clients read it without contacting the daemon. So only these are
published:

* winners of the key itself: a near config or a default must be requested, so that the daemon tunes the problem;
* ``fresh`` answers that are certain, once the watcher has looked at all files since the start;
* ``stale`` winners after a lookup that requested the tuning of the problem. All others are marked, and a client gives
  them only if the daemon does not answer its request in time (the machine is busy, or the daemon has just started);
* keys that clients can form;
* configs that the declared space admits for all problems of the key, unless the key is the problem itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from time import monotonic, perf_counter
from typing import Any

import anyio
import msgpack

from ktuned.answers import KernelState, KernelStates, Lookup
from ktuned.catalog import Catalog, decide_by_declaration, read_problem
from ktuned.lookup.follow_ups import FollowUps
from ktuned.lookup.winner_table import CONFIRM_EVERY_S, WinnerTable
from ktuned.model import Config, Device, KernelInfo, KernelName, KtunedError, NotFound, Objective, Problem
from ktuned.protocol import Answer, JobInfo, Status
from ktuned_client.table import MAX_CONTENT_BYTES, MAX_ENTRIES, make_kernel_key, make_winner_prefix

MAX_WINNERS = MAX_ENTRIES // 2
"""How many winners of a kernel, and of all kernels that are not in use, are published before anyone requests them."""

MAX_DESCRIPTION_BYTES = MAX_CONTENT_BYTES - 512
"""Size limit of a kernel's description; the rest of an entry is for the longest name that a client may use."""

SLICE_S = 0.001
"""After publishing for this long, other work of the daemon has its turn, so that lookups wait no longer."""

FIRST_SLICE_S = 0.05
"""How long a new daemon publishes before it does anything else: its table is empty, and clients read it already."""

SHARE = 0.05
"""Share of the daemon's time that publishing may take, however often a kernel with thousands of winners changes."""

SHORTEST_PAUSE_S = 0.05
"""Least pause between two publications, because changes come in bursts, for example from the jobs after an edit."""

USED_S = 60.0
"""For this long after a lookup a kernel is in use: its winners are published first, its files checked more often."""

_NOTHING = (-1, 0)
"""For a kernel whose winners were not published yet: a generation that no kernel has, and their number."""


class Publication:
    """Writes the table of winners: each answer to a lookup, and the winners of all kernels."""

    def __init__(self, table: WinnerTable, catalog: Catalog, states: KernelStates, follow_ups: FollowUps) -> None:
        self._table = table
        self._catalog = catalog
        self._states = states
        self._follow_ups = follow_ups
        self._published: dict[str, tuple[int, int]] = {}
        """For each kernel, the generation in which all its winners were last published, and their number."""
        self._change = anyio.Event()
        states.when_touched = self._end_entries

    def list_used_kernels(self, within_s: float = USED_S) -> list[str]:
        """Return the kernels in use: those that were looked up within the last ``within_s`` seconds."""
        return self._table.list_used_kernels((kernel.name for kernel in self._catalog.kernels), monotonic() - within_s)

    def revoke_answers(self, kernel: str) -> None:
        """End a kernel's entries for good: clients must not give them, not even while the daemon does not answer."""
        self._table.revoke_entries(kernel)

    def _end_entries(self, kernels: Collection[str] | None) -> None:
        """End the entries of kernels (None: of all) because their answers may have changed, and publish them again."""
        if kernels is None:
            self._table.bump_all_generations()
        for kernel in kernels or ():
            self._table.bump_generation(kernel)
        self._change.set()

    def publish_answered(
        self, kernel: KernelInfo, name: str, directory: str | None, problem: Problem, found: Lookup, *, tune: bool
    ) -> None:
        """Publish the answer to a lookup, and which kernel the given name means in the given directory."""
        if found.answer.status is Status.STALE and not tune:
            return
        if (
            not found.is_certain
            or not self._states.start_doubts.are_over
            or not self._publish_answer(kernel, problem, found)
        ):
            return
        state = self._states.find_state(kernel)
        self._write_entry(kernel.name, make_kernel_key(name, directory), _describe_kernel(state))
        if self._published.get(kernel.name, _NOTHING)[0] != self._table.generation(kernel.name):
            self._change.set()

    def publish_tuned(self, job: JobInfo) -> None:
        """Publish the winner of a job that has ended, before anyone is told of the job's end."""
        kernel = self._catalog.find_kernel(job.kernel)
        if kernel is None:
            return
        # A kernel that is tuned now is used now: the rest of its winners follow soon.
        self._table.note_use(kernel.name)
        try:
            read_problem(kernel, job.problem)
            self._publish_winner(kernel, job.problem, job.device, job.objective, is_needed=True)
            self._write_kernel_entries(self._states.find_state(kernel))
        except KtunedError:
            # The kernel has other problems than when the job began, or is below no watched root any more.
            return

    async def run_until_cancelled(self) -> None:
        """Publish the winners of all kernels, and confirm that the daemon watches files, until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._confirm_watch_periodically)
                await self._publish_kernels(FIRST_SLICE_S)
                while True:
                    await self._change.wait()
                    self._change = anyio.Event()
                    await self._publish_kernels()
                    await anyio.sleep(SHORTEST_PAUSE_S)
        finally:
            self._table.end_watch()

    async def _confirm_watch_periodically(self) -> None:
        while True:
            self._table.confirm_watch()
            await anyio.sleep(CONFIRM_EVERY_S)

    async def _publish_kernels(self, first_slice_s: float = SLICE_S) -> None:
        """Publish the winners of all kernels if not done yet, those of the most recently used kernels first."""
        used, room = set(self.list_used_kernels()), MAX_WINNERS
        start = perf_counter() + first_slice_s - SLICE_S
        for name in self._table.sort_by_use(kernel.name for kernel in self._catalog.kernels):
            if name not in used and (self._change.is_set() or room <= 0):
                # The kernels in use come first again.
                return
            start = await _yield_slice(start)
            generation = self._table.generation(name)
            published, count = self._published.get(name, _NOTHING)
            kernel = self._catalog.find_kernel(KernelName(name))
            if kernel is None or published == generation:
                room -= count
                continue
            try:
                state = self._states.find_state(kernel)
            except NotFound:
                # Its file is below no watched root any more.
                continue
            winners = list(state.winners.values())[:MAX_WINNERS]
            if winners:
                self._write_kernel_entries(state)
            for winner in winners:
                # The answer can be found if the winner has all values of the key (the whole problem without
                # `specialize`).
                if set(kernel.specialize or ()) <= set(winner.problem):
                    device = winner.context.device
                    self._publish_winner(kernel, winner.problem, device, winner.objective, is_needed=name in used)
                start = await _yield_slice(start)
                if self._table.generation(name) != generation:
                    break
            else:
                self._published[name] = generation, len(winners)
                room -= len(winners)
            if name not in used:
                self._states.release_state(name)

    def _publish_winner(
        self, kernel: KernelInfo, problem: Problem, device: str, objective: Objective, *, is_needed: bool
    ) -> None:
        """Publish the answer for a problem that has a winner, without a lookup.

        Args:
            kernel: The kernel.
            problem: The problem.
            device: The device model.
            objective: The objective.
            is_needed: Whether the kernel is in use. Then workers check the configs that are in doubt.
        """
        is_needed = is_needed and self._states.start_doubts.are_over
        found = self._states.find_answer(kernel, problem, device, objective, compares=is_needed)
        if found.undecided and is_needed:
            # The winner is published after the check, as another answer than before.
            self._follow_ups.queue_check(kernel, problem, found.undecided)
        self._publish_answer(kernel, problem, found, asks_first=found.answer.status is Status.STALE)

    def _publish_answer(self, kernel: KernelInfo, problem: Problem, found: Lookup, *, asks_first: bool = False) -> bool:
        """Publish an answer if it is valid for all problems of its key; return whether it is.

        ``asks_first`` is whether clients shall give it only if the daemon does not answer.
        """
        answer, config = found.answer, found.answer.config
        if answer.status not in (Status.FRESH, Status.STALE) or config is None or answer.device is None:
            return False
        is_whole = kernel.specialize is None and not kernel.bucket
        if not is_whole and not decide_by_declaration(kernel, None, config):
            return False
        measured = answer.measured or (None if is_whole else problem)
        key = _pack_value(dict(sorted(kernel.select_key_values(problem).items())))
        key = make_winner_prefix(kernel.name, answer.device, answer.objective) + key
        payload = _encode_answer(config, answer, measured)
        # An answer whose tuning was requested stays as it is.
        return self._write_entry(kernel.name, key, payload, asks_first=asks_first)

    def _write_kernel_entries(self, state: KernelState) -> None:
        """Publish how keys of a kernel's winners are formed, under its full name, and its short name if that is unique.

        A new kernel with the same short name ends all entries (see KernelStates.handle_event).
        """
        kernel, description = state.kernel, _describe_kernel(state)
        names = [kernel.name, kernel.kernel] if self._catalog.is_only_namesake(kernel) else [kernel.name]
        for name in names:
            self._write_entry(kernel.name, make_kernel_key(name, None), description)

    def _write_entry(self, kernel: str, key: bytes, payload: bytes, *, asks_first: bool = False) -> bool:
        return self._table.holds_entry(kernel, key, payload) or self._table.publish_entry(
            kernel, key, payload, asks_first=asks_first
        )


async def _yield_slice(start: float) -> float:
    """If publishing has run for a slice since ``start``, give other work its turn; return when the slice began."""
    took_s = perf_counter() - start
    if took_s < SLICE_S:
        return start
    await anyio.sleep(took_s / SHARE)
    return perf_counter()


def _describe_kernel(state: KernelState) -> bytes:
    """Return the payload from which clients learn how to form the keys of a kernel's winners."""
    kernel, devices = state.kernel, [place.device for place in state.places]
    keys = None
    if kernel.specialize is not None or kernel.bucket:
        keys = sorted({tuple(sorted(problem)) for problem in kernel.problems}) or None
    described = [kernel.name, kernel.file, kernel.objective(None), _map_device_names(devices), keys]
    rules = [kernel.specialize, dict(kernel.bucket)]
    if len(packed := _pack_value(described + rules)) > MAX_DESCRIPTION_BYTES:
        # Too many devices to list their names: a lookup that names one goes to the daemon instead.
        described[3] = _map_device_names(devices[:1])
        packed = _pack_value(described + rules)
    return packed


def _encode_answer(config: Config, answer: Answer, measured: Problem | None) -> bytes:
    """Return an entry's payload; ``measured`` is the winner's problem if it may differ from the requested one."""
    return _pack_value(
        [
            dict(config),
            answer.status.value,
            answer.message,
            answer.latency_us,
            answer.artifact,
            answer.decided,
            answer.is_final,
            dict(answer.metrics) or None,
            None if measured is None else dict(measured),
        ]
    )


def _map_device_names(devices: Iterable[Device]) -> Mapping[str, str]:
    """Return the models of devices by name; the empty name stands for the first device.

    A device that differs from the first one of its model has contexts of its own. It is left out, so that lookups
    naming it go to the daemon.
    """
    first: dict[str, Device] = {}
    models: dict[str, str] = {}
    for device in devices:
        alike = first.setdefault(device.model, device)
        if (alike.fingerprint, alike.target, alike.host) == (device.fingerprint, device.target, device.host):
            models.setdefault("", device.model)
            models[device.name] = device.model
    return models


def _pack_value(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed
