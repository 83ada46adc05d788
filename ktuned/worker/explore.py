"""The explore and ask operations: a job's walk through the space of one kernel and problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from ktuned import search
from ktuned.ipc import Places, replies, requests
from ktuned.model import (
    Config,
    Device,
    EarlierSearch,
    KernelFileError,
    Outcome,
    Phase,
    Plan,
    Problem,
    Unsupported,
    UsageError,
    canonical,
)
from ktuned.spec import MEMBERSHIP_BOUND, BoundSpace
from ktuned.spec import space as declare_space
from ktuned.worker.code_trace import CodeTrace
from ktuned.worker.inspect import COUNTED_SPACE, load_kernel
from ktuned.worker.prior import promising, stray_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ktuned.spec import Kernel
    from ktuned.worker.reply import Reply

MOST_REMEMBERED = 4_096
"""Proposals that are remembered, so that none is drawn twice: a job that goes on for longer has found its way."""

Enter = Callable[[Phase], None]
"""Names the phase that begins."""


class Explorer:
    """Holds the space that one job explores."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._exploration: Exploration | None = None
        self._trace: CodeTrace | None = None

    def explore(self, request: requests.Explore, reply: Reply) -> replies.Explored:
        """Open the space of one kernel and problem for a job; ``ask`` then walks it."""
        kernel = load_kernel(request.kernel, self._places)
        opened = Exploration(
            kernel,
            request.problem,
            request.plan,
            request.first,
            request.last,
            request.device,
            request.earlier,
            enter=reply.phase,
        )
        self._exploration = opened
        self._trace = CodeTrace(request.kernel, self._places, is_declared=bool(kernel.depends))
        return replies.Explored(
            opened.size,
            opened.strategy,
            opened.notice,
            self._trace.fresh(),
            opened.size_is_estimate,
            opened.learns,
            opened.prior_fault,
            _references(kernel, request.problem),
        )

    def ask(self, request: requests.Ask, reply: Reply) -> replies.Proposals:
        """Report outcomes to the strategy, and ask it for up to ``n`` configs more."""
        if self._exploration is None:
            raise UsageError("ask comes after explore")
        self._exploration.tell(request.tried)
        proposals = self._exploration.ask(request.n, anywhere=request.anywhere)
        observed = () if self._trace is None else self._trace.fresh()
        return replace(proposals, observed=observed) if observed else proposals


MAX_REFERENCES = 8
"""Configs of the space that are tried as the reference where no default is declared: each may cost a compile."""


def _references(kernel: Kernel, problem: Problem) -> tuple[replies.Proposal, ...]:
    if not kernel.expects_default_outputs:
        return ()
    return tuple(
        propose(kernel, problem, config) for config in islice(kernel.iterate_default_configs(problem), MAX_REFERENCES)
    )


def propose(kernel: Kernel, problem: Problem, config: Config) -> replies.Proposal:
    """Return a config with its Build, or with why it has none."""
    try:
        build = kernel.build(problem, config).to_plain()
        cores = kernel.evaluate_cores(problem, config)
    except Unsupported as error:
        return replies.Proposal(config, None, Outcome.UNSUPPORTED, str(error))
    except (KernelFileError, TypeError) as error:
        # The kernel function is part of the build: an exception of its own is why this config has none.
        return replies.Proposal(config, None, Outcome.COMPILE_ERROR, str(error))
    return replies.Proposal(config, build, cores=cores)


def _admitted(space: BoundSpace, configs: Sequence[Config]) -> dict[str, Config]:
    """Return those of ``configs`` that a space holds, by their canonical text, in their order."""
    wanted = {canonical(config): config for config in configs}
    if space.indexable:
        return {text: config for text, config in wanted.items() if config in space}
    # One walk for all: each membership test of a callable's space is a walk of its own.
    walked = {canonical(config) for config in islice(space.walk(), MEMBERSHIP_BOUND) if config is not None}
    return {text: config for text, config in wanted.items() if text in walked}


