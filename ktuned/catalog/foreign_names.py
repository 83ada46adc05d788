"""Foreign names: the names that another machine has learned of a kernel, compared with this machine's.

A winner comes with the names that its machine had learned, without their contents, but its digest covers the contents.
So the names are looked at here. If this gives the winner's digest, the contents are the same on both machines, and the
names are learned here, too.

This check decides about all winners from elsewhere, whether they come in a file or from a team's store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ktuned.catalog.catalog import Catalog, make_root_environment
from ktuned.catalog.inspection import FileInspector
from ktuned.catalog.traces import Traces
from ktuned.ipc import make_relative
from ktuned.model import KernelInfo, Observation, is_of_one_machine, reduce_digest


class ForeignNames:
    """Matches the names of other machines' winners with the files, variables and distributions of this one."""

    def __init__(self, catalog: Catalog, inspector: FileInspector, traces: Traces) -> None:
        self._catalog = catalog
        self._inspector = inspector
        self._traces = traces

    async def match_digest(
        self,
        kernel: KernelInfo,
        names: Iterable[Observation],
        digests: Collection[str],
        *,
        learns: bool = True,
    ) -> tuple[KernelInfo, str | None, Mapping[str, str]]:
        """Return a kernel with these names added, the digest that it has with only these names, and its parts.

        ``digests`` are those of the winners. If one of them is that digest, the winners depend on no other name, and
        the names are learned if ``learns`` is true. Otherwise the kernel is returned unchanged, without a digest; the
        parts tell what differs.

        A name that only one machine can have is in no document while it is absent there. If it is present here, it
        counts as a difference.

        Raises:
            WorkerError: the names cannot be looked at.
            StoreError: the names cannot be recorded.
        """
        root = self._catalog.find_root(kernel.file)
        if root is None:
            return kernel, None, kernel.parts
        wanted = {entry.name: entry for entry in names}
        missing = [entry for name, entry in wanted.items() if name not in kernel.learned]
        found = await self._inspector.observe_names(kernel, missing) if missing else ()
        named = kernel.with_observed(found)
        here_alone = [entry for name, entry in named.learned.items() if name not in wanted]
        exported = reduce_digest(named.digest, [entry for entry in here_alone if not is_of_one_machine(entry.name)])
        if exported not in digests:
            return kernel, None, named.parts
        if not learns or not found:
            return named, exported, named.parts
        directory = make_root_environment(root).cwd
        below = [one.convert_places(lambda path: make_relative(path, directory)) for one in found]
        await self._traces.learn_names(kernel, below)
        return self._catalog.resolve_kernel(kernel.name), exported, named.parts
