"""Description of a kernel for the daemon, with three digests of its meaning.

The digests are SHA-256 over labelled texts:

* ``source_digest``: the sources' bytes (or the kernel function, when there are none);
* ``digest``: that, the kernel function, and what decides the data, the check and the call;
* ``plan_digest``: the space, the problems, the default and the budgets.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ktuned.ipc import Untrusted, stamps
from ktuned.model import BUCKET_FUNCTION, KernelInfo, ProjectName
from ktuned.spec.accesses import ACCESSES
from ktuned.spec.declaration import kernel as declare
from ktuned.spec.declared_files import declared_files
from ktuned.spec.declared_kernel import Kernel
from ktuned.spec.observer import OBSERVER
from ktuned.spec.python_reach import Reach
from ktuned.spec.python_syntax import meaning, parse

DIGEST_VERSION = 3
"""Raised whenever the texts below change, because every digest then does."""


def describe(kernel: Kernel, project: str, root: Path) -> KernelInfo:
    """Return the description of a kernel, right after its file was loaded.

    ``extra`` holds ``knobs`` (their names; none for a callable's space), ``metrics``
    (whether each takes the energy), ``data_digest`` (over what decides data and checks alone) and,
    to find what changed, ``files``, ``definitions`` and ``plan``: the short digests of each source file, each Python
    definition and each part of the plan by their labels.

    Raises:
        KernelFileError: a source cannot be read, or ``problems`` is at fault.
    """
    root = root.resolve()
    sources = _sources(kernel)
    try:
        OBSERVER.check(sources)
    except Untrusted as error:
        raise kernel.site.error(error.message, hint=error.hint) from error
    home = kernel.file.parent
    texts = {_relative(path, home): _source_text(path, content) for path, content in sources.items()}
    function, measured, plan = (Reach(kernel.file, root, _is_declaration) for _ in range(3))
    try:
        _reach(kernel, function, measured, plan)
    except Untrusted as error:
        raise kernel.site.error(error.message, hint=error.hint) from error
    except (OSError, SyntaxError, RecursionError) as error:
        raise kernel.site.failure("its Python files cannot be followed", error) from error
    with ACCESSES.apart():
        declared = declared_files(kernel)
    measured.parts |= declared.parts
    problems = kernel.represented_problems()
    plan.add("problems", problems)
    weights = kernel.weights_of(problems)
    if kernel.best_for == "all":
        plan.add("best_for", weights)
    if kernel.batch_invariant:
        for problem in problems:
            kernel.find_batch_group(problem)
        # The inputs of each are a part of those of the largest one, whose outputs are digested by the others' sizes.
        measured.add("batch_invariant", [list(kernel.batch_invariant), *problems])
    portfolio = None if kernel.portfolio is None else kernel.portfolio_wanted()
    source_digest = _digest(texts if kernel.sources else function.parts)
    read = {kernel.file, *OBSERVER.files, *function.files, *measured.files, *plan.files}
    held = {path: hashlib.sha256(content).hexdigest() for path, content in sources.items()}
    digest = _digest({"source": source_digest, **function.parts, **measured.parts})
    return KernelInfo(
        project=ProjectName(project),
        kernel=kernel.name,
        file=str(kernel.file),
        line=kernel.site.line,
        backend=kernel.backend,
        digest=digest,
        source_digest=source_digest,
        plan_digest=_digest(plan.parts),
        sources=tuple(map(str, kernel.source_paths)),
        stamps=stamps(sorted({*read, *held, *declared.files}), OBSERVER.files | declared.files | held),
        problems=problems,
        default=None if kernel.default is None else dict(kernel.default),
        specialize=kernel.specialize,
        bucket={name: BUCKET_FUNCTION if callable(rule) else rule for name, rule in kernel.bucket_rules.items()},
        space=kernel.space.to_plain(),
        plan=kernel.plan,
        extra={
            "knobs": list(kernel.space.knobs or ()),
            "files": _each(texts),
            "definitions": _each(function.parts | measured.parts),
            "plan": _each(plan.parts),
            "data_digest": _digest(measured.parts),
            "given": list(kernel.given),
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


def _reach(kernel: Kernel, function: Reach, measured: Reach, plan: Reach) -> None:
    function.add("function", kernel.function)
    for name in ("inputs", "reference", "check", "setup", "backend", "rtol", "atol", "max_mismatched_ratio", "timing"):
        measured.add(name, getattr(kernel, name))
    if kernel.expects_default_outputs:
        measured.add("default outputs", kernel.space if kernel.default is None else kernel.default)
    if not kernel.has_exact_integers:
        measured.add("tolerates integers", True)
    if kernel.cores is not None:
        # Not where it is left out: digests of the many kernels without it are as they were before there was one.
        measured.add("cores", kernel.cores)
    for name, metric in kernel.metrics.items():
        measured.add(f"metric {name}", metric)
    for name, rule in kernel.bucket_rules.items():
        # Part of the context: another bucket is another problem that is measured.
        measured.add(f"bucket {name}", rule)
    for name in ("flops", "bytes"):
        if getattr(kernel, name) is not None:
            measured.add(name, getattr(kernel, name))
    for name in ("space", "default", "specialize"):
        plan.add(name, getattr(kernel, name))
    plan.add("plan", kernel.plan.to_wire())
    modules = OBSERVER.modules()
    function.add_imports(modules)
    # What an import does decides the data and the figures too: a variable that the inputs read, a precision.
    measured.add_imports(modules)
    if plan.files:
        # The code of the space, too, may do something else after another import.
        plan.add_imports(modules)


def _is_declaration(value: object) -> bool:
    return value is declare or value is Kernel


def _sources(kernel: Kernel) -> dict[Path, bytes]:
    """Return the sources with their bytes. What they include is known once they have been compiled."""
    found: dict[Path, bytes] = {}
    for name, path in zip(kernel.sources, kernel.source_paths, strict=True):
        if not path.is_file():
            raise kernel.site.error(
                f"the source {name!r} does not exist", hint="sources are relative to the kernel file"
            )
        try:
            found[path] = path.read_bytes()
        except OSError as error:
            raise kernel.site.error(f"the source {error.filename} cannot be read: {error.strerror}") from error
    return found


def _source_text(path: Path, content: bytes) -> str:
    return _parsed(path, content) or hashlib.sha256(content).hexdigest()


def file_meaning(path: Path, content: bytes) -> str:
    """Return the digest of a Python file's syntax, whatever its comments and layout; nothing for any other file."""
    text = _parsed(path, content)
    return hashlib.sha256(_encoded(text)).hexdigest() if text else ""


def _parsed(path: Path, content: bytes) -> str:
    if path.suffix == ".py":
        with suppress(SyntaxError):
            return meaning(parse(path, content).tree)
    return ""


def _relative(path: Path, home: Path) -> str:
    return Path(os.path.relpath(path, home)).as_posix()


def _each(texts: Mapping[str, str]) -> dict[str, str]:
    return {label: hashlib.sha256(_encoded(text)).hexdigest()[:16] for label, text in sorted(texts.items())}


def _digest(texts: Mapping[str, str]) -> str:
    total = hashlib.sha256(f"ktuned digest {DIGEST_VERSION}\n".encode())
    for label, text in sorted(texts.items()):
        # The text's own digest, so that no text can imitate the boundary between two.
        total.update(_encoded(label) + b"\0" + hashlib.sha256(_encoded(text)).digest())
    return total.hexdigest()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
