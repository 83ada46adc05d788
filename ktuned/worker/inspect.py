"""Kernel files in a worker: imports them and reports what they declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ktuned.backends import Registry
from ktuned.dependencies import ACCESSES, OBSERVER, FreshProcessNeeded
from ktuned.ipc import DIRECTORY, Places, make_relative, replies, requests, stamp, stamp_files, stamps_agree
from ktuned.model import (
    BackendError,
    KernelFileError,
    KernelInfo,
    NotFound,
    Phase,
    canonical,
)
from ktuned.spec import describe_kernel, load_file, load_unless_held
from ktuned.worker.code_trace import entries, names_of
from ktuned.worker.trace import SourceChanged, look

if TYPE_CHECKING:
    from ktuned.spec import Kernel
    from ktuned.worker.reply import Reply


def check_digests(kernel: requests.KernelRef, places: Places) -> None:
    """Check that a kernel's files still hold the bytes that were inspected.

    Raises:
        SourceChanged: one does not; its results must not be recorded under the old digest.
    """
    for path, digest in digests_of(kernel, places).items():
        # The bytes that were compiled, where this process has them: the file may have had others for a moment.
        if not stamps_agree(digest, stamp(path)) or OBSERVER.find_digest(path) not in (None, digest):
            raise SourceChanged(f"{path} changed after it was inspected")


def digests_of(kernel: requests.KernelRef, places: Places) -> dict[Path, str]:
    """Return the files that a kernel was inspected in, with their digests, on this machine."""
    return {places.locate_file(kernel.project, name): digest for name, digest in kernel.digests.items()}


def files_of(kernel: requests.KernelRef, places: Places) -> list[Path]:
    """Return the files among those that a kernel was inspected in, without the directories."""
    return [path for path, digest in digests_of(kernel, places).items() if not digest.startswith(DIRECTORY)]


def load_kernel(wanted: requests.KernelRef, places: Places) -> Kernel:
    """Import a kernel file afresh and return the kernel that a request names.

    Raises:
        KernelFileError: the file cannot be imported.
        NotFound: it declares no such kernel.
        SourceChanged: it is no longer the file that was inspected.
    """
    root, path = places.locate_root(wanted.project), places.locate_file(wanted.project, wanted.file)
    OBSERVER.check_trust(files_of(wanted, places))
    loaded = load_unless_held(path, root, digests_of(wanted, places))
    check_digests(wanted, places)
    for kernel in loaded.kernels:
        if kernel.name == wanted.kernel:
            return kernel
    if loaded.errors:
        raise loaded.errors[0]
    raise NotFound(f"{path} declares no kernel {wanted.kernel!r}")


class Inspector:
    """Inspects kernel files, and holds the space that one job explores."""

    def __init__(self, registry: Registry, places: Places) -> None:
        self._registry = registry
        self._places = places

    def inspect(self, request: requests.Inspect, reply: Reply) -> replies.Empty:
        """Import each of the request's files and send an item for it."""
        reply.phase(Phase.INSPECT)
        root = self._places.locate_root(request.project)
        for position, name in enumerate(request.files):
            path = self._places.locate_file(request.project, name)
            try:
                item = self._inspect_file(name, path, root, request)
            except FreshProcessNeeded as needed:
                raise FreshProcessNeeded(replace(request, files=request.files[position:])) from needed
            reply.item(item)
        return replies.Empty()

    def _inspect_file(self, name: str, path: Path, root: Path, request: requests.Inspect) -> replies.InspectedFile:
        loaded = load_file(path, root, self._registry.names)
        kernels = []
        errors = list(loaded.errors)
        files = set(loaded.files)
        for kernel in loaded.kernels:
            try:
                _check_spaces(kernel)
                info = replace(
                    describe_kernel(kernel, request.name or request.project, root), backend=self._backend_of(kernel)
                )
                kernels.append(_below(info, str(root)))
            except KernelFileError as error:
                errors.append(error)
                # One of these may be missing, and its appearance would mend the kernel.
                files.update(kernel.source_paths)
        # An import may have read what any of the kernels is made of.
        reached = entries(names_of(ACCESSES.files, str(root)), str(root), is_data=True, is_source=True)
        kernels = [
            info.with_observed([*reached, *(look(entry, str(root)) for entry in request.learned.get(info.kernel, ()))])
            for info in kernels
        ]
        return replies.InspectedFile(
            file=name,
            kernels=tuple(kernels),
            errors=tuple(
                replies.FileFault(error.code, error.message, error.hint, error.path, error.line, error.excerpt)
                for error in errors
            ),
            digests=self._stamps(files, {**loaded.files, **ACCESSES.files}, str(root)),
        )

    def _stamps(self, files: set[Path], known: Mapping[Path, str], root: str) -> dict[str, str]:
        """Return the stamps of all that had a part in an inspection: also of data that a failed import has read."""
        found = stamp_files(sorted({*files, *known}), known)
        return {make_relative(path, root): digest for path, digest in found.items()}

    def _backend_of(self, kernel: Kernel) -> str:
        """Return the backend that a kernel's sources choose within the family that its file names."""
        try:
            backend = self._registry.load(kernel.backend)
            return backend.for_sources(kernel.source_paths)
        except BackendError:
            # A job that needs it fails with the reason.
            return kernel.backend

    def represent(self, request: requests.Represent, reply: Reply) -> replies.Represented:
        """Return the problem that stands for the request's one."""
        return replies.Represented(load_kernel(request.kernel, self._places).represent(request.problem))

    def admits(self, request: requests.Admits, reply: Reply) -> replies.Admitted:
        """Return which of the request's configs the kernel's space admits."""
        space = load_kernel(request.kernel, self._places).bind_space(request.problem)
        return replies.Admitted(tuple(config in space for config in request.configs))


def _below(kernel: KernelInfo, root: str) -> KernelInfo:
    """Return an inspected kernel with its paths relative to the project's directory, as it is sent."""
    return replace(
        kernel,
        file=make_relative(kernel.file, root),
        sources=tuple(make_relative(source, root) for source in kernel.sources),
        stamps={make_relative(path, root): digest for path, digest in kernel.stamps.items()},
    )


COUNTED_SPACE = 20_000
"""A space of at most this many candidates is walked to its end: to count it, and to learn that it is not empty."""


def _check_spaces(kernel: Kernel) -> None:
    """Find an empty or broken space, a default outside it, or a misspelt name in the kernel function, when the file is
    saved and not when a job starts.

    Raises:
        KernelFileError: the space is empty for a declared problem or lacks the default, or its code fails; or the
            kernel function names something that does not exist.
    """
    for problem in kernel.list_represented_problems():
        space = kernel.bind_space(problem)
        is_small = space.size is None or space.size <= COUNTED_SPACE
        first = next(iter(space)) if is_small else space.at(0)
        if kernel.default is not None and kernel.default not in space:
            raise kernel.site.make_error(
                f"the default {canonical(kernel.default)} is not in the space for the problem {canonical(problem)}",
                hint="give a default that `where` admits for every declared problem, or loosen `where`",
            )
        config = kernel.default or first
        if config is not None:
            kernel.check_function(problem, config)
