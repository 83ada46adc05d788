"""Portfolios: a few configs that serve the problems for which a kernel was not tuned, chosen by a tree.

::

    a job ends ─▶ eight keys are tuned ─▶ costs of the useful configs ─▶ fit, in a worker ─▶ store ─▶ lookups, exports
                                              │            ▲
                                              ▼ some lack  │ ends
                                           jobs of the lowest rank, restricted to these configs

A kernel has one portfolio for each device model and objective. It is fitted to the trials in the store, once no job of
the kernel waits or runs, and again when these costs have changed. A leaf can only have a config that was measured, with
right outputs, on each key of the leaf. After an edit the portfolio stays, and is replaced once eight keys were tuned
again.

With exact numerics there is no portfolio: the bits of its configs would not have been compared on a new problem.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import structlog

from ktuned.answers import Knowledge
from ktuned.fleet import Fleet
from ktuned.ipc import requests
from ktuned.model import (
    LATENCY,
    Config,
    KernelInfo,
    KtunedError,
    Objective,
    Outcome,
    Problem,
    Role,
    canonical,
    convert_to_cost,
    is_exact,
)
from ktuned.portfolio import FAILED, Matrix, shortlist_configs, weigh_by_launches
from ktuned.protocol import AnswersChanged, Event, JobDone, JobState, Priority, PublishEvent
from ktuned.scheduling.job_requests import JobRequests, TuningRequest
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.preparation import find_present_key
from ktuned.store import StoredPortfolio, Winner

MIN_KEYS: Final = 8
"""Fewest tuned keys. With fewer keys, a tree predicts no better than the nearest key."""

MAX_KEYS: Final = 200
"""Most keys that a portfolio is fitted to, those with the most launches: a fit takes a second then."""

BEST_OF_KEY: Final = 64
"""Configs of each key that compete, best first: few others are within 10 % of the best."""

SHORTLIST: Final = 3
"""For each config of the portfolio, this many candidates are measured on all keys."""

MAX_ASKED: Final = 100_000
"""Most cells that are remembered as requested. Beyond that, all are forgotten, and missing cells are requested
again."""

SETTLE_S: Final = 2.0
"""Pause after the end of a job: the next key of the same kernel is often chosen within a second."""

_log = structlog.get_logger()


class PortfolioFitter:
    """Fits the portfolios. If a fit lacks costs, has them measured first."""

    def __init__(
        self,
        known: Knowledge,
        *,
        fleet: Fleet,
        jobs: Jobs,
        requests: JobRequests,
        publish: PublishEvent,
    ) -> None:
        self._known = known
        self._fleet = fleet
        self._jobs = jobs
        self._requests = requests
        self._publish = publish
        self._due = {*known.store.list_kernels_to_fit(MIN_KEYS)}
        """The kernels whose portfolios are to be fitted. The last daemon may have ended between a job and its fit."""
        self._has_due = anyio.Event()
        self._asked: set[tuple[int, str]] = set()
        """The cells that were requested: hashes of contexts, and configs."""

    def handle_event(self, event: Event) -> None:
        """Have a kernel's portfolios fitted soon after one of its jobs has ended."""
        if isinstance(event, JobDone):
            self._due.add(event.kernel)
            self._has_due.set()

    async def run_until_cancelled(self) -> None:
        """Fit the portfolios of kernels whose jobs have ended, until cancelled."""
        while True:
            if not self._due:
                await self._has_due.wait()
            await anyio.sleep(SETTLE_S)
            self._has_due = anyio.Event()
            due, self._due = sorted(self._due), set()
            for name in due:
                live = [job for job in self._jobs.list_live_jobs() if job.kernel == name]
                if any(job.state is not JobState.PAUSED for job in live):
                    # The end of the last one adds the kernel again.
                    continue
                try:
                    await self.fit_kernel(name)
                except KtunedError as error:
                    _log.warning("fit_portfolio_failed", kernel=name, reason=error.message)

    async def fit_kernel(self, name: str) -> None:
        """Fit a kernel's portfolios to its present winners, if enough keys are tuned.

        Raises:
            KtunedError: The kernel is gone, no worker can fit, or the portfolio cannot be stored.
        """
        kernel = self._known.catalog.resolve_kernel(name)
        if not kernel.portfolio:
            return
        tuned: dict[tuple[str, Objective], list[Winner]] = {}
        for winner in self._known.store.list_winners(name):
            if winner.is_final and not is_exact(winner.objective) and self._is_current(kernel, winner):
                tuned.setdefault((winner.context.device, winner.objective), []).append(winner)
        for winners in tuned.values():
            if len(winners) >= MIN_KEYS:
                await self._fit_winners(kernel, winners)

    def _is_current(self, kernel: KernelInfo, winner: Winner) -> bool:
        """Return whether a winner was measured in the context of a measurement made now."""
        try:
            present = find_present_key(
                self._known.catalog, self._known.machine, kernel, winner.problem, winner.context.device, LATENCY
            )
        except KtunedError:
            return False
        return present.context == winner.context

    async def _fit_winners(self, kernel: KernelInfo, winners: list[Winner]) -> None:
        """Fit the portfolio of one device model and objective, or request the costs that it lacks."""
        device, objective = winners[0].context.device, winners[0].objective
        # Which keys, and which configs are worth measuring on all of them?
        launches = self._jobs.list_launches(kernel.name, device)
        newest = max(winner.decided for winner in winners)
        winners = sorted(winners, key=lambda winner: (-launches.get(winner.key.problem, 0), -winner.decided))[:MAX_KEYS]
        keys = tuple(winner.problem for winner in winners)
        launched = [(json.loads(key), count) for key, count in launches.items()]
        # In a thread, because thousands of launched keys take a second.
        weights = tuple(await anyio.to_thread.run_sync(weigh_by_launches, keys, launched))
        best = tuple([self._list_best_costs(winner) for winner in winners])
        useful = shortlist_configs(Matrix(keys, weights, best), SHORTLIST * kernel.portfolio)
        # What did they take? A config that was not measured, for whatever reason, must not be chosen there.
        costs: list[dict[str, float]] = []
        is_waiting = False
        for winner in winners:
            await anyio.lowlevel.checkpoint()
            found = {text: self._find_cost(winner, text) for text in useful}
            holes = [text for text, cost in found.items() if cost is None]
            is_waiting |= await self._measure_configs(kernel, winner, holes)
            # The winner itself may not be among the useful configs, and losses are relative to it.
            own = convert_to_cost(objective, winner.figure)
            row = {text: FAILED if cost is None else cost for text, cost in found.items()}
            costs.append(row if own is None else {canonical(winner.config): own} | row)
        if is_waiting:
            return
        # Fit, unless the costs are those of the last fit.
        matrix = msgspec.to_builtins(Matrix(keys, weights, tuple(costs)))
        fitted_to = hashlib.sha256(canonical({"configs": kernel.portfolio, **matrix}).encode()).hexdigest()
        known = self._known.store.load_portfolios(kernel.name)
        if any((one.device, one.objective, one.fitted_to) == (device, objective, fitted_to) for one in known):
            return
        request = requests.FitPortfolio(matrix, kernel.portfolio)
        async with self._fleet.lend_worker(Role.INSPECT, self._known.catalog.find_kernel_environment(kernel)) as worker:
            reply, _ = await worker.send_request(request, self._fleet.deadlines)
        if reply.fault:
            _log.warning("fit_portfolio_failed", kernel=kernel.name, reason=reply.fault)
            return
        await self._known.store.save_portfolio(
            StoredPortfolio(kernel.name, device, objective, fitted_to, newest, reply.tree)
        )
        self._publish(AnswersChanged(kernel=kernel.name))
        _log.info("portfolio_fitted", kernel=kernel.name, device=device, objective=objective, keys=len(keys))

    def _list_best_costs(self, winner: Winner) -> dict[str, float]:
        """Return the costs of the best configs of a winner's key."""
        found = self._known.store.list_measured_configs(winner.context, BEST_OF_KEY, objective=winner.objective)
        costs = {known.text: convert_to_cost(winner.objective, known.figure) for known in found}
        return {text: cost for text, cost in costs.items() if cost is not None}

    def _find_cost(self, winner: Winner, config: str) -> float | None:
        """Return a config's cost for a winner's key: ``FAILED`` if it does not work, ``None`` if it was not tried."""
        trial = self._known.store.find_trial(winner.context, json.loads(config))
        if trial is None or trial.outcome is None:
            return None
        if trial.outcome is not Outcome.MEASURED:
            return FAILED
        return convert_to_cost(winner.objective, trial.figure(winner.objective))

    async def _measure_configs(self, kernel: KernelInfo, winner: Winner, configs: Sequence[str]) -> bool:
        """Request that configs are measured for a winner's key, once; return whether a job was requested."""
        place = hash(winner.context)
        wanted: list[Config] = [json.loads(text) for text in configs if (place, text) not in self._asked]
        problem = self._find_measurable_problem(kernel, winner)
        if not wanted or problem is None:
            return False
        if len(self._asked) > MAX_ASKED:
            self._asked.clear()
        self._asked |= {(place, canonical(config)) for config in wanted}
        admitted = await self._known.admission.check_configs(kernel, problem, wanted)
        tried = tuple(config for config, is_in in zip(wanted, admitted, strict=True) if is_in)
        if not tried:
            return False
        request = TuningRequest(
            problem=problem,
            device=winner.context.device,
            objective=winner.objective,
            priority=Priority.VERIFY,
            reason="portfolio",
            configs=tried,
        )
        return bool(await self._requests.request_jobs(kernel, request))

    def _find_measurable_problem(self, kernel: KernelInfo, winner: Winner) -> Problem | None:
        """Return the whole problem of a winner's key, of which an application's recorded call may be a part.

        A key that was imported may have none.
        """
        if kernel.specialize is None:
            return winner.problem
        trial = self._known.store.get_trial(winner.trial)
        job = None if trial is None else self._known.store.get_job(trial.job)
        return None if job is None or not job.problem else job.problem
