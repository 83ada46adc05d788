"""The pipeline's side of a search: opens the space in a worker, asks its strategy for configs, and sums the search up.

A strategy is foreign code. If it hangs or crashes, so does its worker. The error raised here then names the strategy,
which the worker's phase alone would not tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ktuned.fleet import DeadlineExpired, Worker, WorkerDied
from ktuned.ipc import replies, requests
from ktuned.model import LATENCY, FrozenStruct, KernelInfo, Objective, Phase, WorkerError, name_unit

SHOWN_AFTER = (10, 25, 50, 100, 250, 500, 1000)
"""Numbers of trials after which the summary states the best figure."""


class SearchSummary(msgspec.Struct):
    """A job's search in one line: its strategy, its share of the space, and how the best figure improved.

    Attributes:
        objective: The figure by which configs are judged.
        strategy: The strategy's name; empty until the space is open.
        notice: Why the strategy is not the plan's, or empty.
        size: The number of configs in the space, if it is known.
        size_is_estimate: Whether ``size`` is an estimate.
        prior_fault: Why the kernel file's prior is ignored, or empty.
        converged: Whether the search ended because an improvement had become unlikely.
        best_after: Pairs of a number of trials and the best figure after them.
    """

    objective: Objective = LATENCY
    strategy: str = ""
    notice: str = ""
    size: int | None = None
    size_is_estimate: bool = False
    prior_fault: str = ""
    converged: bool = False
    best_after: list[tuple[int, float]] = []

    def record_space(self, found: replies.Explored) -> None:
        """Take note of the space and the strategy that a worker has opened."""
        self.strategy, self.notice = found.strategy, found.notice
        self.size, self.size_is_estimate = found.size, found.is_estimate
        self.prior_fault = found.prior_fault

    def record_best(self, done: int, best: float | None) -> None:
        """Take note of the best figure after ``done`` trials."""
        if best is not None and done in SHOWN_AFTER:
            self.best_after.append((done, best))

    def describe_search(self, tried: int, best: float | None) -> str:
        """Return the summary in one line; empty if the whole space was tried exhaustively."""
        if not self.strategy or (self.strategy == "exhaustive" and tried == self.size):
            return ""
        share = ""
        if self.size:
            about = "about " if self.size_is_estimate else ""
            share = f" of {about}{self.size:,} configs ({_format_percent(min(1.0, tried / self.size))})"
        words = f"{self.strategy} tried {tried:,}{share or ' configs'}"
        if self.converged:
            words += ", until the chance of an improvement of more than 1 % was below a tenth"
        unit = name_unit(self.objective)
        steps = [f"{value:.4g} {unit} after {done}" for done, value in self.best_after if done < tried]
        if steps and best is not None:
            words += f"; best {', '.join(steps)}, {best:.4g} {unit} at the end"
        return f"{words}; {self.notice}" if self.notice else words


async def open_space(
    worker: Worker, request: requests.Explore, kernel: KernelInfo, deadlines: Mapping[str, float]
) -> replies.Explored:
    """Open a job's space in a worker.

    Raises:
        WorkerError: The space, the prior or the strategy hung or crashed; the message names which.
    """
    limits = {**deadlines, Phase.PRIOR: deadlines["inspect"], Phase.STRATEGY: deadlines["inspect"]}
    try:
        answer, _ = await worker.send_request(request, limits)
    except (DeadlineExpired, WorkerDied) as error:
        where = f"{kernel.file}:{kernel.line}: {kernel.kernel}"
        if error.phase is Phase.PRIOR:
            raise WorkerError(f"{where}: {error.message}", hint="correct `prior`, or leave it out") from error
        if error.phase is Phase.STRATEGY:
            raise WorkerError(
                f"{where}: while the strategy {request.plan.strategy!r} started, which also calls "
                f"`where`: {error.message}",
                hint='correct `where`, or name another strategy, such as strategy="auto"',
            ) from error
        raise
    return answer


class Explorer(FrozenStruct):
    """A worker that has one job's space open."""

    worker: Worker
    strategy: str
    deadlines: Mapping[str, float]

    async def ask_for_configs(
        self, tried: Sequence[requests.TriedConfig], count: int, *, anywhere: bool = False
    ) -> replies.Proposals:
        """Report outcomes and ask for up to ``count`` configs: the strategy's choice, or some from ``anywhere``.

        Raises:
            WorkerError: The strategy broke its promises, hung or crashed; the message names it.
        """
        try:
            answer, _ = await self.worker.send_request(requests.Ask(count, tuple(tried), anywhere), self.deadlines)
        except (DeadlineExpired, WorkerDied) as error:
            raise WorkerError(
                f"while the strategy {self.strategy!r} chose configs: {error.message}",
                hint='name another strategy, such as strategy="auto"',
            ) from error
        return answer


def _format_percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"
