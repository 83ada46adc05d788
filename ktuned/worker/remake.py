"""Making a winner again: what a fresh process makes of the present sources, for comparison with what was made before.

No observer sees everything: a datagram, shared memory, or a service may decide what a kernel file declares. So the
daemon has the winners in use made again from time to time, and at once if what was read has changed, because it may
decide nothing. Each part is reported as a digest of its own, because some compilers never give the same bytes twice.
"""

from __future__ import annotations

import os
import resource
import tempfile
from contextlib import suppress
from pathlib import Path

from ktuned.backends import Registry
from ktuned.declaration import describe_kernel, digest_inputs
from ktuned.dependencies import OBSERVER, FreshProcessNeeded
from ktuned.ipc import Places, manifest, replies, requests, stamp
from ktuned.model import Phase, canonical, sha256
from ktuned.worker.compile import make_unit
from ktuned.worker.inspect import load_kernel
from ktuned.worker.reply import Reply

STARTS_CPU_S = 0.3
"""CPU time of a worker's start, which cannot be told from what the same process did before it started again."""


def remake_winner(registry: Registry, places: Places, request: requests.Remake, reply: Reply) -> replies.Remade:
    """Inspect a kernel, and make a config's Build, inputs and artifact, in a fresh process.

    Raises:
        FreshProcessNeeded: this process has loaded a kernel file before.
        SourceChanged: a file is no longer what was inspected.
        KernelFileError: the kernel file's code fails.
    """
    if OBSERVER.generation:
        raise FreshProcessNeeded("it has loaded a kernel file before")
    began_s = _read_cpu_seconds()
    if not request.is_awaited:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    kernel = load_kernel(request.kernel, places)
    root = places.locate_root(request.kernel.project)
    build = kernel.build(request.problem, request.config).to_plain()
    parts = {
        "inspection": describe_kernel(kernel, request.kernel.project, root).version,
        "build": sha256(canonical(build)),
        "inputs": digest_inputs(kernel.evaluate_inputs(request.problem)),
    }
    reply.begin_phase(Phase.COMPILE)
    parts["artifact"] = _compile_artifact(registry, places, request, requests.UnitRef("remade", build))
    return replies.Remade(parts, STARTS_CPU_S + _read_cpu_seconds() - began_s)


def _read_cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _compile_artifact(registry: Registry, places: Places, request: requests.Remake, unit: requests.UnitRef) -> str:
    """Return the digest of the files that decide what an artifact does, or why it does not compile."""
    backend = registry.load(request.kernel.backend)
    made = make_unit(registry, places, request.kernel, request.target, unit)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch, made.key)
        directory.mkdir()
        for compiled in backend.compile([made], Path(scratch)):
            if compiled.outcome is not None:
                return f"{compiled.outcome} {compiled.message}"
        names = backend.decisive_files or backend.required_files
        return manifest.digest_content({name: stamp(directory / name) for name in names})
