"""Inspection: imports kernel files in a worker, and reports the kernels that they declare.

An inspection tells the daemon what a kernel file declares, and on which files that depends. So it reports, besides the
kernels, the digest of every file that took part. It does so even if the kernel file could not be imported, because an
edit of any of these files may repair it.

Later requests name a kernel by those digests (:class:`~ktuned.ipc.requests.KernelRef`). :func:`load_kernel` imports the
file again, and refuses if any of them differs: a result must never be recorded under the digests of another source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ktuned.backends import Registry
from ktuned.declaration import describe_kernel, load_file, load_if_changed
from ktuned.dependencies import ACCESSES, OBSERVER, FreshProcessNeeded
from ktuned.ipc import DIRECTORY, Places, make_relative, replies, requests, stamp_files, stamp_whole, stamps_agree
from ktuned.model import BackendError, FrozenStruct, KernelFileError, NotFound, Phase, spell_values
from ktuned.worker.observations import SourceChanged, make_observations, name_files_in_project, refresh_observation

if TYPE_CHECKING:
    from ktuned.declaration import Kernel
    from ktuned.worker.reply import Reply


def check_digests(kernel: requests.KernelRef, places: Places) -> None:
    """Check that a kernel's files still hold the bytes that were inspected.

    Raises:
        SourceChanged: one does not.
    """
    for path, digest in resolve_digests(kernel, places).items():
        # A look at the disk is not enough: the file may have had other content at the moment of its import.
        if not stamps_agree(digest, stamp_whole(path)) or not OBSERVER.agrees_with(path, digest):
            raise SourceChanged(f"{path} changed after it was inspected")


def resolve_digests(kernel: requests.KernelRef, places: Places) -> dict[Path, str]:
    """Return the digests that a kernel's files had at its inspection, by their paths on this machine."""
    return {places.locate_file(kernel.project, name): digest for name, digest in kernel.digests.items()}


def list_inspected_files(kernel: requests.KernelRef, places: Places) -> list[Path]:
    """Return the files that took part in a kernel's inspection, without directories."""
    return [path for path, digest in resolve_digests(kernel, places).items() if not digest.startswith(DIRECTORY)]


def load_kernel(kernel_ref: requests.KernelRef, places: Places) -> Kernel:
    """Import a kernel file, unless this process holds it unchanged, and return the kernel that a request names.

    Raises:
        KernelFileError: the file cannot be imported.
        NotFound: it declares no such kernel.
        SourceChanged: it is no longer the file that was inspected.
    """
    root, path = places.locate_root(kernel_ref.project), places.locate_file(kernel_ref.project, kernel_ref.file)
    OBSERVER.check_trust(list_inspected_files(kernel_ref, places))
    loaded = load_if_changed(path, root, resolve_digests(kernel_ref, places))
    check_digests(kernel_ref, places)
    for kernel in loaded.kernels:
        if kernel.name == kernel_ref.kernel:
            return kernel
    if loaded.errors:
        raise loaded.errors[0]
    raise NotFound(f"{path} declares no kernel {kernel_ref.kernel!r}")


class Inspector(FrozenStruct):
    """Inspects kernel files, and answers questions about their kernels' problems and configs."""

    registry: Registry
    places: Places

    def inspect_files(self, request: requests.Inspect, reply: Reply) -> replies.Empty:
        """Import each of the request's files, and send an item with what it declares.

        Raises:
            FreshProcessNeeded: a file needs a process that has not imported an earlier version; it names the files that
                remain.
        """
        reply.begin_phase(Phase.INSPECT)
        root = self.places.locate_root(request.project)
        for position, name in enumerate(request.files):
            path = self.places.locate_file(request.project, name)
            try:
                item = self._inspect_file(name, path, root, request)
            except FreshProcessNeeded as needed:
                rest = replace(request, files=request.files[position:])
                raise FreshProcessNeeded(needed.reason, rest) from needed
            reply.send_item(item)
        return replies.Empty()

    def _inspect_file(self, name: str, path: Path, root: Path, request: requests.Inspect) -> replies.InspectedFile:
        loaded = load_file(path, root, self.registry.names)
        kernels = []
        errors = list(loaded.errors)
        files = set(loaded.files)
        for kernel in loaded.kernels:
            try:
                _check_spaces(kernel)
                info = replace(
                    describe_kernel(kernel, request.name or request.project, root), backend=self._choose_backend(kernel)
                )
                kernels.append(info.convert_paths(lambda path: make_relative(path, str(root))))
            except KernelFileError as error:
                errors.append(error)
                # Watch the sources, too: one may be missing, and the kernel may be fine once it appears.
                files.update(kernel.source_paths)
        # Any of the file's kernels may depend on data that was read while it was imported.
        reached = make_observations(
            name_files_in_project(ACCESSES.files, str(root)), str(root), is_data=True, is_source=True
        )
        kernels = [
            # What was reached comes first: it has the digests of what was read.
            info.with_observed(
                [*reached, *(refresh_observation(entry, str(root)) for entry in request.learned.get(info.kernel, ()))]
            )
            for info in kernels
        ]
        return replies.InspectedFile(
            file=name,
            kernels=tuple(kernels),
            errors=tuple(
                replies.FileFault(error.code, error.message, error.hint, error.path, error.line, error.excerpt)
                for error in errors
            ),
            digests={
                **{make_relative(str(path), str(root)): digest for path, digest in ACCESSES.start_files.items()},
                **self._stamp_files(files, {**loaded.files, **ACCESSES.files}, str(root)),
            },
        )

    def _stamp_files(self, files: set[Path], known_stamps: Mapping[Path, str], root: str) -> dict[str, str]:
        """Return the stamps of all files that took part in an inspection, by their names in the project."""
        stamped = stamp_files(sorted({*files, *known_stamps}), known_stamps)
        return {make_relative(path, root): digest for path, digest in stamped.items()}

    def _choose_backend(self, kernel: Kernel) -> str:
        """Return the backend that compiles the kernel's sources, out of the family that its file names."""
        try:
            backend = self.registry.load(kernel.backend)
            return backend.for_sources(kernel.source_paths)
        except BackendError:
            # A job that needs the backend reports why it cannot be loaded.
            return kernel.backend

    def find_admitted_configs(self, request: requests.Admits, reply: Reply) -> replies.Admitted:
        """Return for each of the request's configs whether the kernel's space admits it."""
        space = load_kernel(request.kernel, self.places).bind_space(request.problem)
        return replies.Admitted(tuple(config in space for config in request.configs))


COUNTED_SPACE = 20_000
"""A space of up to this many candidates is walked to its end, to count its configs and to see that there are any."""


def _check_spaces(kernel: Kernel) -> None:
    """Check a kernel's spaces for its declared problems, so that mistakes show on saving, not when a job starts.

    Raises:
        KernelFileError: a space is empty, lacks the default config, or its code fails; or the kernel function uses a
            name that does not exist.
    """
    for problem in kernel.list_represented_problems():
        space = kernel.bind_space(problem)
        is_small = space.size is None or space.size <= COUNTED_SPACE
        first = next(iter(space)) if is_small else space.at(0)
        if kernel.default is not None and kernel.default not in space:
            default = spell_values(kernel.default)
            raise kernel.site.make_error(
                f"the default {default} is not in the space for the problem {spell_values(problem)}",
                hint="give a default that `where` admits for every declared problem, or loosen `where`",
            )
        config = kernel.default or first
        if config is not None:
            kernel.check_function(problem, config)
