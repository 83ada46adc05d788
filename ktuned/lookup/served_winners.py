"""Winners as lookups serve them: a kernel's own, those of other checkouts of the same code, and common configs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ktuned.catalog import Admission, Catalog
from ktuned.devices import Machine
from ktuned.fleet import Environment
from ktuned.lookup.answer_caches import AnswerCaches
from ktuned.lookup.common_winner import MAX_TRIALS, Common, choose_common_config, replace_by_common_configs
from ktuned.model import (
    Candidate,
    Context,
    Device,
    KernelInfo,
    Member,
    Objective,
    Problem,
    Verdict,
    Winner,
    canonical,
    choose_equal_rows_class,
    convert_to_cost,
)
from ktuned.store import Store


class ServedWinners:
    """Reads winners from the store, and keeps them in ``caches`` until they change."""

    def __init__(
        self, catalog: Catalog, store: Store, machine: Machine, admission: Admission, caches: AnswerCaches
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._machine = machine
        self._admission = admission
        self._known = caches.winners
        self._verdicts: dict[str, dict[tuple[str, Objective], list[Verdict]]] = {}
        """The verdicts on a batch-invariant kernel's groups, by device model and objective; as old as its winners."""

    def list_winners(self, kernel: KernelInfo, environment: Environment) -> list[Winner]:
        """Return a kernel's winners on all devices, by all objectives."""
        known = self._known.get(kernel.name)
        if known is None:
            own = self._add_shared_winners(self._store.list_winners(kernel.name), kernel, environment)
            known = self._known[kernel.name] = self.replace_by_common(own, kernel, environment)
        return known

    def _add_shared_winners(self, own: list[Winner], kernel: KernelInfo, environment: Environment) -> list[Winner]:
        """Also return winners of equal kernels in other projects, if they were measured in this kernel's context.

        Every checkout of a project counts as a project of its own: worktrees, clones, and the project's state before it
        was moved or renamed. As long as nothing that decides a measurement differs, a measurement in one of them holds
        in all.
        """
        others = self._store.list_winners_elsewhere(kernel)
        if not others:
            return own
        devices = {device.model: device for device in self._machine.list_devices(environment, kernel.backend)}
        found = {winner.key: winner for winner in own}
        for winner in others:
            context = replace(winner.context, kernel=kernel.name)
            key = context.key_for(winner.objective)
            device = devices.get(context.device)
            # A winner that no final round has decided may only be the first config that was measured there.
            if device is None or not winner.is_final or (key in found and found[key].context == context):
                continue
            if self._is_in_present_context(context, winner, kernel, environment, device):
                found[key] = replace(winner, context=context)
        return list(found.values())

    def _is_in_present_context(
        self, context: Context, winner: Winner, kernel: KernelInfo, environment: Environment, device: Device
    ) -> bool:
        """Return whether a measurement made now would have a winner's context."""
        if kernel.specialize is not None and set(kernel.specialize) != set(winner.problem):
            return False
        return self._machine.build_context(kernel, environment, winner.problem, device) == context

    def replace_by_common(self, own: list[Winner], kernel: KernelInfo, environment: Environment) -> list[Winner]:
        """Return the winners, with common ones in place of the problems' own if the kernel file asks for them.

        Problems whose rows must have equal bits have no winner until a class of configs with equal bits is known.
        """
        self._verdicts.pop(kernel.name, None)
        if not kernel.weights and not kernel.batch_invariant:
            return own
        models = {device.model for device in self._machine.list_devices(environment, kernel.backend)}
        objectives = sorted({winner.objective for winner in own})
        for device in sorted(models & {winner.context.device for winner in own}):
            for objective in objectives:
                if kernel.weights:
                    own = replace_by_common_configs(
                        own, self._list_common_trials(kernel, environment, device, objective)
                    )
                for group in kernel.find_batch_groups():
                    own = self._replace_by_class(own, kernel, environment, device, objective, group)
        return own

    def find_verdicts(self, kernel: KernelInfo, environment: Environment) -> dict[tuple[str, Objective], list[Verdict]]:
        """Return the verdicts on a batch-invariant kernel's groups, by device model and objective."""
        self.list_winners(kernel, environment)
        return self._verdicts.get(kernel.name, {})

    def find_verdict(
        self, kernel: KernelInfo, environment: Environment, problem: Problem, device: str | None, objective: Objective
    ) -> Verdict | None:
        """Return the verdict on a problem's group; ``None`` if it has no group, or none of the group is tuned."""
        if not kernel.batch_invariant or device is None:
            return None
        verdicts = self.find_verdicts(kernel, environment).get((device, objective), [])
        return next((verdict for verdict in verdicts if canonical(problem) in verdict.problems), None)

    def _replace_by_class(
        self,
        own: list[Winner],
        kernel: KernelInfo,
        environment: Environment,
        model: str,
        objective: Objective,
        group: Sequence[tuple[Problem, float]],
    ) -> list[Winner]:
        """Return the winners, with those of the class chosen for a group in place of the group's own.

        If no class is known yet, or none covers all the group's problems, they have no winners.
        """
        device = self._machine.find_device(environment, kernel.backend, model)
        contexts = {
            canonical(problem): self._machine.build_context(kernel, environment, problem, device)
            for problem, _ in group
        }
        decided = {text: self._store.get_winner(context.key_for(objective)) for text, context in contexts.items()}
        waiting = [
            text
            for text, winner in decided.items()
            if winner is None or winner.context != contexts[text] or not winner.is_final
        ]
        won = [self._store.get_trial(winner.trial) for winner in decided.values() if winner is not None]
        if len(won) == len(group) and all(trial is not None and trial.detail.phase == "import" for trial in won):
            # Imported winners were chosen together where they come from.
            return own
        if waiting:
            verdict = Verdict(kernel.batch_invariant, tuple(contexts), waiting=tuple(waiting))
        else:
            verdict = choose_equal_rows_class(
                kernel.batch_invariant,
                [
                    Member(text, weight, tuple(self._list_candidates(kernel, problem, contexts[text], objective)))
                    for (problem, weight), text in zip(group, contexts, strict=True)
                ],
            )
        self._verdicts.setdefault(kernel.name, {}).setdefault((model, objective), []).append(verdict)
        keys = {context.key_for(objective) for context in contexts.values()}
        chosen = [(contexts[text], json.loads(config)) for text, config in verdict.configs.items()]
        trials = [(context, self._store.find_trial(context, config)) for context, config in chosen]
        common = [Common(context, trial, objective) for context, trial in trials if trial is not None]
        if len(common) < len(group):
            return [winner for winner in own if winner.key not in keys]
        return replace_by_common_configs(own, common)

    def _list_candidates(
        self, kernel: KernelInfo, problem: Problem, context: Context, objective: Objective
    ) -> Iterable[Candidate]:
        """Return the candidates for a group's class that the space still has."""
        for one in self._store.find_candidates(context, MAX_TRIALS, objective=objective):
            if self._admission.find_known_verdict(kernel, problem, json.loads(one.config)) is not False:
                yield one

    def _list_common_trials(
        self, kernel: KernelInfo, environment: Environment, model: str, objective: Objective
    ) -> Iterable[Common]:
        """Return the trials of the config that is best for all problems by an objective; none until all are tuned."""
        device = self._machine.find_device(environment, kernel.backend, model)
        contexts = [self._machine.build_context(kernel, environment, problem, device) for problem in kernel.problems]
        decided = [(context, self._store.get_winner(context.key_for(objective))) for context in contexts]
        if any(winner is None or winner.context != context or not winner.is_final for context, winner in decided):
            # Until then, the first config measured on all problems may be slow on those that are already tuned.
            return []
        tried = [self._store.list_measured_configs(context, MAX_TRIALS, objective=objective) for context in contexts]
        is_out = [
            known.text
            for problem, configs in zip(kernel.problems, tried, strict=True)
            for known in configs
            if self._admission.find_known_verdict(kernel, problem, known.config) is False
        ]
        costs = [
            {known.text: cost for known in configs if (cost := convert_to_cost(objective, known.figure)) is not None}
            for configs in tried
        ]
        chosen = choose_common_config(list(zip(kernel.weights, costs, strict=True)), is_out)
        if chosen is None:
            return []
        config = next(known.config for known in tried[0] if known.text == chosen)
        trials = [(context, self._store.find_trial(context, config)) for context in contexts]
        return [Common(context, trial, objective) for context, trial in trials if trial is not None]
