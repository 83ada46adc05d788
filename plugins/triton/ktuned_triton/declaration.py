"""What an autotuned function's kernel is declared from: how another process finds it, its configs, what it reads.

Its digest is the function's identity. A function whose source, configs or environment is another one is another kernel,
so that nothing here needs to be watched: an application that runs says itself what it has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any

from ktuned.dropin import digest_of, name_in_library, own_paths
from ktuned.model import TOLERANCE, canonical
from ktuned_triton.call import LeftAlone, autotuner_in, hook_names, jitted, knobs
from ktuned_triton.environment import deciding_variables
from ktuned_triton.evaluation import constants_read, evaluation_digest
from ktuned_triton.script import is_importable, is_script, module_of


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a function is found, and what it is called.

    Attributes:
        module: the module that another process imports, or the name of the one that travels as ``source``.
        qualname: the function's name there.
        source: text of a module that holds the function, where no import finds it: of a script's, or a closure.
        package: the library, by which people know it.
        release: its version.
        function: the function's name within the library.
        is_findable: whether its hooks are found with it.
    """

    module: str
    qualname: str
    source: str
    package: str
    release: str
    function: str
    is_findable: bool


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """All that decides a measurement of a function, besides the call.

    Attributes:
        origin: where the function is found.
        cache_key: Triton's digest of its source, and of all that it calls.
        configs: texts of all its configs, and of those that a pruning has made.
        specialize: the problem keys that are its tuning key.
        tensors: its parameters that are tensors. Each run finds them as they were, and all are compared, because it is
            not known which of them the kernel writes.
        paths: the application's own ``sys.path``.
        hooks: the names of its hooks; none where they were replayed as data.
        evaluation: digest of what the application alone runs: pruning and heuristics.
        constants: the values of globals that it is compiled with, of which ``cache_key`` says nothing.
        variables: the application's variables that change what Triton makes.
        is_timed_by_graph: whether the application asked for CUDA graphs.
        numerics: whether a winner must leave the bits of a key's first config.
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
    _identities: dict[Any, str] = field(default_factory=dict, compare=False)

    def for_key(
        self, specialize: tuple[str, ...], tensors: tuple[str, ...], configs: Sequence[str], *, needs_hooks: bool
    ) -> Declaration:
        """Return this for the keys of one shape; ``configs`` are those that the pruning left."""
        known = frozenset(self.configs)
        made = tuple(text for text in configs if text not in known)
        hooks = self.hooks if needs_hooks else ()
        return replace(self, configs=(*self.configs, *made), specialize=specialize, tensors=tensors, hooks=hooks)

    @property
    def identity(self) -> str:
        """The digest of all of this and of the interpreter, the same in every process that has the function."""
        place = self.specialize, self.tensors, len(self.configs), self.configs[-1:], self.hooks
        if place not in self._identities:
            self._identities[place] = digest_of(json.dumps([sys.executable, self.to_plain()], sort_keys=True))
        return self._identities[place]

    @property
    def files(self) -> dict[str, bytes]:
        """Files that travel with it, by their names."""
        source = self.origin.source
        return {f"{self.origin.module}.py": source.encode()} if source else {}

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = asdict(self)
        del found["_identities"]
        # The text travels as a file, which the module's name stands for.
        found["origin"]["source"] = bool(self.origin.source)
        found["variables"] = dict(self.variables)
        if self.numerics == TOLERANCE:
            # Functions of applications that say nothing are who they were.
            del found["numerics"]
        return found


def describe_function(tuner: Any) -> Declaration:
    """Return what decides the measurements of all keys of a function.

    Raises:
        LeftAlone: no other process finds it.
    """
    function = jitted(tuner)
    return Declaration(
        origin=find_origin(tuner, function),
        cache_key=function.cache_key,
        configs=tuple(dict.fromkeys(canonical(knobs(config)) for config in tuner.__dict__["configs"])),
        paths=own_paths(),
        evaluation=evaluation_digest(tuner),
        constants=constants_read(function),
        variables=deciding_variables(),
        is_timed_by_graph=bool(getattr(tuner, "use_cuda_graph", False)),
        hooks=hook_names(tuner),
    )


def find_origin(tuner: Any, function: Any) -> Origin:
    """Return where another process finds a ``@triton.jit`` function.

    Where no import finds it, its source travels, with the plain values that it reads.

    Raises:
        LeftAlone: neither is possible; says why.
    """
    qualname: str = function.__qualname__
    package, release, shown = name_in_library(function.__module__, qualname)
    found = _found(function)
    if found is not None:
        return Origin(function.__module__, qualname, "", package, release, shown, autotuner_in(found) is tuner)
    source = module_of(function)
    return Origin(f"source_{digest_of(source)}", function.__name__, source, package, release, shown, False)


def _found(function: Any) -> Any:
    """Return what another process's import finds by a function's name, if that is the function; else ``None``."""
    if is_script(function) or "<locals>" in function.__qualname__:
        return None
    try:
        found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
        is_same = jitted(found) is function
    except (KeyError, AttributeError, LeftAlone):
        return None
    return found if is_same and is_importable(function.__module__) else None
