"""Portfolios in use, read from the store once, and the new problems that lookups have asked them for since."""

from __future__ import annotations

import json
from typing import Final

import msgspec
import structlog
from msgspec import structs

from ktuned.model import Config, KernelInfo, Objective, Problem, canonical
from ktuned.portfolio import Portfolio
from ktuned.store import Store, StoredPortfolio

MAX_NOTED: Final = 2_000
"""Most new problems of a portfolio whose lookups are counted; beyond them the rarest problem is forgotten."""

_log = structlog.get_logger()

PortfolioKey = tuple[str, str, Objective]
"""A kernel's full name, a device model and an objective."""


class KeptPortfolio(msgspec.Struct):
    """A portfolio in use.

    Attributes:
        portfolio: The portfolio, which chooses configs.
        stored: The portfolio as it is stored.
        noted: Number of lookups by new problem.
        measured: The new problems that were measured since the fit.
    """

    portfolio: Portfolio
    stored: StoredPortfolio
    noted: dict[str, int] = msgspec.field(default_factory=dict)
    measured: set[str] = msgspec.field(default_factory=set)

    @classmethod
    def read(cls, stored: StoredPortfolio) -> KeptPortfolio:
        """Read a stored portfolio.

        Raises:
            ValueError: The stored portfolio has another version.
        """
        return cls(Portfolio.from_wire(structs.asdict(stored.document)), stored)

    def count_problem(self, problem: Problem) -> None:
        """Count a lookup of a new problem."""
        key = canonical(problem)
        if key not in self.noted and len(self.noted) >= MAX_NOTED:
            del self.noted[min(self.noted, key=lambda other: self.noted[other])]
        self.noted[key] = self.noted.get(key, 0) + 1


class KeptPortfolios:
    """Finds portfolios by kernel, device model and objective."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, dict[PortfolioKey, KeptPortfolio]] = {}

    def load_portfolios(self, kernel: str) -> dict[PortfolioKey, KeptPortfolio]:
        """Return a kernel's portfolios."""
        known = self._known.get(kernel)
        if known is None:
            known = self._known[kernel] = {}
            for stored in self._store.load_portfolios(kernel):
                try:
                    known[kernel, stored.device, stored.objective] = KeptPortfolio.read(stored)
                except (ValueError, KeyError, TypeError) as error:
                    _log.warning("portfolio_not_read", kernel=kernel, reason=str(error))
        return known

    def find_portfolio(self, kernel: KernelInfo, device: str | None, objective: Objective) -> KeptPortfolio | None:
        """Return a kernel's portfolio on a device model, by an objective."""
        return self.load_portfolios(kernel.name).get((kernel.name, device or "", objective))

    def find_portfolio_configs(
        self, kernel: KernelInfo, device: str | None, objective: Objective, problem: Problem
    ) -> list[Config]:
        """Return a portfolio's configs, the one chosen for a problem first; none if there is no portfolio."""
        kept = self.find_portfolio(kernel, device, objective)
        if kept is None:
            return []
        chosen = kept.portfolio.find_leaf(kernel.select_key_values(problem)).config
        return [json.loads(text) for text in (chosen, *(other for other in kept.portfolio.configs if other != chosen))]

    async def keep_portfolio(self, stored: StoredPortfolio) -> None:
        """Store a portfolio, and use it from now on.

        Raises:
            StoreError: The portfolio cannot be stored.
        """
        await self._store.save_portfolio(stored)
        known = self.load_portfolios(stored.kernel)
        known[stored.kernel, stored.device, stored.objective] = KeptPortfolio.read(stored)

    def list_portfolios(self) -> list[tuple[PortfolioKey, KeptPortfolio]]:
        """Return the loaded portfolios of all kernels."""
        return [entry for known in self._known.values() for entry in known.items()]
