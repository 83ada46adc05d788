"""Description of a kernel for the daemon, with three digests of its meaning.

The digests are SHA-256 over labelled texts:

* ``source_digest``: the sources' bytes (or the Python files, when there are none);
* ``digest``: that, all Python files that were imported, and the values that the kernel declares;
* ``plan_digest``: the space, the problems, the default and the budgets, with the Python that they are made by.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from ktuned.ipc import Untrusted, stamps
from ktuned.model import BUCKET_FUNCTION, KernelInfo, ProjectName
from ktuned.spec import distributions
from ktuned.spec.accesses import ACCESSES
from ktuned.spec.declared_files import find_declared_files
from ktuned.spec.declared_kernel import Kernel
from ktuned.spec.observer import OBSERVER
from ktuned.spec.python_files import digest_meaning, mentions_source_text
from ktuned.spec.value_text import describe_value

DIGEST_VERSION = 4
"""Raised whenever the texts below change, because every digest then does."""

_JUDGING = (
    *("backend", "check", "setup", "rtol", "atol", "max_mismatched_ratio", "has_exact_integers", "timing"),
    *("metrics", "expects_default_outputs"),
)
"""What decides whether a figure of equal machine code, arguments and data holds."""

_MEASURED = (*_JUDGING, "function", "inputs", "reference", "bucket_rules", "cores", "flops", "bytes")
_PLANNED = ("space", "default", "specialize")


def describe_kernel(kernel: Kernel, project: str, root: Path) -> KernelInfo:
    """Return the description of a kernel, right after its file was loaded.

    ``extra`` holds ``knobs`` (their names; none for a callable's space), ``metrics``
    (whether each takes the energy), ``data_digest`` (over what decides a figure besides machine code,
    arguments and the data that a lane makes; all of its Python where that ``judges``) and,
    to find what changed, ``files``, ``python``, ``arguments`` and ``plan``: the short digests of each source file, each
    Python file and distribution, each declared value and each part of the plan by their labels.

    Raises:
        KernelFileError: a source cannot be read, or ``problems`` is at fault.
    """
    root = root.resolve()
    with ACCESSES.apart():
        sources = _read_sources(kernel)
    try:
        OBSERVER.check(sources)
    except Untrusted as error:
        raise kernel.site.make_error(error.message, hint=error.hint) from error
    home = kernel.file.parent
    bytes_of = {path: hashlib.sha256(content).hexdigest() for path, content in sources.items()}
    texts = {
        _label_file(path, home): digest_meaning(path, sources[path]) or digest for path, digest in bytes_of.items()
    }
    python = _digest_python_files(kernel.file, root)
    packages, records = _identify_distributions()
    with ACCESSES.apart():
        declared = find_declared_files(kernel)
    arguments = {name: describe_value(getattr(kernel, name)) for name in _MEASURED}
    problems = kernel.list_represented_problems()
    weights = kernel.sum_weights(problems)
    plan = {name: describe_value(getattr(kernel, name)) for name in _PLANNED}
    plan |= {
        "plan": describe_value(kernel.plan.to_wire()),
        "problems": describe_value(problems),
        "python": _digest_together(python),
    }
    if kernel.best_for == "all":
        plan["best_for"] = describe_value(weights)
    judging = {name: arguments[name] for name in _JUDGING}
    if kernel.batch_invariant:
        for problem in problems:
            kernel.find_batch_group(problem)
        # The inputs of each are a part of those of the largest one, whose outputs are digested by the others' sizes.
        judging["batch_invariant"] = describe_value([list(kernel.batch_invariant), *problems])
    portfolio = None if kernel.portfolio is None else kernel.evaluate_portfolio()
    source_digest = _digest_together(texts or python)
    digest = _digest_together({"source": source_digest, **python, **packages, **declared.parts, **arguments, **judging})
    native = {label: text for label, text in python.items() if kernel.judges or not label.endswith(".py")}
    besides = {**native, **packages, **declared.parts, **judging}
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
        stamps=stamps(sorted(read), held),
        problems=problems,
        default=None if kernel.default is None else dict(kernel.default),
        specialize=kernel.specialize,
        bucket={name: BUCKET_FUNCTION if callable(rule) else rule for name, rule in kernel.bucket_rules.items()},
        space=kernel.space.to_plain(),
        plan=kernel.plan,
        extra={
            "knobs": list(kernel.space.knobs or ()),
            "files": _digest_each(texts),
            "python": _digest_each({**python, **packages}),
            "arguments": _digest_each({**arguments, **declared.parts}),
            "plan": _digest_each(plan),
            "data_digest": _digest_together(besides),
            "given": list(kernel.given),
            **({"judges": True} if kernel.judges else {}),
            "metrics": {name: name in kernel.energy_metrics for name in kernel.metrics},
            "judged": kernel.is_judged,
            "expects_default_outputs": kernel.expects_default_outputs,
            "version": digest[:16],
            **({"weights": list(weights)} if kernel.best_for == "all" else {}),
            **({"batch_invariant": [list(kernel.batch_invariant), list(weights)]} if kernel.batch_invariant else {}),
            **({"is_data": True} if kernel.is_data else {}),
            **({} if portfolio is None else {"portfolio": portfolio}),
            "unobserved": next(iter(ACCESSES.unobserved), ""),
            "declares": bool(kernel.depends),
        },
    )


def _digest_python_files(kernel_file: Path, root: Path) -> dict[str, str]:
    """Return what each file that was imported counts by, by what it is called on any machine.

    Inside the project that is its path from the kernel file, outside its module's name.
    """
    modules = OBSERVER.modules_by_file()
    executed = {path: OBSERVER.read(path) for path in OBSERVER.executed}
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
    """Return the identities of the installed distributions that the code imports by name, and the files of those."""
    owners = [owner for place in OBSERVER.installed_imports() for owner in distributions.owners(place)]
    return {f"{owner.name} (installed)": owner.identity() for owner in owners}, {owner.record for owner in owners}


def _read_sources(kernel: Kernel) -> dict[Path, bytes]:
    """Return the sources with their bytes. What they include is known once they have been compiled."""
    found: dict[Path, bytes] = {}
    for name, path in zip(kernel.sources, kernel.source_paths, strict=True):
        if not path.is_file():
            raise kernel.site.make_error(
                f"the source {name!r} does not exist", hint="sources are relative to the kernel file"
            )
        try:
            found[path] = path.read_bytes()
        except OSError as error:
            raise kernel.site.make_error(f"the source {error.filename} cannot be read: {error.strerror}") from error
    return found


def _label_file(path: Path, home: Path) -> str:
    return Path(os.path.relpath(path, home)).as_posix()


def _digest_each(texts: Mapping[str, str]) -> dict[str, str]:
    return {label: hashlib.sha256(_encode(text)).hexdigest()[:16] for label, text in sorted(texts.items())}


def _digest_together(texts: Mapping[str, str]) -> str:
    total = hashlib.sha256(f"ktuned digest {DIGEST_VERSION}\n".encode())
    for label, text in sorted(texts.items()):
        # The text's own digest, so that no text can imitate the boundary between two.
        total.update(_encode(label) + b"\0" + hashlib.sha256(_encode(text)).digest())
    return total.hexdigest()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
