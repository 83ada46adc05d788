"""Portfolios of kernels: made by measuring, served at once, and fitted again where they err.

::

    asked for ─▶ tune some ─▶ measure useful configs on all ─▶ fit, in a worker ─▶ borders ─▶ keep
                 (costliest)    (holes of the shortlist)            ▲                 │
                                                                    └─ a config fails ┘

    looked up ─▶ the tree's config, `near` ─▶ noted ─▶ measured at leisure ─▶ worse than expected? fit again

Only configs that were launched and checked on every problem of their leaf are in a portfolio; where two leaves meet,
the configs are measured on both sides of the border, too. An application's new problems cost no tuning each: they are
measured with the portfolio's few configs, those that are expected to lose most first, and at most :data:`MAX_MEASURED`
of them between two fits.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import anyio
import msgspec
import structlog
from msgspec import structs

from ktuned.catalog import Admission, Catalog, check_problem
from ktuned.devices import Machine
from ktuned.fleet import Fleet
from ktuned.ipc import requests
from ktuned.model import (
    Config,
    Context,
    Device,
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
    cost_of,
)
from ktuned.portfolio import (
    FAILED,
    Condition,
    Leaf,
    Matrix,
    Portfolio,
    Selection,
    Tree,
    compute_figure,
    count_octaves,
    shortlist_configs,
)
from ktuned.protocol import PortfolioDocument, PortfolioInfo, PortfolioLimits, PortfolioProgress
from ktuned.scheduling.job_requests import JobRequests, TuningRequest
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.kept_portfolios import KeptPortfolio, KeptPortfolios, PortfolioKey
from ktuned.store import Store, StoredPortfolio

MAX_CONFIGS: Final = 16
"""Configs of a portfolio: with more, tuning each problem is the better way."""

MAX_PROBLEMS: Final = 1_000
"""Problems that one portfolio is fitted to."""

SHORTLIST: Final = 3
"""Configs that are measured everywhere for each that may be in the portfolio."""

MAX_KNOWN: Final = 4_096
"""Trials of a problem that are looked at."""

MAX_MEASURED: Final = 40
"""New problems that are measured between two fits, the most frequent first."""

MARGIN: Final = 0.02
"""A problem that loses this much more than its leaf has ever lost shows that the tree errs there."""

MAX_REFINEMENTS: Final = 4
"""Fits of one build after which a border counts no more where its config works, but loses more than was expected."""

MAX_FITS: Final = 24
"""Fits of one build: after each, borders are measured, and one where the tree errs moves by half a gap."""

IDLE_S: Final = 2.0
"""Interval in which it is seen whether anything else is to be done."""


_log = structlog.get_logger()


class PortfolioSpec(msgspec.Struct, frozen=True):
    """The problems that a portfolio is for, and its limits.

    ``measurable`` are the only other problems that can be measured, where there are any: an application's calls.
    Elsewhere a problem at a border is one that nobody asked for.
    """

    problems: tuple[Problem, ...]
    weights: tuple[float, ...]
    limits: PortfolioLimits = PortfolioLimits()
    measurable: tuple[Problem, ...] = ()

    @classmethod
    def from_request(cls, kernel: KernelInfo, asked: PortfolioRequest) -> PortfolioSpec:
        """Return what is asked for, with the kernel file's ``portfolio=``, and its problems, where that says nothing.

        Raises:
            UsageError: there are no problems, or a number is out of its range.
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
        wanted = cls(
            tuple(problem for problem, _ in unique.values()),
            tuple(weight for _, weight in unique.values()),
            limits,
        )
        if len(wanted.problems) < 2:
            raise UsageError(
                f"{kernel.name} names {len(wanted.problems)} problems: a portfolio is for many",
                hint="declare them as problems=, or as portfolio=dict(over=…) in the kernel file",
            )
        if len(wanted.problems) > MAX_PROBLEMS:
            raise UsageError(f"{len(wanted.problems)} problems, and {MAX_PROBLEMS} are allowed", hint="take a sample")
        if not 1 <= limits.configs <= MAX_CONFIGS:
            raise UsageError(f"configs is {limits.configs}", hint=f"give 1 to {MAX_CONFIGS}")
        if not 0 <= limits.loss < 10 or not 1 <= limits.tunings <= MAX_PROBLEMS:
            raise UsageError("loss or tunings is out of range", hint="give a part such as 0.02, and at least 1 tuning")
        return wanted


