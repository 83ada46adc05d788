"""Odd calls of the drop-in for ``triton.autotune``: none stops the application, or takes other keys from the daemon."""

import contextlib
import io
import os
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError

from ktuned.catalog.project_file import read_project
from ktuned.dropin import Best, Tunings, account
from ktuned_client import DaemonError
from ktuned_triton import autotune, autotuner
from ktuned_triton.call import jitted
from ktuned_triton.evaluation import evaluation_digest
from tests.fake_tunings import FakeTunings
from tests.plugins.triton_app import kernels
from tests.plugins.triton_calls import (
    SIZE,
    call,
    grid,
    launched,
    left_to_triton,
    request_of,
    scale,
    text,
    tunings,
)

__all__ = ["launched", "left_to_triton", "tunings"]

Shape = namedtuple("Shape", "rows columns")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    account.left_alone.clear()
    account.keys.clear()


@pytest.mark.parametrize(
    "error",
    [OutOfResources(2, 1, "shared memory"), PTXASError("ptxas"), CompileTimeAssertionFailure(None, None, "too large")],
    ids=["resources", "assembler", "static-assert"],
)
def test_what_tritons_tuning_passes_over_gives_way_to_the_next(
    error: Exception, tunings: FakeTunings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config that the device or the kernel itself refuses is no fault of the application."""
    tried = []

    def run(*args: Any, **kwargs: Any) -> None:
        tried.append(kwargs["BLOCK"])
        if kwargs["BLOCK"] < 256:
            raise error

    monkeypatch.setattr(jitted(kernels.scale), "run", run)
    call(scale())
    assert tried == [128] * 4 + [256]


def test_a_call_that_cannot_be_tuned_leaves_other_keys_to_the_daemon(
    tunings: FakeTunings, launched: list[dict[str, Any]], left_to_triton: list[Any]
) -> None:
    """An unaligned view in one call, after which a known key is not Triton's to tune."""
    function = scale()
    call(function, SIZE)
    unaligned = torch.ones(SIZE + 1)[1:]
    for _ in range(2):
        function[grid](unaligned, torch.empty(SIZE), SIZE - 1, 2.0)
    call(function, SIZE)
    call(function, SIZE // 2)
    assert (len(launched), len(left_to_triton)) == (3, 2)
    assert [request.problem["size"] for request, _ in tunings.asked] == [SIZE, SIZE // 2]
    ((name, reason),) = account.left_alone.items()
    assert name == 'tests.plugins.triton_app.kernels.scale {"dtypes":"float32 float32","size":4095}'
    assert reason == "its argument x is not aligned to 16 bytes"


def test_an_empty_grid_decides_nothing(
    tunings: FakeTunings, launched: list[dict[str, Any]], left_to_triton: list[Any]
) -> None:
    """A batch without elements is launched as Triton does; the key's next call asks."""
    function = scale()
    x = torch.ones(SIZE)
    function[(0,)](x, x, SIZE, 2.0)
    assert tunings.asked == []
    function[grid](x, x, SIZE, 2.0)
    assert (len(launched), left_to_triton, len(tunings.asked)) == (2, [], 1)


class _Broken:
    """An argument that looks like a tensor, until it is looked at."""

    dtype = torch.float32

    def data_ptr(self) -> int:
        raise RuntimeError("it has no storage\nin two lines")

    def untyped_storage(self) -> None:
        return


def test_a_fault_of_the_evaluation_is_not_the_applications(
    tunings: FakeTunings, launched: list[dict[str, Any]], left_to_triton: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Triton launches is launched; what it refuses, it refuses in its own words."""
    function = scale()
    for _ in range(2):
        function[grid](_Broken(), torch.ones(SIZE), SIZE, 2.0)
    assert len(left_to_triton) == 2
    assert [*account.left_alone.values()] == ["a call cannot be evaluated: RuntimeError: it has no storage"]

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise TypeError("Triton's words")

    monkeypatch.setattr(Autotuner, "run", refuse)
    with pytest.raises(TypeError, match="Triton's words"):
        function[grid](torch.ones(SIZE))
    call(function, SIZE // 2)
    assert len(launched) == 1


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
def test_arguments_are_refused_by_name(value: Any, kind: str, tunings: FakeTunings, left_to_triton: list[Any]) -> None:
    """Their types say in the kernel what plain data does not."""
    scale()[grid](value, torch.ones(SIZE), SIZE, 2.0)
    assert [*account.left_alone.values()] == [f"its argument x is a {kind}"]
    assert len(left_to_triton) == 1


@pytest.mark.parametrize("name", ["dtypes", "call"])
def test_an_argument_with_ktuneds_own_name_is_no_key(
    name: str, tunings: FakeTunings, left_to_triton: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values would be lost behind ktuned's, and two keys be one."""
    function = scale()
    function.keys = [name]
    call(function)
    assert [*account.left_alone.values()] == [f"its key has an argument {name!r}, a name that ktuned uses itself"]


def test_pruning_may_call_the_kernel(tunings: FakeTunings, launched: list[dict[str, Any]]) -> None:
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
    assert sorted(request.problem["size"] for request, _ in tunings.asked) == [SIZE // 2, SIZE]


def test_no_daemon_is_a_reason(tunings: FakeTunings, left_to_triton: list[Any]) -> None:
    """For the summary: the function was not taken over."""
    tunings.runs = False
    account.taken_over.clear()
    call(scale())
    assert (account.taken_over, [*account.left_alone.values()]) == (set(), ["no daemon runs"])


def test_pruning_that_makes_configs_is_left_alone(tunings: FakeTunings, left_to_triton: list[Any]) -> None:
    """The best of its list would be taken for the best of those that Triton tries."""
    made = triton.Config({"BLOCK": 512, "THROUGH": None})
    prune = {"early_config_prune": lambda configs, named, **rest: [configs[0], made]}
    call(autotune(kernels.CONFIGS, key=["size"], prune_configs_by=prune)(kernels.scale.fn))
    assert [*account.left_alone.values()] == ["its pruning makes configs that are not in its list"]
    assert (len(left_to_triton), tunings.asked) == (1, [])


class TestIdentity:
    """A function's tuning is another one where what decides it is another."""

    def decorated(self, heuristic: Any, prune: Any = None) -> Any:
        """Return the application's function with another heuristic."""
        prune_by = None if prune is None else {"early_config_prune": prune}
        heuristics = triton.heuristics({"EVEN": heuristic})
        return autotune(kernels.CONFIGS, key=["size"], prune_configs_by=prune_by)(heuristics(jitted(kernels.scale)))

    def test_code_that_the_application_runs_counts(self) -> None:
        """An edited heuristic is no longer what the winner was measured with; where it stands in the file is."""
        exact = self.decorated(lambda args: args["size"] % args["BLOCK"] == 0)
        moved = self.decorated(
            lambda args: args["size"] % args["BLOCK"] == 0,
        )
        never = self.decorated(lambda args: args["size"] % args["BLOCK"] == 1)
        pruned = self.decorated(lambda args: args["size"] % args["BLOCK"] == 0, kernels.at_least_128)
        digests = [evaluation_digest(function) for function in (exact, moved, never, pruned)]
        assert digests[0] == digests[1]
        assert len(set(digests)) == 3
        x = torch.ones(SIZE)
        names = {request_of(function, x, x).kernel for function in (exact, moved, never)}
        assert len(names) == 2

    def test_what_that_code_reads_counts(self) -> None:
        """Variables of a closure, defaults, a partial's arguments, an object's state, globals and functions called."""

        class Model:
            def __init__(self, limit: int) -> None:
                self.limit = limit

            def __call__(self, args: dict[str, Any]) -> bool:
                return bool(args["size"] % self.limit == 0)

        def limited(args: dict[str, Any], limit: int) -> bool:
            return bool(args["size"] % limit == 0)

        def of_globals(text: str) -> Any:
            known: dict[str, Any] = {"__name__": "app"}
            exec(f"{text}\ndef even(args): return called(args)", known)
            return known["even"]

        def closing_over(limit: int) -> Any:
            return lambda args: args["size"] % limit == 0

        def of_default(limit: int) -> Any:
            return lambda args, limit=limit: args["size"] % limit == 0

        def called(limit: int) -> Any:
            return of_globals(f"LIMIT = {limit}\ndef called(args): return args['size'] % LIMIT == 0")

        def edited(limit: int) -> Any:
            return of_globals(f"def called(args): return args['size'] % {limit} == 0")

        for make in (closing_over, of_default, Model, lambda limit: partial(limited, limit=limit), called, edited):
            digests = [evaluation_digest(self.decorated(make(limit))) for limit in (16, 16, 32)]
            assert digests[0] == digests[1]
            assert digests[1] != digests[2]

    def test_a_digest_is_the_same_in_each_process(self) -> None:
        """Sets of strings and addresses of objects are not."""
        code = (
            "from types import SimpleNamespace as N\n"
            "from functools import cache\n"
            "from ktuned_triton.evaluation import evaluation_digest\n"
            "prune = lambda configs, *rest: [c for c in configs if c in {'a', 'b', 'c', 'd'} and (lambda: c)()]\n"
            "print(evaluation_digest(N(early_config_prune=prune, perf_model=cache(min), fn=N(params=()))))\n"
        )
        seeds = {"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
        other = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **seeds}, capture_output=True, text=True, check=True
        )
        with contextlib.redirect_stdout(io.StringIO()) as own:
            exec(code)
        assert other.stdout == own.getvalue()
        assert len(other.stdout.strip()) == 16

    def test_the_applications_variables_are_its_workers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those that Triton compiles by; they make a project of their own."""
        x = torch.ones(SIZE)
        plain = request_of(kernels.scale, x, x).adopted
        monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
        monkeypatch.setenv("TRITON_CACHE_AUTOTUNING", "1")
        adopted = request_of(kernels.scale, x, x).adopted
        assert adopted.project != plain.project
        directory = adopted.write(tmp_path).parent
        assert read_project(str(directory)).env == {"TRITON_F32_DEFAULT": "ieee"}
        plain.write(tmp_path)
        assert read_project(str(tmp_path / plain.project)).env == {}
        # Kernels of before these fields keep their names.
        older = replace(plain, evaluation="")
        assert "evaluation" not in older.write(tmp_path).read_text()


class TestDevice:
    """The tensor's device decides."""

    def test_the_first_tensors_gpu_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a machine with GPUs of two models."""
        monkeypatch.setattr(autotuner, "device_model", lambda index: f"model {index}")
        on = [SimpleNamespace(device=torch.device(name)) for name in ("cuda:1", "cuda:0", "cpu")]
        assert autotuner._model((1, on[0], on[1]), {}) == "model 1"
        assert autotuner._model((), {"x": on[1]}) == "model 0"
        assert autotuner._model((on[2],), {}) is None

    def test_lookups_and_tunings_name_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without one, the daemon decides."""
        monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
        said: list[dict[str, Any]] = []

        class Client:
            def call(self, method: str, **params: Any) -> Any:
                said.append(params)
                return {"status": "fresh", "config": {"BLOCK": 256}}

            def tune(self, **params: Any) -> Any:
                said.append(params)
                raise DaemonError("no_device", "there is no such device\nand more")

        x = torch.ones(SIZE)
        request = request_of(kernels.scale, x, x)
        tunings = Tunings(Client())  # type: ignore[arg-type]
        assert tunings.best(replace(request, device="model 1")) == Best('{"BLOCK":256}', True, None)
        assert tunings._ask_quietly(replace(request, device="model 1")) == ()
        tunings.best(request)
        assert [params.get("device") for params in said] == ["model 1", "model 1", None]
        assert [*account.keys.values()] == ["tuned"]


def test_a_winner_is_the_original_config(tunings: FakeTunings, launched: list[dict[str, Any]]) -> None:
    """Its values are those that the application gave: a dtype, a tuple, None."""
    config = triton.Config({"BLOCK": 256, "THROUGH": triton.language.float16}, num_warps=4)
    function = autotune([kernels.CONFIGS[0], config], key=["size"])(kernels.scale.fn)
    tunings.known = Best(text(256, 4).replace("~None", f"~{triton.language.float16!r}"), True, None)
    call(function)
    assert launched[0]["THROUGH"] is triton.language.float16
    assert function.best_config is config
