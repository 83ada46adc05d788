"""Which kernels exist: what was inspected, by root and file; what a new inspection changed. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ktuned.errors import AmbiguousName, NotFound
from ktuned.fleet.process import Environment
from ktuned.model import KernelInfo, Root


@dataclass(frozen=True, slots=True)
class FileError:
    """What is wrong with a kernel file: one line, and where."""

    path: str
    line: int
    message: str
    hint: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Return the protocol's error entry."""
        return {"path": self.path, "line": self.line, "message": self.message, "hint": self.hint}


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a worker found in one kernel file; ``stamps`` are the files that had a part in it."""

    file: str
    kernels: tuple[KernelInfo, ...] = ()
    errors: tuple[FileError, ...] = ()
    stamps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of kernels that an inspection added, changed (digest), replanned (only the plan) or removed."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    replanned: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    errors: tuple[FileError, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.replanned or self.removed or self.errors)


class Catalog:
    """The kernels of all roots, by full name and by file."""

    def __init__(self, roots: Iterable[Root] = (), kernels: Iterable[KernelInfo] = ()) -> None:
        self._roots = {root.path: root for root in roots}
        self._kernels = {kernel.name: kernel for kernel in kernels if self._owner(kernel.file) is not None}
        self._errors: dict[str, tuple[FileError, ...]] = {}
        self._stamps: dict[str, Mapping[str, str]] = {}

    @property
    def roots(self) -> list[Root]:
        """All watched roots, by path."""
        return [self._roots[path] for path in sorted(self._roots)]

    @property
    def kernels(self) -> list[KernelInfo]:
        """All kernels, by name."""
        return [self._kernels[name] for name in sorted(self._kernels)]

    @property
    def errors(self) -> list[FileError]:
        """What is wrong with kernel files now."""
        return [error for file in sorted(self._errors) for error in self._errors[file]]

    def add_root(self, root: Root) -> None:
        """Watch one more root, or the same one with another interpreter or name."""
        self._roots[root.path] = root

    def root_of(self, path: str) -> Root | None:
        """Return the innermost root that a path lies below."""
        return self._owner(path)

    def environment(self, kernel: KernelInfo) -> Environment:
        """Return whose interpreter runs a kernel's code."""
        root = self._owner(kernel.file)
        if root is None:
            raise NotFound(f"{kernel.file} is below no watched root", hint=f"`ktuned tune {kernel.file}` adds it")
        return environment_of(root)

    def _owner(self, path: str) -> Root | None:
        owners = [root for root in self._roots.values() if is_below(path, root.path)]
        return max(owners, key=lambda root: len(root.path), default=None)

    def resolve(self, name: str) -> KernelInfo:
        """Return the kernel of a full name, or of a short one that is unambiguous.

        Raises:
            NotFound: there is none.
            AmbiguousName: several projects have one of that name.
        """
        exact = self._kernels.get(name)
        if exact is not None:
            return exact
        matches = [kernel for kernel in self.kernels if kernel.kernel == name]
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(kernel.name for kernel in matches)
            raise AmbiguousName(f"the kernel {name!r} is in several projects", hint=f"say which: {names}")
        raise NotFound(f"there is no kernel {name!r}", hint="`ktuned kernels` lists them; `ktuned tune PATH` adds some")

    def below(self, path: str) -> list[KernelInfo]:
        """Return the kernels that a file, or the files below a directory, declare."""
        return [kernel for kernel in self.kernels if is_below(kernel.file, path)]

    def errors_below(self, path: str) -> list[FileError]:
        """Return what is wrong with the kernel files at or below a path."""
        return [error for file, errors in sorted(self._errors.items()) if is_below(file, path) for error in errors]

    def files_of(self, root: Root) -> list[str]:
        """Return the kernel files of a root that were inspected before."""
        known = {kernel.file for kernel in self._kernels.values()} | set(self._errors)
        return sorted(file for file in known if self._owner(file) == root)

    def dependents(self, paths: Iterable[str]) -> set[str]:
        """Return the kernel files whose meaning may depend on any of these files or directories."""
        changed = list(paths)
        found = set()
        for file, stamps in self._all_stamps():
            if any(is_below(stamp, path) for stamp in stamps for path in changed):
                found.add(file)
        return found

    def outside_directories(self) -> set[str]:
        """Return the directories outside every root that hold files which kernels depend on."""
        stamps = {stamp for _, stamped in self._all_stamps() for stamp in stamped}
        return {str(Path(stamp).parent) for stamp in stamps if self._owner(stamp) is None}

    def _all_stamps(self) -> list[tuple[str, Mapping[str, str]]]:
        return [(kernel.file, kernel.stamps) for kernel in self._kernels.values()] + list(self._stamps.items())

    def apply(self, inspections: Sequence[Inspection], removed_files: Iterable[str] = ()) -> Changes:
        """Take in new inspections and the files that are gone; return what that changed.

        A file that can no longer be imported keeps its kernels as they were: their winners are still served.
        """
        added, changed, replanned, removed = [], [], [], []
        errors: list[FileError] = []
        for file in removed_files:
            removed += [name for name, kernel in self._kernels.items() if kernel.file == file]
            self._errors.pop(file, None)
            self._stamps.pop(file, None)
        for inspection in inspections:
            problems = list(inspection.errors)
            for kernel in inspection.kernels:
                before = self._kernels.get(kernel.name)
                if before is not None and before.file != kernel.file and Path(before.file).exists():
                    problems.append(_taken(kernel, before))
                    continue
                self._kernels[kernel.name] = kernel
                if before is None:
                    added.append(kernel.name)
                elif before.digest != kernel.digest:
                    changed.append(kernel.name)
                elif before.plan_digest != kernel.plan_digest:
                    replanned.append(kernel.name)
            if not inspection.errors:
                declared = {kernel.name for kernel in inspection.kernels}
                removed += [
                    name
                    for name, kernel in self._kernels.items()
                    if kernel.file == inspection.file and name not in declared
                ]
            self._note(inspection, problems)
            errors += problems
        for name in removed:
            self._kernels.pop(name, None)
        return Changes(tuple(added), tuple(changed), tuple(replanned), tuple(removed), tuple(errors))

    def _note(self, inspection: Inspection, problems: list[FileError]) -> None:
        self._errors.pop(inspection.file, None)
        self._stamps[inspection.file] = inspection.stamps
        if problems:
            self._errors[inspection.file] = tuple(problems)


def _taken(kernel: KernelInfo, before: KernelInfo) -> FileError:
    message = f"{kernel.file}:{kernel.line}: the name {kernel.name!r} is taken by {before.file}:{before.line}"
    return FileError(kernel.file, kernel.line, message, "give one of them a name=…")


def is_below(path: str, directory: str) -> bool:
    """Tell whether a path is ``directory`` itself or lies below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def environment_of(root: Root) -> Environment:
    """Return the environment that a root's workers run in."""
    return Environment(root.python, root.path, tuple(sorted(root.env.items())))
