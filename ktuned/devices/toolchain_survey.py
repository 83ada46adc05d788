"""Survey of toolchains: compilers, libraries and installed distributions are watched like sources, also on hosts.

A toolchain that has changed is probed again in a new worker. Until then, lookups of its kernels are stale. If the probe
finds other fingerprints, results under the earlier ones are renewed. Otherwise the answers are fresh again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import anyio
import structlog

from ktuned.catalog import Catalog, make_root_environment
from ktuned.devices.environments import Environments
from ktuned.model import AmbiguousName, FrozenStruct, KernelInfo, NotFound
from ktuned.protocol import Root

_log = structlog.get_logger()


_Fingerprints = dict[str, Mapping[str, Any]]


class SurveyIntervals(FrozenStruct):
    """Seconds between looks at the toolchains of kernels in use (``recent_s``), and at all toolchains (``all_s``)."""

    recent_s: float = 2.0
    all_s: float = 30.0


class ToolchainSurvey:
    """Surveys the toolchains of all roots.

    Args:
        catalog: Knows roots and kernels.
        environments: Knows the reports, and probes.
        list_used_kernels: Returns the kernels that were looked up lately or are tuned.
        on_probe: Called after the probe, with all kernels of the root, and those whose fingerprints have changed.
        intervals: How often to look.
    """

    def __init__(
        self,
        catalog: Catalog,
        environments: Environments,
        *,
        list_used_kernels: Callable[[], Iterable[str]],
        on_probe: Callable[[list[KernelInfo], list[KernelInfo]], Awaitable[None]],
        intervals: SurveyIntervals | None = None,
    ) -> None:
        self._catalog = catalog
        self._environments = environments
        self._list_used_kernels = list_used_kernels
        self._on_probe = on_probe
        self._intervals = intervals or SurveyIntervals()
        self._wake = anyio.Event()
        self._fingerprints: dict[str, _Fingerprints] = {}
        catalog.when_roots_change(self.survey_now)
        environments.when_host_changes(self.survey_now)

    def survey_now(self) -> None:
        """Look at all toolchains now."""
        self._wake.set()

    async def run_until_cancelled(self) -> None:
        """Look at toolchains until cancelled. Their first state is no change."""
        for root in self._catalog.roots:
            self._fingerprints[root.path] = self._read_fingerprints(root)
        all_at = monotonic() + self._intervals.all_s
        while True:
            with anyio.move_on_after(self._intervals.recent_s):
                await self._wake.wait()
            is_all = self._wake.is_set() or monotonic() >= all_at
            self._wake = anyio.Event()
            if is_all:
                all_at = monotonic() + self._intervals.all_s
            for root in self._catalog.roots if is_all else self._list_used_roots():
                await self._survey_root(root)

    async def _survey_root(self, root: Root) -> None:
        is_doubted = False
        for environment in self._environments.list_sites(make_root_environment(root)):
            was_probed = self._environments.is_probed(environment)
            reason = self._environments.check_toolchain(environment) if was_probed else ""
            if reason:
                _log.info("toolchain_changed", root=root.path, reason=reason)
                await self._environments.probe_environment(environment)
                is_doubted = True
        present = self._read_fingerprints(root)
        before = self._fingerprints.get(root.path, {})
        self._fingerprints[root.path] = present
        # A first probe is no change, and neither is a new host.
        known = [host for host in present if before.get(host)]
        if not is_doubted and all(before[host] == present[host] for host in known):
            return
        kernels = [
            kernel
            for kernel in self._catalog.list_kernels_below(root.path)
            if self._catalog.find_root(kernel.file) == root
        ]
        changed = [
            kernel
            for kernel in kernels
            if any(before[host].get(kernel.backend) != present[host].get(kernel.backend) for host in known)
        ]
        await self._on_probe(kernels, changed)

    def _list_used_roots(self) -> list[Root]:
        used = {}
        for name in self._list_used_kernels():
            with suppress(NotFound, AmbiguousName):
                root = self._catalog.find_root(self._catalog.resolve_kernel(name).file)
                if root is not None:
                    used[root.path] = root
        return list(used.values())

    def _read_fingerprints(self, root: Root) -> _Fingerprints:
        """Return, for each host, the fingerprints that are in the contexts of each backend's kernels."""
        found: _Fingerprints = {}
        for environment in self._environments.list_sites(make_root_environment(root)):
            report = self._environments.get_report(environment)
            found[environment.host] = {
                name: (backend.fingerprint, [(device.name, device.fingerprint) for device in backend.devices])
                for name, backend in ({} if report is None else report.backends).items()
            }
        return found
