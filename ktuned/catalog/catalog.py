"""The catalog: which kernels are known now, and what a new inspection changes about them. No IO.

Three states of a kernel file matter to the rest of the daemon:

=============  ======================================================================================================
inspected      its kernels are what the file declares; ``stamps`` have the digest of each file that took part in that
suspect        a file in ``stamps`` has changed; the kernel file waits for inspection, and answers are doubted
faulty         the last inspection failed: the kernels of the one before stay, but nothing is tuned with the file
=============  ======================================================================================================

Only :meth:`Catalog.apply_inspections` moves a file to *inspected* or *faulty*; it returns the changes, and its caller
acts on them. A name that compiling or measuring was seen to read (:mod:`ktuned.catalog.traces`) belongs to its kernel
from then on, whether or not a later inspection finds it.

A kernel has one full name, ``project:kernel``. Short names, and the directory from which a request comes, are resolved
here (:meth:`Catalog.resolve_kernel`), and nowhere else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence, Set
from pathlib import Path

from ktuned.catalog.dependencies import Dependents
from ktuned.catalog.project_file import PROJECT_FILE
from ktuned.fleet import Environment
from ktuned.ipc import follow_links
from ktuned.model import (
    AmbiguousName,
    FrozenStruct,
    KernelInfo,
    KernelName,
    NotFound,
    Observation,
    Problem,
    Scalar,
    UsageError,
    get_project_name,
    suggest_name,
)
from ktuned.protocol import FileError, Root

_OF_PROJECT = "project "
"""Prefix of a project's directory as the owner of its project file's stamp."""

_OF_FILE = "file "
"""Prefix of a kernel file as the owner of stamps. Names of kernels have no spaces, so they cannot be confused."""


MAX_CHECKOUTS = 8
"""Checkouts of a kernel whose learned names are looked at when another one is added; a worker looks at each."""

MAX_PROBLEM_SIZE = 4096
"""Most characters of a problem's keys and values. Problems are parts of many keys, and thousands are in memory."""


class Inspection(FrozenStruct):
    """Result of inspecting one kernel file; ``stamps`` are the files that took part."""

    file: str
    kernels: tuple[KernelInfo, ...] = ()
    errors: tuple[FileError, ...] = ()
    stamps: Mapping[str, str] = {}


