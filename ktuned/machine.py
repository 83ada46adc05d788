"""What this machine can do: for each interpreter its backends, their toolchains and their devices.

Backends are asked in a worker. The last answer is kept in the store, so that lookups know what they stand on
before the first worker is up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import anyio
import structlog

from ktuned.errors import BackendError, NotFound, StoreError, WorkerError
from ktuned.fleet.pool import Fleet
from ktuned.fleet.process import Environment
from ktuned.model import Context, Device, KernelInfo, Problem, canonical
from ktuned.store import Store

_log = structlog.get_logger()


def fingerprint_digest(fingerprint: Mapping[str, Any]) -> str:
    """Return the short text that stands for a fingerprint in keys."""
    return hashlib.sha256(canonical(fingerprint).encode()).hexdigest()[:16]


class Machine:
    """Knows backends and devices per environment; asks a worker for what it does not know yet."""

    def __init__(self, fleet: Fleet, store: Store, *, deadline_s: float) -> None:
        self._fleet = fleet
        self._store = store
        self._deadline_s = deadline_s
        self._reports: dict[str, dict[str, Any]] = dict(store.probes())
        self._probed: set[str] = set()
        self._locks: dict[str, anyio.Lock] = {}

    async def probe(self, environment: Environment, *, again: bool = False) -> dict[str, Any]:
        """Ask an environment's backends what they are, once in a daemon's life; return the report.

        A report with an ``error`` says why no worker could answer; it is asked again the next time.
        """
        key = _key(environment)
        async with self._locks.setdefault(key, anyio.Lock()):
            if key in self._probed and not again:
                return self._reports[key]
            # What was known stays known while no worker can answer: lookups stand on it.
            known = self._reports.get(key, {}).get("backends", {})
            report: dict[str, Any] = {"python": environment.python, "error": None, "backends": known}
            try:
                async with self._fleet.lend("inspect", environment) as worker:
                    answer, _ = await worker.call({"op": "probe"}, {"inspect": self._deadline_s}, first_phase="inspect")
                report["backends"] = answer["backends"]
                self._probed.add(key)
            except WorkerError as error:
                report["error"] = error.to_wire()
                _log.warning("probe_failed", python=environment.python, reason=error.message)
            if report != self._reports.get(key):
                self._reports[key] = report
                try:
                    await self._store.save_probe(key, report)
                except StoreError as error:
                    _log.warning("probe_not_recorded", python=environment.python, reason=error.message)
            return report

    def report(self, environment: Environment) -> dict[str, Any] | None:
        """Return what is known of an environment now."""
        return self._reports.get(_key(environment))

    def devices(self, environment: Environment, backend: str) -> list[Device]:
        """Return the devices that a backend is known to run on; none when it cannot, or nobody asked yet."""
        found = (self.report(environment) or {}).get("backends", {}).get(backend, {})
        return [Device.from_wire(entry) for entry in found.get("devices", ())]

    def group_size(self, environment: Environment, backend: str) -> int:
        """Return how many units a backend gains from compiling at once."""
        found = (self.report(environment) or {}).get("backends", {}).get(backend, {})
        return int(found.get("group_size", 1))

    def device(self, environment: Environment, backend: str, wanted: str | None) -> Device:
        """Return the device that a request means: by name (``cpu:0``), by model, or the backend's first.

        Raises:
            BackendError: the backend is missing, or has no device here; says why and what mends it.
            NotFound: it has devices, but not that one.
        """
        devices = self.devices(environment, backend)
        if not devices:
            raise self._why_none(environment, backend)
        for device in devices:
            if wanted in (None, device.name, device.model):
                return device
        known = ", ".join(f"{device.name} ({device.model})" for device in devices)
        raise NotFound(f"backend {backend!r} has no device {wanted!r} here", hint=f"it has {known}")

    def _why_none(self, environment: Environment, backend: str) -> BackendError:
        report = self.report(environment)
        if report is None or report["error"] is not None:
            error = (report or {}).get("error") or {"message": "its backends have not been asked yet", "hint": ""}
            return BackendError(f"{environment.python}: {error['message']}", hint=error["hint"])
        found = report["backends"].get(backend)
        if found is None:
            installed = ", ".join(report["backends"]) or "none"
            return BackendError(
                f"{environment.python} has no backend {backend!r} (installed: {installed})",
                hint=f"pip install 'ktuned[{backend.replace('_', '-')}]' into it",
            )
        reason = found["error"] or found["absent"]
        return BackendError(f"backend {backend!r} cannot run here: {reason['message']}", hint=reason["hint"])

    def context(self, kernel: KernelInfo, environment: Environment, problem: Problem, device: Device) -> Context:
        """Return the ground that a measurement made now would stand on."""
        found = (self.report(environment) or {}).get("backends", {}).get(kernel.backend, {})
        return Context(
            kernel=kernel.name,
            problem=canonical(kernel.specialized(problem)),
            device=device.model,
            digest=kernel.digest,
            toolchain=fingerprint_digest(found.get("fingerprint", {})),
            device_fingerprint=fingerprint_digest(device.fingerprint),
        )

    def describe(self) -> list[dict[str, Any]]:
        """Return every environment's report, for a status."""
        return list(self._reports.values())


def _key(environment: Environment) -> str:
    return canonical({"python": environment.python, "env": dict(environment.env)})
