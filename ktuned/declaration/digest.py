"""The description of a kernel for the daemon, with three digests that decide which old results can be used again.

================  ===================================================  ====================================
digest            made of                                              while it is equal
================  ===================================================  ====================================
source_digest     the sources, or all Python files if there are none   artifacts need not be compiled again
digest            source_digest, imported Python, installed packages,  measurements hold
                  and what the kernel declares
plan_digest       space, problems, default and budgets, and the        there is nothing more to explore
                  Python that makes them
================  ===================================================  ====================================

Each is a SHA-256 over labelled texts. The names in these texts must be the same on any machine, so that winners can be
shared: paths are relative to the kernel file, and modules outside the project go by their names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ktuned.declaration.declared_files import find_declared_files
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.value_text import describe_value
from ktuned.dependencies import ACCESSES, OBSERVER, digest_meaning, find_owners, mentions_source_text
from ktuned.ipc import Untrusted, read_regular_file, stamp_files
from ktuned.model import KernelInfo, ProjectName, canonical

DIGEST_VERSION = 4
"""Raised whenever the texts below change, because every digest changes with them."""

_JUDGING = (
    *("backend", "check", "setup", "rtol", "atol", "max_mismatched_ratio", "has_exact_integers", "timing"),
    *("metrics", "expects_default_outputs"),
)
"""Declared values that a measurement depends on even if machine code, arguments and data are equal."""

_MEASURED = (*_JUDGING, "function", "inputs", "reference", "bucket_rules", "cores", "flops", "bytes")
_PLANNED = ("space", "default", "specialize")


def describe_kernel(kernel: Kernel, project: str, root: Path) -> KernelInfo:
    """Return the description of a kernel. Call this right after its file was loaded.

    Raises:
        KernelFileError: a source cannot be read or trusted, or ``problems`` is at fault.
    """
    root = root.resolve()
    # The sources count by their bytes, Python sources by their syntax.
    with ACCESSES.pause_recording():
        sources = _read_sources(kernel)
    try:
        OBSERVER.check_trust(sources)
    except Untrusted as error:
        raise kernel.site.make_error(error.message, hint=error.hint) from error
    home = kernel.file.parent
    bytes_of = {path: hashlib.sha256(content).hexdigest() for path, content in sources.items()}
    texts = {
        _label_file(path, home): digest_meaning(path, sources[path]) or digest for path, digest in bytes_of.items()
    }
    # Other files that the import has read, and the files that the kernel declares because it reads them unobserved.
    python = _digest_python_files(kernel.file, root)
    packages, records = _identify_distributions()
    with ACCESSES.pause_recording():
        declared = find_declared_files(kernel)
    # The declared values, divided into those that decide measurements and those of the plan.
    arguments = {name: describe_value(getattr(kernel, name)) for name in _MEASURED}
    problems = kernel.list_represented_problems()
    plan = {name: describe_value(getattr(kernel, name)) for name in _PLANNED}
    plan |= {
        "plan": describe_value(msgspec.to_builtins(kernel.plan)),
        "problems": describe_value(problems),
        "python": _digest_together(python),
    }
    judging = {name: arguments[name] for name in _JUDGING}
    # The digests.
    source_digest = _digest_together(texts or python)
    digest = _digest_together({"source": source_digest, **python, **packages, **declared.parts, **arguments, **judging})
    native = {label: text for label, text in python.items() if kernel.judges or not label.endswith(".py")}
    besides = {**native, **packages, **declared.parts, **judging}
    # The files to watch, with digests of the bytes that were read, because the files may have changed since.
    read = {kernel.file, *OBSERVER.files, *records, *sources, *declared.files}
    held = OBSERVER.files | declared.files | bytes_of
    return KernelInfo(
        project=ProjectName(project),
        kernel=kernel.name,
        file=str(kernel.file),
        line=kernel.site.line,
        backend=kernel.backend,
        digest=digest,
        source_digest=source_digest,
        plan_digest=_digest_together(plan),
        sources=tuple(map(str, kernel.source_paths)),
        stamps=stamp_files(sorted(read), held),
        problems=problems,
        default=None if kernel.default is None else dict(kernel.default),
        specialize=kernel.specialize,
        bucket=kernel.bucket_rules,
        space=kernel.space.describe_space(),
        plan=kernel.plan,
        knobs=tuple(kernel.space.knobs or ()),
        file_parts=_digest_each(texts),
        python_parts=_digest_each({**python, **packages}),
        argument_parts=_digest_each({**arguments, **declared.parts}),
        plan_parts=_digest_each(plan),
        data_digest=_digest_together(besides),
        judges=kernel.judges,
        is_judged=kernel.is_judged,
        expects_default_outputs=kernel.expects_default_outputs,
        metrics=tuple(kernel.metrics),
        given=kernel.given,
        version=digest[:16],
        is_data=kernel.is_data,
        unobserved_read=next(iter(ACCESSES.unobserved), ""),
        declares_reads=bool(kernel.depends),
    )


def digest_inputs(inputs: Mapping[str, object]) -> str:
    """Return a digest of a problem's declared inputs; tensors that the kernel file has made count by their bytes."""
    described = {name: describe_value(spec) for name, spec in inputs.items()}
    return hashlib.sha256(_encode_text(canonical(described))).hexdigest()