class Changes(FrozenStruct):
    """The changes that an inspection has found, as names of kernels.

    Attributes:
        added: new kernels.
        changed: kernels whose digest differs.
        replanned: kernels of which only the plan or the place differs.
        removed: kernels that are gone.
        errors: the errors in the inspected files.
        inspected: all kernels that were found, whether or not they differ from before: their files' stamps are new.
        mended: files that had errors before and have none now.
        before: the states of the changed kernels before the changes.
        is_environment: whether the project's environment or interpreter has changed.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    replanned: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    errors: tuple[FileError, ...] = ()
    inspected: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    is_environment: bool = False
    before: Mapping[KernelName, KernelInfo] = {}

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.replanned or self.removed or self.errors or self.mended)

    def combine_with(self, later: Changes) -> Changes:
        """Return these changes and later ones as one."""
        lists = [name for name in self.__struct_fields__ if name not in ("is_environment", "before")]
        both = {name: tuple(dict.fromkeys((*getattr(self, name), *getattr(later, name)))) for name in lists}
        is_environment = self.is_environment or later.is_environment
        return Changes(**both, is_environment=is_environment, before={**later.before, **self.before})


class Catalog:
    """The kernels of all roots, by full name and by file.

    ``learned`` are the names that kernels were observed to read. They are kept even if the kernel is gone.

    Attributes:
        unrepeated: the kernels in use whose winners were not made again for an hour.
        compared: the kernels whose winners are being made again because an entry of their traces has changed.
    """

    def __init__(
        self,
        roots: Iterable[Root] = (),
        kernels: Iterable[KernelInfo] = (),
        learned: Mapping[KernelName, Mapping[str, Observation]] | None = None,
    ) -> None:
        self._learned = {name: dict(entries) for name, entries in (learned or {}).items()}
        self.unrepeated: set[str] = set()
        self.compared: set[str] = set()
        self._roots = {root.path: root for root in roots}
        self._root_listeners: list[Callable[[], None]] = []
        self._kernel_listeners: list[Callable[[Collection[KernelName]], None]] = []
        self._kernels = {kernel.name: kernel for kernel in kernels if self.find_root(kernel.file) is not None}
        self._doubt_listeners: list[Callable[[Collection[KernelName]], None]] = []
        self._errors: dict[str, tuple[FileError, ...]] = {}
        self._faults: dict[str, str] = {}
        self._inspected: set[str] = set()
        self._suspects: set[str] = set()
        self._dependents = Dependents()
        for root in self._roots.values():
            self.record_project_file(root.path, root.project_digest)
        for kernel in self._kernels.values():
            self._dependents.set_dependencies(kernel.name, kernel.file, kernel.stamps)

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
        """The present errors in kernel files."""
        return [error for file in sorted(self._errors) for error in self._errors[file]]

    def when_roots_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when the directories to watch change; it must not raise."""
        self._root_listeners.append(listener)

    def when_kernels_change(self, listener: Callable[[Collection[KernelName]], None]) -> None:
        """Call ``listener`` with the kernels that have just changed or gone; it must not raise."""
        self._kernel_listeners.append(listener)

    def when_doubts_change(self, listener: Callable[[Collection[KernelName]], None]) -> None:
        """Call ``listener`` with the kernels whose files are or were suspected of changes; it must not raise."""
        self._doubt_listeners.append(listener)

    def add_root(self, root: Root) -> None:
        """Watch a new root, or a known root with another interpreter or name."""
        before = self._roots.get(root.path)
        self._roots[root.path] = root
        if before is None or before.project_digest != root.project_digest:
            self.record_project_file(root.path, root.project_digest)
        self._roots_changed()

    def record_project_file(self, path: str, digest: str, error: FileError | None = None) -> None:
        """Note the digest that a root's project file had when it was read, and the error in it, if any."""
        file = os.path.join(path, PROJECT_FILE)
        # The file may be a link to one that many projects share, and which is edited in its own place.
        self._dependents.set_dependencies(
            _OF_PROJECT + path, file, {str(place): digest for place in follow_links(Path(file))}
        )
        self._errors.pop(file, None)
        if error is not None:
            self._errors[file] = (error,)

    def remove_root(self, path: str) -> Changes:
        """Stop watching a root; return the kernels removed with it. Files below another root stay."""
        self._roots.pop(path, None)
        self._dependents.drop_dependencies(_OF_PROJECT + path)
        self._errors.pop(os.path.join(path, PROJECT_FILE), None)
        gone = [name for name, kernel in self._kernels.items() if self.find_root(kernel.file) is None]
        for name in gone:
            self._remove_kernel(name)
        for file in [file for file in self._inspected if self.find_root(file) is None]:
            self._forget_file(file)
        self._roots_changed()
        return Changes(removed=tuple(gone))

    def _roots_changed(self) -> None:
        for listener in self._root_listeners:
            listener()

    def find_root(self, path: str) -> Root | None:
        """Return the innermost root that a path lies below."""
        owners = [root for root in self._roots.values() if is_below(path, root.path)]
        return max(owners, key=lambda root: len(root.path), default=None)

    def find_kernel_environment(self, kernel: KernelInfo) -> Environment:
        """Return the environment that runs a kernel's code.

        Raises:
            NotFound: the kernel's file is below no watched root.
        """
        root = self.find_root(kernel.file)
        if root is None:
            raise NotFound(f"{kernel.file} is below no watched root", hint=f"`ktuned tune {kernel.file}` adds it")
        return make_root_environment(root)

    def resolve_kernel(self, name: str, directory: str | None = None) -> KernelInfo:
        """Return the kernel of a name: a full name, or a unique short name.

        If several projects have a kernel with the short name, the project around ``directory`` or inside it is meant.
        Projects whose directory is gone do not count.

        Raises:
            NotFound: there is no such kernel.
            AmbiguousName: several projects have a kernel with that name.
        """
        if (known := self.find_kernel(name)) is not None:
            return known
        matches = [kernel for kernel in self.kernels if kernel.kernel == name]
        if len(matches) > 1:
            matches = self._choose_meant_kernels(matches, directory) or matches
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(kernel.name for kernel in matches)
            raise AmbiguousName(f"the kernel {name!r} is in several projects", hint=f"say which: {names}")
        alike = self._kernels if ":" in name else {kernel.kernel for kernel in self.kernels}
        meant = suggest_name(name, alike)
        # A kernel is also unknown if its file was never read without an error.
        read = {kernel.file for kernel in self._kernels.values()}
        unread = [error for error in self.errors if error.path not in read]
        short = name.rpartition(":")[2]
        unread.sort(key=lambda error: short not in os.path.basename(error.path))
        if unread and (not meant or short in os.path.basename(unread[0].path)):
            error = unread[0]
            named = error.message.startswith(error.path)
            fault = error.message if named else f"{error.path}:{error.line}: {error.message}"
            raise NotFound(f"no kernel {name!r} could be read", hint=f"a kernel file has an error: {fault}")
        hint = "`ktuned kernels` lists them; `ktuned tune PATH` adds some"
        raise NotFound(f"there is no kernel {name!r}", hint=" ".join(filter(None, (meant, hint))))

    def _choose_meant_kernels(self, kernels: list[KernelInfo], directory: str | None) -> list[KernelInfo]:
        """Return the kernels whose project exists, and, with a directory, those of the checkout that it belongs to.

        That is the innermost project around it, or else what lies in it: a repository's top may hold many projects.
        """
        there: dict[str, list[KernelInfo]] = {}
        for kernel in kernels:
            root = self.find_root(kernel.file)
            if root is not None and os.path.isdir(root.path):
                there.setdefault(root.path, []).append(kernel)
        place = None if directory is None else os.path.realpath(directory)
        around = [path for path in there if place is not None and is_below(place, path)]
        # Only projects with such a kernel are compared, so a project inside that has none does not count.
        inside = [path for path in there if place is not None and is_below(path, place)]
        meant = [max(around, key=len)] if around else inside or there
        return [kernel for path in meant for kernel in there[path]]

    def find_kernel(self, name: str) -> KernelInfo | None:
        """Return the kernel with a full name, or None if it is gone."""
        return self._kernels.get(KernelName(name))

    def is_only_namesake(self, kernel: KernelInfo) -> bool:
        """Return whether no other kernel has a kernel's short name, so that it means this kernel in any directory."""
        return sum(other.kernel == kernel.kernel for other in self._kernels.values()) == 1

    def find_namesakes(self, kernel: KernelInfo) -> list[KernelInfo]:
        """Return the kernels of other projects that have a kernel's short name."""
        alike = [other for other in self.kernels if other.kernel == kernel.kernel and other.name != kernel.name]
        return self._choose_meant_kernels(alike, None)

    def list_learned_elsewhere(self, kernel: KernelInfo) -> list[tuple[Observation, ...]]:
        """Return what the last :data:`MAX_CHECKOUTS` other checkouts of a kernel have learned, also moved ones."""
        known = {**self._learned, **{name: one.learned for name, one in self._kernels.items()}}
        others = [
            tuple(entries.values())
            for name, entries in known.items()
            if entries and name != kernel.name and name.rpartition(":")[2] == kernel.kernel
        ]
        return others[: -MAX_CHECKOUTS - 1 : -1]

    def find_file_fault(self, kernel: KernelInfo) -> str:
        """Return the error in a kernel's file that keeps it from declaring the kernel; empty if there is none."""
        return self._faults.get(kernel.name, "")

    def mark_suspect_files(self, files: Set[str]) -> None:
        """Note that kernel files or project files, or their dependencies, have changed since they were inspected."""
        self._suspects.update(files)
        self._doubts_changed(files)

    def clear_suspect_files(self, files: Set[str]) -> None:
        """Note that files were inspected in their present state."""
        self._suspects.difference_update(files)
        self._doubts_changed(files)

    def _doubts_changed(self, files: Set[str]) -> None:
        declared = [one.name for one in self.kernels if not files.isdisjoint(self.list_declaring_files(one))]
        for listener in self._doubt_listeners if declared else ():
            listener(declared)

    def find_suspicion(self, kernel: KernelInfo) -> str:
        """Return the changed file of a kernel that waits for its inspection; empty if there is none."""
        if kernel.name in self.compared:
            return kernel.file
        if not self._suspects:
            return ""
        return next((file for file in self.list_declaring_files(kernel) if file in self._suspects), "")

    def list_declaring_files(self, kernel: KernelInfo) -> tuple[str, ...]:
        """Return the files whose inspection gives a kernel: its own, and its project's file, which may not exist."""
        root = self.find_root(kernel.file)
        return (kernel.file,) if root is None else (kernel.file, os.path.join(root.path, PROJECT_FILE))

    def list_kernels_below(self, path: str) -> list[KernelInfo]:
        """Return the kernels that a file, or the files below a directory, declare."""
        return [kernel for kernel in self.kernels if is_below(kernel.file, path)]

    def list_errors_below(self, path: str) -> list[FileError]:
        """Return the errors in kernel files at or below a path."""
        return [error for file, errors in sorted(self._errors.items()) if is_below(file, path) for error in errors]

    def list_kernel_files_of(self, root: Root) -> list[str]:
        """Return the kernel files of a root that were inspected before."""
        known = {kernel.file for kernel in self._kernels.values()} | set(self._errors)
        return self.select_files_of(root, known)

    def select_files_of(self, root: Root, files: Iterable[str]) -> list[str]:
        """Return those of some files that belong to a root, and not to a root below it."""
        owners = ((file, self.find_root(file)) for file in files)
        return sorted(file for file, owner in owners if owner is not None and owner.path == root.path)

    def find_dependents(self, paths: Iterable[str]) -> set[str]:
        """Return the kernel files that depend on any of these files or directories."""
        return self._dependents.find_dependents(paths)

    def list_watched_directories(self) -> set[str]:
        """Return the directories of files that kernels depend on, or would depend on if the files appeared."""
        return self._dependents.directories

    def list_inspected_stamps(self, files: Container[str] | None = None) -> set[tuple[str, str]]:
        """Return every file that took part in an inspection (of these kernel files), with its stamp then."""
        return self._dependents.list_recorded_stamps(files)

    def find_learned_names(self, root: Root, files: Container[str]) -> dict[str, tuple[Observation, ...]]:
        """Return the learned names to look at when files of a root are inspected, by the kernels' short names.

        They include names that earlier inspections have found. Kernels that are declared in other files are left out.
        """
        found = {name: kernel.learned for name, kernel in self._kernels.items()}
        names = {name: {**found.get(name, {}), **self._learned.get(name, {})} for name in {*found, *self._learned}}
        return {
            name.rpartition(":")[2]: tuple(entries.values())
            for name, entries in names.items()
            if entries
            and get_project_name(name) == root.name
            and (name not in self._kernels or self._kernels[name].file in files)
        }

    def add_learned_names(self, kernel: KernelInfo) -> KernelInfo:
        """Return a kernel with the names that were learned during its inspection, or during a job for it."""
        return kernel.with_observed(self._learned.get(kernel.name, {}).values())

    def replace_learned(self, kernel: KernelInfo) -> None:
        """Replace a kernel by its version with other learned names: it has changed if its digest has."""
        before = self._kernels[kernel.name]
        self.update_learned(kernel)
        for listener in self._kernel_listeners if kernel.digest != before.digest else ():
            listener({kernel.name})

    def update_learned(self, kernel: KernelInfo) -> None:
        """Replace a kernel by its version with newly learned names, which are watched from now on."""
        self._learned[kernel.name] = dict(kernel.learned)
        self._kernels[kernel.name] = kernel
        watched = self.list_watched_directories()
        self._dependents.set_dependencies(kernel.name, kernel.file, kernel.stamps)
        if not self.list_watched_directories() <= watched:
            self._roots_changed()

    def has_inspected(self, file: str) -> bool:
        """Return whether a kernel file was inspected since the start."""
        return file in self._inspected

    def apply_inspections(self, inspections: Sequence[Inspection], removed_files: Iterable[str] = ()) -> Changes:
        """Apply new inspections, and forget the files that are gone; return the changes.

        A file that can no longer be imported keeps its earlier kernels, whose winners are still served. If a root was
        removed while a file of it was inspected, that inspection does not count.
        """
        inspections = [inspection for inspection in inspections if self.find_root(inspection.file) is not None]
        added, replanned, inspected = [], [], []
        changed: dict[KernelName, KernelInfo] = {}
        errors: list[FileError] = []
        wrong = set(self._errors)
        # The kernels that each file declares now; other files may declare the others.
        declared: dict[str, set[str]] = {file: set() for file in removed_files}
        for file in declared:
            self._forget_file(file)
        declared |= {one.file: {kernel.name for kernel in one.kernels} for one in inspections if not one.errors}
        gone = {name: kernel for name, kernel in self._kernels.items() if name not in declared.get(kernel.file, {name})}
        for inspection in inspections:
            problems = list(inspection.errors)
            stamps = dict(inspection.stamps)
            for kernel in map(self.add_learned_names, inspection.kernels):
                before = self._kernels.get(kernel.name)
                if before is not None:
                    kernel = _drop_chance_names(kernel, before)
                if before is not None and before.file != kernel.file and _is_held(before, gone):
                    problems.append(_name_taken_error(kernel, before))
                    # The name belongs to another file. Inspect this file again when that file changes.
                    stamps.setdefault(before.file, before.stamps.get(before.file, ""))
                    continue
                self._kernels[kernel.name] = kernel
                self._faults.pop(kernel.name, None)
                self._dependents.set_dependencies(kernel.name, kernel.file, kernel.stamps)
                gone.pop(kernel.name, None)
                inspected.append(kernel.name)
                if before is None:
                    added.append(kernel.name)
                elif before.digest != kernel.digest:
                    changed[kernel.name] = before
                elif before.plan_digest != kernel.plan_digest or before.file != kernel.file:
                    replanned.append(kernel.name)
            if inspection.errors:
                found = {kernel.name for kernel in inspection.kernels}
                lost = (name for name, kernel in self._kernels.items() if kernel.file == inspection.file)
                self._faults |= {name: inspection.errors[0].message for name in lost if name not in found}
            self._record_inspected_file(inspection.file, problems, stamps)
            errors += problems
        for name in gone:
            self._remove_kernel(name)
        mended = tuple(sorted(wrong - self._errors.keys()))
        for listener in self._kernel_listeners:
            listener({*changed, *replanned, *gone})
        return Changes(
            added=tuple(added),
            changed=tuple(changed),
            replanned=tuple(replanned),
            removed=tuple(gone),
            errors=tuple(errors),
            inspected=tuple(inspected),
            mended=mended,
            before=changed,
        )

    def _remove_kernel(self, name: KernelName) -> None:
        self._dependents.drop_dependencies(name)
        self._faults.pop(name, None)
        del self._kernels[name]

    def _record_inspected_file(self, file: str, problems: list[FileError], stamps: Mapping[str, str]) -> None:
        self._errors.pop(file, None)
        self._inspected.add(file)
        self._dependents.set_dependencies(_OF_FILE + file, file, stamps)
        if problems:
            self._errors[file] = tuple(problems)

    def _forget_file(self, file: str) -> None:
        self._errors.pop(file, None)
        self._inspected.discard(file)
        self._dependents.drop_dependencies(_OF_FILE + file)


