"""Portfolios made and used by a daemon's parts: tunings are few, leaves work, new problems are answered at once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from ktuned.model import KernelInfo, Objective, PortfolioRequest, Priority, UsageError
from ktuned.portfolio import Matrix, Portfolio, find_border_problems
from ktuned.scheduling.kept_portfolios import KeptPortfolios
from ktuned.scheduling.portfolio_maker import PortfolioBuild, PortfolioSpec
from tests.assembled import PATIENCE_S, Parts, assembled

pytestmark = pytest.mark.anyio

LATENCY = Objective("latency")
SIZES = (16, 32, 64, 96, 128, 192, 256)

KERNEL = """\
from ktuned import kernel, space
from ktuned_fake import Build

@kernel(
    backend="fake",
    space=space(kind=["small", "large", "bad"]),
    problems=[{problems}],
    default=dict(kind="bad"),
    check=None,
    preset="fast",
    {options}
)
def it(p, c):
    # They are as fast as each other at 100.
    us = dict(small=50 + 4 * p.n, large=350 + p.n, bad=2500)[c.kind]
    return Build(us=float(us), does="raise" if p.n in ({failing}) and c.kind == "large" else "work")
"""


def kernel_file(sizes: tuple[int, ...] = SIZES, options: str = "", failing: str = "") -> str:
    """Return a kernel file whose best config depends on the size."""
    problems = ", ".join(f"dict(n={size})" for size in sizes)
    return KERNEL.format(problems=problems, options=options, failing=failing)


@asynccontextmanager
async def at_work(parts: Parts) -> AsyncIterator[None]:
    """Run jobs and what makes portfolios for the length of a block."""
    async with parts.working(), anyio.create_task_group() as tasks:
        tasks.start_soon(parts.daemon.portfolios.run_until_cancelled)
        yield
        tasks.cancel_scope.cancel()


async def made(parts: Parts, kernel: KernelInfo, **asked: Any) -> PortfolioBuild:
    """Have a portfolio made, and wait for its end."""
    wanted = PortfolioSpec.from_request(kernel, PortfolioRequest(**asked))
    build = parts.daemon.portfolios.request_portfolio(kernel, None, LATENCY, wanted, Priority.REQUESTED)
    await until(lambda: not build.progress.is_under_way)
    return build


async def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so."""
    with anyio.fail_after(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - no event reports it
            await anyio.sleep(0.02)


def kept(parts: Parts, kernel: KernelInfo) -> Any:
    """Return the kernel's portfolio on the only device."""
    return parts.daemon.portfolios.kept.find_portfolio(kernel, "Fake CPU", LATENCY)


async def test_a_portfolio_answers_problems_that_were_never_tuned(parts: Parts) -> None:
    """Few problems are tuned, all are measured with the useful configs; new ones get the tree's config at once.

    They cost no job but are measured at leisure, with the portfolio's configs; the border of its leaves has been
    measured before, on both sides. The next daemon answers with the same portfolio.
    """
    kernel = await parts.inspect(kernel_file())
    device = parts.machine.find_device(parts.environment, "fake", None)

    def measured(size: int) -> set[str]:
        context = parts.machine.build_context(kernel, parts.environment, {"n": size}, device)
        return {known.text for known in parts.store.list_measured_configs(context, 10)}

    async with at_work(parts):
        build = await made(parts, kernel, tunings=4, configs=3)
        assert (build.progress.state, build.progress.message) == ("done", "")
        assert build.progress.tuned <= 4
        found = kept(parts, kernel)
        matrix = Matrix.from_wire(found.stored.document.matrix)
        # A border where the tree had erred counts, too.
        assert [problem["n"] for problem in matrix.problems][: len(SIZES)] == list(SIZES)
        assert all(matrix.works(row, found.portfolio.find_leaf(p).config) for row, p in enumerate(matrix.problems))
        configs = set(found.portfolio.configs)
        assert {json.loads(text)["kind"] for text in configs} == {"small", "large"}
        borders = find_border_problems(found.portfolio.tree, matrix.problems)
        assert borders
        assert all(measured(int(problem["n"])) >= configs for problem in borders)
        jobs = len(parts.store.list_jobs(limit=1000))
        for size, kind in ((12, "small"), (40, "small"), (200, "large"), (300, "large")):
            answer = msgspec.to_builtins(parts.lookups.look_up("it", {"n": size}, None, tune=True).answer)
            assert (answer["status"], answer["config"]) == ("near", {"kind": kind}), size
            assert answer["expected_loss"] < 1.0
        assert len(parts.store.list_jobs(limit=1000)) == jobs
        assert found.noted == {f'{{"n":{size}}}': 1 for size in (12, 40, 200, 300)}
        await until(lambda: parts.lookups.look_up("it", {"n": 300}, None, tune=False).answer.status == "fresh")
        await until(lambda: measured(300) >= configs)
    again = KeptPortfolios(parts.store).find_portfolio(kernel, "Fake CPU", LATENCY)
    assert again is not None
    assert again.portfolio == found.portfolio
    (described,) = parts.daemon.portfolios.describe_portfolios(kernel)
    assert (described.device, described.current) == ("Fake CPU", True)
    parts.kill_workers()


async def test_a_declared_portfolio_is_made_when_it_is_needed(parts: Parts) -> None:
    """A lookup of a new problem makes it, and no tuning of that problem; a hundred lengths make no hundred jobs."""
    over = f"portfolio=dict(over=[dict(n=n) for n in {SIZES[::2]}], configs=2, tunings=3),"
    kernel = await parts.inspect(kernel_file((64,), over))
    assert kernel.extra.portfolio is not None
    assert kernel.extra.portfolio.configs == 2
    async with at_work(parts):
        for size in range(1, 41):
            parts.lookups.look_up("it", {"n": size}, None, tune=True)
        await until(lambda: kept(parts, kernel) is not None)
        answers = [parts.lookups.look_up("it", {"n": size}, None, tune=False).answer for size in range(1, 41)]
    assert {answer.status for answer in answers} <= {"fresh", "near"}
    assert all(answer.config is not None for answer in answers)
    assert len({job.problem["n"] for job in parts.store.list_jobs(limit=1000)}) <= len(SIZES) + 4


async def test_a_leafs_config_that_fails_at_its_border_is_not_given_there(parts: Parts) -> None:
    """The problem at the border counts from then on, and the tree is grown again."""
    failing = ", ".join(str(size) for size in range(108, 116))
    kernel = await parts.inspect(kernel_file(failing=failing))
    async with at_work(parts):
        build = await made(parts, kernel, tunings=4, configs=2)
    assert build.progress.state == "done"
    portfolio: Portfolio = kept(parts, kernel).portfolio
    problems = Matrix.from_wire(kept(parts, kernel).stored.document.matrix).problems
    for problem in find_border_problems(portfolio.tree, problems):
        fails = portfolio.choose_config(problem)["kind"] == "large" and int(problem["n"]) in range(108, 116)
        assert not fails


async def test_a_portfolio_of_one_problem_is_refused(parts: Parts) -> None:
    """It is for many; and numbers have their ranges."""
    kernel = await parts.inspect(kernel_file((64,)))
    with pytest.raises(UsageError, match="names 1 problems"):
        PortfolioSpec.from_request(kernel, PortfolioRequest())
    kernel = await parts.inspect(kernel_file())
    with pytest.raises(UsageError, match="configs is 99"):
        PortfolioSpec.from_request(kernel, PortfolioRequest(configs=99))


async def test_a_daemon_without_work_makes_nothing(tmp_path: Any) -> None:
    """A kernel that declares none has each problem tuned for itself, as before."""
    async with assembled(tmp_path) as parts:
        kernel = await parts.inspect(kernel_file((64,)))
        assert not parts.daemon.portfolios.count_portfolio_lookup(kernel, "Fake CPU", LATENCY, {"n": 65})
        assert kept(parts, kernel) is None
        parts.kill_workers()
