"""Foreign names: the names that another machine has learned of a kernel, compared with this machine's.

A winner comes with the names that its machine had learned, without their contents, but its digest covers the contents.
So the names are looked at here. If this gives the winner's digest, the contents are the same on both machines, and the
names are learned here, too. If it does not, the winner may hold nevertheless: it is made again here, and compared with
what the other machine made.

This check decides about all winners from elsewhere, whether they come in a file or from a team's store.
"""

from __future__ import annotations

from collections.abc import Iterable

from ktuned.catalog.catalog import Catalog
from ktuned.catalog.inspection import FileInspector
from ktuned.catalog.traces import Traces
from ktuned.ipc import make_relative
from ktuned.model import FrozenStruct, KernelInfo, Observation


class ForeignNames(FrozenStruct):
    """Matches the names of other machines' winners with the files, variables and distributions of this one."""

    catalog: Catalog
    inspector: FileInspector
    traces: Traces

    async def look_at_names(self, kernel: KernelInfo, names: Iterable[Observation]) -> KernelInfo:
        """Return a kernel with these names added, as they are here.

        Raises:
            WorkerError: the names cannot be looked at.
        """
        missing = [entry for entry in names if entry.name not in kernel.learned]
        return kernel.with_observed(await self.inspector.observe_names(kernel, missing) if missing else ())

    async def learn_names(self, kernel: KernelInfo, named: KernelInfo) -> KernelInfo:
        """Learn the names that :meth:`look_at_names` has added to a kernel; return its new state.

        Raises:
            WorkerError: the files have changed meanwhile.
            StoreError: the names cannot be recorded.
        """
        directory = self.catalog.find_kernel_environment(kernel).cwd
        found = [entry for name, entry in named.learned.items() if name not in kernel.learned]
        below = [one.convert_places(lambda path: make_relative(path, directory)) for one in found]
        await self.traces.learn_names(kernel, below)
        return self.catalog.resolve_kernel(kernel.name)
