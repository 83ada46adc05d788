"""The method ``portfolio``: few configs for many problems of a kernel, made, and shown with how far that is."""

from __future__ import annotations

from typing import Any

import msgspec

from ktuned.catalog import Catalog
from ktuned.model import Priority
from ktuned.scheduling import Portfolios
from ktuned.serve.connection import Connection
from ktuned.serve.method import Method


class PortfolioParams(msgspec.Struct, frozen=True):
    """``portfolio``: a kernel, and with ``make`` what to make; what is left out is the kernel file's to say."""

    kernel: str
    directory: str | None = None
    device: str | None = None
    objective: str | None = None
    make: bool = False
    configs: int | None = None
    loss: float | None = None
    tunings: int | None = None


class PortfolioMethods:
    """Handles the method; its answer has a kernel's portfolios, and the progress of the ones being made."""

    def __init__(self, catalog: Catalog, portfolios: Portfolios) -> None:
        self._catalog = catalog
        self._portfolios = portfolios

    def list_methods(self) -> dict[str, Method[Any]]:
        """Return the method by its name on the wire."""
        return {"portfolio": Method(PortfolioParams, self.handle_portfolio)}

    def handle_portfolio(self, wanted: PortfolioParams, connection: Connection) -> dict[str, Any]:
        """Have a portfolio made, if that is asked for, and return what there is."""
        kernel = self._catalog.resolve_kernel(wanted.kernel, wanted.directory)
        if wanted.make:
            asked = {"configs": wanted.configs, "loss": wanted.loss, "tunings": wanted.tunings}
            self._portfolios.request_portfolio(
                kernel, wanted.device, kernel.objective(wanted.objective), asked, Priority.REQUESTED
            )
        return {
            "kernel": kernel.name,
            "portfolios": self._portfolios.describe_portfolios(kernel),
            "making": self._portfolios.describe_build(kernel),
        }
