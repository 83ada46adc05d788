"""The pipeline's side of an exploration: asks a worker's strategy for configs, and sums up the search.

A strategy that hangs or crashes takes its worker with it; the error names the strategy, since the phase does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ktuned.fleet import DeadlineExpired, Worker, WorkerDied
from ktuned.ipc import replies, requests
from ktuned.model import LATENCY, KernelInfo, Objective, Phase, WorkerError, unit_of

SHOWN_AFTER = (10, 25, 50, 100, 250, 500, 1000)
"""Trials after which the summary says what the best was."""


class SearchSummary(msgspec.Struct):
    """A job's search in short: its strategy, its share of the space, and how the best figure came about."""

    objective: Objective = LATENCY
    strategy: str = ""
    notice: str = ""
    size: int | None = None
    size_is_estimate: bool = False
    prior_fault: str = ""
    converged: bool = False
    best_after: list[tuple[int, float]] = msgspec.field(default_factory=list)

    def open(self, found: replies.Explored) -> None:
        """Take note of the space and the strategy as a worker has opened them."""
        self.strategy, self.notice = found.strategy, found.notice
        self.size, self.size_is_estimate = found.size, found.is_estimate
        self.prior_fault = found.prior_fault

    def note(self, done: int, best: float | None) -> None:
        """Take note of the best figure after some trials."""
        if best is not None and done in SHOWN_AFTER:
            self.best_after.append((done, best))

    def words(self, tried: int, best: float | None) -> str:
        """Return the summary in one line; nothing where the whole space was simply tried."""
        if not self.strategy or (self.strategy == "exhaustive" and tried == self.size):
            return ""
        share = ""
        if self.size:
            about = "about " if self.size_is_estimate else ""
            share = f" of {about}{self.size:,} configs ({_percent(min(1.0, tried / self.size))})"
        words = f"{self.strategy} tried {tried:,}{share or ' configs'}"
        if self.converged:
            words += ", until the chance of an improvement of more than 1 % was below a tenth"
        unit = unit_of(self.objective)
        steps = [f"{value:.4g} {unit} after {done}" for done, value in self.best_after if done < tried]
        if steps and best is not None:
            words += f"; best {', '.join(steps)}, {best:.4g} {unit} at the end"
        return f"{words}; {self.notice}" if self.notice else words


async def opened(
    worker: Worker, request: requests.Explore, kernel: KernelInfo, deadlines: Mapping[str, float]
) -> replies.Explored:
    """Open the space of a job in a worker.

    Raises:
        WorkerError: the space, the prior or the strategy is at fault; one that hung or crashed is named.
    """
    limits = {**deadlines, Phase.PRIOR: deadlines["inspect"], Phase.STRATEGY: deadlines["inspect"]}
    try:
        answer, _ = await worker.exchange(request, limits)
    except (DeadlineExpired, WorkerDied) as error:
        where = f"{kernel.file}:{kernel.line}: {kernel.kernel}"
        if error.phase is Phase.PRIOR:
            raise WorkerError(f"{where}: {error.message}", hint="mend `prior`, or leave it out") from error
        if error.phase is Phase.STRATEGY:
            raise WorkerError(
                f"{where}: as the strategy {request.plan.strategy!r} began, which also asks `where`: {error.message}",
                hint='mend `where`, or name another strategy, such as strategy="auto"',
            ) from error
        raise
    return answer


class Explorer:
    """A worker with one job's space open."""

    def __init__(self, worker: Worker, strategy: str, deadlines: Mapping[str, float]) -> None:
        self._worker = worker
        self._strategy = strategy
        self._deadlines = deadlines

    async def ask(self, tried: Sequence[requests.TriedConfig], n: int, *, anywhere: bool = False) -> replies.Proposals:
        """Report outcomes, and ask for up to ``n`` configs: of the strategy's choice, or from ``anywhere``.

        Raises:
            WorkerError: the strategy broke its promises, hung or crashed; names it.
        """
        try:
            answer, _ = await self._worker.exchange(requests.Ask(n, tuple(tried), anywhere), self._deadlines)
        except (DeadlineExpired, WorkerDied) as error:
            raise WorkerError(
                f"while the strategy {self._strategy!r} chose configs: {error.message}",
                hint='name another strategy, such as strategy="auto"',
            ) from error
        return answer


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"
