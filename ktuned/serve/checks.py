"""The method ``check``: runs a kernel's winners once more with all checks, or under a sanitizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ktuned.catalog import Catalog
from ktuned.fleet import Fleet, Lane
from ktuned.model import Device, Job, KernelInfo, KtunedError, NotFound, Winner
from ktuned.protocol import CHECK, CheckParams
from ktuned.serve.connection import Connection
from ktuned.serve.method import Handler
from ktuned.store import Artifacts, Store
from ktuned.tuning import CheckResult, JobBrief, Sanitizers, WinnerCheck


class Checks:
    """Checks winners, one after the other; ``prepare`` makes a job's brief, ``lane`` returns a device's lane."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        store: Store,
        fleet: Fleet,
        artifacts: Artifacts,
        prepare: Callable[[Job], JobBrief],
        lane: Callable[[Device], Lane],
        scratch: Path,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._fleet = fleet
        self._artifacts = artifacts
        self._prepare = prepare
        self._lane = lane
        self._scratch = scratch

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(CHECK, self.check_winners)]

    async def check_winners(self, wanted: CheckParams, connection: Connection) -> dict[str, Any]:
        """Check the winners of a kernel, or the one of a problem; each has its verdict.

        Raises:
            NotFound: there is no such kernel, or no winner.
        """
        kernel = self._catalog.resolve_kernel(wanted.kernel, wanted.directory)
        chosen = None if wanted.problem is None else dict(kernel.select_key_values(wanted.problem))
        winners = [one for one in self._store.list_winners(kernel.name) if chosen in (None, dict(one.problem))]
        if not winners:
            raise NotFound(f"{kernel.name} has no winner to check", hint="`ktuned tune` finds one")
        sanitizers = Sanitizers(wanted.address, wanted.compute) if wanted.sanitize else None
        return {"kernel": kernel.name, "winners": [await self._check_entry(kernel, one, sanitizers) for one in winners]}

    async def _check_entry(self, kernel: KernelInfo, winner: Winner, sanitizers: Sanitizers | None) -> dict[str, Any]:
        entry = {
            "problem": dict(winner.problem),
            "device": winner.context.device,
            "objective": winner.objective,
            "config": dict(winner.config),
        }
        try:
            checked = await self._check_winner(winner, sanitizers)
        except KtunedError as error:
            return {**entry, "verdict": "not_checked", "message": error.message, "hint": error.hint}
        return {
            **entry,
            "verdict": "wrong" if checked.message else "right",
            "message": checked.message,
            "report": checked.report,
            "checks": list(checked.checks),
        }

    async def _check_winner(self, winner: Winner, sanitizers: Sanitizers | None) -> CheckResult:
        trial = self._store.get_trial(winner.trial)
        job = None if trial is None else self._store.get_job(trial.job)
        if trial is None or job is None or not trial.detail.build:
            raise NotFound("the trial of this winner is not known any more", hint="`ktuned tune` measures it again")
        brief = self._prepare(replace(job, device=winner.context.device))
        if brief.context != winner.context:
            raise NotFound("this winner is stale", hint="`ktuned kernels NAME` says what changed; `ktuned tune` first")
        if not brief.devices:
            raise NotFound(f"there is no {winner.context.device} here")
        check = WinnerCheck(brief, self._lane(brief.devices[0]), self._fleet, self._artifacts)
        if sanitizers is None:
            return await check.check_winner(trial.detail.build)
        return await check.sanitize_winner(trial.detail.build, sanitizers, self._scratch)