def _digest_python_files(kernel_file: Path, root: Path) -> dict[str, str]:
    """Return a digest of each imported file by its label.

    The label is the same on any machine: inside the project the path from the kernel file, outside the module's name.
    """
    modules = OBSERVER.map_files_to_modules()
    executed = {path: OBSERVER.read_content(path) for path in OBSERVER.executed_files}
    has_text_read = any(mentions_source_text(path, content) for path, content in executed.items())
    found = {}
    for path, digest in OBSERVER.files.items():
        end = OBSERVER.import_end if path == kernel_file else None
        meaning = "" if has_text_read or path not in executed else digest_meaning(path, executed[path], end)
        module = modules.get(path, "")
        is_inside = path.is_relative_to(root) or path == kernel_file or not module
        label = _label_file(path, kernel_file.parent) if is_inside else f"{module.replace('.', '/')}{path.suffix}"
        found[label] = meaning or digest
    return found


def _identify_distributions() -> tuple[dict[str, str], set[Path]]:
    """Return digests of the installed distributions that the code imports by name, and the files that list these."""
    owners = [owner for place in OBSERVER.find_installed_imports() for owner in find_owners(place)]
    contents = {f"{owner.name} (installed)": owner.digest_contents() for owner in owners}
    return contents, {owner.record for owner in owners}


def _read_sources(kernel: Kernel) -> dict[Path, bytes]:
    """Return the bytes of the declared sources. What these include is learned when they are compiled."""
    found: dict[Path, bytes] = {}
    for name, path in zip(kernel.sources, kernel.source_paths, strict=True):
        try:
            found[path] = read_regular_file(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            hint = "sources are relative to the kernel file"
            raise kernel.site.make_error(f"the source {name!r} does not exist", hint=hint) from error
        except OSError as error:
            raise kernel.site.make_error(f"the source {name!r} cannot be read: {error.strerror}") from error
    return found


def _label_file(path: Path, home: Path) -> str:
    return Path(os.path.relpath(path, home)).as_posix()


def _digest_each(texts: Mapping[str, str]) -> dict[str, str]:
    return {label: hashlib.sha256(_encode_text(text)).hexdigest()[:16] for label, text in sorted(texts.items())}


def _digest_together(texts: Mapping[str, str]) -> str:
    total = hashlib.sha256(f"ktuned digest {DIGEST_VERSION}\n".encode())
    for label, text in sorted(texts.items()):
        # Add the text's digest, so that no text can imitate the boundary between two texts.
        total.update(_encode_text(label) + b"\0" + hashlib.sha256(_encode_text(text)).digest())
    return total.hexdigest()


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
