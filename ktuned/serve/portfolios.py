"""The method ``portfolio``: makes a kernel's portfolio (few configs for many problems), and reports its progress."""

from __future__ import annotations

from typing import Any

import msgspec

from ktuned.catalog import Catalog
from ktuned.model import PortfolioRequest, Priority
from ktuned.protocol import PORTFOLIO, PortfolioAnswer, PortfolioParams
from ktuned.scheduling import Portfolios, PortfolioSpec
from ktuned.serve.method import Handler, Peer


class PortfolioMethods(msgspec.Struct, frozen=True):
    """Handles the method. Its answer has a kernel's portfolios, and the progress of those being made."""

    catalog: Catalog
    portfolios: Portfolios

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the method with its handler."""
        return [Handler(PORTFOLIO, self.handle_portfolio)]

    def handle_portfolio(self, params: PortfolioParams, peer: Peer) -> PortfolioAnswer:
        """Have a portfolio made if ``make`` is set, and return the present portfolios."""
        kernel = self.catalog.resolve_kernel(params.kernel, params.directory)
        if params.make:
            asked = PortfolioRequest(configs=params.configs, loss=params.loss, tunings=params.tunings)
            spec = PortfolioSpec.from_request(kernel, asked)
            objective = kernel.objective(params.objective)
            self.portfolios.request_portfolio(kernel, params.device, objective, spec, Priority.REQUESTED)
        return PortfolioAnswer(
            kernel.name, self.portfolios.describe_portfolios(kernel), self.portfolios.list_progress(kernel)
        )
