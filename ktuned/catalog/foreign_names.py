"""Foreign names: what another machine has learned of a kernel, and whether it holds here what it held there.

A winner's digest covers the names that its machine had learned, without their contents. They are looked at here; if
that makes the digest of a winner from there, all of them hold what they held there, and are learned here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ktuned.catalog.catalog import Catalog, environment_of
from ktuned.catalog.inspection import FileInspector
from ktuned.catalog.traces import Traces
from ktuned.ipc import relative
from ktuned.model import KernelInfo, Observation, without


class ForeignNames:
    """Matches the names of other machines' winners with the files, variables and distributions of this one."""

    def __init__(self, catalog: Catalog, inspector: FileInspector, traces: Traces) -> None:
        self._catalog = catalog
        self._inspector = inspector
        self._traces = traces

    async def match(
        self,
        kernel: KernelInfo,
        names: Iterable[Observation],
        is_known: Callable[[str], bool],
        *,
        learns: bool = True,
    ) -> tuple[KernelInfo, str]:
        """Return a kernel with these names, too, and the digest that it has with these names alone.

        They are learned, with ``learns``, if ``is_known`` says that this digest is another machine's: then no winner of
        its depends on another name. Otherwise the kernel stays as it is.

        Raises:
            WorkerError: they cannot be looked at.
            StoreError: they cannot be recorded.
        """
        root = self._catalog.root_of(kernel.file)
        if root is None:
            return kernel, kernel.digest
        wanted = {entry.name: entry for entry in names}
        missing = [entry for name, entry in wanted.items() if name not in kernel.learned]
        found = await self._inspector.look(kernel, missing) if missing else ()
        named = kernel.observed(found)
        exported = without(named.digest, [entry for name, entry in named.learned.items() if name not in wanted])
        if not is_known(exported):
            return kernel, kernel.digest
        if not learns or not found:
            return named, exported
        directory = environment_of(root).cwd
        below = [replace(one, places=tuple(relative(path, directory) for path in one.places)) for one in found]
        await self._traces.learn(kernel, below)
        return self._catalog.resolve(kernel.name), exported
