"""The compile operation: a group of units becomes sealed artifacts, or the outcomes that say why not."""

from __future__ import annotations

import shutil

from ktuned.backends import Registry, Unit
from ktuned.ipc import Places, replies, requests
from ktuned.model import BackendError, Outcome, Phase
from ktuned.spec import OBSERVER, forget_modules
from ktuned.worker import bytecode
from ktuned.worker.inspect import check_digests, digests_of
from ktuned.worker.reply import Reply
from ktuned.worker.seal import seal


def unit_of(
    registry: Registry, places: Places, kernel: requests.KernelRef, target: str, unit: requests.UnitRef
) -> Unit:
    """Return a unit as backends take it, with the paths of this machine."""
    return Unit(
        key=unit.key,
        build=registry.load(kernel.backend).build.from_plain(unit.build),
        sources=tuple(places.file(kernel.project, source) for source in kernel.sources),
        kernel_file=places.file(kernel.project, kernel.file),
        kernel=kernel.kernel,
        target=target,
    )


def compile_units(registry: Registry, places: Places, request: requests.Compile, reply: Reply) -> replies.Empty:
    """Compile and seal the request's units, and send an item for each as it is ready.

    A unit whose sources changed meanwhile is no result: the request fails with ``source_changed``.
    """
    kernel = request.kernel
    with bytecode.written():
        backend = registry.load(kernel.backend)
    into = places.staging(request.staging)
    units = [unit_of(registry, places, kernel, request.target, unit) for unit in request.units]
    for unit in units:
        shutil.rmtree(into / unit.key, ignore_errors=True)
        (into / unit.key).mkdir(parents=True)
    check_digests(kernel, places)
    OBSERVER.check(digests_of(kernel, places))
    # A Build may name a function of the kernel file: it must be the one that was digested.
    if not OBSERVER.holds(places.file(kernel.project, kernel.file), digests_of(kernel, places)):
        forget_modules()
    reply.phase(Phase.COMPILE)
    for compiled in backend.compile(units, into):
        check_digests(kernel, places)
        outcome, message, content, size = compiled.outcome, compiled.message, "", 0
        if outcome is None:
            try:
                sealed, size = seal(
                    into / compiled.key,
                    places.artifact(compiled.key),
                    key=compiled.key,
                    backend=backend.name,
                    facts=compiled.facts,
                    required=backend.required_files,
                    decisive=backend.decisive_files,
                )
                content = sealed.content
            except BackendError as error:
                outcome, message = Outcome.COMPILE_ERROR, error.message
        reply.item(
            replies.CompiledUnit(
                key=compiled.key,
                outcome=outcome,
                message=message,
                seconds=compiled.seconds,
                facts=dict(compiled.facts),
                content=content,
                bytes=size,
            )
        )
    return replies.Empty()
