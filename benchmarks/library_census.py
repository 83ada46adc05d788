"""Import all modules of one library and list its autotuned functions, each with ktuned's verdict.

``LIBRARY FILE [--target ARCH] [--skip MODULE ...]``. Run under ``ktuned run``'s hook. Appends a line of JSON to FILE
for each step. An import may hang or end the process: the last line then names the module, and the caller starts the
census again without it.
"""

import argparse
import gc
import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from benchmarks.made_up_gpu import MODELS, make_up_gpu


def find_refusal(tuner: Any) -> str:
    """Return the reason why ktuned leaves an autotuned function to Triton; empty if it adopts it."""
    from ktuned.dropin import account
    from ktuned_triton.autotuner import explain_non_adoption

    # The hook leaves everything alone where it does not know this Triton.
    return account.left_alone.get("triton.autotune", "") or explain_non_adoption(tuner)


class Census:
    """Imports a library's modules, and lists the autotuned functions that then exist.

    Args:
        library: the name of its package or module.
        lines: where each step is noted.
        skipped: modules that are not imported.
    """

    def __init__(self, library: str, lines: Path, skipped: frozenset[str]) -> None:
        self._library = library
        self._lines = lines
        self._skipped = skipped
        self._imported = 0

    def run(self) -> None:
        """Import all modules, and note each function."""
        self._import_all(self._library)
        for function in describe_functions(self._library):
            self._note("function", **function)
        self._note("done", modules=self._imported, version=version_of(self._library))

    def _import_all(self, name: str) -> None:
        module = self._import(name)
        if module is None:
            # Nothing below a package can be imported without it.
            return
        for place in getattr(module, "__path__", ()):
            for child in submodules(Path(place)):
                self._import_all(f"{name}.{child}")

    def _import(self, name: str) -> ModuleType | None:
        if name in self._skipped:
            return None
        self._note("importing", module=name)
        try:
            module = importlib.import_module(name)
        # A module may call sys.exit, or raise what is no Exception.
        except BaseException as error:
            self._note("not_imported", module=name, reason=reason_of(error))
            return None
        self._imported += 1
        return module

    def _note(self, what: str, **fields: Any) -> None:
        with self._lines.open("a") as file:
            file.write(json.dumps({"what": what, **fields}) + "\n")


def submodules(place: Path) -> Iterator[str]:
    """Yield the names of the modules in a package's directory; a program's ``__main__`` is none of them."""
    found = {module.name for module in pkgutil.iter_modules([str(place)])}
    if place.is_dir():
        # A directory without an __init__.py is a package, too, if a module lies anywhere below it.
        children = (child for child in place.iterdir() if child.is_dir() and child.name.isidentifier())
        found |= {child.name for child in children if next(child.rglob("*.py"), None) is not None}
    yield from sorted(found - {"__main__"})


def describe_functions(library: str) -> Iterator[dict[str, Any]]:
    """Yield a description of each autotuned function of a library, sorted by name."""
    from triton.runtime.autotuner import Autotuner

    # The collector also knows functions that only a closure or a dictionary holds, and those made before the hook.
    # By its type, because isinstance asks objects for their class, and some warn when they are asked anything.
    existing = [thing for thing in gc.get_objects() if issubclass(type(thing), Autotuner)]
    tuners = [tuner for tuner in existing if is_of(library, tuner.base_fn)]
    for tuner in sorted(tuners, key=lambda tuner: name_of(tuner.base_fn)):
        try:
            refusal = find_refusal(tuner)
        except Exception as error:
            refusal = f"the check itself failed: {reason_of(error)}"
        yield {
            "name": name_of(tuner.base_fn),
            "class": class_of(tuner),
            "configs": len(tuner.configs),
            "refusal": refusal,
        }


def is_of(library: str, function: FunctionType) -> bool:
    """Return whether a function is a library's: by its module's name, or by its file where it has none."""
    module = function.__module__ or ""
    if module == library or module.startswith(f"{library}."):
        return True
    places = [str(Path(place).resolve()) + os.sep for place in getattr(sys.modules.get(library), "__path__", ())]
    return not module and str(Path(function.__code__.co_filename).resolve()).startswith(tuple(places))


def class_of(tuner: Any) -> str:
    """Return the name of a tuner's class, as the library's author knows it."""
    theirs = next(made for made in type(tuner).__mro__ if not made.__module__.startswith("ktuned"))
    return f"{theirs.__module__}.{theirs.__qualname__}"


def name_of(function: FunctionType) -> str:
    """Return a function's full name."""
    return f"{function.__module__}.{function.__qualname__}"


def reason_of(error: BaseException) -> str:
    """Return an error as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300].rstrip(": ")


def version_of(library: str) -> str:
    """Return the version of an imported library, or nothing where it has none."""
    from importlib.metadata import packages_distributions, version

    own = getattr(sys.modules.get(library), "__version__", None)
    distributions = packages_distributions().get(library)
    return str(own or (version(distributions[0]) if distributions else ""))


def main() -> None:
    """Take the census of one library."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("lines", type=Path)
    parser.add_argument("--target", type=int, default=90, choices=sorted(MODELS))
    parser.add_argument("--skip", nargs="*", default=[])
    options = parser.parse_args()
    # A module that reads its arguments at import is to find none.
    del sys.argv[1:]
    make_up_gpu(options.target)
    Census(options.library, options.lines, frozenset(options.skip)).run()
    # A library's threads and exit handlers have nothing to do here.
    os._exit(0)


if __name__ == "__main__":
    main()
