"""A kernel file's prior: its configs come first, and exclude nothing."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned import space
from ktuned.model import KernelFileError, Plan
from ktuned.worker.explore import Exploration
from tests.worker.declaring import declare

SPACE = space(n=range(100))


def explored(prior: Any) -> list[Any]:
    """Return the configs of a whole exploration, in their order, after a winner."""
    exploration = Exploration(declare(space=SPACE, prior=prior), {"M": 1}, Plan(strategy="exhaustive"), [{"n": 50}])
    configs: list[Any] = []
    while True:
        answer = exploration.ask(20)
        configs += [proposal.config["n"] for proposal in answer.proposals]
        if answer.finished:
            return configs


@pytest.mark.parametrize(
    ("prior", "first"),
    [
        (lambda p: [{"n": 70}, {"n": 500}, {"n": 3 * p.M}], [50, 70, 3, 0]),
        (lambda p, c: -abs(c.n - 40), [50, 40]),
    ],
    ids=["configs", "score"],
)
def test_promising_configs_come_first(prior: Any, first: list[int]) -> None:
    """After the winner; configs outside the space are left out, and all others follow once."""
    configs = explored(prior)
    assert configs[: len(first)] == first
    assert sorted(configs) == list(range(100))


def test_prior_that_raises_names_its_file() -> None:
    """The error says that it was the prior."""
    with pytest.raises(KernelFileError, match="prior: ZeroDivisionError"):
        explored(lambda p: [1 // 0])
