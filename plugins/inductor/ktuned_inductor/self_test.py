"""Checks once for each build of torch and Triton that the hooks affect Inductor as they are meant to.

It needs no GPU, takes some ten seconds in a process of its own, and compiles real kernels in real compile workers for a
made-up GPU (:mod:`~ktuned_inductor.made_up_gpu`). Its result is kept in the user's cache.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from ktuned.dropin import Answer, CallKey, digest_content
from ktuned_inductor.decisions import Note

LIMIT_S: Final = 120.0
"""Deadline of the self-test, which a program waits for once."""

PASSED: Final = "passed"

WINNER: Final = {"XBLOCK": 64, "num_stages": 2, "num_warps": 1}
"""A config that no list of Inductor holds."""


def find_failure() -> str:
    """Return why the self-test fails with this process's torch and Triton; empty if it passes."""
    import torch
    import triton

    build = [torch.__version__, torch.version.git_version, torch.__file__, triton.__version__, sys.executable]
    build += [str(path.stat().st_mtime_ns) for path in sorted(Path(__file__).parent.glob("*.py"))]
    note = Note(f"{digest_content(json.dumps(build))}.self_test")
    note.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The processes of one program run it once.
    with note.path.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = note.read_text()
        if not result:
            try:
                result = run_self_test() or PASSED
            except subprocess.TimeoutExpired:
                # The machine may have been too busy, so the next program tries again.
                return f"its self-test took longer than {LIMIT_S:.0f} s"
            note.write_text(result)
        return result.removeprefix(PASSED)


def run_self_test() -> str:
    """Run the self-test in a process of its own; return why it fails, or an empty string.

    Raises:
        TimeoutExpired: it took too long.
    """
    with tempfile.TemporaryDirectory(prefix="ktuned-inductor-") as scratch:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KTUNED_RUN_")}
        environment |= {
            "CUDA_VISIBLE_DEVICES": "",
            "KTUNED_HOME": scratch,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(scratch, "torch"),
            "TRITON_CACHE_DIR": os.path.join(scratch, "triton"),
            "TORCHINDUCTOR_COMPILE_THREADS": "2",
        }
        command = [sys.executable, "-m", "ktuned_inductor.self_test"]
        done = subprocess.run(
            command,
            env=environment,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode == 0:
        return ""
    errors = re.findall(r"^[\w.]*(?:Error|Exception)\b.*$", done.stderr, re.MULTILINE) or [f"status {done.returncode}"]
    return f"its self-test failed: {errors[-1][:300]}"


class _Link:
    """A daemon of which the test sets the answer."""

    answer: Answer | None = None

    def ask_about(self, key: CallKey, deadline_s: float) -> Answer | None:
        return self.answer


def _collect_configs() -> list[list[dict[str, Any]]]:
    """Return a list that the configs of each kernel join when compile workers return it."""
    from ktuned_inductor.loading import read_knobs
    from ktuned_inductor.seams import PRECOMPILE, hook_seam

    compiled: list[list[dict[str, Any]]] = []

    def collect(precompile: Any) -> Any:
        def precompile_kernel(self: Any, *args: Any, **kwargs: Any) -> None:
            precompile(self, *args, **kwargs)
            compiled.append([read_knobs(result.config) for result in self.compile_results])

        return precompile_kernel

    hook_seam(PRECOMPILE, collect)
    return compiled


def check_kernels_and_graphs() -> None:
    """Check that one config is compiled, that a winner is, and that an unsettled graph is not saved.

    Raises:
        AssertionError: one of these does not hold.
    """
    from ktuned_inductor.made_up_gpu import compile_graph, make_up_gpu

    make_up_gpu()
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    from ktuned_inductor.decisions import decisions
    from ktuned_inductor.hooks import install_hooks, switch

    link = _Link()
    decisions.find_link = lambda: link
    install_hooks()
    compiled = _collect_configs()
    AsyncCompile.wait_pool_ready()

    def compile_softmax(columns: int) -> tuple[list[list[dict[str, Any]]], bool]:
        """Return the configs that were compiled for each kernel of a graph, and whether the graph was cached."""
        decisions.forget_decisions()
        counters.clear()
        compiled.clear()
        with config.patch(max_autotune=True, coordinate_descent_tuning=True):
            compile_graph(lambda x, y: (torch.softmax(x + y, -1), x.sum(0)), [((256, columns), "bfloat16")] * 2)
        assert not switch.reason, switch.reason
        return compiled[:], counters["inductor"]["fxgraph_cache_hit"] == 1

    first, _ = compile_softmax(1024)
    assert first, "no kernel was compiled"
    assert all(len(configs) == 1 for configs in first), f"on a miss {first} were compiled"
    link.answer = Answer(json.dumps(WINNER), is_final=True)
    second, _ = compile_softmax(2048)
    assert WINNER in [known for (known,) in second], f"with a winner {second} were compiled"
    link.answer = Answer(message="given up")
    assert not compile_softmax(1024)[1], "an unsettled graph was saved"
    assert compile_softmax(1024)[1], "a settled graph was not saved"


def check_products() -> None:
    """Check that a matrix product is lowered to one choice, and that each recorded choice is rendered again.

    Raises:
        AssertionError: one of these does not hold.
    """
    import torch
    from torch._inductor import config

    from ktuned_inductor import operators
    from ktuned_inductor.decisions import decisions
    from ktuned_inductor.hooks import switch
    from ktuned_inductor.made_up_gpu import compile_graph
    from ktuned_inductor.rendering import render_choice

    decisions.find_link = _Link
    recorded: list[Any] = []
    decisions.record_decision = lambda decision, pack_call: recorded.append(pack_call()[0])  # type: ignore[method-assign]
    decisions.forget_decisions()
    # Timing anything raises an error, because nothing can be launched.
    with config.patch(max_autotune=True, fx_graph_cache=False):
        compile_graph(lambda *tensors: (torch.bmm(*tensors),), [((4, 64, 128), "bfloat16"), ((4, 128, 64), "bfloat16")])
        compile_graph(
            lambda *tensors: (torch.addmm(*tensors),),
            [((64,), "bfloat16"), ((64, 128), "bfloat16"), ((128, 64), "bfloat16")],
        )
    assert not switch.reason, switch.reason
    assert [call.operator for call in recorded] == ["bmm", "addmm"], f"{len(recorded)} products were decided"
    for call in recorded:
        plain = json.loads(call.to_json())
        rendered = render_choice(plain, call.choices[1])
        names = [name for name in rendered.args if isinstance(name, str)]
        assert names == [*call.tensors], f"a rendered {call.operator} takes {names}"
    assert operators.LIBRARY in recorded[0].choices[0]


if __name__ == "__main__":
    check_kernels_and_graphs()
    check_products()
