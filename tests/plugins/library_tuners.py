"""Five kinds of subclass of Triton's ``Autotuner``, as libraries have them: each keeps winners in a file of its own."""

import ast
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triton import Config
from triton.runtime.autotuner import Autotuner

from tests.plugins.triton_app import kernels


class FileStore:
    """Configs and latencies by key in a JSON file, which is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """Return all entries."""
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def write(self, key: object, config: Config, latency: float | None = None) -> None:
        """Store one entry."""
        entries = {**self.read(), str(key): [config.all_kwargs(), latency]}
        staged = self.path.with_suffix(f".{os.getpid()}")
        staged.write_text(json.dumps(entries))
        staged.replace(self.path)

    def find(self, key: object, configs: list[Config]) -> Config | None:
        """Return the config of a key."""
        stored = self.read().get(str(key))
        return next((config for config in configs if stored and config.all_kwargs() == stored[0]), None)


class StoringTuner(Autotuner):  # type: ignore[misc]
    """A tuner with a store; Triton's own ``run`` is not changed."""

    def __init__(self, path: Path) -> None:
        super().__init__(kernels.scale.fn, kernels.scale.arg_names, kernels.CONFIGS, ["size"], None, None)
        self.store = FileStore(path)
        self.nargs: Any = None


class OwnRun(StoringTuner):
    """Its ``run`` is a changed copy of Triton's, as trifast's."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch a call."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        key = args[2]
        if key not in self.cache:
            stored = self.store.find(key, self.configs)
            if stored is None:
                try:
                    pruned = self.prune_configs(kwargs)
                    timings = {config: self._bench(*args, config=config, **kwargs)[0] for config in pruned}
                except Exception:
                    # Libraries do this.
                    timings = {self.configs[0]: 0.0}
                stored = min(timings, key=timings.__getitem__)
                self.store.write(key, stored, timings[stored])
            self.cache[key] = stored
        self.best_config = self.cache[key]
        result = self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())
        self.nargs = None
        return result


class StoreInRun(StoringTuner):
    """Its ``run`` calls Triton's, and then stores the best config."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch a call."""
        key = (args[2], *(str(value.dtype) for value in args[:2]))
        stored = self.store.find(key, self.configs)
        if stored is not None:
            self.cache[key] = stored
        result = super().run(*args, **kwargs)
        if stored is None:
            self.store.write(key, self.best_config)
        return result


class StoreInBench(StoringTuner):
    """Its ``_bench`` stores the fastest config so far; a new process begins with all that is stored."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for key in self.store.read():
            self.cache[ast.literal_eval(key)] = self.store.find(key, self.configs)

    def _bench(self, *args: Any, config: Any, **meta: Any) -> Any:
        figures = super()._bench(*args, config=config, **meta)
        key = str((args[2], *(str(value.dtype) for value in args[:2])))
        best = self.store.read().get(key)
        if best is None or figures[0] < best[1]:
            self.store.write(key, config, figures[0])
        return figures


class DiskCache:
    """A cache in a file, which is like a dict but not one, as FlagGems'."""

    def __init__(self, store: FileStore, configs: list[Config]) -> None:
        self.store = store
        self.configs = configs

    def __contains__(self, key: object) -> bool:
        return self.store.find(key, self.configs) is not None

    def __getitem__(self, key: object) -> Config:
        config = self.store.find(key, self.configs)
        if config is None:
            raise KeyError(key)
        return config

    def __setitem__(self, key: object, config: Config) -> None:
        self.store.write(key, config)


class DictLikeCache(StoringTuner):
    """Triton's ``run``, with a cache on disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.cache = DiskCache(self.store, self.configs)


class PolicyTuner(DictLikeCache):
    """Its ``run`` prunes nothing: a ``policy`` measures the configs that it likes, as FlagGems'. Sizes are rounded."""

    def policy(self, bench: Callable[[Any], Any], configs: list[Config], args: Any, kwargs: Any) -> Any:
        """Return the best config, and all figures."""
        timings = {config: bench(config)[0] for config in configs}
        return min(timings, key=timings.__getitem__), timings

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch a call."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        key = (args[2] - 1).bit_length()
        if key not in self.cache:

            def bench(config: Config) -> Any:
                return self._bench(*args, config=config, **kwargs)

            best, timings = self.policy(bench, self.configs, args, kwargs)
            self.cache[key] = best
            self.store.write(f"{key} figures", best, timings[best])
        self.best_config = self.cache[key]
        result = self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())
        self.nargs = None
        return result


KINDS: tuple[type[Any], ...] = (OwnRun, StoreInRun, StoreInBench, DictLikeCache, PolicyTuner)
