"""The declaration of an autotuned function: where another process finds it, its configs, and the values that it reads.

Its digest is the function's identity. If the source, the configs or the environment change, the application declares
another kernel when it runs again, so the daemon watches none of these files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from ktuned import dropin
from ktuned.dropin import FunctionName, NotTunable, digest_content, list_application_paths, name_function
from ktuned.model import canonical
from ktuned_triton.call import find_jit_function, read_knobs
from ktuned_triton.environment import find_deciding_variables
from ktuned_triton.evaluation import digest_evaluation, list_constants_read
from ktuned_triton.script import is_importable, is_script, write_module


@dataclass(frozen=True)
class Origin:
    """Where another process finds a function, and its name for people.

    Attributes:
        module: the module to import, or the name of the module that travels as ``source``.
        qualname: the function's name in it.
        source: whether that module's text travels, because no import finds the function (it is in a script, or a
            closure).
        package: the library's name, for people.
        release: the library's version.
        function: the function's name within the library.
    """

    module: str
    qualname: str
    source: bool
    package: str
    release: str
    function: str

    @property
    def build_name(self) -> str:
        """The function's name in a Build."""
        return self.qualname if self.source else f"{self.module}:{self.qualname}"


@dataclass(frozen=True, kw_only=True)
class Declaration(dropin.Declaration):
    """Everything besides the call that decides a measurement of a function.

    Attributes:
        origin: where the function is found.
        cache_key: Triton's digest of its source and of all functions that it calls.
        configs: the texts of all its configs, and of the configs that pruning added.
        paths: the entries that the application added to ``sys.path``.
        evaluation: digest of the code that runs only in the application: pruning and heuristics.
        constants: the values of globals that it is compiled with and that ``cache_key`` does not cover.
        is_timed_by_graph: whether the application asked for CUDA graphs.
        tensors: its tensor parameters. All are restored before each run and compared after it, because it is not known
            which of them the kernel writes.
        source: the text of the module that travels, if there is one; it is a separate file, not part of the plain data.
    """

    origin: Origin
    cache_key: str
    configs: tuple[str, ...]
    paths: tuple[str, ...]
    evaluation: str
    constants: tuple[str, ...]
    is_timed_by_graph: bool
    tensors: tuple[str, ...] = ()
    source: str = ""

    def for_key(self, specialize: tuple[str, ...], tensors: tuple[str, ...], configs: Sequence[str]) -> Declaration:
        """Return the declaration for the keys of one shape; ``configs`` are those left after pruning."""
        return replace(
            self, configs=tuple(dict.fromkeys((*self.configs, *configs))), specialize=specialize, tensors=tensors
        )

    @property
    def name(self) -> FunctionName:
        """The function's name for people."""
        return FunctionName(self.origin.package, self.origin.release, self.origin.function)

    @property
    def source_digest(self) -> str:
        """Digest of the code that decides what is compiled."""
        return digest_content(json.dumps([self.cache_key, self.evaluation, self.constants]))

    @property
    def library_module(self) -> str:
        """The module that a front end imports, or that travels."""
        return self.origin.module

    @property
    def files(self) -> dict[str, bytes]:
        """Files that travel with the declaration, by name."""
        return {f"{self.origin.module}.py": self.source.encode()} if self.source else {}

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain data; the source travels as a file, and the module's name has its digest."""
        return {name: value for name, value in super().to_plain().items() if name != "source"}


def describe_function(tuner: Any, numerics: str) -> Declaration:
    """Return the declaration that all keys of a function share.

    Raises:
        NotTunable: no other process can find the function.
    """
    function = find_jit_function(tuner)
    origin, source = find_origin(function)
    return Declaration(
        origin=origin,
        source=source,
        cache_key=function.cache_key,
        configs=tuple(dict.fromkeys(canonical(read_knobs(config)) for config in tuner.__dict__["configs"])),
        paths=list_application_paths(),
        evaluation=digest_evaluation(tuner),
        constants=list_constants_read(function),
        variables=find_deciding_variables(),
        is_timed_by_graph=bool(getattr(tuner, "use_cuda_graph", False)),
        numerics=numerics,
    )


def find_origin(function: Any) -> tuple[Origin, str]:
    """Return where another process finds a ``@triton.jit`` function, and the source that must travel.

    The source is empty if an import finds the function. Otherwise it also contains the plain values that the function
    reads.

    Raises:
        NotTunable: no import finds the function, and its source cannot travel; the message says why.
    """
    module, qualname = str(function.__module__), str(function.__qualname__)
    name = name_function(module, qualname)
    if _is_found_by_import(function):
        return Origin(module, qualname, False, *name), ""
    source = write_module(function)
    return Origin(f"source_{digest_content(source)}", function.__name__, True, *name), source


def _is_found_by_import(function: Any) -> bool:
    """Return whether an import by the function's name finds it in another process."""
    if is_script(function) or "<locals>" in function.__qualname__:
        return False
    try:
        found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
        return find_jit_function(found) is function and is_importable(function.__module__)
    except (KeyError, AttributeError, NotTunable):
        return False
