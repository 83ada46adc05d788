"""Winners as lookups serve them: a kernel's own, and those of other checkouts of the same code."""

from __future__ import annotations

from msgspec.structs import replace

from ktuned.devices import Machine
from ktuned.fleet import Environment
from ktuned.lookup.answer_caches import AnswerCaches
from ktuned.model import Device, KernelInfo
from ktuned.store import Context, Store, Winner


class ServedWinners:
    """Reads winners from the store, and keeps them in ``caches`` until they change."""

    def __init__(self, store: Store, machine: Machine, caches: AnswerCaches) -> None:
        self._store = store
        self._machine = machine
        self._known = caches.winners

    def list_winners(self, kernel: KernelInfo, environment: Environment) -> list[Winner]:
        """Return a kernel's winners on all devices, by all objectives."""
        known = self._known.get(kernel.name)
        if known is None:
            known = self._add_shared_winners(self._store.list_winners(kernel.name), kernel, environment)
            self._known[kernel.name] = known
        return known

    def drop_winners(self, kernel: str) -> None:
        """Do not keep a kernel's winners in memory. The table of winners still has them, so their changes count."""
        if kernel in self._known:
            self._known[kernel] = None

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
