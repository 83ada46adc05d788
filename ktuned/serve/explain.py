"""Explains why a kernel's winners are stale: the changes since each was measured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ktuned.answers import KernelState, KernelStates, explain_unobserved
from ktuned.catalog import Catalog, complete_config
from ktuned.model import FrozenStruct, KernelInfo, Problem, spell_values
from ktuned.protocol import SPACE, Change, Job, JobState, Status, WinnerStanding, find_notices
from ktuned.store import Context, Store, Winner, compare_contexts, describe_quarantine


class Explainer(FrozenStruct):
    """Explains the standing of winners from their kernel's state, and from the store what has changed since.

    Attributes:
        catalog: Knows the watched roots.
        states: Has the kernels' states.
        store: Has the winners' jobs, and what digests stand for.
    """

    catalog: Catalog
    states: KernelStates
    store: Store

    def explain_winners(self, kernel: KernelInfo) -> tuple[WinnerStanding, ...]:
        """Return the standing of each winner that still answers lookups."""
        if self.catalog.find_root(kernel.file) is None:
            return ()
        state = self.states.find_state(kernel)
        # Winners that were kept for other keys of the problem answer no lookups any more.
        keys = None if kernel.specialize is None else set(kernel.specialize)
        winners = state.winners.values()
        return tuple(self._explain_winner(state, winner) for winner in winners if keys in (None, set(winner.problem)))

    def list_quarantined(self, kernel: KernelInfo) -> tuple[str, ...]:
        """Return a sentence for each config that is quarantined because daemons died."""
        return tuple(describe_quarantine(self.store.list_suspects(kernel.name)))

    def _explain_winner(self, state: KernelState, winner: Winner) -> WinnerStanding:
        kernel = state.kernel
        standing = WinnerStanding(
            problem=winner.problem,
            device=winner.context.device,
            objective=winner.objective,
            status=Status.FRESH,
            decided=winner.decided,
            trial=winner.trial,
            changes=(),
            message="",
            notices=self._collect_notices(winner),
        )
        if state.fault:
            return _describe_as_stale(standing, state.fault)
        place = state.find_place(winner.context.device)
        if place is None:
            return _describe_as_stale(standing, f"its device {winner.context.device} is not here")
        now = state.make_context(place, winner.problem)
        doubt = state.find_doubt(place, self.states.start_doubts.find_doubt(state))
        if now != winner.context:
            changes = self._describe_changes(kernel, winner.context, now)
            standing = _describe_as_stale(standing, self._read_log_since(winner), changes)
        elif doubt := explain_unobserved(kernel) if kernel.unobserved else doubt:
            standing = _describe_as_stale(standing, doubt)
        outside = _explain_unserved_config(state, winner)
        return (
            standing
            if outside is None
            else _describe_as_stale(standing, standing.message, [*standing.changes, outside])
        )

    def _describe_changes(self, kernel: KernelInfo, then: Context, now: Context) -> list[Change]:
        versions = self.store.load_fingerprint_versions
        return compare_contexts(
            then,
            now,
            (self.store.load_digest_parts(kernel.name, then.digest), kernel.parts),
            (versions(then.toolchain), versions(now.toolchain)),
            (versions(then.device_fingerprint), versions(now.device_fingerprint)),
            os.path.basename(kernel.file),
        )

    def _read_log_since(self, winner: Winner) -> str:
        # A job for named configs says nothing about the others.
        return next((job.message for job in self._find_jobs(winner) if not job.plan.configs), "")

    def _collect_notices(self, winner: Winner) -> tuple[str, ...]:
        ended_well = (job.message for job in self._find_jobs(winner) if job.state is JobState.DONE)
        return tuple(find_notices(next(ended_well, "")))

    def _find_jobs(self, winner: Winner) -> Iterator[Job]:
        """Return the jobs that may have found a winner, newest first."""
        for job in self.store.list_jobs(kernel=winner.context.kernel, limit=20):
            is_alike = job.device == winner.context.device and job.objective == winner.objective
            if is_alike and _has_key_values(job.problem, winner.problem):
                yield job


def _explain_unserved_config(state: KernelState, winner: Winner) -> Change | None:
    """Return why a winner's config is not served unchanged in the present space; None if it is."""
    kernel = state.kernel
    file = os.path.basename(kernel.file)
    config = complete_config(kernel, winner.config)
    held = spell_values(winner.config)
    # Constraints see the whole problem.
    declared = (problem for problem in kernel.problems if kernel.make_key_problem(problem) == winner.context.problem)
    verdict = state.find_verdict(next(declared, winner.problem), config)
    if verdict and config == winner.config:
        return None
    if verdict:
        return Change(SPACE, file, f"{held} lacks a knob: it is served as {spell_values(config)}", "", "")
    if verdict is False:
        return Change(SPACE, file, f"{held} is not in the space any more: it is not served", "", "")
    return Change(SPACE, file, f"{held} is served once a worker has confirmed that the space has it", "", "")


def _describe_as_stale(standing: WinnerStanding, message: str, changes: Sequence[Change] = ()) -> WinnerStanding:
    return replace(standing, status=Status.STALE, message=message, changes=tuple(changes))


def _has_key_values(problem: Problem, specialised: Problem) -> bool:
    return all(problem.get(key) == value for key, value in specialised.items())
