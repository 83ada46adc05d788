"""Portfolios in a daemon's parts: few tuned keys answer for others, and no config is served where it fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from ktuned.model import LATENCY, Config, KernelInfo
from ktuned.protocol import Job, Priority
from ktuned.scheduling import TuningRequest
from ktuned.scheduling.portfolios import MIN_KEYS
from ktuned_client.portfolio_tree import find_leaf, list_configs
from tests.daemon_parts import PATIENCE_S, Parts

pytestmark = pytest.mark.anyio

SIZES = (16, 32, 48, 64, 128, 192, 256, 512)
SMALL: Config = {"kind": "small"}
LARGE: Config = {"kind": "large"}

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


def make_sized_kernel_text(sizes: Iterable[int] = SIZES, options: str = "", failing: str = "") -> str:
    """Return a kernel file whose best config depends on the size."""
    problems = ", ".join(f"dict(n={size})" for size in sizes)
    return KERNEL.format(problems=problems, options=options, failing=failing)


@asynccontextmanager
async def run_jobs_and_fits(parts: Parts) -> AsyncIterator[None]:
    """Run jobs and fits for the length of a block."""
    async with parts.run_jobs(), anyio.create_task_group() as tasks:
        tasks.start_soon(parts.daemon.portfolio_fitter.run_until_cancelled)
        yield
        tasks.cancel_scope.cancel()


def find_tree(parts: Parts, kernel: KernelInfo) -> Any:
    """Return the tree of the kernel's portfolio on the only device."""
    portfolio = parts.daemon.states.find_state(kernel).portfolios.get(("Fake CPU", LATENCY))
    return None if portfolio is None else portfolio.tree


async def wait_for_tree(parts: Parts, kernel: KernelInfo, count: int) -> Any:
    """Return the tree that is fitted once so many jobs have ended."""
    await parts.recorder.wait_for_ended_jobs(count)
    with anyio.fail_after(PATIENCE_S):
        while find_tree(parts, kernel) is None:  # noqa: ASYNC110 - no event reports it
            await anyio.sleep(0.02)
    return find_tree(parts, kernel)


def list_filling_jobs(parts: Parts) -> list[Job]:
    """Return the jobs that measured what a fit lacked."""
    return [job for job in parts.store.list_jobs(limit=1000) if job.reason == "portfolio"]


async def test_eight_tuned_keys_answer_for_others(parts: Parts) -> None:
    """New problems get the tree's config at once and cause no job; the next daemon answers with the same tree."""
    kernel = await parts.inspect_file(make_sized_kernel_text())
    async with run_jobs_and_fits(parts):
        await parts.requests.request_jobs(kernel, TuningRequest())
        tree = await wait_for_tree(parts, kernel, len(SIZES))
        assert all(find_leaf(tree, {"n": size})["config"] == (SMALL if size < 100 else LARGE) for size in SIZES)
        jobs = len(parts.store.list_jobs(limit=1000))
        for size, config in ((12, SMALL), (40, SMALL), (200, LARGE), (300, LARGE)):
            answer = parts.lookups.look_up("it", {"n": size}, None, tune=True).answer
            assert (answer.status, answer.config) == ("near", config), size
            assert answer.expected_loss is not None
        assert len(parts.store.list_jobs(limit=1000)) == jobs
        assert list_filling_jobs(parts) == []
    assert [portfolio.tree for portfolio in parts.store.load_portfolios(kernel.name)] == [tree]
    parts.kill_workers()


async def test_a_fit_that_the_last_daemon_did_not_reach_is_made_by_the_next(parts: Parts) -> None:
    """It died between the end of a job and the fit: the store shows that a winner is newer than the portfolio."""
    kernel = await parts.inspect_file(make_sized_kernel_text())
    async with run_jobs_and_fits(parts):
        await parts.requests.request_jobs(kernel, TuningRequest())
        await wait_for_tree(parts, kernel, len(SIZES))
    assert parts.store.list_kernels_to_fit(MIN_KEYS) == []
    async with parts.run_jobs():
        await parts.requests.request_jobs(kernel, TuningRequest(problem={"n": 24}))
        await parts.recorder.wait_for_ended_jobs(len(SIZES) + 1)
    assert parts.store.list_kernels_to_fit(MIN_KEYS) == [kernel.name]
    await parts.daemon.portfolio_fitter.fit_kernel(kernel.name)
    assert parts.store.list_kernels_to_fit(MIN_KEYS) == []
    parts.kill_workers()


async def test_what_a_fit_lacks_is_measured_by_jobs_of_the_lowest_rank(parts: Parts) -> None:
    """Most keys were tuned with one of the configs alone; they have the other's cost before there is a tree."""
    kernel = await parts.inspect_file(make_sized_kernel_text(()))
    async with run_jobs_and_fits(parts):
        for size in SIZES:
            config = SMALL if size < 100 else LARGE
            await parts.requests.request_jobs(kernel, TuningRequest(problem={"n": size}, configs=(config,)))
        tree = await wait_for_tree(parts, kernel, len(SIZES))
        assert {config["kind"] for config in list_configs(tree)} == {"small", "large"}
        filling = list_filling_jobs(parts)
        assert {(job.priority, len(job.plan.configs)) for job in filling} == {(Priority.VERIFY, 1)}
        assert {job.problem["n"] for job in filling} <= {*SIZES}
    parts.kill_workers()


async def test_no_leaf_has_a_config_that_fails_on_one_of_its_keys(parts: Parts) -> None:
    """However fast it is on the others."""
    kernel = await parts.inspect_file(make_sized_kernel_text(failing="192, 0"))
    async with run_jobs_and_fits(parts):
        await parts.requests.request_jobs(kernel, TuningRequest())
        tree = await wait_for_tree(parts, kernel, len(SIZES))
    assert find_leaf(tree, {"n": 192})["config"] == SMALL
    parts.kill_workers()


@pytest.mark.parametrize(
    ("sizes", "options"), [(SIZES, "portfolio=False"), (SIZES, "portfolio=0"), (SIZES[: MIN_KEYS - 1], "")]
)
async def test_without_a_portfolio_the_nearest_key_answers(parts: Parts, sizes: tuple[int, ...], options: str) -> None:
    """The file wants none, or too few keys are tuned."""
    kernel = await parts.inspect_file(make_sized_kernel_text(sizes, options))
    async with parts.run_jobs():
        await parts.requests.request_jobs(kernel, TuningRequest())
        await parts.recorder.wait_for_ended_jobs(len(sizes))
        await parts.daemon.portfolio_fitter.fit_kernel(kernel.name)
    assert find_tree(parts, kernel) is None
    answer = parts.lookups.look_up("it", {"n": 300}, None, tune=False).answer
    assert (answer.status, answer.config, answer.expected_loss) == ("near", LARGE, None)
    parts.kill_workers()


async def test_a_portfolio_has_as_many_configs_as_the_file_wants(parts: Parts) -> None:
    """With one, all problems get the config that loses least."""
    sizes = (8, 16, 24, 32, 40, 48, 56, 512)
    kernel = await parts.inspect_file(make_sized_kernel_text(sizes, options="portfolio=1"))
    async with run_jobs_and_fits(parts):
        await parts.requests.request_jobs(kernel, TuningRequest())
        assert list_configs(await wait_for_tree(parts, kernel, len(sizes))) == [SMALL]
    parts.kill_workers()