class PortfolioBuild(msgspec.Struct):
    """The making of a portfolio, and how far it is."""

    wanted: PortfolioSpec
    progress: PortfolioProgress
    priority: int = Priority.REQUESTED

    @classmethod
    def begin(
        cls, kernel: str, device: str, objective: Objective, wanted: PortfolioSpec, priority: int
    ) -> PortfolioBuild:
        """Return a build that has not begun."""
        return cls(wanted, PortfolioProgress(kernel, device, objective, len(wanted.problems)), priority)

    @property
    def kernel(self) -> str:
        """The kernel's full name."""
        return self.progress.kernel

    @property
    def device(self) -> str:
        """The device's model."""
        return self.progress.device

    @property
    def objective(self) -> Objective:
        """What the configs are judged by."""
        return self.progress.objective


class Portfolios:
    """Makes the portfolios that :meth:`request_portfolio` asks for, and maintains the ``kept`` ones.

    :meth:`run_until_cancelled` does the work.

    ``changed`` is called with a kernel whose answers change.
    """

    def __init__(
        self,
        *,
        admission: Admission,
        catalog: Catalog,
        fleet: Fleet,
        jobs: Jobs,
        kept: KeptPortfolios,
        machine: Machine,
        requests: JobRequests,
        store: Store,
        deadlines: Mapping[str, float],
        changed: Callable[[str], None],
    ) -> None:
        self._admission = admission
        self._catalog = catalog
        self._fleet = fleet
        self._jobs = jobs
        self._machine = machine
        self._requests = requests
        self._store = store
        self._deadlines = deadlines
        self._changed = changed
        self.kept = kept
        self._builds: dict[PortfolioKey, PortfolioBuild] = {}
        self._waiting: deque[PortfolioBuild] = deque()
        self._arrived = anyio.Event()

    def count_lookup(self, kernel: KernelInfo, device: str, objective: Objective, problem: Problem) -> bool:
        """Count a lookup that found no winner of its own; return whether a portfolio answers such lookups.

        Then the problem is not tuned for itself. Where the kernel file declares a portfolio that is not there yet, it
        is made now.
        """
        kept = self.kept.find_portfolio(kernel, device, objective)
        if kept is not None:
            kept.count_problem(problem)
            return True
        if kernel.extra.portfolio is None:
            return False
        if (kernel.name, device, objective) not in self._builds:
            try:
                wanted = PortfolioSpec.from_request(kernel, PortfolioRequest())
                self.request_portfolio(kernel, device, objective, wanted, Priority.BACKGROUND)
            except KtunedError as error:
                _log.warning("portfolio_not_made", kernel=kernel.name, reason=error.message)
                return False
        return self._builds[kernel.name, device, objective].progress.is_under_way

    def describe_portfolios(self, kernel: KernelInfo) -> list[PortfolioInfo]:
        """Return a kernel's portfolios, with what is known of their problems."""
        found = []
        for (_, device, objective), kept in self.kept.portfolios_of_kernel(kernel.name).items():
            document = structs.asdict(kept.stored.document)
            is_current = kept.stored.state == self._measuring_state(kernel, device)
            found.append(PortfolioInfo(**document, device=device, objective=objective, current=is_current))
        return found

    def list_progress(self, kernel: KernelInfo) -> list[PortfolioProgress]:
        """Return the portfolios that are being made for a kernel, and the ones made last."""
        return [build.progress for key, build in self._builds.items() if key[0] == kernel.name]

    def request_portfolio(
        self, kernel: KernelInfo, device: str | None, objective: Objective, wanted: PortfolioSpec, priority: int
    ) -> PortfolioBuild:
        """Have a portfolio made, unless that is under way.

        Raises:
            UsageError: no portfolio can be made as requested.
            BackendError: there is no device to measure on.
        """
        environment = self._catalog.kernel_environment(kernel)
        model = self._machine.find_device(environment, kernel.backend, device).model
        key = (kernel.name, model, objective)
        known = self._builds.get(key)
        if known is not None and known.progress.is_under_way:
            return known
        build = PortfolioBuild.begin(kernel.name, model, objective, wanted, priority)
        self._builds[key] = build
        self._waiting.append(build)
        self._arrived.set()
        return build

    async def run_until_cancelled(self) -> None:
        """Make what was asked for, and measure new problems when nothing else is to do, until cancelled."""
        while True:
            with anyio.move_on_after(IDLE_S):
                await self._arrived.wait()
            self._arrived = anyio.Event()
            while self._waiting:
                await self._finish_build(self._waiting.popleft())
            if not self._jobs.list_live_jobs():
                await self._look_after()

    async def _finish_build(self, build: PortfolioBuild) -> None:
        build.progress.state = "running"
        try:
            await self._make_portfolio(build)
            build.progress.state = "done"
        except KtunedError as error:
            build.progress.state, build.progress.message = "failed", error.message
            _log.warning("portfolio_not_made", kernel=build.kernel, reason=error.message)

    async def _make_portfolio(self, build: PortfolioBuild) -> None:
        """Tune, measure, fit and keep; see the picture above."""
        kernel = self._catalog.resolve_kernel(build.kernel)
        wanted = build.wanted
        state = self._measuring_state(kernel, build.device)
        await self._tune_some(kernel, build)
        rows = {
            canonical(problem): (problem, weight)
            for problem, weight in zip(wanted.problems, wanted.weights, strict=True)
        }
        useful = shortlist_configs(self._build_matrix(kernel, build, rows), SHORTLIST * wanted.limits.configs)
        fitted: Portfolio | None = None
        for number in range(MAX_FITS):
            await self._fill_holes(kernel, build, [problem for problem, _ in rows.values()], useful)
            matrix = self._build_matrix(kernel, build, rows, useful)
            fitted = await self._fit_portfolio(kernel, matrix, wanted)
            problems = [problem for problem, _ in rows.values()]
            # Whole problems, not only what enters the key: an application's call is a part of them.
            borders = {
                canonical(problem): (problem, 0.0)
                for problem in find_border_problems(fitted.tree, problems, wanted.measurable)
                if canonical(problem) not in rows
            }
            if not borders:
                break
            await self._fill_holes(kernel, build, [problem for problem, _ in borders.values()], fitted.configs)
            known = self._build_matrix(kernel, build, borders, fitted.configs)
            leaves = [fitted.find_leaf(problem) for problem in known.problems]
            erring = {
                text: problem
                for row, (text, (problem, _)) in enumerate(borders.items())
                if is_erring(known, row, leaves[row], also_slow=number < MAX_REFINEMENTS)
            }
            if not erring:
                break
            # A leaf's config fails at its border, or loses more than was expected: that problem counts from now on.
            weight = sum(weight for _, weight in rows.values()) / len(rows)
            rows |= {text: (problem, weight) for text, problem in erring.items()}
        else:
            raise UsageError(f"{kernel.name}: configs fail at every border", hint="repair them, or constrain the space")
        assert fitted is not None
        if state != self._measuring_state(kernel := self._catalog.resolve_kernel(build.kernel), build.device):
            raise UsageError(f"{kernel.name} changed meanwhile", hint="ask again")
        matrix = self._build_matrix(kernel, build, rows, useful)
        await self._keep_portfolio(build, state, fitted, matrix)

    async def _tune_some(self, kernel: KernelInfo, build: PortfolioBuild) -> None:
        """Tune the problems that matter most, until a further one is not likely to gain much."""
        wanted = build.wanted
        selection = Selection(min(wanted.limits.tunings, len(wanted.problems)), wanted.limits.loss / 2)
        originals: dict[str, Problem] = {}
        for problem, weight in zip(wanted.problems, wanted.weights, strict=True):
            key = kernel.select_key_values(problem)
            originals[canonical(key)] = problem
            selection.add_problem(key, weight)
            if self._is_tuned(kernel, build, problem):
                selection.record_tuning(key)
        while (chosen := selection.choose_next_problem()) is not None:
            problem = originals[canonical(chosen)]
            nearest = selection.find_nearest_tuned(chosen)
            await self._await_jobs(
                build, await self._requests.request_jobs(kernel, self._job_request(build, problem, stale_only=True))
            )
            build.progress.tuned += 1
            before = None if nearest is None else self._best_config(kernel, build, originals[canonical(nearest)])
            costs = self._costs_of_problem(kernel, build, problem)
            best = min(costs.values(), default=FAILED)
            selection.record_tuning(chosen)
            if before is not None and before in costs and best < FAILED:
                selection.record_loss(chosen, costs[before] / best - 1)

    async def _fill_holes(
        self, kernel: KernelInfo, build: PortfolioBuild, problems: Sequence[Problem], configs: Sequence[str]
    ) -> None:
        """Measure configs where they were not yet, so that no hole is left."""
        jobs: list[Job] = []
        for problem in problems:
            known = self._costs_of_problem(kernel, build, problem)
            holes: list[Config] = [json.loads(config) for config in configs if config not in known]
            admitted = await self._admission.check_configs(kernel, problem, holes) if holes else []
            tried = tuple(config for config, is_in in zip(holes, admitted, strict=True) if is_in)
            if tried:
                jobs += await self._requests.request_jobs(kernel, self._job_request(build, problem, configs=tried))
                build.progress.measured += len(tried)
        await self._await_jobs(build, jobs)

    def _job_request(self, build: PortfolioBuild, problem: Problem, **options: Any) -> TuningRequest:
        return TuningRequest(
            problem=problem,
            device=build.device,
            objective=build.objective,
            priority=build.priority,
            is_fixed=build.priority != Priority.REQUESTED,
            reason="portfolio",
            **options,
        )

    async def _await_jobs(self, build: PortfolioBuild, jobs: Iterable[Job]) -> None:
        """Wait until jobs have ended, whatever comes of them: what could not be measured is no part of a portfolio."""
        for job in jobs:
            build.progress.jobs = (job.id,)
            while (found := self._jobs.get_job(job.id)) is not None and not found.is_ended:  # noqa: ASYNC110
                await anyio.sleep(0.05)

    async def _fit_portfolio(self, kernel: KernelInfo, matrix: Matrix, wanted: PortfolioSpec) -> Portfolio:
        request = requests.FitPortfolio(matrix.to_wire(), wanted.limits.configs, wanted.limits.loss)
        async with self._fleet.lend_worker(Role.INSPECT, self._catalog.kernel_environment(kernel)) as worker:
            reply, _ = await worker.send_request(request, self._deadlines)
        if reply.fault:
            raise UsageError(f"{kernel.name}: {reply.fault}")
        return Portfolio.from_wire(reply.portfolio)

    async def _keep_portfolio(self, build: PortfolioBuild, state: str, fitted: Portfolio, matrix: Matrix) -> None:
        wanted, now = build.wanted, time.time()
        document = PortfolioDocument(
            **fitted.to_wire(),
            matrix=matrix.to_wire(),
            over=tuple(zip(wanted.problems, wanted.weights, strict=True)),
            wanted=wanted.limits,
            created=now,
        )
        await self.kept.keep_portfolio(
            StoredPortfolio(build.kernel, build.device, build.objective, state, document, now)
        )
        self._changed(build.kernel)

    # What the store knows.

    def _find_device(self, kernel: KernelInfo, model: str) -> Device:
        return self._machine.find_device(self._catalog.kernel_environment(kernel), kernel.backend, model)

    def _context_of_problem(self, kernel: KernelInfo, model: str, problem: Problem) -> Context:
        environment = self._catalog.kernel_environment(kernel)
        return self._machine.build_context(kernel, environment, problem, self._find_device(kernel, model))

    def _measuring_state(self, kernel: KernelInfo, model: str) -> str:
        """Return what measurements are good for: the digests of the kernel, the toolchain and the device."""
        try:
            problem: dict[str, Scalar] = dict.fromkeys(kernel.specialize or (), 0)
            context = self._context_of_problem(kernel, model, problem)
        except KtunedError:
            return ""
        return f"{kernel.digest} {context.toolchain} {context.device_fingerprint} {context.measuring_version}"

    def _costs_of_problem(self, kernel: KernelInfo, build: PortfolioBuild, problem: Problem) -> dict[str, float]:
        """Return what each config costs for a problem now; one that does not work is :data:`FAILED`."""
        context = self._context_of_problem(kernel, build.device, problem)
        failed = self._store.failed_configs(context, MAX_KNOWN, objective=build.objective)
        measured = self._store.measured_configs(context, MAX_KNOWN, objective=build.objective)
        # One that was given up as slower works, and what it costs is known well enough: too much.
        costs = {
            known.text: cost_of(build.objective, known.figure)
            for known in (*failed, *measured)
            if known.outcome in (Outcome.MEASURED, Outcome.SLOWER)
        }
        return {known.text: FAILED for known in failed} | {
            config: cost for config, cost in costs.items() if cost is not None
        }

    def _best_config(self, kernel: KernelInfo, build: PortfolioBuild, problem: Problem) -> str | None:
        costs = self._costs_of_problem(kernel, build, problem)
        best = min(costs, key=lambda config: costs[config], default=None)
        return None if best is None or costs[best] == FAILED else best

    def _is_tuned(self, kernel: KernelInfo, build: PortfolioBuild, problem: Problem) -> bool:
        context = self._context_of_problem(kernel, build.device, problem)
        winner = self._store.get_winner(context.key_for(build.objective))
        return winner is not None and winner.context == context and winner.is_final

    def _build_matrix(
        self,
        kernel: KernelInfo,
        build: PortfolioBuild,
        rows: Mapping[str, tuple[Problem, float]],
        configs: Iterable[str] | None = None,
    ) -> Matrix:
        """Return what is known of problems; a config that a problem's space does not hold fails there."""
        kept = None if configs is None else list(configs)
        costs = []
        for problem, _ in rows.values():
            known = self._costs_of_problem(kernel, build, problem)
            costs.append(known if kept is None else {config: known.get(config, FAILED) for config in kept})
        keys = tuple(kernel.select_key_values(problem) for problem, _ in rows.values())
        return Matrix(keys, tuple(weight for _, weight in rows.values()), tuple(costs))

    # When nothing else is to do.

    async def _look_after(self) -> None:
        """Measure the new problem of a portfolio that loses most; fit again where it errs, or its kernel changed."""
        for (name, model, objective), kept in self.kept.list_portfolios():
            if not kept.noted:
                continue
            try:
                kernel = self._catalog.resolve_kernel(name)
                if kept.stored.state != self._measuring_state(kernel, model):
                    kept.noted.clear()
                    self._fit_again(kernel, model, objective, kept)
                elif await self._measure_next(kernel, model, objective, kept):
                    return
            except KtunedError as error:
                kept.noted.clear()
                _log.warning("problem_not_measured", kernel=name, reason=error.message)

    async def _measure_next(self, kernel: KernelInfo, model: str, objective: Objective, kept: KeptPortfolio) -> bool:
        waiting = [key for key in kept.noted if key not in kept.measured]
        if not waiting or len(kept.measured) >= MAX_MEASURED:
            return False
        leaves = {key: kept.portfolio.find_leaf(kernel.select_key_values(json.loads(key))) for key in waiting}
        chosen = max(waiting, key=lambda key: (kept.noted[key] * (leaves[key].expected_loss + 0.001), key))
        kept.measured.add(chosen)
        problem: Problem = json.loads(chosen)
        wanted = PortfolioSpec((problem,), (1.0,))
        build = PortfolioBuild.begin(kernel.name, model, objective, wanted, Priority.BACKGROUND)
        await self._fill_holes(kernel, build, [problem], kept.portfolio.configs)
        measured, leaf = self._build_matrix(kernel, build, {chosen: (problem, 1.0)}), leaves[chosen]
        lost = measured.compute_loss(0, leaf.config)
        _log.info("portfolio_measured", kernel=kernel.name, lost=lost, expected=leaf.expected_loss)
        if is_erring(measured, 0, leaf):
            self._fit_again(kernel, model, objective, kept, problem)
        return True

    def _fit_again(
        self,
        kernel: KernelInfo,
        model: str,
        objective: Objective,
        kept: KeptPortfolio,
        problem: Problem | None = None,
    ) -> None:
        """Have a portfolio made again, for one problem more."""
        document = kept.stored.document
        over = list(document.over)
        if problem is not None and len(over) < MAX_PROBLEMS:
            over.append((problem, sum(weight for _, weight in over) / len(over)))
        asked = PortfolioRequest(tuple(over), **structs.asdict(document.wanted))
        wanted = PortfolioSpec.from_request(kernel, asked)
        self.request_portfolio(kernel, model, objective, wanted, Priority.BACKGROUND)


