"""The declaration of an autotuned function: how another process finds it, its configs, and what it reads.

Its digest is the function's identity. If the source, the configs or the environment change, the application declares
another kernel when it runs again, so the daemon watches none of these files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, Self

from ktuned.dropin import digest_of, name_in_library, own_paths
from ktuned.model import TOLERANCE, canonical
from ktuned_triton.call import NotTunable, find_autotuner, find_jit_function, list_hook_names, read_knobs
from ktuned_triton.environment import find_deciding_variables
from ktuned_triton.evaluation import digest_evaluation, list_constants_read
from ktuned_triton.script import is_importable, is_script, write_module


@dataclass(frozen=True, slots=True)
class Origin:
    """Where another process finds a function, and how people call it.

    Attributes:
        module: the module to import, or the name of the module that travels as ``source``.
        qualname: the function's name in it.
        source: whether that module's text travels, because no import finds the function (in a script, or a closure).
        package: the library's name, for people.
        release: the library's version.
        function: the function's name within the library.
        is_findable: whether an import also finds the autotuner, and with it the hooks.
    """

    module: str
    qualname: str
    source: bool
    package: str
    release: str
    function: str
    is_findable: bool

    @property
    def name(self) -> str:
        """The function's name in a Build."""
        return self.qualname if self.source else f"{self.module}:{self.qualname}"


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Everything besides the call that decides a measurement of a function.

    Attributes:
        origin: where the function is found.
        cache_key: Triton's digest of its source and of all functions that it calls.
        configs: the texts of all its configs, and of those that pruning made.
        specialize: the problem's keys, which are its tuning key.
        tensors: its tensor parameters. All are restored before each run and compared after it, because it is not known
            which of them the kernel writes.
        paths: the entries that the application added to ``sys.path``.
        hooks: the names of its hooks; empty if they are replayed as data.
        evaluation: digest of the code that runs only in the application: pruning and heuristics.
        constants: the values of globals that it is compiled with and that ``cache_key`` does not cover.
        variables: the application's environment variables that change what Triton compiles.
        is_timed_by_graph: whether the application asked for CUDA graphs.
        numerics: ``exact`` if a winner must reproduce the bits of a key's first config, else ``tolerance``.
        source: the text of the module that travels, if one does; it is a file of its own, and no part of plain data.
    """

    origin: Origin
    cache_key: str
    configs: tuple[str, ...]
    paths: tuple[str, ...]
    evaluation: str
    constants: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    is_timed_by_graph: bool
    hooks: tuple[str, ...] = ()
    numerics: str = TOLERANCE
    specialize: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    source: str = ""
    _identities: dict[Any, str] = field(default_factory=dict, compare=False)

    def for_key(
        self, specialize: tuple[str, ...], tensors: tuple[str, ...], configs: Sequence[str], *, needs_hooks: bool
    ) -> Declaration:
        """Return the declaration for the keys of one shape; ``configs`` are those left after pruning."""
        own_configs = frozenset(self.configs)
        new_configs = tuple(text for text in configs if text not in own_configs)
        hooks = self.hooks if needs_hooks else ()
        return replace(self, configs=(*self.configs, *new_configs), specialize=specialize, tensors=tensors, hooks=hooks)

    @property
    def identity(self) -> str:
        """Digest of the declaration and the interpreter; the same in every process that has the function."""
        shape = self.specialize, self.tensors, len(self.configs), self.configs[-1:], self.hooks
        if shape not in self._identities:
            self._identities[shape] = digest_of(json.dumps([sys.executable, self.to_plain()], sort_keys=True))
        return self._identities[shape]

    @property
    def files(self) -> dict[str, bytes]:
        """Files that travel with the declaration, by name."""
        return {f"{self.origin.module}.py": self.source.encode()} if self.source else {}

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        plain = asdict(self)
        # The text travels as a file, and the module's name has its digest.
        del plain["_identities"], plain["source"]
        plain["variables"] = dict(self.variables)
        if self.numerics == TOLERANCE:
            # So that the identity of all other functions stays what it was before there was a choice.
            del plain["numerics"]
        return plain

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Read :meth:`to_plain`'s data."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**{**values, "origin": Origin(**data["origin"]), "variables": tuple(data["variables"].items())})


def describe_function(tuner: Any) -> Declaration:
    """Return the declaration that all keys of a function share.

    Raises:
        NotTunable: no other process can find the function.
    """
    function = find_jit_function(tuner)
    origin, source = find_origin(tuner, function)
    return Declaration(
        origin=origin,
        source=source,
        cache_key=function.cache_key,
        configs=tuple(dict.fromkeys(canonical(read_knobs(config)) for config in tuner.__dict__["configs"])),
        paths=own_paths(),
        evaluation=digest_evaluation(tuner),
        constants=list_constants_read(function),
        variables=find_deciding_variables(),
        is_timed_by_graph=bool(getattr(tuner, "use_cuda_graph", False)),
        hooks=list_hook_names(tuner),
    )


def find_origin(tuner: Any, function: Any) -> tuple[Origin, str]:
    """Return where another process finds a ``@triton.jit`` function, and the source that travels.

    The source is empty if an import finds the function; else it has the plain values that the function reads, too.

    Raises:
        NotTunable: neither is possible; the message says why.
    """
    qualname: str = function.__qualname__
    package, release, shown = name_in_library(function.__module__, qualname)
    found = _find_by_import(function)
    if found is not None:
        is_findable = find_autotuner(found) is tuner
        return Origin(function.__module__, qualname, False, package, release, shown, is_findable), ""
    source = write_module(function)
    return Origin(f"source_{digest_of(source)}", function.__name__, True, package, release, shown, False), source


def _find_by_import(function: Any) -> Any:
    """Return what an import by the function's name finds in another process, if it is the function; else ``None``."""
    if is_script(function) or "<locals>" in function.__qualname__:
        return None
    try:
        found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
        is_same = find_jit_function(found) is function
    except (KeyError, AttributeError, NotTunable):
        return None
    return found if is_same and is_importable(function.__module__) else None
