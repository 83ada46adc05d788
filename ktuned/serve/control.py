"""``pause`` and ``resume``: one job, a kernel's jobs, a device, or everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ktuned.catalog import Catalog
from ktuned.devices import Machine
from ktuned.model import Job, NotFound, UsageError
from ktuned.protocol import PAUSE, RESUME, PauseAnswer, PauseParams
from ktuned.scheduling import EVERYTHING, Jobs
from ktuned.serve.connection import Connection
from ktuned.serve.method import Handler


class Control:
    """The methods by which a person says what must not be tuned for now."""

    def __init__(self, *, catalog: Catalog, machine: Machine, jobs: Jobs) -> None:
        self._catalog = catalog
        self._machine = machine
        self._jobs = jobs

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(PAUSE, self.handle_pause), Handler(RESUME, self.handle_resume)]

    async def handle_pause(self, wanted: PauseParams, connection: Connection) -> PauseAnswer:
        """Let something wait until it is resumed, in the next daemon's life too."""
        return await self._set_paused(wanted, self._jobs.pause_job, is_paused=True)

    async def handle_resume(self, wanted: PauseParams, connection: Connection) -> PauseAnswer:
        """Undo a pause. Resuming a device does not resume a job that was paused by its id."""
        return await self._set_paused(wanted, self._jobs.resume_job, is_paused=False)

    async def _set_paused(
        self, wanted: PauseParams, act: Callable[[int], Awaitable[Job]], *, is_paused: bool
    ) -> PauseAnswer:
        if sum(given is not None for given in (wanted.job, wanted.kernel, wanted.device)) > 1:
            raise UsageError("a job, a kernel and a device are given together", hint="name one of them, or none")
        changed: list[Job] = []
        if wanted.job is not None:
            changed = [await act(wanted.job)]
        elif wanted.kernel is not None:
            name = self._catalog.resolve_kernel(wanted.kernel, wanted.directory).name
            for job in [job for job in self._jobs.list_live_jobs() if job.kernel == name]:
                # It may have ended meanwhile.
                with suppress(NotFound):
                    changed.append(await act(job.id))
        else:
            devices = {EVERYTHING} if wanted.device is None else self._models_of(wanted.device)
            await self._jobs.pause_devices(devices, is_paused=is_paused)
        return PauseAnswer(tuple(map(self._jobs.describe_job, changed)), tuple(sorted(self._jobs.pauses)))

    def _models_of(self, wanted: str) -> set[str]:
        """Return the models of a device, given its name (``cuda:1``) or one of them."""
        models = self._machine.list_device_models()
        if any(wanted in known for known in models.values()) or wanted in self._jobs.pauses:
            return {wanted}
        if wanted not in models:
            lines = ", ".join(f"{name} ({', '.join(sorted(known))})" for name, known in sorted(models.items()))
            raise NotFound(f"there is no device {wanted!r}", hint=f"known are: {lines or 'none'}")
        return models[wanted]
