"""Portfolios of kernels: made on request, used for lookups at once, and made again if they err.

::

    looked up ─▶ the tree's config, `near` ─▶ noted ─▶ measured at leisure ─▶ worse than expected? make it again

:mod:`~ktuned.scheduling.portfolio_maker` makes a portfolio. An application's new problems are not tuned: only the
portfolio's few configs are measured on them, on the problems with the largest expected loss first, and on at most
:data:`MAX_MEASURED` problems between two fits.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Final

import anyio
import structlog
from msgspec import structs

from ktuned.catalog import Catalog
from ktuned.devices import Machine
from ktuned.model import KernelInfo, KtunedError, Objective, PortfolioRequest, Priority, Problem
from ktuned.portfolio import is_choice_wrong
from ktuned.protocol import PortfolioInfo, PortfolioProgress
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.kept_portfolios import KeptPortfolio, KeptPortfolios, PortfolioKey
from ktuned.scheduling.portfolio_maker import MAX_PROBLEMS, PortfolioBuild, PortfolioMaker, PortfolioSpec

MAX_MEASURED: Final = 40
"""Most new problems that are measured between two fits."""

IDLE_S: Final = 2.0
"""Interval at which it is checked whether the daemon has other work."""


_log = structlog.get_logger()


class Portfolios:
    """Makes the portfolios that :meth:`request_portfolio` asks for, and maintains those in use.

    :meth:`run_until_cancelled` does the work.

    Args:
        on_change: Called with the name of a kernel whose lookups get new answers.

    Attributes:
        kept: The portfolios in use.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        jobs: Jobs,
        kept: KeptPortfolios,
        machine: Machine,
        maker: PortfolioMaker,
        on_change: Callable[[str], None],
    ) -> None:
        self._catalog = catalog
        self._jobs = jobs
        self._machine = machine
        self._maker = maker
        self._on_change = on_change
        self.kept = kept
        self._builds: dict[PortfolioKey, PortfolioBuild] = {}
        self._waiting: deque[PortfolioBuild] = deque()
        self._arrived = anyio.Event()

    def count_portfolio_lookup(self, kernel: KernelInfo, device: str, objective: Objective, problem: Problem) -> bool:
        """Count a lookup of a problem without a winner; return whether a portfolio answers such lookups.

        If so, the problem is not tuned on its own. If the kernel file declares a portfolio that was not made yet, its
        making is requested now.
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
        """Return a kernel's portfolios, with the known costs of their problems."""
        found = []
        for (_, device, objective), kept in self.kept.load_portfolios(kernel.name).items():
            document = structs.asdict(kept.stored.document)
            is_current = kept.stored.state == self._maker.describe_state(kernel, device)
            found.append(PortfolioInfo(**document, device=device, objective=objective, current=is_current))
        return found

    def list_progress(self, kernel: KernelInfo) -> list[PortfolioProgress]:
        """Return the progress of the builds of a kernel's portfolios, under way or ended: the last of each."""
        return [build.progress for key, build in self._builds.items() if key[0] == kernel.name]

    def request_portfolio(
        self, kernel: KernelInfo, device: str | None, objective: Objective, wanted: PortfolioSpec, priority: int
    ) -> PortfolioBuild:
        """Have a portfolio made, unless its build is under way already.

        Raises:
            UsageError: No portfolio can be made as requested.
            BackendError: There is no device to measure on.
        """
        environment = self._catalog.find_kernel_environment(kernel)
        model = self._machine.find_device(environment, kernel.backend, device).model
        key = (kernel.name, model, objective)
        known = self._builds.get(key)
        if known is not None and known.progress.is_under_way:
            return known
        build = PortfolioBuild.begin(kernel, model, objective, wanted, priority)
        self._builds[key] = build
        self._waiting.append(build)
        self._arrived.set()
        return build

    async def run_until_cancelled(self) -> None:
        """Make the requested portfolios, and measure new problems while the daemon is idle, until cancelled."""
        while True:
            with anyio.move_on_after(IDLE_S):
                await self._arrived.wait()
            self._arrived = anyio.Event()
            while self._waiting:
                await self._finish_build(self._waiting.popleft())
            if not self._jobs.list_live_jobs():
                await self._measure_new_problem()

    async def _finish_build(self, build: PortfolioBuild) -> None:
        build.progress.state = "running"
        try:
            await self.kept.keep_portfolio(await self._maker.make_portfolio(build))
            self._on_change(build.kernel.name)
            build.progress.state = "done"
        except KtunedError as error:
            build.progress.state, build.progress.message = "failed", error.message
            _log.warning("portfolio_not_made", kernel=build.kernel.name, reason=error.message)

    async def _measure_new_problem(self) -> None:
        """Measure the new problem with the largest expected loss.

        A portfolio that errs there, or whose kernel has changed, is made again.
        """
        for (name, model, objective), kept in self.kept.list_portfolios():
            if not kept.noted:
                continue
            try:
                kernel = self._catalog.resolve_kernel(name)
                if kept.stored.state != self._maker.describe_state(kernel, model):
                    kept.noted.clear()
                    self._remake_portfolio(kernel, model, objective, kept)
                elif (problem := self._choose_unmeasured_problem(kernel, kept)) is not None:
                    await self._measure_problem(kernel, model, objective, kept, problem)
                    return
            except KtunedError as error:
                kept.noted.clear()
                _log.warning("problem_not_measured", kernel=name, reason=error.message)

    def _choose_unmeasured_problem(self, kernel: KernelInfo, kept: KeptPortfolio) -> Problem | None:
        """Choose the new problem with the largest expected loss, unless enough have been measured."""
        waiting = [key for key in kept.noted if key not in kept.measured]
        if not waiting or len(kept.measured) >= MAX_MEASURED:
            return None

        def expect_loss(key: str) -> tuple[float, str]:
            leaf = kept.portfolio.find_leaf(kernel.select_key_values(json.loads(key)))
            return kept.noted[key] * (leaf.expected_loss + 0.001), key

        chosen = max(waiting, key=expect_loss)
        kept.measured.add(chosen)
        problem: Problem = json.loads(chosen)
        return problem

    async def _measure_problem(
        self, kernel: KernelInfo, model: str, objective: Objective, kept: KeptPortfolio, problem: Problem
    ) -> None:
        """Measure a portfolio's configs on a new problem; make the portfolio again if it errs there."""
        build = PortfolioBuild.begin(kernel, model, objective, PortfolioSpec([(problem, 1.0)]), Priority.BACKGROUND)
        measured = await self._maker.measure_configs(build, problem, kept.portfolio.configs)
        leaf = kept.portfolio.find_leaf(kernel.select_key_values(problem))
        lost = measured.compute_loss(0, leaf.config)
        _log.info("portfolio_measured", kernel=kernel.name, lost=lost, expected=leaf.expected_loss)
        if is_choice_wrong(measured, 0, leaf):
            self._remake_portfolio(kernel, model, objective, kept, problem)

    def _remake_portfolio(
        self,
        kernel: KernelInfo,
        model: str,
        objective: Objective,
        kept: KeptPortfolio,
        problem: Problem | None = None,
    ) -> None:
        """Have a portfolio made again, with ``problem`` as an additional one if it is given."""
        document = kept.stored.document
        over = list(document.over)
        if problem is not None and len(over) < MAX_PROBLEMS:
            over.append((problem, sum(weight for _, weight in over) / len(over)))
        asked = PortfolioRequest(tuple(over), **structs.asdict(document.wanted))
        wanted = PortfolioSpec.from_request(kernel, asked)
        self.request_portfolio(kernel, model, objective, wanted, Priority.BACKGROUND)
