"""The making of a portfolio: problems are tuned, configs measured, and a tree is fitted to the costs.

::

    tune some ─▶ measure useful configs on all ─▶ fit, in a worker ─▶ measure at the borders ─▶ done
    (costliest)    (holes of the shortlist)            ▲                       │
                                                       └─── the tree errs ─────┘

A portfolio has only configs that were launched and checked on every problem of their leaf. Where two leaves meet, the
configs are also measured on both sides of the border. A problem at which the tree errs is added to the problems that
the tree is fitted to.

All measuring is done by jobs, and the store keeps their results. So if the making is interrupted, the next attempt
begins with these results.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import anyio
import msgspec
from msgspec import structs

from ktuned.catalog import Admission, Catalog, check_problem
from ktuned.devices import Machine
from ktuned.fleet import Fleet
from ktuned.ipc import requests
from ktuned.model import (
    LATENCY,
    Config,
    Context,
    Job,
    KernelInfo,
    KtunedError,
    Objective,
    Outcome,
    PortfolioRequest,
    Priority,
    Problem,
    Role,
    Scalar,
    UsageError,
    canonical,
    convert_to_cost,
)
from ktuned.portfolio import (
    FAILED,
    Matrix,
    Portfolio,
    Selection,
    find_border_problems,
    is_choice_wrong,
    shortlist_configs,
)
from ktuned.protocol import PortfolioDocument, PortfolioLimits, PortfolioProgress
from ktuned.scheduling.job_requests import JobRequests, TuningRequest
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.preparation import find_present_key
from ktuned.store import Store, StoredPortfolio

MAX_CONFIGS: Final = 16
"""Most configs of a portfolio: for more, it is better to tune each problem."""

MAX_PROBLEMS: Final = 1_000
"""Most problems that one portfolio is fitted to."""

SHORTLIST: Final = 3
"""For each config of the portfolio, this many candidates are measured on all problems."""

MAX_KNOWN: Final = 4_096
"""Most trials of a problem that are read."""

MAX_REFINEMENTS: Final = 4
"""Number of fits after which the tree only errs at a border if a config fails there. Before, it also errs if a config
loses more than expected."""

MAX_FITS: Final = 24
"""Most fits of one portfolio. After each fit the borders are measured, and a border at which the tree errs moves by
half a gap."""

WeighedProblems = Sequence[tuple[Problem, float]]
"""Problems, each with a weight, such as its share of the time."""


class PortfolioSpec(msgspec.Struct, frozen=True):
    """The problems that a portfolio is for, and its limits.

    Attributes:
        over: The problems with their weights; their keys differ.
        limits: The limits of the portfolio.
        measurable: If not empty, the only other problems that can be measured: an application's calls. Otherwise
            problems at borders are made up.
    """

    over: WeighedProblems
    limits: PortfolioLimits = PortfolioLimits()
    measurable: tuple[Problem, ...] = ()

    @classmethod
    def from_request(cls, kernel: KernelInfo, asked: PortfolioRequest) -> PortfolioSpec:
        """Return the spec of a request, completed by the kernel file's ``portfolio=`` and declared problems.

        Raises:
            UsageError: There are too few or too many problems, or a number is out of its range.
        """
        declared = kernel.extra.portfolio or PortfolioRequest()
        over = asked.over or declared.over or [(problem, 1.0) for problem in kernel.problems]
        limits = PortfolioLimits()
        for source in (declared, asked):
            given = {name: getattr(source, name) for name in limits.__struct_fields__}
            limits = structs.replace(limits, **{name: value for name, value in given.items() if value is not None})
        for problem, _ in over:
            check_problem(kernel, problem)
        unique = {canonical(kernel.select_key_values(problem)): (problem, float(weight)) for problem, weight in over}
        if len(unique) < 2:
            raise UsageError(
                f"{kernel.name} names {len(unique)} problems: a portfolio is for many",
                hint="declare them as problems=, or as portfolio=dict(over=…) in the kernel file",
            )
        if len(unique) > MAX_PROBLEMS:
            raise UsageError(f"{len(unique)} problems, and {MAX_PROBLEMS} are allowed", hint="take a sample")
        if not 1 <= limits.configs <= MAX_CONFIGS:
            raise UsageError(f"configs is {limits.configs}", hint=f"give 1 to {MAX_CONFIGS}")
        if not 0 <= limits.loss < 10 or not 1 <= limits.tunings <= MAX_PROBLEMS:
            raise UsageError("loss or tunings is out of range", hint="give a part such as 0.02, and at least 1 tuning")
        return cls(tuple(unique.values()), limits)


class PortfolioBuild(msgspec.Struct):
    """A portfolio that is to be made on a device model by an objective.

    Attributes:
        kernel: The kernel.
        wanted: The problems and limits.
        progress: How far the build is.
        priority: The priority of its jobs.
    """

    kernel: KernelInfo
    wanted: PortfolioSpec
    progress: PortfolioProgress
    priority: int

    @classmethod
    def begin(
        cls, kernel: KernelInfo, device: str, objective: Objective, wanted: PortfolioSpec, priority: int
    ) -> PortfolioBuild:
        """Return a build that has not begun."""
        progress = PortfolioProgress(kernel.name, device, objective, len(wanted.over))
        return cls(kernel, wanted, progress, priority)

    @property
    def device(self) -> str:
        """The device's model."""
        return self.progress.device

    @property
    def objective(self) -> Objective:
        """The figure by which configs are judged."""
        return self.progress.objective


