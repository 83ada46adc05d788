"""The configs of generated kernels, decided where Inductor loads them: in its compile workers, or in the program.

A case
    Inductor hands the source of a new kernel to a compile worker. The worker executes it. Its decorator, such as
    ``triton_heuristics.reduction(size_hints=…, inductor_meta=…)``, lists five configs, of which Inductor would compile
    all and time them at the kernel's first launch. :func:`load_kernel` comes in between, with the winner that the
    program asked the daemon for. The list is cut to that winner. Without a winner, it is cut to what the default mode
    would take: the decorator is asked once more, with the flags of max-autotune off. The worker compiles this config
    alone, and the full list returns to the program in ``inductor_meta``.

The program passes :func:`load_kernel` and the winner to the worker instead of Inductor's own function. So compile
workers need no hook of ``ktuned run``, and ask no daemon. They import this module, which therefore imports little.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from ktuned_inductor.seams import CHECK_CACHE, IN_WORKERS, LISTS, explain_difference, hook_seam

META_KEY: Final = "ktuned"
"""The key of ``inductor_meta`` under which the decision's key and the kernel's configs return to the program, or why
they could not be listed."""

_TUNING_FLAGS: Final = ("max_autotune", "max_autotune_pointwise", "coordinate_descent_tuning")

_BENCHMARKING_FLAGS: Final = ("coordinate_descent_tuning", "dynamic_scale_rblock")
"""Flags by which a kernel with one config is timed with others at its first launch."""

Knobs = Mapping[str, Any]
"""A config as plain data: its block sizes, ``num_warps`` and ``num_stages``."""


class _Listed(BaseException):
    """Ends a decorator that was only asked for its configs."""

    def __init__(self, configs: list[Any]) -> None:
        self.configs = configs


class _Loading(threading.local):
    """The kernel that this thread loads.

    Attributes:
        is_active: whether one is loaded whose configs are decided here.
        is_listing: whether the decorator is only asked for its configs.
        winner: the config to take; empty if there is no winner.
        default: the config that the default mode would take.
        listed: all configs that the decorator lists.
    """

    is_active = False
    is_listing = False
    winner: Knobs = {}
    default: Any = None
    listed: Sequence[Any] = ()


_loading = _Loading()
_hooked = False


def read_knobs(config: Any) -> dict[str, Any]:
    """Return a ``triton.Config`` as plain data."""
    return {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def make_config(knobs: Knobs, listed: list[Any]) -> Any:
    """Return a ``triton.Config`` with these knobs; ``listed`` are configs of the same kernel."""
    config = deepcopy(listed[0])
    config.kwargs = {name: value for name, value in knobs.items() if not name.startswith("num_")}
    config.num_warps, config.num_stages = knobs["num_warps"], knobs["num_stages"]
    return config


def load_kernel(load: Callable[[str, str], Any], key: str, winner: Knobs, kernel_name: str, source_code: str) -> Any:
    """Load a kernel as Inductor does, with one config; as without ktuned if anything here fails.

    Args:
        load: Inductor's own function.
        key: the key of the decision about the kernel.
        winner: the config to take; empty for the default mode's.
        kernel_name: the kernel's name in its source.
        source_code: the generated source.
    """
    try:
        install_hooks()
        _loading.is_active, _loading.winner = True, winner
        kernel = load(kernel_name, source_code)
        found = {"default": read_knobs(_loading.default), "listed": [*map(read_knobs, _loading.listed)]}
    except Exception as error:
        _loading.__dict__.clear()
        kernel, found = load(kernel_name, source_code), {"error": f"{type(error).__name__}: {error}"}
    finally:
        _loading.__dict__.clear()
    kernel.inductor_meta[META_KEY] = {"key": key, **found}
    return kernel


def install_hooks() -> None:
    """Hook the functions that list configs; once for a process, and without effect outside :func:`load_kernel`.

    Raises:
        AttributeError: one of them is not as this plugin knows it.
    """
    global _hooked
    if _hooked:
        return
    if difference := explain_difference(IN_WORKERS):
        raise AttributeError(difference)
    _hooked = True
    hook_seam(CHECK_CACHE, _hook_check)
    for seam in LISTS:
        hook_seam(seam, _hook_list)


def _hook_list(list_configs: Callable[..., Any]) -> Callable[..., Any]:
    def decide_configs(*args: Any, **kwargs: Any) -> Any:
        meta = kwargs.get("inductor_meta") or {}
        if not _loading.is_active or args or not any(meta.get(flag) for flag in _TUNING_FLAGS):
            return list_configs(*args, **kwargs)
        try:
            _loading.is_listing = True
            untuned = deepcopy({**kwargs, "inductor_meta": {**meta, **dict.fromkeys(_TUNING_FLAGS, False)}})
            list_configs(**untuned)
        except _Listed as found:
            _loading.default = found.configs[0]
        except Exception:
            # The kernel is listed as without ktuned.
            _loading.default = None
        finally:
            _loading.is_listing = False
        return list_configs(**kwargs)

    return decide_configs


def _hook_check(check: Callable[..., Any]) -> Callable[..., Any]:
    def choose_config(configs: list[Any], filename: Any, inductor_meta: dict[str, Any], *args: Any, **more: Any) -> Any:
        if _loading.is_listing:
            raise _Listed(configs)
        if not _loading.is_active or _loading.default is None:
            return check(configs, filename, inductor_meta, *args, **more)
        _loading.listed = deepcopy(configs)
        chosen: Knobs = read_knobs(_loading.default)
        if _loading.winner.keys() == chosen.keys():
            chosen = _loading.winner
        inductor_meta.update(dict.fromkeys(_BENCHMARKING_FLAGS, False))
        # One config, no file of a winner, and what Inductor logs about it.
        return [make_config(chosen, configs)], None, {"autotune_cache_state": "only 1 config"}

    return choose_config