def _drop_chance_names(kernel: KernelInfo, before: KernelInfo) -> KernelInfo:
    """Return a kernel without the names that ``before`` lacks, if both have equal code and equal contents.

    Then the code has read the same names. The others were read by packages, which do so once in a process, when first
    used: whether an inspection sees these reads depends on what its process has done before.
    """
    others = [one for name, one in kernel.learned.items() if one.decisive != _find_decisive(before.learned.get(name))]
    if kernel.version != before.version or before.find_contradiction(others) is not None:
        return kernel
    return kernel.without_names(kernel.learned.keys() - before.learned.keys())


def _find_decisive(entry: Observation | None) -> str | None:
    return None if entry is None else entry.decisive


def _is_held(kernel: KernelInfo, gone: Mapping[KernelName, KernelInfo]) -> bool:
    """Return whether a kernel's file still declares it, as far as is known."""
    return kernel.name not in gone and Path(kernel.file).exists()


def _name_taken_error(kernel: KernelInfo, before: KernelInfo) -> FileError:
    message = f"{kernel.file}:{kernel.line}: the name {kernel.name!r} is taken by {before.file}:{before.line}"
    return FileError(kernel.file, kernel.line, message, "give one of them a name=…")


def read_problem(kernel: KernelInfo, problem: Problem) -> Problem:
    """Return a problem whose values have the types that the kernel's declared problems have.

    ``1`` and ``1.0`` are equal in Python, but would be two problems here, so a given value takes the declared type.
    Keys of applications' functions are exempt, because they tell such values apart.

    Raises:
        UsageError: it has other keys, or a value of another kind; the message says how the problem should be.
    """
    size = sum(len(key) + (len(value) if isinstance(value, str) else 8) for key, value in problem.items())
    if size > MAX_PROBLEM_SIZE:
        raise UsageError(
            f"{kernel.name}: the problem has {size} characters, at most {MAX_PROBLEM_SIZE} are allowed",
            hint="a problem is a few sizes and names; inputs= may load tensors: ktuned.load_tensors",
        )
    for key, value in problem.items():
        if not isinstance(value, bool | int | float | str):
            raise UsageError(
                f"{kernel.name}: the problem's {key} is a {type(value).__name__}, not a number or a string"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{kernel.name}: the problem's {key} is {value}", hint="give a finite number")
    allowed = [set(declared) for declared in kernel.problems]
    needed = tuple(kernel.problems[0] if allowed else kernel.specialize or ())
    if set(problem) not in allowed if allowed else not set(needed) <= set(problem):
        missing = [key for key in needed if key not in problem]
        strange = [key for key in problem if key not in needed] if allowed else []
        faults = [f"lacks {', '.join(missing)}"] if missing else []
        faults += [f"does not take {', '.join(strange)}"] if strange else []
        such = ",".join(f"{key}={value}" for key, value in kernel.problems[0].items()) if allowed else ""
        example = f", such as {such}" if such else ""
        raise UsageError(
            f"{kernel.name}: the problem {' and '.join(faults)}",
            hint=f"it takes {', '.join(needed) or 'nothing'}{example}",
        )
    if kernel.is_data or not allowed:
        return problem
    return {key: _convert_value(kernel, key, value) for key, value in problem.items()}


_KINDS = {bool: "True or False", int: "an integer", float: "a number", str: "a text"}
"""The types that a problem's values may have, in words."""


def _convert_value(kernel: KernelInfo, key: str, value: Scalar) -> Scalar:
    """Return a problem's value in the type that the declared problems have.

    Raises:
        UsageError: it has another kind of value.
    """
    known = [declared[key] for declared in kernel.problems if key in declared]
    kinds = {type(one) for one in known}
    if type(value) in kinds:
        return value
    if type(value) is int and float in kinds:
        return float(value)
    if type(value) is float and int in kinds and value.is_integer():
        return int(value)
    wanted = " or ".join(words for kind, words in _KINDS.items() if kind in kinds)
    raise UsageError(
        f"{kernel.name}: the problem's {key} is {value!r}", hint=f"give {wanted}, such as {key}={known[0]}"
    )


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is ``directory`` itself or lies below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def make_root_environment(root: Root) -> Environment:
    """Return the environment of a root's workers; roots that share their workers have the same environment."""
    directory = root.workers or root.path
    name = os.path.basename(root.workers) or root.name
    return Environment(root.python, directory, tuple(sorted(root.env.items())), name)
