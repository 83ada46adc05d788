"""Exploration: a job's walk through the space of one kernel and problem.

The daemon asks for configs in batches, and each time reports the outcomes that it has by now. Configs are proposed in
this order:

1.  *First*: configs that the job must try before all others (a default, earlier winners), then those that the kernel
    file's ``prior`` prefers.
2.  The configs that the search strategy asks for, in its order.
3.  *Last*: configs that the job has put off. If the strategy asks for one of them, it waits until the strategy is done.

A config of the first group is not proposed again when the strategy asks for it. Each proposal carries its Build, which
the kernel file's code makes here in the worker. If that fails, the proposal carries the outcome instead.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ktuned import search
from ktuned.declaration import MEMBERSHIP_BOUND, BoundSpace, make_plain_size
from ktuned.declaration import space as declare_space
from ktuned.ipc import Places, replies, requests
from ktuned.model import (
    Config,
    Device,
    KernelFileError,
    Outcome,
    Phase,
    Plan,
    Problem,
    Unsupported,
    UsageError,
    canonical,
    escape_surrogates,
)
from ktuned.worker.code_trace import CodeTrace
from ktuned.worker.inspect import COUNTED_SPACE, load_kernel
from ktuned.worker.mapped_files import MappedFiles
from ktuned.worker.prior import ask_prior, describe_stray_prior
from ktuned.worker.threading_libraries import ThreadingLibraries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ktuned.declaration import Kernel
    from ktuned.worker.reply import Reply

MOST_REMEMBERED = 4_096
"""Most proposals that are remembered, so that random draws give new configs. A job that tries more needs no draws."""

OnPhase = Callable[[Phase], None]
"""Called with each phase as it begins."""


class Explorer(msgspec.Struct, eq=False):
    """Holds the exploration of one job at a time."""

    places: Places
    _exploration: Exploration | None = None
    _trace: CodeTrace | None = None
    _libraries: ThreadingLibraries = msgspec.field(default_factory=ThreadingLibraries)

    def open_space(self, request: requests.Explore, reply: Reply) -> replies.Explored:
        """Open the space of one kernel and problem for a job, in place of an earlier one."""
        kernel = load_kernel(request.kernel, self.places)
        opened = Exploration(
            kernel,
            request.problem,
            request.plan,
            request.first,
            request.last,
            request.device,
            on_phase=reply.begin_phase,
        )
        self._exploration = opened
        self._libraries.add_mapped_libraries(MappedFiles().list_mapped_files())
        self._trace = CodeTrace(request.kernel, self.places, is_declared=bool(kernel.depends))
        return replies.Explored(
            make_plain_size(opened.size),
            opened.strategy,
            opened.notice,
            self._trace.take_new_observations(),
            opened.size_is_estimate,
            opened.learns,
            opened.prior_fault,
            _propose_references(kernel, request.problem),
        )

    def propose_configs(self, request: requests.Ask, reply: Reply) -> replies.Proposals:
        """Report outcomes to the strategy, and propose up to ``n`` more configs.

        Raises:
            UsageError: no space is open.
        """
        if self._exploration is None:
            raise UsageError("ask comes after explore")
        self._exploration.tell_outcomes(request.tried)
        # A model's matrices are small, and the other cores compile: more threads would only wait for each other.
        with self._libraries.use_one_thread():
            proposals = self._exploration.propose_configs(request.n, anywhere=request.anywhere)
        observed = () if self._trace is None else self._trace.take_new_observations()
        return replace(proposals, observed=observed) if observed else proposals


MAX_REFERENCES = 8
"""Configs that may be tried as the reference if no default is declared; each may cost a compile."""


def _propose_references(kernel: Kernel, problem: Problem) -> tuple[replies.Proposal, ...]:
    """Return candidates for the default config, if its outputs are the expected ones: the first that runs is used."""
    if not kernel.expects_default_outputs:
        return ()
    return tuple(
        make_proposal(kernel, problem, config)
        for config in islice(kernel.iterate_default_configs(problem), MAX_REFERENCES)
    )


def make_proposal(kernel: Kernel, problem: Problem, config: Config) -> replies.Proposal:
    """Return a proposal of a config, with its Build, or with the outcome if there is none."""
    try:
        build = kernel.build(problem, config).to_plain()
        # The answer could not be sent, and the whole job would fail.
        msgspec.msgpack.encode(build)
        cores = kernel.evaluate_cores(problem, config)
    except Unsupported as error:
        return replies.Proposal(config, None, Outcome.UNSUPPORTED, escape_surrogates(str(error)))
    except UnicodeEncodeError as error:
        text = escape_surrogates(error.object)
        return replies.Proposal(
            config, None, Outcome.COMPILE_ERROR, f"the Build has text with a lone surrogate: {text}"
        )
    except (KernelFileError, TypeError) as error:
        # The kernel function makes the Build, so its exceptions count as compile errors of this config.
        return replies.Proposal(config, None, Outcome.COMPILE_ERROR, escape_surrogates(str(error)))
    return replies.Proposal(config, build, cores=cores)


def _find_admitted_configs(space: BoundSpace, configs: Sequence[Config]) -> dict[str, Config]:
    """Return the configs that a space holds, by their canonical texts, in the order given."""
    configs_by_text = {canonical(config): config for config in configs}
    if space.indexable:
        return {text: config for text, config in configs_by_text.items() if config in space}
    # Walk the space once for all configs, because in a callable's space each membership test is a walk of its own.
    walked = {canonical(config) for config in islice(space.walk(), MEMBERSHIP_BOUND) if config is not None}
    return {text: config for text, config in configs_by_text.items() if text in walked}


class Exploration:
    """One job's walk through a space; see the module for the order of its proposals.

    Args:
        kernel: the declared kernel.
        problem: the problem whose space is explored.
        plan: what the job's user has asked for: strategy, budget, or a list of configs in place of the space.
        first: configs to propose before all others.
        last: configs to put off, in the order in which they are proposed in the end.
        device: the device, for the prior; for a job that only compiles, only its target is known.
        on_phase: called with each phase of opening the space.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        plan: Plan,
        first: Sequence[Config],
        last: Sequence[Config] = (),
        device: Device = requests.NO_DEVICE,
        *,
        on_phase: OnPhase = lambda phase: None,
    ) -> None:
        self._kernel = kernel
        self._problem = problem
        space = kernel.bind_space(problem)
        if plan.configs:
            # A listed space is tried in the order of the list.
            space = declare_space(list(_find_admitted_configs(space, plan.configs).values())).bind(problem, kernel.site)
        self.size = space.size
        if space.size is not None and space.size <= COUNTED_SPACE:
            self.size = sum(1 for _ in space)
        on_phase(Phase.PRIOR)
        promised = ask_prior(kernel, space, device)
        on_phase(Phase.STRATEGY)
        admitted = _find_admitted_configs(space, [*first, *promised.configs])
        self.prior_fault = promised.fault
        if promised.configs and not any(canonical(config) in admitted for config in promised.configs):
            self.prior_fault = describe_stray_prior(kernel, promised.configs, kernel.space.knobs or ())
        self._first = list(admitted.values())
        self._never_again = set(admitted)
        self._space = space
        self._seed = plan.seed
        self._proposed: set[str] = set()
        # Configs to put off, with their place in the order. If the strategy asks for one, it waits in ``_waiting``.
        self._last_places = {canonical(config): place for place, config in enumerate(last)}
        self._waiting: list[dict[str, Any]] = []
        self._strategy = search.choose_strategy(space, plan)
        self._ends_converged = plan.until == "converged"
        valid = self._strategy.valid
        self.size_is_estimate = valid is not None and not valid.is_exact
        if valid is not None:
            self.size = valid.number
        self.strategy = self._strategy.name
        self.learns = self._strategy.learns
        self.notice = self._strategy.notice

    def tell_outcomes(self, tried: Iterable[requests.TriedConfig]) -> None:
        """Pass outcomes on to the strategy."""
        for trial in tried:
            if trial.doubt is not None:
                self._strategy.doubt(trial.config, trial.doubt)
            self._strategy.tell(trial.config, trial.outcome, trial.cost)

    def propose_configs(self, n: int, *, anywhere: bool = False) -> replies.Proposals:
        """Return up to ``n`` proposals; with ``anywhere``, random ones that the strategy does not choose."""
        if anywhere:
            return replies.Proposals(self._make_proposals(self._draw_configs(n)), finished=False)
        # 1. The configs that come first.
        configs = self._first[:n]
        del self._first[:n]
        # 2. Those that the strategy asks for. A config that the job has put off waits for the end.
        if len(configs) < n and not self._strategy.finished:
            for config in self._strategy.ask(n - len(configs)):
                text = canonical(config)
                if text not in self._never_again:
                    (self._waiting if text in self._last_places else configs).append(config)
        # 3. Those that wait, once the strategy is done.
        if self._strategy.finished:
            self._waiting.sort(key=lambda config: self._last_places[canonical(config)])
            room = n - len(configs)
            configs += self._waiting[:room]
            del self._waiting[:room]
        if len(self._proposed) < MOST_REMEMBERED:
            self._proposed |= set(map(canonical, configs))
        finished = not self._first and not self._waiting and self._strategy.finished
        # A strategy takes milliseconds to answer this, so it is only asked if the answer matters.
        converged = self._ends_converged and self._strategy.converged
        return replies.Proposals(self._make_proposals(configs), finished, converged)

    def _make_proposals(self, configs: Iterable[Config]) -> tuple[replies.Proposal, ...]:
        return tuple(make_proposal(self._kernel, self._problem, config) for config in configs)

    def _draw_configs(self, n: int) -> list[dict[str, Any]]:
        """Draw up to ``n`` new configs from the whole space. Like all proposals, they will not be proposed again."""
        if len(self._proposed) >= MOST_REMEMBERED:
            return []
        # The strategy may draw at random, too. With its seed, this would draw the configs that it asks for next.
        drawn = search.Random(self._space, self._seed + 1).ask(n)
        configs = [config for config in drawn if canonical(config) not in self._never_again | self._proposed]
        self._never_again |= set(map(canonical, configs))
        return configs
