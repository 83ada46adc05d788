"""The census of libraries' autotuned functions: each library in a process of its own, under ``ktuned run``'s hook.

An import may hang, or end its process. Then the census is begun again without that module.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.private_daemon import installed_environment
from benchmarks.sides import ROOT
from ktuned.cli.commands.run import hook_environment

IMPORT_LIMIT_S = 120.0
"""Longest import of one module, with all that it imports."""

MAX_RESTARTS = 20
NAMED_MODULES = 20
"""A library may have hundreds of modules that need one package which is not there."""

ADOPTED_GOAL = 0.98
_LOOK_S = 0.5


@dataclass
class Library:
    """A library's autotuned functions, and the modules that could not be imported, with the reason."""

    name: str
    version: str = ""
    modules: int = 0
    functions: list[dict[str, Any]] = field(default_factory=list)
    not_imported: dict[str, str] = field(default_factory=dict)
    ended: str = ""

    @property
    def refused(self) -> list[dict[str, Any]]:
        """The functions that ktuned leaves alone."""
        return [function for function in self.functions if function["refusal"]]

    @property
    def adopted(self) -> list[dict[str, Any]]:
        """The functions that ktuned takes over."""
        return [function for function in self.functions if not function["refusal"]]


def adoption_rows(
    libraries: Sequence[str], target: int, *, every: bool = False
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield a title and rows for each library: its functions, its unimported modules, and at last the counts of all."""
    counts = []
    for name in libraries:
        library = take_census(name, target)
        counts.append(count_row(library))
        functions = library.functions if every else library.refused
        if functions:
            yield f"{name}: functions{'' if every else ' left alone'}", [function_row(one) for one in functions]
        if library.not_imported:
            yield f"{name}: modules that cannot be imported here", list(reason_rows(library.not_imported))
    yield f"adoption (goal: {ADOPTED_GOAL:.0%})", counts


def count_row(library: Library) -> dict[str, Any]:
    """Return the counts of a library."""
    found = len(library.functions)
    share = len(library.adopted) / found if found else None
    return {
        "what": f"{library.name} {library.version}".strip() + (f" ({library.ended})" if library.ended else ""),
        "modules": library.modules,
        "not imported": len(library.not_imported),
        "functions": found,
        "configs": sum(function["configs"] for function in library.functions),
        "adopted": len(library.adopted),
        "refused": len(library.refused),
        "share": share,
        "goal met": None if share is None else share >= ADOPTED_GOAL,
    }


def function_row(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one function."""
    return {
        "what": function["name"],
        "class": function["class"].rpartition(".")[2],
        "configs": function["configs"],
        "refused": function["refusal"],
    }


def reason_rows(not_imported: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each reason why modules cannot be imported."""
    modules: dict[str, list[str]] = {}
    for module, reason in not_imported.items():
        modules.setdefault(reason, []).append(module)
    for reason, names in modules.items():
        more = f" and {len(names) - NAMED_MODULES} more" if len(names) > NAMED_MODULES else ""
        yield {"what": reason, "modules": ", ".join(names[:NAMED_MODULES]) + more}


def take_census(name: str, target: int) -> Library:
    """Import a library's modules and list its functions; skip modules that hang or kill their process."""
    skipped: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="ktuned-census-") as directory:
        for attempt in range(MAX_RESTARTS):
            lines = Path(directory) / f"{attempt}.jsonl"
            fault = _run_census(name, target, lines, sorted(skipped), Path(directory))
            library = read_census(name, lines)
            library.not_imported |= skipped
            if not fault:
                return library
            culprit = last_import(lines)
            if not culprit or culprit in skipped:
                break
            skipped[culprit] = fault
    library.ended = fault
    return library


def _run_census(name: str, target: int, lines: Path, skipped: Sequence[str], directory: Path) -> str:
    """Run the census in a process; return how it failed, or nothing."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**installed_environment(), "PYTHONPATH": os.pathsep.join(paths)}
    environment |= hook_environment("background", "tolerance", str(directory), environment)
    # Nothing of this user's caches may decide, and nothing is left behind in them.
    environment |= {"TRITON_CACHE_DIR": str(directory / "cache"), "KTUNED_HOME": str(directory / "home")}
    # Some libraries ask this program whether there is a GPU.
    programs = directory / f"{lines.stem}-bin"
    programs.mkdir()
    (programs / "nvidia-smi").symlink_to("/bin/true")
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    command = [sys.executable, "-m", "benchmarks.library_census", name, str(lines)]
    with (directory / "said").open("wb") as said:
        process = subprocess.Popen(
            [*command, "--target", str(target), "--skip", *skipped],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=environment,
            cwd=directory,
        )
        try:
            # Each step is a line: a file that has not grown for so long is one import.
            size, grown = -1, perf_counter()
            while process.poll() is None and perf_counter() - grown < IMPORT_LIMIT_S:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
                now = lines.stat().st_size if lines.exists() else 0
                if now != size:
                    size, grown = now, perf_counter()
            status = process.poll()
        finally:
            process.kill()
            process.wait()
    if status == 0:
        return ""
    words = (directory / "said").read_text(errors="replace").strip().splitlines()[-1:]
    return f"hung for {IMPORT_LIMIT_S:g} s" if status is None else f"ended with status {status}: {''.join(words)}"[:300]


def read_census(name: str, lines: Path) -> Library:
    """Return the library that a census has written down."""
    library = Library(name)
    for line in _lines(lines):
        what = line.pop("what")
        if what == "function":
            library.functions.append(line)
        elif what == "not_imported":
            library.not_imported[line["module"]] = line["reason"]
        elif what == "done":
            library.modules, library.version = line["modules"], line["version"]
    return library


def last_import(lines: Path) -> str:
    """Return the module whose import was begun last, or nothing where the census got past the imports."""
    noted = list(_lines(lines))
    return str(noted[-1]["module"]) if noted and noted[-1]["what"] == "importing" else ""


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text().splitlines():
            # The last one of a process that was killed may be incomplete.
            with suppress(ValueError):
                yield json.loads(line)
