"""Compiles groups of units with a backend, and says of each what became of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ktuned.backends import Registry, Unit
from ktuned.model import BackendError, Outcome
from ktuned.spec import forget_modules
from ktuned.worker.inspect import check_stamps
from ktuned.worker.reply import Reply
from ktuned.worker.seal import seal


def unit_of(registry: Registry, request: dict[str, Any], entry: dict[str, Any]) -> Unit:
    """Rebuild a unit from a request's plain data."""
    build = registry.load(request["backend"]).build.from_plain(entry["build"])
    return Unit(
        key=entry["key"],
        build=build,
        sources=tuple(Path(source) for source in request["sources"]),
        kernel_file=Path(request["file"]),
        kernel=request["kernel"],
        target=request["target"],
    )


def compile_units(registry: Registry, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
    """Compile ``units`` into directories below ``into``, and send an item for each as it is ready.

    A unit whose sources changed meanwhile is no result: the request fails with ``source_changed``.
    """
    backend = registry.load(request["backend"])
    into = Path(request["into"])
    units = [unit_of(registry, request, entry) for entry in request["units"]]
    places = {entry["key"]: Path(entry["place"]) for entry in request["units"]}
    for unit in units:
        shutil.rmtree(into / unit.key, ignore_errors=True)
        (into / unit.key).mkdir(parents=True)
    # A Build may name a function of the kernel file: it must be the one that the stamps are of.
    forget_modules(Path(request["root"]))
    reply.phase("compile")
    for compiled in backend.compile(units, into):
        check_stamps(request["stamps"])
        outcome, message, content, size = compiled.outcome, compiled.message, "", 0
        if outcome is None:
            try:
                sealed, size = seal(
                    into / compiled.key,
                    places[compiled.key],
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
            {
                "key": compiled.key,
                "outcome": outcome,
                "message": message,
                "seconds": compiled.seconds,
                "facts": dict(compiled.facts),
                "content": content,
                "bytes": size,
            }
        )
    return {}
