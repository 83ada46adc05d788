"""Explains why a kernel's winners are stale: the changes since each was measured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from ktuned.catalog import Admission, Catalog, complete_config
from ktuned.devices import Machine
from ktuned.lookup import Certainty, explain_unobserved
from ktuned.model import KernelInfo, KtunedError, Problem, canonical
from ktuned.protocol import SPACE, Change, Job, JobState, Status, WinnerStanding, find_notices
from ktuned.store import Context, Store, Winner, compare_contexts


class Explainer(msgspec.Struct, frozen=True):
    """Compares winners' contexts with the context of a measurement made now, as far as that is known.

    Attributes:
        catalog: Finds kernels and their environments.
        admission: Knows which configs a space has.
        machine: Builds contexts.
        store: Has the winners and their jobs.
        certainty: Knows whether kernels' present contexts are certain.
    """

    catalog: Catalog
    admission: Admission
    machine: Machine
    store: Store
    certainty: Certainty

    def explain_winners(self, kernel: KernelInfo) -> tuple[WinnerStanding, ...]:
        """Return the standing of each winner that still answers lookups."""
        winners = self.store.list_winners(kernel.name)
        # Winners from when other keys of the problem were specialised answer no lookups any more.
        keys = None if kernel.specialize is None else set(kernel.specialize)
        return tuple(self._explain_winner(kernel, winner) for winner in winners if keys in (None, set(winner.problem)))

    def _explain_winner(self, kernel: KernelInfo, winner: Winner) -> WinnerStanding:
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
        if fault := self.catalog.find_file_fault(kernel):
            return _describe_as_stale(standing, fault)
        try:
            now = self._build_context_now(kernel, winner)
        except KtunedError as error:
            return _describe_as_stale(standing, error.message)
        if now != winner.context:
            changes = self._describe_changes(kernel, winner.context, now)
            standing = _describe_as_stale(standing, self._read_log_since(winner), changes)
        elif doubt := explain_unobserved(kernel) if kernel.unobserved else self.certainty.find_doubt(kernel):
            standing = _describe_as_stale(standing, doubt)
        outside = self._explain_unserved_config(kernel, winner)
        return (
            standing
            if outside is None
            else _describe_as_stale(standing, standing.message, [*standing.changes, outside])
        )

    def _explain_unserved_config(self, kernel: KernelInfo, winner: Winner) -> Change | None:
        """Return why a winner's config is not served unchanged in the present space; None if it is."""
        file = os.path.basename(kernel.file)
        config = complete_config(kernel, winner.config)
        held = canonical(winner.config)
        verdict = self.admission.find_known_verdict(kernel, self._find_whole_problem(kernel, winner), config)
        if verdict and config == winner.config:
            return None
        if verdict:
            return Change(SPACE, file, f"{held} lacks a knob: it is served as {canonical(config)}", "", "")
        if verdict is False:
            return Change(SPACE, file, f"{held} is not in the space any more: it is not served", "", "")
        return Change(SPACE, file, f"{held} is served once a worker has found it in the space", "", "")

    def _find_whole_problem(self, kernel: KernelInfo, winner: Winner) -> Problem:
        """Return a whole problem that a winner is for, because constraints see the whole problem."""
        wanted = winner.context.problem
        declared = (problem for problem in kernel.problems if kernel.make_key_problem(problem) == wanted)
        return next(declared, winner.problem)

    def _build_context_now(self, kernel: KernelInfo, winner: Winner) -> Context:
        environment = self.catalog.find_kernel_environment(kernel)
        device = self.machine.find_device(environment, kernel.backend, winner.context.device)
        return self.machine.build_context(kernel, environment, winner.problem, device)

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
        return next((job.message for job in self._find_jobs(winner)), "")

    def _collect_notices(self, winner: Winner) -> tuple[str, ...]:
        ended_well = (job.message for job in self._find_jobs(winner) if job.state is JobState.DONE)
        return tuple(find_notices(next(ended_well, "")))

    def _find_jobs(self, winner: Winner) -> Iterator[Job]:
        """Return the jobs that may have found a winner, newest first."""
        for job in self.store.list_jobs(kernel=winner.context.kernel, limit=20):
            is_alike = job.device == winner.context.device and job.objective == winner.objective
            if is_alike and _has_key_values(job.problem, winner.problem):
                yield job


def _describe_as_stale(standing: WinnerStanding, message: str, changes: Sequence[Change] = ()) -> WinnerStanding:
    return replace(standing, status=Status.STALE, message=message, changes=tuple(changes))


def _has_key_values(problem: Problem, specialised: Problem) -> bool:
    return all(problem.get(key) == value for key, value in specialised.items())