class PortfolioMaker:
    """Makes one portfolio at a time: :meth:`make_portfolio` returns it."""

    def __init__(
        self,
        *,
        admission: Admission,
        catalog: Catalog,
        fleet: Fleet,
        jobs: Jobs,
        machine: Machine,
        requests: JobRequests,
        store: Store,
        deadlines: Mapping[str, float],
    ) -> None:
        self._admission = admission
        self._catalog = catalog
        self._fleet = fleet
        self._jobs = jobs
        self._machine = machine
        self._requests = requests
        self._store = store
        self._deadlines = deadlines

    async def make_portfolio(self, build: PortfolioBuild) -> StoredPortfolio:
        """Tune, measure and fit, as the diagram in the module's docstring shows.

        Raises:
            KtunedError: The portfolio cannot be made.
        """
        name, wanted = build.kernel.name, build.wanted
        build.kernel = self._catalog.resolve_kernel(name)
        state = self.describe_state(build.kernel, build.device)
        await self._tune_weightiest_problems(build)
        over = list(wanted.over)
        useful = shortlist_configs(self._build_matrix(build, over), SHORTLIST * wanted.limits.configs)
        for number in range(MAX_FITS):
            await self._measure_missing_configs(build, [problem for problem, _ in over], useful)
            matrix = self._build_matrix(build, over, useful)
            fitted = await self._fit_portfolio(build, matrix)
            erring = await self._find_erring_borders(build, over, fitted, also_slow=number < MAX_REFINEMENTS)
            if not erring:
                break
            weight = sum(weight for _, weight in over) / len(over)
            over += [(problem, weight) for problem in erring]
        else:
            raise UsageError(f"{name}: configs fail at every border", hint="repair them, or constrain the space")
        if state != self.describe_state(self._catalog.resolve_kernel(name), build.device):
            raise UsageError(f"{name} changed meanwhile", hint="ask again")
        now = time.time()
        document = PortfolioDocument(
            **fitted.to_wire(), matrix=matrix.to_wire(), over=wanted.over, wanted=wanted.limits, created=now
        )
        return StoredPortfolio(name, build.device, build.objective, state, document, now)

    async def measure_configs(self, build: PortfolioBuild, problem: Problem, configs: Sequence[str]) -> Matrix:
        """Measure configs on one problem; return all known costs of the problem.

        Raises:
            KtunedError: The configs cannot be measured.
        """
        await self._measure_missing_configs(build, [problem], configs)
        return self._build_matrix(build, [(problem, 1.0)])

    def describe_state(self, kernel: KernelInfo, device: str) -> str:
        """Return the state for which measurements hold: the digests of the kernel, the toolchain and the device."""
        try:
            problem: dict[str, Scalar] = dict.fromkeys(kernel.specialize or (), 0)
            context = self._build_context(kernel, device, problem)
        except KtunedError:
            return ""
        return f"{kernel.digest} {context.toolchain} {context.device_fingerprint} {context.measuring_version}"

    # The steps.

    async def _tune_weightiest_problems(self, build: PortfolioBuild) -> None:
        """Tune the problems that matter most, until tuning another one is unlikely to gain much."""
        kernel, limits = build.kernel, build.wanted.limits
        selection = Selection(min(limits.tunings, len(build.wanted.over)), limits.loss / 2)
        originals: dict[str, Problem] = {}
        for problem, weight in build.wanted.over:
            key = kernel.select_key_values(problem)
            originals[canonical(key)] = problem
            selection.add_problem(key, weight)
            if self._is_tuned(build, problem):
                selection.record_tuning(key)
        while (chosen := selection.choose_next_problem()) is not None:
            problem = originals[canonical(chosen)]
            nearest = selection.find_nearest_tuned(chosen)
            await self._await_jobs(build, await self._request_jobs(build, problem, stale_only=True))
            build.progress.tuned += 1
            selection.record_tuning(chosen)
            # Record the problem's loss with the config of its nearest tuned neighbour.
            costs = self._load_costs(build, problem)
            best = min(costs.values(), default=FAILED)
            borrowed = None if nearest is None else self._find_best_config(build, originals[canonical(nearest)])
            if borrowed in costs and best < FAILED:
                selection.record_loss(chosen, costs[borrowed] / best - 1)

    async def _measure_missing_configs(
        self, build: PortfolioBuild, problems: Iterable[Problem], configs: Sequence[str]
    ) -> None:
        """Measure configs on the problems on which they were not measured yet."""
        jobs: list[Job] = []
        for problem in problems:
            known = self._load_costs(build, problem)
            holes: list[Config] = [json.loads(config) for config in configs if config not in known]
            admitted = await self._admission.check_configs(build.kernel, problem, holes) if holes else []
            tried = tuple(config for config, is_in in zip(holes, admitted, strict=True) if is_in)
            if tried:
                jobs += await self._request_jobs(build, problem, configs=tried)
                build.progress.measured += len(tried)
        await self._await_jobs(build, jobs)

    async def _fit_portfolio(self, build: PortfolioBuild, matrix: Matrix) -> Portfolio:
        request = requests.FitPortfolio(matrix.to_wire(), build.wanted.limits.configs, build.wanted.limits.loss)
        async with self._fleet.lend_worker(Role.INSPECT, self._catalog.find_kernel_environment(build.kernel)) as worker:
            reply, _ = await worker.send_request(request, self._deadlines)
        if reply.fault:
            raise UsageError(f"{build.kernel.name}: {reply.fault}")
        return Portfolio.from_wire(reply.portfolio)

    async def _find_erring_borders(
        self, build: PortfolioBuild, over: WeighedProblems, fitted: Portfolio, *, also_slow: bool
    ) -> list[Problem]:
        """Measure the problems at the borders; return those for which a leaf's config fails, or is ``also_slow``."""
        # Use whole problems instead of keys, because an application's call is a part of the problem.
        known = {canonical(problem): problem for problem, _ in over}
        found = find_border_problems(fitted.tree, list(known.values()), build.wanted.measurable)
        borders = [problem for problem in found if canonical(problem) not in known]
        await self._measure_missing_configs(build, borders, fitted.configs)
        costs = self._build_matrix(build, [(problem, 0.0) for problem in borders], fitted.configs)
        return [
            problem
            for row, problem in enumerate(borders)
            if is_choice_wrong(costs, row, fitted.find_leaf(costs.problems[row]), also_slow=also_slow)
        ]

    async def _request_jobs(self, build: PortfolioBuild, problem: Problem, **options: Any) -> list[Job]:
        request = TuningRequest(
            problem=problem,
            device=build.device,
            objective=build.objective,
            priority=build.priority,
            is_fixed=build.priority != Priority.REQUESTED,
            reason="portfolio",
            **options,
        )
        return await self._requests.request_jobs(build.kernel, request)

    async def _await_jobs(self, build: PortfolioBuild, jobs: Iterable[Job]) -> None:
        """Wait until jobs have ended, even if they fail: a config that could not be measured is left out."""
        for job in jobs:
            build.progress.jobs = (job.id,)
            while (found := self._jobs.get_job(job.id)) is not None and not found.is_ended:  # noqa: ASYNC110
                await anyio.sleep(0.05)

    # Results in the store.

    def _build_matrix(
        self, build: PortfolioBuild, over: WeighedProblems, configs: Iterable[str] | None = None
    ) -> Matrix:
        """Return the known costs of problems. With ``configs``, those without a known cost count as failed."""
        costs = [self._load_costs(build, problem) for problem, _ in over]
        if configs is not None:
            kept = list(configs)
            costs = [{config: known.get(config, FAILED) for config in kept} for known in costs]
        keys = tuple(build.kernel.select_key_values(problem) for problem, _ in over)
        return Matrix(keys, tuple(weight for _, weight in over), tuple(costs))

    def _load_costs(self, build: PortfolioBuild, problem: Problem) -> dict[str, float]:
        """Return each config's cost for a problem in the present context; :data:`FAILED` if it does not work."""
        context = self._build_context(build.kernel, build.device, problem)
        failed = self._store.list_failed_configs(context, MAX_KNOWN, objective=build.objective)
        measured = self._store.list_measured_configs(context, MAX_KNOWN, objective=build.objective)
        # A config that was stopped as too slow works, and the cost known by then is good enough.
        costs = {
            known.text: convert_to_cost(build.objective, known.figure)
            for known in (*failed, *measured)
            if known.outcome in (Outcome.MEASURED, Outcome.SLOWER)
        }
        return {known.text: FAILED for known in failed} | {
            config: cost for config, cost in costs.items() if cost is not None
        }

    def _find_best_config(self, build: PortfolioBuild, problem: Problem) -> str | None:
        costs = self._load_costs(build, problem)
        best = min(costs, key=lambda config: costs[config], default=None)
        return None if best is None or costs[best] == FAILED else best

    def _is_tuned(self, build: PortfolioBuild, problem: Problem) -> bool:
        context = self._build_context(build.kernel, build.device, problem)
        winner = self._store.get_winner(context.key_for(build.objective))
        return winner is not None and winner.context == context and winner.is_final

    def _build_context(self, kernel: KernelInfo, model: str, problem: Problem) -> Context:
        return find_present_key(self._catalog, self._machine, kernel, problem, model, LATENCY).context
