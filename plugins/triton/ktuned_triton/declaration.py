"""The declaration of an autotuned function: where another process finds it, its configs, and the values that it reads.

Its digest is the function's identity. If the source, the configs or the environment change, the application declares
another kernel when it runs again, so the daemon watches none of these files. What the application's own code computes
for a call (heuristics, pruning) is a part of the call's key (:func:`~ktuned_triton.call.make_problem`).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from operator import attrgetter
from pathlib import Path
from typing import Any

from ktuned import dropin
from ktuned.dropin import digest_content, find_import_directory, list_application_paths, name_function
from ktuned.model import canonical
from ktuned_triton.call import find_jit_function, read_knobs
from ktuned_triton.environment import find_deciding_variables
from ktuned_triton.library import list_constants_read, unwrap_function

_SCRIPTS = ("__main__", "__mp_main__")
"""Names of the script's module; it has the second name in a process that multiprocessing spawned."""


@dataclass(frozen=True, kw_only=True)
class Declaration(dropin.Declaration):
    """Everything besides the call that decides a measurement of a function.

    Attributes:
        cache_key: Triton's digest of its source, of all functions that it calls, and of the constants that these read.
        configs: the texts of all its configs.
        paths: the entries of ``sys.path`` that a worker needs for its module.
        constants: the values of globals that it is compiled with and that ``cache_key`` does not cover.
        is_timed_by_graph: whether the application asked for CUDA graphs.
        tensors: its tensor parameters. All are restored before each run and compared after it, because it is not known
            which of them the kernel writes.
    """

    cache_key: str
    configs: tuple[str, ...]
    paths: tuple[str, ...]
    constants: tuple[str, ...]
    is_timed_by_graph: bool
    tensors: tuple[str, ...] = ()

    @property
    def source_digest(self) -> str:
        """Digest of the code that decides what is compiled."""
        return digest_content(json.dumps([self.cache_key, self.constants]))


def describe_function(tuner: Any) -> Declaration:
    """Return the declaration that all keys of a function share.

    Raises:
        NotTunable: the function is no ``@triton.jit`` function.
    """
    function = find_jit_function(tuner)
    # A function that ``exec`` has made may be of no module.
    module = function.__module__ or "__main__"
    return Declaration(
        name=name_function(module, function.__qualname__),
        module=module,
        qualname=function.__qualname__,
        cache_key=function.cache_key,
        configs=tuple(dict.fromkeys(canonical(read_knobs(config)) for config in tuner.__dict__["configs"])),
        paths=list_application_paths(module),
        constants=list_constants_read(function),
        variables=find_deciding_variables(),
        is_timed_by_graph=bool(getattr(tuner, "use_cuda_graph", False)),
    )


def is_importable(function: Any) -> bool:
    """Return whether another process finds a ``@triton.jit`` function by its name.

    It does not find a function of a script, of a notebook or inside another function, nor one that ``exec`` has made.
    """
    module, qualname = str(function.__module__), str(function.__qualname__)
    if module in _SCRIPTS or "<locals>" in qualname or not _is_module_importable(module):
        return False
    try:
        named = attrgetter(qualname)(sys.modules[module])
        return bool(unwrap_function(named, function.cache_key).cache_key == function.cache_key)
    except Exception:
        return False


def _is_module_importable(name: str) -> bool:
    """Return whether an import of ``name`` in another process finds the same module as in this process.

    It does not for a module that the program made itself, or loaded with ``runpy`` or under another name than its
    file's. A worker also looks into the directory that the module's package was loaded from.
    """
    parent = name.rpartition(".")[0]
    if name not in sys.modules or (parent and not _is_module_importable(parent)):
        return False
    path = getattr(sys.modules[parent], "__path__", None) if parent else None
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
    specs = [next(filter(None, (finder.find_spec(name, path) for finder in finders)), None)]
    directory = None if parent else find_import_directory(name)
    if directory:
        specs.append(PathFinder.find_spec(name, [directory]))
    return any(spec is not None and _leads_to(spec, sys.modules[name]) for spec in specs)


def _leads_to(spec: ModuleSpec, module: Any) -> bool:
    file = getattr(module, "__file__", None)
    if file is None or not spec.has_location or spec.origin is None:
        return True
    return Path(spec.origin).resolve() == Path(file).resolve()
