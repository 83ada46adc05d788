"""Odd calls of the drop-in for ``triton.autotune``: none stops the application, or takes other keys from the daemon."""

import threading
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources, PTXASError

from ktuned.dropin import Answer, account
from ktuned_triton import autotune, keyed_call
from ktuned_triton.call import find_jit_function
from ktuned_triton.keyed_call import CallArguments
from tests.fake_daemon_link import FakeDaemonLink
from tests.plugins.triton_app import kernels
from tests.plugins.triton_calls import (
    SIZE,
    Launches,
    call,
    clean_account,
    grid,
    launched,
    left_to_triton,
    link,
    scale,
    spool,
    text,
)

__all__ = ["clean_account", "launched", "left_to_triton", "link", "spool"]

Shape = namedtuple("Shape", "rows columns")


@pytest.mark.parametrize(
    "error",
    [OutOfResources(2, 1, "shared memory"), PTXASError("ptxas"), CompileTimeAssertionFailure(None, None, "too large")],
    ids=["resources", "assembler", "static-assert"],
)
def test_a_config_that_tritons_tuning_skips_gives_way_to_the_next(
    error: Exception, link: FakeDaemonLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config that the device or the kernel itself refuses is no fault of the application."""
    launched = []

    def run(*args: Any, **kwargs: Any) -> None:
        if kwargs["BLOCK"] < 256:
            raise error
        launched.append((kwargs["BLOCK"], kwargs["warmup"]))

    monkeypatch.setattr(find_jit_function(kernels.scale), "run", run)
    call(scale())
    assert launched == [(256, True), (256, False)]


class _Broken:
    """An argument that looks like a tensor, until it is looked at."""

    dtype = torch.float32

    def data_ptr(self) -> int:
        raise RuntimeError("it has no storage\nin two lines")

    def untyped_storage(self) -> None:
        return


def test_a_call_that_cannot_be_evaluated_is_left_to_triton(
    link: FakeDaemonLink, launched: Launches, left_to_triton: list[Any]
) -> None:
    """Triton tunes what it launches; other keys are adopted."""
    function = scale()
    function[grid](_Broken(), torch.ones(SIZE), SIZE, 2.0)
    assert len(left_to_triton) == 4
    assert [*account.left_alone.values()] == ["a call cannot be evaluated: RuntimeError: it has no storage"]
    call(function, SIZE // 2)
    assert len(link.asked_keys) == 1


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Shape(1, 2), "named tuple Shape"),
        (triton.reinterpret(torch.ones(SIZE, dtype=torch.int8), triton.language.float8e5), "TensorWrapper"),
        (triton.language.float16, "dtype"),
        ("text", "str"),
    ],
    ids=["named-tuple", "reinterpreted", "dtype", "text"],
)
def test_arguments_are_refused_by_name(
    value: Any, kind: str, link: FakeDaemonLink, left_to_triton: list[Any], launched: Launches
) -> None:
    """Their types say in the kernel what plain data does not."""
    scale()[grid](value, torch.ones(SIZE), SIZE, 2.0)
    assert [*account.left_alone.values()] == [f"its argument x is a {kind}"]
    assert len(left_to_triton) == 4


def test_pruning_may_call_the_kernel(link: FakeDaemonLink, launched: Launches) -> None:
    """A model that measures does so; no lock is held against its own thread."""

    def prune(configs: list[Any], named: dict[str, Any], **rest: Any) -> list[Any]:
        if named["size"] == SIZE:
            call(function, SIZE // 2)
        return configs[2:]

    function = autotune(kernels.CONFIGS, key=["size"], prune_configs_by={"early_config_prune": prune})(kernels.scale.fn)
    caller = threading.Thread(target=call, args=(function,), daemon=True)
    caller.start()
    caller.join(30)
    assert not caller.is_alive()
    assert sorted(key.problem["size"] for key in link.asked_keys) == [SIZE // 2, SIZE]


def test_a_key_is_adopted_while_another_thread_prunes(
    link: FakeDaemonLink, launched: Launches, left_to_triton: list[Any]
) -> None:
    """While one thread prunes, another one's key is adopted, too."""
    is_pruning, may_go_on = threading.Event(), threading.Event()

    def prune(configs: list[Any], named: dict[str, Any], **rest: Any) -> list[Any]:
        if named["size"] == SIZE:
            is_pruning.set()
            assert may_go_on.wait(30)
        return configs

    function = autotune(kernels.CONFIGS, key=["size"], prune_configs_by={"early_config_prune": prune})(kernels.scale.fn)
    first = threading.Thread(target=call, args=(function,))
    first.start()
    assert is_pruning.wait(30)
    x = torch.ones(SIZE)
    # Triton keeps a call's arguments in the object: another object is what frameworks use.
    other = autotune(kernels.CONFIGS, key=["size"])(kernels.scale.fn)
    other[grid](x, torch.empty_like(x), SIZE // 2, 2.0)
    may_go_on.set()
    first.join(30)
    assert left_to_triton == []
    assert len(link.asked_keys) == 2


class TestDevice:
    """The tensor's device decides."""

    def test_the_first_tensors_gpu_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a machine with GPUs of two models."""
        monkeypatch.setattr(keyed_call, "find_device_model", lambda index: f"model {index}")
        on = [SimpleNamespace(device=torch.device(name)) for name in ("cuda:1", "cuda:0", "cpu")]
        assert CallArguments([], (1, on[0], on[1]), {}).model == "model 1"
        assert CallArguments([], (), {"x": on[1]}).model == "model 0"
        assert CallArguments([], (on[2],), {}).model is None


def test_a_winner_has_the_values_of_the_original_config(link: FakeDaemonLink, launched: Launches) -> None:
    """Its values are those that the application gave: a dtype, a tuple, None."""
    config = triton.Config({"BLOCK": 256, "THROUGH": triton.language.float16}, num_warps=4)
    function = autotune([kernels.CONFIGS[0], config], key=["size"])(kernels.scale.fn)
    link.answer = Answer(text(256, 4).replace("~None", f"~{triton.language.float16!r}"), is_final=True)
    call(function)
    assert launched[0]["THROUGH"] is triton.language.float16
    assert function.best_config.kwargs is config.kwargs
