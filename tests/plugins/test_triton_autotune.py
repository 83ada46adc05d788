"""The drop-in for ``triton.autotune``: which config a call launches, and what the daemon is given to tune."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from ktuned.backends.contract import Kernel as AnyKernel
from ktuned.backends.contract import Unit
from ktuned.catalog import guess_backend
from ktuned.dropin import CALL_KEY, Best, Tunings, account
from ktuned.model.values import canonical
from ktuned.spec.loader import load_file
from ktuned.spec.tensors import materialise
from ktuned_triton import Triton, autotune, autotuner
from ktuned_triton.adoption import Request
from ktuned_triton.call import evaluate, jitted, key_of, knobs
from ktuned_triton.hooks import hooked
from tests.e2e.harness import running
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


class TestACall:
    """It launches the best config known now, and never waits."""

    def test_with_nothing_known_it_launches_the_first_that_the_pruning_leaves(
        self, tunings: FakeTunings, launched: list[dict[str, Any]]
    ) -> None:
        """Heuristics see it, and the key is asked for once."""
        function = scale()
        call(function)
        call(function)
        assert [(run["BLOCK"], run["num_warps"], run["EVEN"]) for run in launched] == [(128, 2, True)] * 2
        ((request, _),) = tunings.asked
        assert request.problem == {"size": SIZE, "dtypes": "float32 float32"}

    def test_a_known_config_is_launched_at_once(self, tunings: FakeTunings, launched: list[dict[str, Any]]) -> None:
        """A fresh one is asked for no more; a stale one is, and the best so far of a tuning that goes on."""
        tunings.known = Best(text(256, 4), is_fresh=True, artifact=None)
        call(scale())
        assert tunings.asked == []
        tunings.known = Best(text(256, 4), is_fresh=False, artifact=None)
        call(scale())
        assert len(tunings.asked) == 1
        tunings.goes_on = True
        tunings.known = Best(text(256, 4), is_fresh=True, artifact=None)
        call(scale())
        assert len(tunings.asked) == 2
        assert [(run["BLOCK"], run["num_warps"]) for run in launched] == [(256, 4)] * 3

    def test_a_config_that_the_pruning_took_away_is_not_launched(
        self, tunings: FakeTunings, launched: list[dict[str, Any]]
    ) -> None:
        """Whatever the daemon says."""
        tunings.known = Best(text(64, 2), is_fresh=True, artifact=None)
        call(scale())
        assert launched[0]["BLOCK"] == 128

    def test_one_that_needs_too_much_gives_way_to_the_next(
        self, tunings: FakeTunings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Until one has been launched; after that it is the application's error."""
        tried = []

        def run(*args: Any, **kwargs: Any) -> None:
            tried.append(kwargs["BLOCK"])
            if kwargs["BLOCK"] < 256:
                raise OutOfResources(2, 1, "shared memory")

        monkeypatch.setattr(jitted(kernels.scale), "run", run)
        function = scale()
        call(function)
        call(function)
        assert tried == [128, 128, 128, 128, 256, 256]

    def test_a_winner_is_launched_once_it_is_prepared(
        self, tunings: FakeTunings, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By default that is the last change."""
        prepared = []
        monkeypatch.setattr(autotuner, "_prepare", lambda tuner, request, config, *rest: prepared.append(config))
        function = scale()
        call(function)
        ((_, upgrade),) = tunings.asked
        assert upgrade(text(256, 4), "/artifact") is True
        call(function)
        assert prepared == [text(256, 4)]
        assert [(run["BLOCK"], run["num_warps"]) for run in launched] == [(128, 2), (256, 4)]
        assert function.best_config.kwargs["BLOCK"] == 256

    def test_upgrades_can_be_refused_or_go_on(self, tunings: FakeTunings, launched: list[dict[str, Any]]) -> None:
        """``never`` asks and does not look again, ``always`` looks for the next one."""
        call(scale(upgrade="never"))
        call(scale(upgrade="always"))
        (_, never), (_, always) = tunings.asked
        assert never is None
        assert always(text(128, 2), None) is False

    def test_it_waits_if_it_is_to(self, tunings: FakeTunings, launched: list[dict[str, Any]]) -> None:
        """And launches the winner in the first call."""
        tunings.known = Best(text(256, 4), is_fresh=False, artifact=None)
        call(scale(mode="wait"))
        assert len(tunings.waited) == 1
        assert launched[0]["BLOCK"] == 256

    def test_while_it_waits_a_launcher_is_made(
        self, tunings: FakeTunings, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Once for a function: its other keys have the same; one that fails is left to the launch."""
        made: list[str] = []
        wait = tunings.wait

        def prepare(tuner: Any, request: Request, text: str, artifact: str | None, device: int) -> None:
            made.append(text)
            is_made.set()
            raise RuntimeError("no driver")

        def wait_until_made(request: Request) -> Best | None:
            assert is_made.wait(5)
            return wait(request)

        is_made = threading.Event()
        monkeypatch.setattr(autotuner, "_prepare", prepare)
        monkeypatch.setattr(tunings, "wait", wait_until_made)
        function = scale(mode="wait")
        call(function)
        call(function, SIZE // 2)
        assert (len(made), len(tunings.waited), len(launched)) == (1, 2, 2)

    def test_each_device_and_key_has_its_own(self, tunings: FakeTunings, launched: list[dict[str, Any]]) -> None:
        """Other sizes are other keys."""
        function = scale()
        call(function, SIZE)
        call(function, SIZE // 2)
        assert [request.problem["size"] for request, _ in tunings.asked] == [SIZE, SIZE // 2]

    def test_a_winner_known_before_is_put_into_tritons_cache(
        self, tunings: FakeTunings, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that a process's first call compiles nothing; an artifact that is gone is no error."""
        installed: list[str] = []
        monkeypatch.setattr(autotuner, "install", installed.append)
        tunings.known = Best(text(256, 4), is_fresh=True, artifact="/artifact")
        call(scale())
        assert installed == ["/artifact"]
        monkeypatch.undo()
        monkeypatch.setattr(autotuner, "shared", lambda pin: tunings)
        monkeypatch.setattr(jitted(kernels.scale), "run", lambda *args, **kwargs: launched.append(kwargs))
        call(scale())
        assert len(launched) == 2

    def test_a_key_is_found_by_types_and_names(self, tunings: FakeTunings, launched: list[dict[str, Any]]) -> None:
        """Equal numbers of other types are other keys; an argument may be given by its name."""
        function = scale()
        x = torch.ones(SIZE)
        function[grid](x, x, SIZE, 2.0)
        function[grid](x, x, size=SIZE, factor=2.0)
        function[grid](x, x, float(SIZE), 2.0)
        function[grid](x.half(), x, SIZE, 2.0)
        assert len(tunings.asked) == 3

    def test_threads_ask_once(self, tunings: FakeTunings, launched: list[dict[str, Any]]) -> None:
        """Backward passes call from threads of their own."""
        function = scale()
        threads = [threading.Thread(target=call, args=(function,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(launched) == 8
        assert len(tunings.asked) == 1

    def test_while_a_graph_is_captured_nothing_is_asked(
        self, tunings: FakeTunings, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first config is launched, and the key's next call asks."""
        function = scale()
        with monkeypatch.context() as capturing:
            capturing.setattr(autotuner, "is_capturing", lambda: True)
            call(function)
        assert (len(launched), tunings.asked) == (1, [])
        call(function)
        assert (len(launched), len(tunings.asked)) == (2, 1)

    def test_a_forked_child_asks_for_itself(
        self, tunings: FakeTunings, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever its parent was about to do: its threads are gone, and so is who held a lock."""
        function = scale()
        call(function)
        function._lock.acquire()
        child = os.fork()
        if child == 0:
            call(function)
            os._exit(len(tunings.asked))
        function._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2

    def test_without_a_daemon_triton_tunes_or_the_first_config_is_launched(
        self, tunings: FakeTunings, launched: list[dict[str, Any]], left_to_triton: list[Any]
    ) -> None:
        """By the application's choice."""
        tunings.runs = False
        call(scale(without_daemon="first"))
        assert (len(launched), left_to_triton) == (1, [])
        function = scale()
        call(function)
        call(function)
        assert left_to_triton == [function, function]

    def test_it_is_an_autotuner_to_others(self) -> None:
        """``torch.compile`` looks for Triton's class and its fields."""
        assert isinstance(kernels.scale, Autotuner)
        assert kernels.scale.configs == kernels.CONFIGS
        assert not kernels.scale.user_defined_pre_hook

    @pytest.mark.parametrize("mode", ["background", "wait"])
    def test_a_compiled_program_gets_the_winner_alone(
        self, mode: str, tunings: FakeTunings, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``torch.compile`` traces one config and prunes nothing, once this process knows the winner; the function has
        all of them again behind it.
        """
        # As on a machine with a GPU.
        monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
        tunings.known = Best(text(256, 4), is_fresh=True, artifact=None)
        function = scale(mode=mode)
        call(function)
        seen: list[Any] = []

        def backend(module: Any, inputs: Any) -> Any:
            seen.extend(node.kwargs["grid"] for node in module.graph.nodes if "grid" in node.kwargs)
            seen.append((len(function.configs), function.early_config_prune))
            return module.forward

        def program(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty_like(x)
            function[grid](x, y, SIZE, 2.0)
            return y

        torch.compile(program, backend=backend, fullgraph=True)(torch.ones(SIZE))
        assert seen == [[(SIZE // 256, 1, 1)], (1, None)]
        assert [(run["BLOCK"], run["num_warps"]) for run in launched] == [(256, 4)] * 2
        assert function.configs == kernels.CONFIGS
        assert function.early_config_prune is kernels.at_least_128

    def test_a_trace_sees_all_configs_while_nothing_is_decided(
        self, tunings: FakeTunings, launched: list[dict[str, Any]]
    ) -> None:
        """A tuning that goes on, or two keys with different winners; what a trace has seen stays."""
        from torch._guards import TracingContext, tracing
        from torch._subclasses import FakeTensorMode

        function = scale()
        call(function)
        with tracing(TracingContext(FakeTensorMode())):
            assert function.configs == kernels.CONFIGS
        known = next(iter(function._known.values()))
        known.is_winner = True
        with tracing(TracingContext(FakeTensorMode())):
            assert function.configs == [known.config]
            known.is_winner = False
            assert function.configs == [known.config]
        known.is_winner = True
        tunings.known = Best(text(256, 4), is_fresh=True, artifact=None)
        call(function, SIZE // 2)
        with tracing(TracingContext(FakeTensorMode())):
            assert function.configs == kernels.CONFIGS

    def test_a_torch_that_hides_its_traces_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The function has all its configs then, and Inductor tunes them."""
        import torch._guards

        monkeypatch.delattr(torch._guards, "TracingContext")
        with caplog.at_level(logging.WARNING, "ktuned.triton"):
            assert [scale().configs, scale().configs] == [kernels.CONFIGS] * 2
        (record,) = caplog.records
        assert record.message.endswith("traces of torch.compile are not seen, which tunes itself")

    @pytest.mark.parametrize("option", ["mode", "upgrade", "without_daemon"])
    def test_an_unknown_option_is_refused(self, option: str) -> None:
        """With those that there are."""
        with pytest.raises(ValueError, match=f"{option}='sometimes': give one of "):
            scale(**{option: "sometimes"})


class TestLeftAlone:
    """Functions that another process cannot find or run are Triton's."""

    @pytest.fixture(autouse=True)
    def _forget(self) -> Iterator[None]:
        account.left_alone.clear()
        yield
        account.left_alone.clear()

    def test_an_own_way_of_measuring(
        self, tunings: FakeTunings, left_to_triton: list[Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        """The daemon would measure another thing; the reason is logged once."""
        with caplog.at_level(logging.INFO, "ktuned.triton"):
            kernels.benched[(1,)](torch.ones(128))
            kernels.benched[(1,)](torch.ones(128))
        assert len(left_to_triton) == 2
        (record,) = caplog.records
        assert "kernels.benched is left to Triton: it has a do_bench of its own" in record.message
        assert list(account.left_alone) == ["tests.plugins.triton_app.kernels.benched"]

    def test_hooks_that_no_other_process_finds(self, tunings: FakeTunings, left_to_triton: list[Any]) -> None:
        """The module has another autotuner of that name."""
        autotune(kernels.HOOKED, key=[])(kernels.hooked.fn)[(1,)](torch.ones(128))
        (reason,) = account.left_alone.values()
        assert reason.startswith("it has hooks, and tests.plugins.triton_app.kernels.hooked is another autotuner")

    def test_pointer_tables(self, tunings: FakeTunings, left_to_triton: list[Any]) -> None:
        """Their content means something in this process alone."""
        x = torch.ones(SIZE)
        scale()[grid](torch.tensor([x.data_ptr()] * SIZE), x, SIZE, 2.0)
        assert list(account.left_alone.values()) == ["its argument x is a table of pointers"]

    def test_closures(self, tunings: FakeTunings, left_to_triton: list[Any]) -> None:
        """No other process can find them."""
        configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]

        @triton.jit
        def inner(x, BLOCK):  # type: ignore[no-untyped-def]
            pass

        autotune(configs, key=[])(inner)[(1,)](torch.ones(8))
        assert "inside another function" in next(iter(account.left_alone.values()))

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (torch.ones(SIZE, dtype=torch.complex64), "x is a tensor of complex64, which Triton does not have"),
            (torch.ones(SIZE + 1)[1:], "x is not aligned to 16 bytes"),
            (TensorDescriptor.from_tensor(torch.ones(64, 64), [16, 16]), "x is a TensorDescriptor"),
            (object(), "x is a object"),
        ],
        ids=["complex", "unaligned", "descriptor", "object"],
    )
    def test_arguments(self, value: Any, reason: str, tunings: FakeTunings, left_to_triton: list[Any]) -> None:
        """Other addresses, other types."""
        scale()[grid](value, torch.ones(SIZE), SIZE, 2.0)
        assert next(iter(account.left_alone.values())) == f"its argument {reason}"


class TestEvaluation:
    """The application computes what only it can."""

    def test_grids_heuristics_and_types_are_those_of_the_call(self) -> None:
        """For each config that the pruning leaves."""
        x = torch.ones(SIZE)
        recipes = request_of(kernels.scale, x, torch.empty_like(x)).call.recipes
        assert len(recipes) == 8
        recipe = recipes[text(256, 4)]
        assert recipe.grid == (SIZE // 256,)
        assert recipe.args == ("x", "y", SIZE, 2.0)
        assert recipe.constants == {"BLOCK": 256, "THROUGH": None, "EVEN": True}
        assert recipe.sizes == {"num_warps": 4, "num_ctas": 1, "num_stages": 3}

    def test_tensors_are_told_by_their_storage(self) -> None:
        """From their first element on; the same memory is one tensor."""
        whole = torch.ones(SIZE)
        evaluated = request_of(kernels.scale, whole[16:32], whole[16:32]).call
        assert {name: entry.elements for name, entry in evaluated.tensors.items()} == {"x": SIZE - 16}
        assert evaluated.recipes[text(128, 2)].args == ("x", "x", SIZE, 2.0)

    def test_values_that_are_no_scalars_are_text(self) -> None:
        """Each config has a text of its own."""
        texts = {canonical(knobs(config)) for config in kernels.CONFIGS}
        assert len(texts) == len(kernels.CONFIGS)

    def test_members_of_enums_travel(self, tmp_path: Path) -> None:
        """As constants of the kernel that other processes compile, each with machine code of its own."""
        x = torch.ones(SIZE)
        evaluated = evaluate(kernels.rounded, kernels.rounded.configs, (x, torch.empty_like(x), 1), {"grid": (1,)})
        problem = key_of(kernels.rounded, (x, x, 1), {})
        request = Request(kernels.rounded._adopted(evaluated, tuple(problem)), problem, evaluated)
        file = request.adopted.write(tmp_path)
        problem = {**problem, CALL_KEY: request.write_call(file)}
        loaded = load_file(file, file.parent)
        assert loaded.errors == ()
        (kernel,) = loaded.kernels
        codes = set()
        for number, config in enumerate(kernel.bound_space(problem)):
            (tmp_path / str(number)).mkdir()
            unit = Unit(str(number), kernel.build(problem, config), (), file, kernel.name, "sm_90a")
            (result,) = Triton().compile([unit], tmp_path)
            assert result.outcome is None, result.message
            codes.add((tmp_path / str(number) / "kernel.ptx").read_text())
        assert len(codes) == 2

    def test_what_the_autotuner_sets_must_not_be_passed(self) -> None:
        """As with Triton's."""
        x = torch.ones(SIZE)
        with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
            evaluate(kernels.scale, kernels.CONFIGS, (x, x, SIZE, 2.0), {"grid": grid, "BLOCK": 64})


class TestAdoption:
    """A kernel file that imports the application's module by its name."""

    @pytest.fixture
    def request_made(self) -> Request:
        """Return what the application asks."""
        x = torch.ones(SIZE)
        return request_of(kernels.scale, x, torch.empty_like(x))

    def test_it_declares_the_function_of_the_application(self, request_made: Request, tmp_path: Path) -> None:
        """Its space is what the pruning leaves, its inputs are the call's, each config compiles."""
        file = request_made.adopted.write(tmp_path)
        problem = {**request_made.problem, CALL_KEY: request_made.write_call(file)}
        loaded = load_file(file, file.parent)
        assert loaded.errors == ()
        (kernel,) = loaded.kernels
        assert (kernel.name, kernel.specialize) == (request_made.adopted.name, ("size", "dtypes"))
        configs = list(kernel.bound_space(problem))
        assert {canonical(config) for config in configs} == set(request_made.call.recipes)
        # A lookup knows the key alone.
        assert configs[0] in kernel.bound_space(dict(request_made.problem))
        inputs = kernel.input_specs(problem)
        assert {name: (entry.shape, entry.dtype) for name, entry in inputs.items()} == dict.fromkeys(
            ("x", "y"), ((SIZE,), "float32")
        )
        units = [
            Unit(str(index), kernel.build(problem, config), (), file, kernel.name, "sm_90a")
            for index, config in enumerate(configs)
        ]
        for unit in units:
            (tmp_path / unit.key).mkdir()
        results = list(Triton().compile(units, tmp_path))
        assert [result.message for result in results if result.outcome is not None] == []

    def test_another_name_of_the_interpreter_is_the_same_kernel(
        self, request_made: Request, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The application may run as python3, and the worker that imports the kernel file as python."""
        name, project = request_made.adopted.name, request_made.adopted.project
        monkeypatch.setattr(sys, "executable", str(Path(sys.executable).with_name("python3.99")))
        assert request_made.adopted.name == name
        assert request_made.adopted.project != project

    def test_writing_it_again_changes_nothing(self, request_made: Request, tmp_path: Path) -> None:
        """Processes write at the same time, and a save would tune again."""
        file = request_made.adopted.write(tmp_path)
        before = file.stat()
        assert request_made.adopted.write(tmp_path) == file
        assert guess_backend([str(file)]) == "triton"
        assert (file.stat().st_mtime_ns, file.stat().st_ino) == (before.st_mtime_ns, before.st_ino)

    def test_tensors_of_integers_have_the_content_of_the_call(
        self, tunings: FakeTunings, launched: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They may be indices; a known key's are not looked at."""
        monkeypatch.setattr(jitted(kernels.gather), "run", lambda *args, **kwargs: launched.append(kwargs))
        rows = torch.arange(SIZE, dtype=torch.int32).flip(0)
        x = torch.ones(SIZE)
        kernels.gather[grid](x, rows, torch.empty_like(x), SIZE)
        ((request, _),) = tunings.asked
        assert {name: entry.fill for name, entry in request.call.tensors.items()} == {
            "x": "uniform",
            "rows": "captured",
            "y": "uniform",
        }
        file = request.adopted.write(tmp_path)
        problem = {**request.problem, CALL_KEY: request.write_call(file)}
        loaded = load_file(file, file.parent)
        (kernel,) = loaded.kernels
        spec = kernel.input_specs(problem)["rows"]
        assert torch.equal(materialise(spec, "rows", "any seed", "cpu"), rows)
        assert torch.equal(materialise(spec.reseeded(1), "rows", "another", "cpu"), rows)

    def test_hooks_are_found_again(self, tunings: FakeTunings, launched: list[dict[str, Any]], tmp_path: Path) -> None:
        """By their place in the imported autotuner; the tensors that they get have the call's shape."""
        kernels.hooked[(1,)](torch.ones(2, 64))
        ((request, _),) = tunings.asked
        assert request.adopted.hooks == ("pre_hook", "post_hook", "configs[0].pre_hook")
        assert launched[0]["BLOCK"] == 64
        file = request.adopted.write(tmp_path)
        problem = {CALL_KEY: request.write_call(file), **request.problem}
        (kernel,) = load_file(file, file.parent).kernels
        kernel.input_specs(problem)
        configs = list(kernel.bound_space(problem))
        seen = []
        for place, config in enumerate(configs):
            build: Any = kernel.build(problem, config)
            assert (build.pre_hook, build.post_hook) == (f"hooks.pre_hook_{place}", f"hooks.post_hook_{place}")
            row = torch.zeros(128)

            class Noted(AnyKernel):
                """A kernel whose launches are noted."""

                def bind(self, tensors: Any) -> Any:
                    return lambda: seen.append(float(tensors["x"].mean()))

            unit = Unit("key", build, (), file, kernel.name, "sm_90a")
            hooked(Noted(), unit).bind({"x": row})()
            seen.append(float(row.mean()))
        assert seen == [64.0, 65.0, 128.0, 129.0]
        other = replace(request.adopted, hooks=("pre_hook",)).write(tmp_path)
        assert "has other hooks or configs than in the application" in load_file(other, tmp_path).errors[0].message

    def test_older_code_is_not_tuned(self, request_made: Request, tmp_path: Path) -> None:
        """An application that holds another function than the disk gets an error line, and no kernel."""
        older = replace(request_made.adopted, cache_key="0" * 64)
        assert older.name != request_made.adopted.name
        loaded = load_file(older.write(tmp_path), tmp_path)
        assert loaded.kernels == ()
        assert "is not the function that the application has" in loaded.errors[0].message

    def test_the_daemon_compiles_it(
        self, request_made: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From a call to artifacts; where there is no GPU the job says so."""
        monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "home"))
        with running(tmp_path, tensors="torch") as daemon:
            tuning = Tunings(daemon.client)._tune(request_made)
            with tuning:
                for _ in tuning:
                    pass
            (job,) = tuning.jobs
            assert job["kernel"] == request_made.adopted.kernel
            assert job["state"] == "done" or "8 artifacts are ready for sm_90a" in job["message"], job
            other = replace(request_made, problem={**request_made.problem, "size": 64})
            tunings = Tunings(daemon.client)
            assert (tunings.best(other) is None) == (job["state"] != "done")
            assert [entry["id"] for entry in daemon.client.call("jobs")["jobs"]] == [job["id"]]


class TestTritonsOwnCache:
    """Winners for programs without a client."""

    @pytest.fixture
    def request_made(self) -> Request:
        """Return what the application asks."""
        x = torch.ones(SIZE)
        return request_of(kernels.scale, x, torch.empty_like(x))

    def exported(self, request_made: Request, config: str, directory: Path) -> Any:
        """Export a winner of the application's function into Triton's cache, in a process of its own."""
        file = request_made.adopted.write(directory)
        request_made.write_call(file)
        (directory / "artifact").mkdir()
        unit = Unit("artifact", request_made.call.build(config, "function"), (), file, "scale", "sm_90a")
        (result,) = Triton().compile([unit], directory)
        assert result.outcome is None, result.message
        artifact = str(directory / "artifact")
        winner = {
            "problem": dict(request_made.problem),
            "config": json.loads(config),
            "latency_us": 12.5,
            "artifact": artifact,
        }
        done = subprocess.run(
            [sys.executable, "-m", "ktuned_triton.autotune_cache", str(directory / "cache")],
            input=json.dumps({"file": str(file), "winners": [winner]}),
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    def test_triton_finds_the_winner_and_measures_nothing(
        self, request_made: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its own autotuner, on an sm_90, in the same program without ktuned."""
        from triton.backends.compiler import GPUTarget
        from triton.runtime.driver import driver

        found = self.exported(request_made, text(256, 4), tmp_path)
        assert found["left_out"] == []
        assert [Path(path).name for path in found["written"]] == ["scale.autotune.json"]
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        prune = {"early_config_prune": kernels.at_least_128}
        theirs = triton.autotune(kernels.CONFIGS, key=["size"], prune_configs_by=prune, cache_results=True)
        monkeypatch.setattr(Autotuner, "_bench", lambda *args, **kwargs: pytest.fail("it measures"))
        launched: list[dict[str, Any]] = []
        monkeypatch.setattr(jitted(kernels.scale), "run", lambda *args, **kwargs: launched.append(kwargs))
        driver.set_active(SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32)))
        try:
            call(theirs(kernels.scale.fn))
        finally:
            driver.set_active(None)
        assert [(run["BLOCK"], run["THROUGH"], run["num_warps"]) for run in launched] == [(256, None, 4)]

    def test_what_triton_does_not_keep_is_left_out(self, request_made: Request, tmp_path: Path) -> None:
        """Each with its reason."""
        config = {"BLOCK": 256, "THROUGH": "~triton.language.float16", "num_warps": 4, "num_ctas": 1, "num_stages": 3}
        wanted = next(name for name in request_made.call.recipes if "float16" in name or "fp16" in name)
        assert set(json.loads(wanted)) == set(config)
        found = self.exported(request_made, wanted, tmp_path)
        assert found["written"] == []
        assert found["left_out"][0].endswith("the winner has values that JSON does not have")


class TestTunings:
    """The thread that asks and looks."""

    @pytest.fixture
    def client(self) -> SimpleNamespace:
        """Return a client whose daemon's job ends after the second look."""
        states = iter(["queued", "running"])

        def call(method: str, **params: Any) -> Any:
            if method == "jobs":
                assert params["ids"] == [7]
                return {"jobs": [{"id": 7, "state": next(states, "done"), "message": ""}]}
            assert (method, params["tune"]) == ("lookup", False)
            assert next(states, None) is None, "the best so far is not looked at"
            return {"status": "fresh", "config": {"BLOCK": 256}, "artifact": "/artifact"}

        return SimpleNamespace(call=call)

    def test_winners_are_handed_over_and_the_thread_ends(
        self, client: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Once each."""
        monkeypatch.setattr(Tunings, "_ask_quietly", lambda self, request: (7,))
        tunings = Tunings(client)  # type: ignore[arg-type]
        found: list[Any] = []
        x = torch.ones(SIZE)
        done = threading.Event()
        upgrade: Callable[..., bool] = lambda *winner: (found.append(winner), done.set(), True)[2]  # type: ignore[func-returns-value]  # noqa: E731
        tunings.ask(request_of(kernels.scale, x, x), upgrade)
        thread = tunings._thread
        assert done.wait(30)
        assert thread is not None
        thread.join(30)
        assert found == [(canonical({"BLOCK": 256}), "/artifact")]
        assert tunings._thread is None

    def test_an_unwritable_home_is_a_line_in_the_log(
        self, client: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The application goes on."""
        (tmp_path / "home").write_text("a file")
        monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "home"))
        x = torch.ones(SIZE)
        Tunings(client)._ask_quietly(request_of(kernels.scale, x, x))  # type: ignore[arg-type]
        assert "is not tuned: " in caplog.text


class TestPreparation:
    """A winner is loaded before a call launches it."""

    @pytest.fixture
    def loaded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        """Stand in for the driver, and return the names of kernels that were loaded; Triton's cache is empty."""
        from triton.backends.compiler import GPUTarget
        from triton.runtime.driver import driver

        names: list[str] = []

        def load_binary(name: str, *rest: Any) -> tuple[int, ...]:
            names.append(name)
            return 1, 2, 3, 4, 1024

        target = GPUTarget("cuda", 90, 32)
        stand_in = SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=lambda: 12345,
            get_current_stream=lambda device: 0,
            launcher_cls=lambda source, metadata: None,
            utils=SimpleNamespace(
                load_binary=load_binary, get_device_properties=lambda device: {"max_shared_mem": 1 << 17}
            ),
        )
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
        self._stand_in = stand_in
        yield names
        driver.set_active(None)
        jitted(kernels.scale).device_caches.pop(12345, None)

    def test_the_daemons_artifact_is_what_is_loaded(
        self, loaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is compiled: the call's own specialisation finds it in Triton's cache."""
        from triton.backends.nvidia.compiler import CUDABackend
        from triton.runtime.driver import driver

        x = torch.ones(SIZE)
        request = request_of(kernels.scale, x, torch.empty_like(x))
        file = request.adopted.write(tmp_path)
        (tmp_path / "artifact").mkdir()
        unit = Unit("artifact", request.call.build(text(256, 4), "function"), (), file, "scale", "sm_90a")
        (result,) = Triton().compile([unit], tmp_path)
        assert result.outcome is None, result.message
        # Compiling has left the driver to be found again.
        monkeypatch.delattr(CUDABackend, "make_cubin")
        driver.set_active(self._stand_in)
        autotuner._prepare(kernels.scale, request, text(256, 4), str(tmp_path / "artifact"), 0)
        assert loaded == ["scale"]
