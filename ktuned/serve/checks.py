"""The method ``check``: runs a kernel's winners again with all checks, or under a sanitizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ktuned.answers import Knowledge
from ktuned.fleet import Fleet, Lane
from ktuned.model import Device, FrozenStruct, KtunedError, NotFound, Outcome, TrialResult
from ktuned.protocol import CHECK, AnswersChanged, CheckAnswer, CheckedWinner, CheckParams, Job, PublishEvent
from ktuned.serve.method import Handler, Peer
from ktuned.store import Winner
from ktuned.tuning import CheckResult, JobBrief, Sanitizers, WinnerCheck, publish_winner


class Checks(FrozenStruct, kw_only=True):
    """Checks winners one after another.

    Attributes:
        known: Has the kernel, its winners with their trials and jobs, and their artifacts.
        fleet: Lends workers.
        prepare: Makes the brief of a job.
        lane: Returns the lane of a device.
        scratch: The directory for sanitizer runs.
        publish: Publishes that answers have changed, and a new winner.
    """

    known: Knowledge
    fleet: Fleet
    prepare: Callable[[Job], JobBrief]
    lane: Callable[[Device], Lane]
    scratch: Path
    publish: PublishEvent

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(CHECK, self.handle_check)]

    async def handle_check(self, params: CheckParams, peer: Peer) -> CheckAnswer:
        """Check the winners of a kernel, or only those of one problem; return a verdict for each.

        A wrong winner is no longer served: its trial gets the outcome of the check, and the next best config wins.

        Raises:
            NotFound: there is no such kernel, or no winner.
        """
        kernel = self.known.catalog.resolve_kernel(params.kernel, params.directory)
        chosen = None if params.problem is None else dict(kernel.select_key_values(params.problem))
        winners = [one for one in self.known.store.list_winners(kernel.name) if chosen in (None, dict(one.problem))]
        if not winners:
            raise NotFound(f"{kernel.name} has no winner to check", hint="`ktuned tune` finds one")
        sanitizers = Sanitizers(params.address, params.compute) if params.sanitize else None
        return CheckAnswer(kernel.name, [await self._describe_check(one, sanitizers) for one in winners])

    async def _describe_check(self, winner: Winner, sanitizers: Sanitizers | None) -> CheckedWinner:
        found = partial(CheckedWinner, winner.problem, winner.context.device, winner.objective, winner.config)
        try:
            checked = await self._check_winner(winner, sanitizers)
        except KtunedError as error:
            return found("not_checked", error.message, hint=error.hint)
        if checked.outcome is not None:
            await self._demote_winner(winner, checked.outcome, checked.message)
        verdict = "wrong" if checked.message else "right"
        return found(verdict, checked.message, report=checked.report, checks=checked.checks)

    async def _demote_winner(self, winner: Winner, outcome: Outcome, message: str) -> None:
        kernel = self.known.catalog.resolve_kernel(winner.context.kernel)
        result = TrialResult(outcome, message=f"`ktuned check`: {message}")
        follower = await self.known.store.finish_trial(winner.trial, result, objective=winner.objective)
        self.publish(AnswersChanged(kernel=kernel.name, is_revoked=True))
        if follower is not None:
            publish_winner(self.publish, kernel, follower, None)

    async def _check_winner(self, winner: Winner, sanitizers: Sanitizers | None) -> CheckResult:
        trial = self.known.store.get_trial(winner.trial)
        job = None if trial is None else self.known.store.get_job(trial.job)
        if trial is None or job is None or not trial.detail.compiled.build:
            raise NotFound("this winner's trial was deleted", hint="`ktuned tune` measures it again")
        brief = self.prepare(replace(job, device=winner.context.device))
        if brief.context != winner.context:
            raise NotFound("this winner is stale", hint="`ktuned kernels NAME` says what changed; `ktuned tune` first")
        if not brief.devices:
            raise NotFound(f"there is no {winner.context.device} here")
        check = WinnerCheck(brief, self.lane(brief.devices[0]), self.fleet, self.known.artifacts)
        if sanitizers is None:
            return await check.check_winner(trial.detail.compiled.build)
        return await check.sanitize_winner(trial.detail.compiled.build, sanitizers, self.scratch)
