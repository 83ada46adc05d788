"""The hooks in the program: what each does when Inductor compiles a graph.

::

    define_kernel ─▶ names what the user wrote
    AsyncCompile.triton ─▶ asks the daemon ─▶ a compile worker loads the kernel with the winner, or the default's config
    precompile ─▶ the kernel is back: its first launch will leave a record, if its tuning has not ended
    _save_graph ─▶ skipped, if a decision of the graph is not settled
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ktuned.dropin import account
from ktuned_inductor.decisions import FIRST_LOOK_DEADLINE_S, Decision, decisions, read_variables
from ktuned_inductor.generated import arm_recorder, decide_kernel, find_decorator, note_origin
from ktuned_inductor.loading import load_kernel
from ktuned_inductor.operators import decide_convolution, decide_product, take_choice
from ktuned_inductor.seams import (
    CHOICES,
    COMPILE_KERNEL,
    CONVOLUTIONS,
    DEFINE_KERNEL,
    GRAPH_KEY,
    LOAD_KERNEL,
    PRECOMPILE,
    SAVE_GRAPH,
    SELECT,
    Switch,
    hook_seam,
)

NAME: Final = "torch.compile"


def report_left_alone(reason: str) -> None:
    """Put one line into the summary: Inductor is left as it is."""
    account.record_left_alone(NAME, reason)


switch: Final = Switch(report_left_alone)

_loading = threading.RLock()


def _replace_lock() -> None:
    global _loading
    _loading = threading.RLock()


os.register_at_fork(after_in_child=_replace_lock)


def install_hooks() -> None:
    """Hook all seams of this process, which exist with their parameters."""
    read_variables()
    hook_seam(DEFINE_KERNEL, _hook_define_kernel)
    hook_seam(COMPILE_KERNEL, _hook_compile_kernel)
    hook_seam(PRECOMPILE, _hook_precompile)
    hook_seam(GRAPH_KEY, _hook_graph_key)
    hook_seam(SAVE_GRAPH, _hook_save_graph)
    hook_seam(CHOICES, _hook_choices)
    hook_seam(CONVOLUTIONS, _hook_convolutions)
    hook_seam(SELECT, _hook_select)
    atexit.register(_note_cached_graphs)


def _note_cached_graphs() -> None:
    """Put one line into the summary if graphs were loaded as an earlier start has saved them: they ask for nothing."""
    from torch._dynamo.utils import counters

    if count := counters["inductor"]["fxgraph_cache_hit"]:
        account.record_note(f"torch.compile loaded {count} {'graph' if count == 1 else 'graphs'} from its cache")


def find_tuner() -> None:
    """Find out if a daemon may tune what is recorded. If not, no graph waits for that.

    Graphs are then saved with what the default mode chooses, under a key of their own: a later start, which a daemon
    serves, does not find them.
    """
    decisions.can_be_tuned = account.share_finding(
        "tuner", lambda: decisions.find_link().may_have_gpu(FIRST_LOOK_DEADLINE_S)
    )


def explain_setting() -> str:
    """Return the setting of torch with which a graph is left to Inductor; empty if there is none."""
    import torch._functorch.config as functorch
    from torch._inductor import config
    from torch._inductor.virtualized import V

    settings = {
        "cpp_wrapper": getattr(V.graph, "cpp_wrapper", False),
        "AOTInductor": getattr(V.graph, "aot_mode", False),
        "deterministic": getattr(config, "deterministic", False),
        "combo_kernels": getattr(config, "combo_kernels", False),
        "bundled_autograd_cache": getattr(functorch, "bundled_autograd_cache", False),
        "autotune_at_compile_time": getattr(config.triton, "autotune_at_compile_time", False),
        # Another process then decides than the one that saves the graph.
        "TORCHINDUCTOR_FX_COMPILE_MODE": os.environ.get("TORCHINDUCTOR_FX_COMPILE_MODE"),
    }
    return next((name for name, is_set in settings.items() if is_set), "")


def _hook_define_kernel(define: Callable[..., Any]) -> Callable[..., Any]:
    def define_kernel(self: Any, src_code: str, node_schedule: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        name = define(self, src_code, node_schedule, kernel, *args, **kwargs)
        switch.attempt(None, note_origin, name, node_schedule)
        return name

    return define_kernel


def _is_left_alone() -> bool:
    """Return whether the graph has a setting with which it is left to Inductor, and report that."""
    if setting := explain_setting():
        account.record_left_alone(NAME, f"{setting} is set")
    return bool(setting)


def _decide_kernel(kernel_name: str, source: str) -> Decision | None:
    decorator = find_decorator(source)
    return None if decorator is None or _is_left_alone() else decide_kernel(kernel_name, source, decorator)


def _hook_compile_kernel(compile_kernel: Callable[..., Any]) -> Callable[..., Any]:
    owner, name = LOAD_KERNEL.find_owner()
    load = getattr(owner, name)

    def compile_decided(self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any) -> Any:
        decision = switch.attempt(None, _decide_kernel, kernel_name, source_code)
        # Inductor takes the function from its module when it makes the task for its workers. Another thread must not
        # take it for another kernel.
        with _loading:
            known = None if decision is None else partial(load_kernel, load, decision.key.text, decision.winner)
            setattr(owner, name, known or load)
            try:
                return compile_kernel(self, kernel_name, source_code, *args, **kwargs)
            finally:
                setattr(owner, name, load)

    return compile_decided


def _hook_precompile(precompile: Callable[..., Any]) -> Callable[..., Any]:
    def precompile_kernel(self: Any, warm_cache_only: bool = False, *args: Any, **kwargs: Any) -> Any:
        result = precompile(self, warm_cache_only, *args, **kwargs)
        if not warm_cache_only:
            # Also if the hooks were switched off meanwhile: a decision without a record stays open for ever.
            arm_recorder(self)
        return result

    return precompile_kernel


def _decide_operator(decide: Callable[..., list[Any]], choices: list[Any], *described: Any) -> list[Any]:
    return choices if _is_left_alone() else decide(choices, *described)


def _hook_choices(finalize: Callable[..., Any]) -> Callable[..., Any]:
    def finalize_decided(
        self: Any, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, *args: Any, **kwargs: Any
    ) -> Any:
        choices = finalize(self, template_choices, kernel_inputs, templates, op_name, *args, **kwargs)
        return switch.attempt(choices, _decide_operator, decide_product, choices, kernel_inputs, op_name)

    return finalize_decided


def _hook_convolutions(find: Callable[..., Any]) -> Callable[..., Any]:
    def find_decided(self: Any, *args: Any, **kwargs: Any) -> Any:
        list_configs = find(self, *args, **kwargs)

        def list_decided(*sizes: Any, **more: Any) -> Any:
            configs = list(list_configs(*sizes, **more))
            return switch.attempt(configs, _decide_operator, decide_convolution, configs)

        return list_decided

    return find_decided


def _hook_select(select: Callable[..., Any]) -> Callable[..., Any]:
    def select_decided(
        self: Any, name: str, choices: Any, input_nodes: Any, layout: Any, *args: Any, **kwargs: Any
    ) -> Any:
        choices = switch.attempt(choices, take_choice, choices, input_nodes, layout)
        return select(self, name, choices, input_nodes, layout, *args, **kwargs)

    return select_decided


def _hook_graph_key(describe: Callable[..., None]) -> Callable[..., None]:
    def describe_marked_graph(self: Any, *args: Any, **kwargs: Any) -> None:
        describe(self, *args, **kwargs)
        if not decisions.can_be_tuned:
            # All attributes are part of the key.
            self.ktuned = "nobody tunes it"

    return describe_marked_graph


def _hook_save_graph(save: Callable[..., None]) -> Callable[..., None]:
    def save_settled_graph(*args: Any, **kwargs: Any) -> None:
        # Also if the hooks were switched off meanwhile: the graph has choices that nobody measured.
        if not decisions.take_unsettled():
            save(*args, **kwargs)

    return save_settled_graph
