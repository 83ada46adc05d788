"""Representatives of problems, for kernel files whose own function chooses the buckets.

A worker calls the function. Its results are remembered and stored, so that the next daemon knows problems' keys at
once. After an edit, the old representative is used until the new function was called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import structlog

from ktuned.catalog.catalog import Catalog
from ktuned.fleet import Fleet
from ktuned.ipc import requests
from ktuned.model import KernelInfo, Problem, Role, Scalar, StoreError, canonical
from ktuned.store import Store, Verdict

_log = structlog.get_logger()

MAX_REMEMBERED = 20_000
"""Most representatives in memory, some 500 bytes each. At more, all are forgotten, and found again when needed."""


class Representative(NamedTuple):
    """The problem that stands for a bucket; ``is_current`` is false if an older state of the kernel has chosen it."""

    problem: dict[str, Scalar]
    is_current: bool


class Buckets:
    """Finds the problem that stands for a problem's bucket.

    :meth:`find_known_representative` answers from memory; :meth:`find_representative` asks a worker if it must.
    """

    def __init__(self, catalog: Catalog, fleet: Fleet, store: Store, deadlines: Mapping[str, float]) -> None:
        self._catalog = catalog
        self._fleet = fleet
        self._store = store
        self._deadlines = deadlines
        self._chosen: dict[tuple[str, str], tuple[str, dict[str, Scalar]]] = {}
        self._loaded: set[str] = set()

    def find_known_representative(self, kernel: KernelInfo, problem: Problem) -> Representative | None:
        """Return a problem's representative; ``None`` if a worker must be asked."""
        if not kernel.has_bucket_function:
            return Representative(kernel.choose_representative(problem), is_current=True)
        self._load_representatives(kernel)
        found = self._chosen.get((kernel.name, canonical(problem)))
        return None if found is None else Representative(dict(found[1]), is_current=found[0] == kernel.digest)

    async def find_representative(self, kernel: KernelInfo, problem: Problem) -> dict[str, Scalar]:
        """Return a problem's representative, asking a worker if need be.

        Raises:
            WorkerError: the function raised, hangs or crashes, or the files have changed since they were inspected.
            NotFound: the kernel's file is below no watched root.
        """
        found = self.find_known_representative(kernel, problem)
        if found is not None and found.is_current:
            return found.problem
        environment = self._catalog.find_kernel_environment(kernel)
        reference = requests.KernelRef.from_kernel(kernel, environment.project, environment.cwd)
        request = requests.Represent(reference, problem)
        async with self._fleet.lend_worker(Role.INSPECT, environment) as worker:
            reply, _ = await worker.send_request(request, self._deadlines)
        chosen = dict(reply.problem)
        for text, representative in ((canonical(problem), chosen), (canonical(chosen), chosen)):
            if len(self._chosen) >= MAX_REMEMBERED:
                self._chosen.clear()
                self._loaded.clear()
            self._chosen[kernel.name, text] = kernel.digest, representative
        try:
            saved = [Verdict(canonical(problem), canonical(chosen), admitted=True)]
            await self._store.admissions.save_verdicts(_name_bucket_space(kernel), kernel.digest, saved)
        except StoreError as error:
            # This daemon remembers it; the next one asks again.
            _log.warning("bucket_not_stored", kernel=kernel.name, reason=error.message)
        return chosen

    def _load_representatives(self, kernel: KernelInfo) -> None:
        if kernel.name in self._loaded:
            return
        self._loaded.add(kernel.name)
        for stored in self._store.admissions.load_verdicts(_name_bucket_space(kernel), kernel.digest):
            self._chosen[kernel.name, stored.problem] = kernel.digest, json.loads(stored.config)


def _name_bucket_space(kernel: KernelInfo) -> str:
    """Return the name under which the store keeps a kernel's representatives, next to its space's verdicts."""
    return f"{kernel.name}#bucket"
