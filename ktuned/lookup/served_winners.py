"""Winners as lookups serve them: own ones, winners of other checkouts of the same code, or one config for all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ktuned.catalog import Admission, Catalog
from ktuned.devices import Machine
from ktuned.fleet import Environment
from ktuned.lookup.answer_caches import AnswerCaches
from ktuned.lookup.common_winner import MAX_TRIALS, Common, common_config, with_common
from ktuned.model import Context, Device, KernelInfo, Objective, Winner, cost_of
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

    def list_winners(self, kernel: KernelInfo, environment: Environment) -> list[Winner]:
        """Return a kernel's winners on all devices, by all objectives."""
        known = self._known.get(kernel.name)
        if known is None:
            own = self._with_shared(self._store.list_winners(kernel.name), kernel, environment)
            known = self._known[kernel.name] = self.in_place_of(own, kernel, environment)
        return known

    def _with_shared(self, own: list[Winner], kernel: KernelInfo, environment: Environment) -> list[Winner]:
        """Return winners with those of kernels of the same name that were measured in what is this one's own context.

        Checkouts of one project, worktrees and clones, are projects of their own here. As long as nothing that decides
        a measurement differs, what one of them has measured holds for all.
        """
        others = self._catalog.find_namesakes(kernel)
        if not others:
            return own
        devices = {device.model: device for device in self._machine.devices(environment, kernel.backend)}
        found = {winner.key: winner for winner in own}
        for winner in (winner for other in others for winner in self._store.list_winners(other.name)):
            context = replace(winner.context, kernel=kernel.name)
            key = context.key_for(winner.objective)
            device = devices.get(context.device)
            # One that no final round has decided may be the first that was measured there.
            if device is None or not winner.is_final or (key in found and found[key].context == context):
                continue
            if self._is_present(context, winner, kernel, environment, device):
                found[key] = replace(winner, context=context)
        return list(found.values())

    def _is_present(
        self, context: Context, winner: Winner, kernel: KernelInfo, environment: Environment, device: Device
    ) -> bool:
        """Return whether a measurement made now would have a winner's context."""
        if kernel.specialize is not None and set(kernel.specialize) != set(winner.problem):
            return False
        return self._machine.context(kernel, environment, winner.problem, device) == context

    def in_place_of(self, own: list[Winner], kernel: KernelInfo, environment: Environment) -> list[Winner]:
        """Return problems' own winners with the common ones in their place, where the kernel file asks for those."""
        if not kernel.weights:
            return own
        models = {device.model for device in self._machine.devices(environment, kernel.backend)}
        objectives = sorted({winner.objective for winner in own})
        for device in sorted(models & {winner.context.device for winner in own}):
            for objective in objectives:
                own = with_common(own, self._common_trials(kernel, environment, device, objective))
        return own

    def _common_trials(
        self, kernel: KernelInfo, environment: Environment, model: str, objective: Objective
    ) -> Iterable[Common]:
        """Return the trials of the config that is best for all problems by an objective, once all are tuned."""
        device = self._machine.device(environment, kernel.backend, model)
        contexts = [self._machine.context(kernel, environment, problem, device) for problem in kernel.problems]
        decided = [(context, self._store.get_winner(context.key_for(objective))) for context in contexts]
        if any(winner is None or winner.context != context or not winner.is_final for context, winner in decided):
            # The first config that was measured on all of them may be slow on those that are tuned already.
            return []
        tried = [self._store.measured_configs(context, MAX_TRIALS, objective=objective) for context in contexts]
        is_out = [
            known.text
            for problem, configs in zip(kernel.problems, tried, strict=True)
            for known in configs
            if self._admission.known_verdict(kernel, problem, known.config) is False
        ]
        costs = [
            {known.text: cost for known in configs if (cost := cost_of(objective, known.figure)) is not None}
            for configs in tried
        ]
        chosen = common_config(list(zip(kernel.weights, costs, strict=True)), is_out)
        if chosen is None:
            return []
        config = next(known.config for known in tried[0] if known.text == chosen)
        trials = [(context, self._store.known_trial(context, config)) for context in contexts]
        return [Common(context, trial, objective) for context, trial in trials if trial is not None]
