"""Foreign names: what another machine has learned of a kernel, and whether it holds here what it held there.

A winner's digest covers the names that its machine had learned, without their contents. They are looked at here; if
that makes the digest of a winner from there, all of them hold what they held there, and are learned here, too.

It is the one question about winners from elsewhere, whether they come in a file or from a shared store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from ktuned.catalog.catalog import Catalog, environment_of
from ktuned.catalog.inspection import FileInspector
from ktuned.catalog.traces import Traces
from ktuned.ipc import make_relative
from ktuned.model import KernelInfo, Observation, reduce_digest


class ForeignNames:
    """Matches the names of other machines' winners with the files, variables and distributions of this one.

    Args:
        digest: returns what a kernel means for a specialised problem.
    """

    def __init__(
        self, catalog: Catalog, inspector: FileInspector, traces: Traces, digest: Callable[[KernelInfo, str], str]
    ) -> None:
        self._catalog = catalog
        self._inspector = inspector
        self._traces = traces
        self._digest = digest

    async def match_digest(
        self,
        kernel: KernelInfo,
        names: Iterable[Observation],
        winners: Collection[tuple[str, str]],
        *,
        learns: bool = True,
    ) -> tuple[KernelInfo, str | None]:
        """Return a kernel with these names, too, and the digest that it has with these names alone.

        They are learned, with ``learns``, if that is the digest of one of the ``winners``: pairs of a specialised
        problem and a digest. Then none of them depends on another name. Otherwise the kernel stays as it is, and there
        is no digest.

        Raises:
            WorkerError: they cannot be looked at.
            StoreError: they cannot be recorded.
        """
        root = self._catalog.root_of(kernel.file)
        if root is None:
            return kernel, None
        wanted = {entry.name: entry for entry in names}
        missing = [entry for name, entry in wanted.items() if name not in kernel.learned]
        found = await self._inspector.look_up_names(kernel, missing) if missing else ()
        named = kernel.with_observed(found)
        exported = reduce_digest(named.digest, [entry for name, entry in named.learned.items() if name not in wanted])
        alone = replace(kernel, digest=exported)
        if all(self._digest(alone, problem) != digest for problem, digest in winners):
            return kernel, None
        if not learns or not found:
            return named, exported
        directory = environment_of(root).cwd
        below = [one.convert_places(lambda path: make_relative(path, directory)) for one in found]
        await self._traces.learn_names(kernel, below)
        return self._catalog.resolve_kernel(kernel.name), exported