def is_erring(matrix: Matrix, row: int, leaf: Leaf, *, also_slow: bool = True) -> bool:
    """Return whether a leaf's config fails for a measured problem of it, or loses clearly more than was expected."""
    if matrix.best[row] == FAILED:
        # Nothing works there: that says nothing about the leaf.
        return False
    if not also_slow:
        return not matrix.works(row, leaf.config)
    return matrix.compute_loss(row, leaf.config) > max(leaf.worst_loss, leaf.expected_loss) + MARGIN


def find_border_problems(tree: Tree, problems: Sequence[Problem], measurable: Sequence[Problem] = ()) -> list[Problem]:
    """Return problems on both sides of each border of a tree.

    ``measurable`` are the only ones that can be measured: of these, the nearest on either side. Without them it is the
    last whole number before the border and the first one behind it, where it is a border of one field; the other fields
    are those of the problem that is nearest to the border.
    """
    found: dict[str, Problem] = {}

    def add_borders(node: Tree, there: Sequence[Problem], others: Sequence[Problem]) -> None:
        if isinstance(node, Leaf) or not there:
            return
        meets = node.condition.is_met_by
        passing, failing = [one for one in others if meets(one)], [one for one in others if not meets(one)]
        if measurable:
            border = _find_measurable_border(node.condition, passing, failing)
        else:
            border = _make_border(node.condition, there)
        found.update({canonical(problem): problem for problem in border})
        add_borders(node.passing, [problem for problem in there if meets(problem)], passing)
        add_borders(node.failing, [problem for problem in there if not meets(problem)], failing)

    add_borders(tree, problems, measurable)
    return list(found.values())


def _make_border(condition: Condition, problems: Sequence[Problem]) -> list[Problem]:
    figure, limit = condition.figure, condition.limit
    if len(figure) != 1 or not all(type(problem[figure[0]]) is int for problem in problems):
        return []
    (name,) = figure
    last = int(limit)
    nearest = min(problems, key=lambda problem: count_octaves(problem, {**problem, name: max(1, last)}))
    return [{**nearest, name: value} for value in (last, last + 1)]


def _find_measurable_border(condition: Condition, *sides: Sequence[Problem]) -> list[Problem]:
    if condition.figure[0] == "=":
        # A field that equals a value has no border.
        return []

    def count_octaves_to_limit(problem: Problem) -> float:
        return count_octaves({"": compute_figure(condition.figure, problem) or 0}, {"": condition.limit})

    return [min(side, key=count_octaves_to_limit) for side in sides if side]
