"""Portfolios as the report shows them: the matrix, the tree, and the expected and measured losses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from msgspec import structs

from ktuned.model import Problem, canonical, convert_to_cost, parse_key_problem, select_figure
from ktuned.portfolio import Matrix, Portfolio, describe_tree
from ktuned.report.document import PortfolioRow, ShownPortfolio
from ktuned.store import ContextSums, Overview, StoredPortfolio

MAX_NEW = 200
"""Most problems measured after the fit that are shown; the newest are kept."""


def survey_portfolio(overview: Overview, stored: StoredPortfolio, contexts: Sequence[ContextSums]) -> ShownPortfolio:
    """Return a portfolio as the report shows it; ``contexts`` are all contexts of its kernel and device."""
    fitted = Portfolio.from_wire(structs.asdict(stored.document))
    matrix = Matrix.from_wire(stored.document.matrix)
    rows = [
        _make_portfolio_row(
            fitted,
            problem,
            {
                config: matrix.compute_loss(number, config)
                for config in matrix.costs[number]
                if matrix.works(number, config)
            },
        )
        for number, problem in enumerate(matrix.problems)
    ]
    known = {canonical(problem) for problem in matrix.problems}
    since = [sums for sums in contexts if sums.context.problem not in known][-MAX_NEW:]
    objective = stored.objective
    for sums in since:
        costs = {
            trial.config: cost
            for trial in overview.load_trials(sums.id)
            if (cost := convert_to_cost(objective, select_figure(objective, trial.latency_us, trial.metrics)))
        }
        if set(fitted.configs) <= costs.keys():
            best = min(costs.values())
            losses = {config: costs[config] / best - 1 for config in fitted.configs}
            rows.append(_make_portfolio_row(fitted, parse_key_problem(sums.context.problem), losses, is_new=True))
    return ShownPortfolio(
        stored.kernel,
        stored.device,
        stored.objective,
        [json.loads(config) for config in fitted.configs],
        fitted.expected_loss,
        fitted.single_loss,
        list(describe_tree(fitted.tree, fitted.configs)),
        rows,
    )


def _make_portfolio_row(
    fitted: Portfolio, problem: Problem, losses: Mapping[str, float], *, is_new: bool = False
) -> PortfolioRow:
    leaf = fitted.find_leaf(problem)
    return PortfolioRow(
        problem,
        [losses.get(config) for config in fitted.configs],
        fitted.configs.index(leaf.config),
        leaf.expected_loss,
        is_new,
    )