class Exploration:
    """One job's walk through a space: the configs it must see first, what the strategy asks for, what is put off."""

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        plan: Plan,
        first: Sequence[Config],
        last: Sequence[Config] = (),
        device: Device = requests.NO_DEVICE,
        earlier: Sequence[EarlierSearch] = (),
        *,
        enter: Enter = lambda phase: None,
    ) -> None:
        self._kernel = kernel
        self._problem = problem
        space = kernel.bind_space(problem)
        if plan.configs:
            # Their order is the wish's: a list is tried from its beginning.
            space = declare_space(list(_admitted(space, plan.configs).values())).bind(problem, kernel.site)
        self.size = space.size
        if space.size is not None and space.size <= COUNTED_SPACE:
            self.size = sum(1 for _ in space)
        enter(Phase.PRIOR)
        promised = promising(kernel, space, device)
        enter(Phase.STRATEGY)
        admitted = _admitted(space, [*first, *promised.configs])
        self.prior_fault = promised.fault
        if promised.configs and not any(canonical(config) in admitted for config in promised.configs):
            self.prior_fault = stray_fault(kernel, promised.configs, kernel.space.knobs or ())
        self._first = list(admitted.values())
        self._given = set(admitted)
        self._space = space
        self._seed = plan.seed
        self._proposed: set[str] = set()
        # By their place in the order; what the strategy asks for of them is put aside until it has no more.
        self._put_off = {canonical(config): place for place, config in enumerate(last)}
        self._aside: list[dict[str, Any]] = []
        chosen = search.choose_strategy(
            plan.strategy, space, plan.seed, search.Budget(plan.trials, plan.seconds, plan.until == "converged")
        )
        self._strategy = chosen.strategy
        self._ends_converged = plan.until == "converged"
        if earlier:
            self._strategy.recall(earlier)
        valid = chosen.strategy.valid
        self.size_is_estimate = valid is not None and not valid.is_exact
        if valid is not None:
            self.size = valid.number
        self.strategy = chosen.name
        self.learns = chosen.strategy.learns
        self.notice = chosen.notice

    def tell(self, tried: Iterable[requests.TriedConfig]) -> None:
        """Pass outcomes on to the strategy."""
        for one in tried:
            if one.doubt is not None:
                self._strategy.doubt(one.config, one.doubt)
            self._strategy.tell(one.config, one.outcome, one.cost)

    def ask(self, n: int, *, anywhere: bool = False) -> replies.Proposals:
        """Return up to ``n`` proposals, each with its Build or with why it has none."""
        if anywhere:
            drawn = tuple(propose(self._kernel, self._problem, config) for config in self._draw(n))
            return replies.Proposals(drawn, finished=False)
        configs = self._first[:n]
        del self._first[:n]
        if len(configs) < n and not self._strategy.finished:
            fresh = [config for config in self._strategy.ask(n - len(configs)) if canonical(config) not in self._given]
            self._aside += [config for config in fresh if canonical(config) in self._put_off]
            configs += [config for config in fresh if canonical(config) not in self._put_off]
        if self._strategy.finished:
            self._aside.sort(key=lambda config: self._put_off[canonical(config)])
            room = n - len(configs)
            configs += self._aside[:room]
            del self._aside[:room]
        if len(self._proposed) < MOST_REMEMBERED:
            self._proposed |= set(map(canonical, configs))
        finished = not self._first and not self._aside and self._strategy.finished
        # To know it costs a strategy milliseconds.
        converged = self._ends_converged and self._strategy.converged
        proposals = tuple(propose(self._kernel, self._problem, config) for config in configs)
        return replies.Proposals(proposals, finished, converged)

    def _draw(self, n: int) -> list[dict[str, Any]]:
        """Return up to ``n`` configs from anywhere in the space that were not proposed yet, nor will be again."""
        if len(self._proposed) >= MOST_REMEMBERED:
            return []
        # Another seed than the strategy's, which may be random itself.
        drawn = search.Random(self._space, self._seed + 1).ask(n)
        configs = [config for config in drawn if canonical(config) not in self._given | self._proposed]
        self._given |= set(map(canonical, configs))
        return configs
