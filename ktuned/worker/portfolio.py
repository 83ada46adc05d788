"""Fitting of portfolios. Workers do this, because it takes tenths of a second and the daemon must answer lookups."""

from __future__ import annotations

from ktuned.ipc import replies, requests
from ktuned.portfolio import Matrix, fit_portfolio


def fit_matrix(request: requests.FitPortfolio) -> replies.FittedPortfolio:
    """Fit a portfolio to a matrix of costs, or return the reason why there is none."""
    try:
        fitted = fit_portfolio(Matrix.from_wire(request.matrix), request.max_configs, request.wanted_loss)
    except ValueError as error:
        return replies.FittedPortfolio({}, str(error))
    return replies.FittedPortfolio(fitted.to_wire())
