"""The method ``portfolio``: few configs for many problems of a kernel, made, and shown with how far that is."""

from __future__ import annotations

from typing import Any

from ktuned.catalog import Catalog
from ktuned.model import PortfolioRequest, Priority
from ktuned.protocol import PORTFOLIO, PortfolioAnswer, PortfolioParams
from ktuned.scheduling import Portfolios, PortfolioSpec
from ktuned.serve.connection import Connection
from ktuned.serve.method import Handler


class PortfolioMethods:
    """Handles the method; its answer has a kernel's portfolios, and the progress of the ones being made."""

    def __init__(self, catalog: Catalog, portfolios: Portfolios) -> None:
        self._catalog = catalog
        self._portfolios = portfolios

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the method with its handler."""
        return [Handler(PORTFOLIO, self.handle_portfolio)]

    def handle_portfolio(self, wanted: PortfolioParams, connection: Connection) -> PortfolioAnswer:
        """Have a portfolio made, if that is asked for, and return what there is."""
        kernel = self._catalog.resolve_kernel(wanted.kernel, wanted.directory)
        if wanted.make:
            asked = PortfolioRequest(configs=wanted.configs, loss=wanted.loss, tunings=wanted.tunings)
            spec = PortfolioSpec.from_request(kernel, asked)
            objective = kernel.objective(wanted.objective)
            self._portfolios.request_portfolio(kernel, wanted.device, objective, spec, Priority.REQUESTED)
        return PortfolioAnswer(
            kernel.name, self._portfolios.describe_portfolios(kernel), self._portfolios.list_progress(kernel)
        )
