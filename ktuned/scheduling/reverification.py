"""Re-verification: after a driver or toolchain has changed, the best known configs are measured again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import anyio.lowlevel
import structlog
from msgspec.structs import replace

from ktuned.catalog import Catalog, check_problem
from ktuned.devices import Machine
from ktuned.model import Job, KernelInfo, KtunedError, Plan, Priority, UsageError, Winner
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.preparation import find_present_key
from ktuned.store import Store
from ktuned.tuning import JobBrief

_log = structlog.get_logger()

TRUSTED = 5
"""Number of best old configs that are measured again. A new driver shifts figures, but slower ones rarely win then."""

REASON = "a driver or toolchain changed"


class Reverification:
    """Finds winners that were measured with an older driver or toolchain, and has their best configs measured again."""

    def __init__(self, *, catalog: Catalog, machine: Machine, store: Store, jobs: Jobs) -> None:
        self._catalog = catalog
        self._machine = machine
        self._store = store
        self._jobs = jobs

    async def queue_reverification(self, kernels: Sequence[KernelInfo] | None = None) -> list[Job]:
        """Queue a job for each winner that must be measured again, of all kernels or of some; return the jobs.

        Winners of kernels that have themselves changed are left out: :mod:`~ktuned.scheduling.renewal` handles those.
        """
        queued = []
        # Read winners kernel by kernel: a store may hold ten thousand, most of them of kernels that are gone.
        for kernel in self._catalog.kernels if kernels is None else kernels:
            await anyio.lowlevel.checkpoint()
            for winner in self._store.list_winners(kernel.name):
                try:
                    job = await self._queue_verification(kernel, winner)
                except KtunedError as error:
                    _log.info("not_verified", kernel=kernel.name, reason=error.message)
                else:
                    queued += [job] if job is not None else []
        return queued

    async def reverify_probed(self, kernels: Sequence[KernelInfo], changed: Sequence[KernelInfo]) -> None:
        """React to a new probe of some kernels' toolchain: renew the winners of kernels for which it ``changed``.

        Jobs that stopped because they found another toolchain than the one in their artifacts' keys may run again. Jobs
        that began with an older toolchain begin again; others, which began after the probe, are left alone.
        """
        for kernel in changed:
            await self._jobs.restart_running_jobs(
                kernel.name, f"restarted: {REASON}", partial(self._is_outdated, kernel)
            )
        for kernel in kernels:
            self._jobs.release_inspected_jobs(kernel.name)
        await self.queue_reverification(changed)

    def _is_outdated(self, kernel: KernelInfo, brief: JobBrief) -> bool:
        """Return whether a job began with another toolchain or driver than the kernel has now."""
        environment = self._catalog.find_kernel_environment(kernel)
        return self._machine.is_outdated(environment, kernel.backend, brief.context)

    async def _queue_verification(self, kernel: KernelInfo, winner: Winner) -> Job | None:
        if winner.context.digest != kernel.digest:
            return None
        job = self._store.find_job_of_winner(winner)
        if job is None:
            return None
        check_problem(kernel, job.problem)
        objective, model = kernel.objective(winner.objective), winner.context.device
        present = find_present_key(self._catalog, self._machine, kernel, job.problem, model, objective)
        context = present.context
        if context == winner.context:
            return None
        if context.problem != winner.context.problem:
            raise UsageError(f"{kernel.name} specialises its problems differently now")
        arrival = await self._jobs.submit_job(
            present.winner_key,
            job.problem,
            priority=Priority.VERIFY,
            reason=REASON,
            plan=self._make_verification_plan(kernel, winner),
        )
        return arrival.job

    def _make_verification_plan(self, kernel: KernelInfo, winner: Winner) -> Plan:
        """Return the declared plan with a budget for the best configs only; every job begins with these."""
        best = [
            trial.config for trial in self._store.list_best_trials(winner.context, TRUSTED, objective=winner.objective)
        ]
        first = [winner.config, *(config for config in best if config != winner.config)][:TRUSTED]
        # The default is tried second, because speed-ups are relative to it. It must not displace another config.
        besides = kernel.default is not None and kernel.default not in first
        return replace(kernel.plan, trials=min(kernel.plan.trials, len(first) + besides))
