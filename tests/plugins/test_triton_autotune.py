"""The drop-in for ``triton.autotune``: which config a call launches, and what it leaves for the daemon."""

import copy
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from ktuned.dropin import CONSTANTS_KEY, RECORDED, TUNED, Answer, account
from ktuned.model.values import canonical
from ktuned_client.winners import WinnersError
from ktuned_triton import autotune, autotuner, keyed_call
from ktuned_triton.call import evaluate_call, find_jit_function, read_knobs
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
    records,
    scale,
    spool,
    text,
)

__all__ = ["clean_account", "launched", "left_to_triton", "link", "spool"]


def without_constants(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key without the digest of what the application computes."""
    return {name: value for name, value in problem.items() if name != CONSTANTS_KEY}


def chosen(launched: Launches) -> list[tuple[int, int]]:
    """Return the block and the warps of each launch."""
    return [(run["BLOCK"], run["num_warps"]) for run in launched]


class TestACall:
    """It launches the best config known now, and never waits."""

    def test_with_nothing_known_it_launches_the_first_that_the_pruning_leaves(
        self, link: FakeDaemonLink, launched: Launches, spool: Path
    ) -> None:
        """Heuristics see it; the key is asked for and recorded once."""
        function = scale()
        call(function)
        call(function)
        assert [(run["BLOCK"], run["num_warps"], run["EVEN"]) for run in launched] == [(128, 4, True)] * 2
        assert len(link.asked_keys) == len(link.followed_keys) == 1
        (record,) = records(spool)
        assert without_constants(record.problem) == {"size": SIZE, "@types": "f32,f32"}
        assert (record.package, record.function) == ("tests", "plugins.triton_app.kernels.scale")
        assert list(account.keys.values()) == [RECORDED]

    def test_a_winner_is_launched_at_once_and_nothing_is_recorded(
        self, link: FakeDaemonLink, launched: Launches, spool: Path
    ) -> None:
        """Nor is it followed: it is the last word."""
        link.answer = Answer(text(256, 4), is_final=True)
        call(scale())
        assert chosen(launched) == [(256, 4)]
        assert (link.followed_keys, records(spool)) == ([], [])
        assert list(account.keys.values()) == [TUNED]

    def test_a_config_that_does_not_fit_gives_way_to_the_next(
        self, link: FakeDaemonLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Found out by loading it: nothing is launched twice."""
        tried: list[tuple[int, bool]] = []

        def run(*args: Any, **kwargs: Any) -> None:
            tried.append((kwargs["BLOCK"], kwargs["warmup"]))
            if kwargs["BLOCK"] < 256:
                raise OutOfResources(2, 1, "shared memory")

        monkeypatch.setattr(find_jit_function(kernels.scale), "run", run)
        function = scale()
        call(function)
        call(function)
        assert [block for block, is_warmup in tried if is_warmup] == [128] * 2 + [256]
        assert [block for block, is_warmup in tried if not is_warmup] == [256, 256]

    def test_if_no_config_fits_the_error_is_tritons(
        self, link: FakeDaemonLink, left_to_triton: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In its own words."""

        def run(*args: Any, **kwargs: Any) -> None:
            raise OutOfResources(2, 1, "shared memory")

        monkeypatch.setattr(find_jit_function(kernels.scale), "run", run)
        with pytest.raises(OutOfResources):
            call(scale())
        assert len(left_to_triton) == 4

    def test_a_winner_that_comes_later_takes_the_configs_place(
        self, link: FakeDaemonLink, launched: Launches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is loaded from its artifact before a call launches it; by default that is the last change."""
        installed: list[str] = []
        monkeypatch.setattr(keyed_call, "install", installed.append)
        monkeypatch.setattr(keyed_call, "compile_recorded_call", lambda *args: None)
        function = scale()
        call(function)
        ((_, on_answer),) = link.followed_keys
        assert on_answer(Answer(is_open=True)) is True
        assert on_answer(Answer(text(256, 4), is_final=True, artifact="/artifact")) is False
        call(function)
        assert installed == ["/artifact"]
        assert chosen(launched) == [(128, 4), (256, 4)]
        assert function.best_config.kwargs["BLOCK"] == 256

    def test_a_wait_that_brings_no_winner_launches_the_first(
        self, link: FakeDaemonLink, launched: Launches, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The reason is in the log and in the account."""
        link.final_answer = Answer(message="no config compiles")
        call(scale(mode="wait"))
        assert chosen(launched) == [(128, 4)]
        assert list(account.keys.values()) == ["not tuned: no config compiles"]
        assert "scale is not tuned: no config compiles" in caplog.text

    def test_each_key_has_its_own_config(self, link: FakeDaemonLink, launched: Launches) -> None:
        """Other sizes and other types are other keys; an argument may be given by its name."""
        function = scale()
        x = torch.ones(SIZE)
        function[grid](x, x, SIZE, 2.0)
        function[grid](x, x, size=SIZE, factor=2.0)
        function[grid](x, x, SIZE // 2, 2.0)
        function[grid](x.half(), x, SIZE, 2.0)
        assert [without_constants(key.problem) for key in link.asked_keys] == [
            {"size": SIZE, "@types": "f32,f32"},
            {"size": SIZE // 2, "@types": "f32,f32"},
            {"size": SIZE, "@types": "f16,f32"},
        ]

    def test_threads_ask_once(self, link: FakeDaemonLink, launched: Launches) -> None:
        """Backward passes call from threads of their own."""
        function = scale()
        call(function)
        threads = [threading.Thread(target=call, args=(function,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(launched) == 9
        assert len(link.asked_keys) == 1

    def test_while_a_graph_is_captured_nothing_is_asked(
        self, link: FakeDaemonLink, launched: Launches, spool: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first config is launched, and the key's next call asks."""
        function = scale()
        with monkeypatch.context() as capturing:
            capturing.setattr("ktuned.dropin.keyed_call.is_capturing", lambda: True)
            call(function)
            call(function)
        assert (len(launched), link.asked_keys, records(spool)) == (2, [], [])
        link.answer = Answer(text(256, 4), is_final=True)
        call(function)
        call(function)
        assert chosen(launched) == [(128, 4), (128, 4), (256, 4), (256, 4)]
        assert len(link.asked_keys) == 1

    def test_an_empty_grid_says_nothing_of_its_key(self, link: FakeDaemonLink, launched: Launches, spool: Path) -> None:
        """The key's next call is recorded."""
        function = scale()
        x = torch.ones(SIZE)
        function[lambda meta: (0,)](x, x, SIZE, 2.0)
        assert records(spool) == []
        function[grid](x, x, SIZE, 2.0)
        assert len(records(spool)) == 1
        assert len(launched) == 2

    def test_a_forked_child_decides_keys_of_its_own(self, link: FakeDaemonLink, launched: Launches) -> None:
        """Whoever held a lock is not there."""
        function = scale()
        call(function)
        adopted = function.__dict__["_ktuned"]
        adopted._lock.acquire()
        child = os.fork()
        if child == 0:
            call(function, SIZE // 2)
            os._exit(len(link.followed_keys))
        adopted._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2

    def test_without_a_daemon_the_call_is_recorded_all_the_same(
        self, link: FakeDaemonLink, launched: Launches, left_to_triton: list[Any], spool: Path
    ) -> None:
        """Triton tunes meanwhile, or the first config is launched: by the application's choice."""
        link.answer = None
        call(scale(without_daemon="first"))
        assert (chosen(launched), left_to_triton, link.followed_keys) == ([(128, 4)], [], [])
        assert len(records(spool)) == 1
        function = scale()
        call(function)
        call(function)
        assert len(left_to_triton) == 4
        assert len(records(spool)) == 1
        assert "no daemon runs" in account.left_alone.values()

    def test_launches_are_counted(self, link: FakeDaemonLink, launched: Launches) -> None:
        """By the config that Triton's cache has."""
        function = scale()
        for _ in range(5):
            call(function)
        (keyed,) = function.__dict__["_ktuned"]._calls.values()
        assert 5 <= keyed.counter.launches <= 8

    def test_a_full_disk_is_no_error_of_the_call(
        self, link: FakeDaemonLink, launched: Launches, left_to_triton: list[Any], tmp_path: Path
    ) -> None:
        """The key is Triton's, and the account says why."""
        (tmp_path / "home").write_text("a file")
        call(scale())
        assert len(launched) == 1
        assert len(left_to_triton) == 4

    @pytest.mark.parametrize("option", ["mode", "upgrade", "without_daemon"])
    def test_an_unknown_option_is_refused(self, option: str) -> None:
        """With those that there are."""
        with pytest.raises(ValueError, match=f"{option}='sometimes': give one of "):
            scale(**{option: "sometimes"})


class TestWinners:
    """A winners file fixes the config of each key; no daemon is asked, and nothing is recorded."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Callable[..., Path]:
        """Return a function that writes a file with a winner of ``scale``."""

        def write(**knobs: Any) -> Path:
            context = {"decided": 1.0, "digest": "", "toolchain": "", "device_fingerprint": "", "measuring_version": 1}
            config = json.loads(text(256, 4)) | knobs
            winner = {**context, "problem": {"size": SIZE, "@types": "f32,f32"}, "config": config, "latency_us": 1.0}
            function = {"name": "tests.plugins.triton_app.kernels.scale", "source": "another"}
            rules: dict[str, Any] = {"default": None, "specialize": None, "bucket": {}, "names": {}}
            document = {"ktuned_winners": 1, "kernel": "tests:scale", "device": "a GPU", "function": function, **rules}
            path = tmp_path / "winners.json"
            path.write_text(json.dumps({**document, "winners": [winner]}))
            return path

        return write

    @pytest.mark.parametrize(
        ("knobs", "launch", "reason"),
        [
            ({}, (256, 4), "was made from different source or configs"),
            ({"BLOCK": 512, "num_warps": 8}, (512, 8), "was made from different source or configs"),
            (
                {"BLOCK": 512, "THROUGH": "~triton.language.float16"},
                (512, 4),
                "was made from different source or configs",
            ),
            ({"BLOCK": 512, "THROUGH": "~other.dtype"}, (128, 4), "is no config of the function"),
            ({"SIZE": 1}, (128, 4), "is no config of the function"),
            ({"BLOCK": 64}, (128, 4), "was pruned by the application"),
        ],
        ids=["listed", "unlisted", "known-object", "unknown-object", "unknown-knob", "pruned"],
    )
    def test_a_key_launches_the_files_config(
        self,
        knobs: dict[str, Any],
        launch: tuple[int, int],
        reason: str,
        file: Callable[..., Path],
        link: FakeDaemonLink,
        launched: Launches,
        spool: Path,
    ) -> None:
        """Also one that is not in the function's list; another key launches its first config."""
        path = file(**knobs)
        function = scale(winners=path)
        path.write_text("replaced")
        for size in (SIZE, SIZE, 1):
            call(function, size)
        assert chosen(launched) == [launch, launch, (128, 4)]
        assert (link.asked_keys, link.followed_keys, spool.exists()) == ([], [], False)
        (known, lacking) = account.keys.values()
        assert known.removesuffix(": the first config is launched").endswith(reason)
        assert lacking == f"{path} lacks it: the first config is launched"

    def test_an_unlisted_config_that_does_not_compile_gives_way(
        self, file: Callable[..., Path], link: FakeDaemonLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever is wrong with it; Triton tunes nothing."""
        found: list[int] = []

        def run(*args: Any, **kwargs: Any) -> None:
            if kwargs["BLOCK"] == 100:
                raise ValueError("arange's range must be a power of 2")
            if not kwargs["warmup"]:
                found.append(kwargs["BLOCK"])

        monkeypatch.setattr(find_jit_function(kernels.scale), "run", run)
        call(scale(winners=file(BLOCK=100)))
        assert found == [128]
        (state,) = account.keys.values()
        assert state.endswith("cannot be launched here: the first config is launched")

    def test_a_damaged_file_is_an_error_of_the_decorator(self, tmp_path: Path) -> None:
        """The program learns it before its first call."""
        (tmp_path / "damaged.json").write_text("{")
        with pytest.raises(WinnersError, match=r"damaged\.json is not JSON"):
            scale(winners=tmp_path / "damaged.json")


class TestAdoptionByInstance:
    """Whatever derives from Triton's class is seen, wherever and whenever it was made."""

    @pytest.fixture
    def process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run as under ``ktuned run``."""
        monkeypatch.setattr(autotuner, "_process_policy", None)
        autotuner.adopt_process(Autotuner, "background")

    def test_an_autotuner_made_before_the_hook_is_adopted(
        self, link: FakeDaemonLink, launched: Launches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The hook may come late: a library has been imported by then."""
        made = triton.autotune(kernels.CONFIGS, key=["size"])(kernels.scale.fn)
        monkeypatch.setattr(autotuner, "_process_policy", None)
        autotuner.adopt_process(Autotuner, "background")
        link.answer = Answer(text(256, 4), is_final=True)
        call(made)
        assert chosen(launched) == [(256, 4)]

    def test_a_subclasss_own_run_and_store_come_first(
        self, process: None, link: FakeDaemonLink, launched: Launches, spool: Path
    ) -> None:
        """They go first: what the store has is launched, and is not asked for."""

        class Cached(Autotuner):  # type: ignore[misc]
            stored: dict[int, Any] = {}

            def run(self, *args: Any, **kwargs: Any) -> Any:
                if args[2] in self.stored:
                    key = (args[2], str(args[0].dtype), str(args[1].dtype))
                    self.cache[key] = self.stored[args[2]]
                return super().run(*args, **kwargs)

        function = Cached(kernels.scale.fn, kernels.scale.arg_names, kernels.CONFIGS, ["size"], None, None)
        Cached.stored[SIZE // 2] = triton.Config({"BLOCK": 32, "THROUGH": None}, num_warps=1)
        call(function, SIZE // 2)
        assert (chosen(launched), link.asked_keys) == ([(32, 1)], [])
        call(function)
        assert chosen(launched)[1:] == [(64, 4)]
        assert len(records(spool)) == 1

    def test_a_librarys_store_of_winners_gets_none_of_ours(
        self, process: None, link: FakeDaemonLink, launched: Launches
    ) -> None:
        """FlagGems' tuner stores each measurement and each winner; it reads its store before it asks for configs."""

        class Store:
            def __init__(self) -> None:
                self.winners: dict[Any, Any] = {}

            def __contains__(self, key: Any) -> bool:
                return key in self.winners

            def __getitem__(self, key: Any) -> Any:
                return self.winners[key]

            def __setitem__(self, key: Any, config: Any) -> None:
                self.winners[key] = config

        measured: list[Any] = []

        class Stored(Autotuner):  # type: ignore[misc]
            def policy(self, bench: Any, configs: list[Any], args: Any, kwargs: Any) -> Any:
                measured.extend(configs)
                return configs[0], {config: bench(config) for config in configs}

            def run(self, *args: Any, **kwargs: Any) -> Any:
                self.nargs = dict(zip(self.arg_names, args, strict=False))
                key = args[2]
                if key not in self.cache:
                    configs = self.prune_configs(kwargs)
                    self.cache[key], _ = self.policy(lambda config: 1.0, configs, args, kwargs)
                self.best_config = self.cache[key]
                return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())

        function = Stored(kernels.scale.fn, kernels.scale.arg_names, kernels.CONFIGS, ["size"], None, None)
        function.cache = store = Store()
        store.winners[SIZE // 2] = triton.Config({"BLOCK": 32, "THROUGH": None}, num_warps=1)
        link.answer = Answer(text(256, 4), is_final=True)
        call(function)
        call(function, SIZE // 2)
        call(function)
        assert chosen(launched) == [(256, 4), (32, 1), (256, 4)]
        assert (measured, [*store.winners]) == ([], [SIZE // 2])
        # What the library measures itself goes to its store.
        link.answer = None
        call(function, SIZE // 4)
        assert (len(measured), [*store.winners]) == (len(kernels.CONFIGS), [SIZE // 2, SIZE // 4])

    def test_the_configs_that_a_subclasss_pruning_leaves_are_tuned(
        self, process: None, link: FakeDaemonLink, launched: Launches, spool: Path
    ) -> None:
        """What it leaves is what is tuned."""

        class Halved(Autotuner):  # type: ignore[misc]
            def prune_configs(self, kwargs: dict[str, Any]) -> Any:
                return super().prune_configs(kwargs)[3:]

        function = Halved(kernels.scale.fn, kernels.scale.arg_names, kernels.CONFIGS, ["size"], None, None)
        call(function)
        (record,) = records(spool)
        assert len(record.configs) == len(kernels.CONFIGS) - 3
        assert launched[0]["BLOCK"] == record.configs[0]["BLOCK"]

    def test_a_subclass_that_never_asks_for_configs_is_named(self) -> None:
        """And left as it was."""

        class Own(Autotuner):  # type: ignore[misc]
            def run(self, *args: Any, **kwargs: Any) -> Any:
                return self.fn.launch(*args, **kwargs)

        function = Own(kernels.scale.fn, kernels.scale.arg_names, kernels.CONFIGS, ["size"], None, None)
        assert autotuner.explain_non_adoption(function).endswith("Own has a run of its own, which never calls Triton's")
        assert autotuner.explain_non_adoption(kernels.scale) == ""

    def test_a_copy_is_a_function_of_its_own(self, process: None, link: FakeDaemonLink, launched: Launches) -> None:
        """Frameworks copy autotuners."""
        function = triton.autotune(kernels.CONFIGS, key=["size"])(kernels.scale.fn)
        call(function)
        copied = copy.copy(function)
        copied.cache = {}
        call(copied)
        assert len(link.asked_keys) == 2

    def test_a_function_with_one_config_is_not_tuned(
        self, process: None, link: FakeDaemonLink, launched: Launches
    ) -> None:
        """Triton launches it."""
        call(triton.autotune(kernels.CONFIGS[:1], key=["size"])(kernels.scale.fn))
        assert (len(launched), link.asked_keys) == (1, [])

    def test_a_warm_up_compiles_all_configs(
        self, process: None, link: FakeDaemonLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It launches nothing, and decides nothing."""
        compiled: list[int] = []
        monkeypatch.setattr(
            find_jit_function(kernels.scale), "run", lambda *args, **kwargs: compiled.append(kwargs["BLOCK"])
        )
        function = triton.autotune(kernels.CONFIGS, key=["size"])(kernels.scale.fn)
        x = torch.ones(SIZE)
        function.warmup(x, x, SIZE, 2.0, grid=(1,))
        assert (len(compiled), link.asked_keys) == (len(kernels.CONFIGS), [])

    def test_functions_without_the_drop_in_are_tuned_by_triton(
        self,
        link: FakeDaemonLink,
        launched: Launches,
        left_to_triton: list[Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Where only some functions are decorated with the drop-in."""
        monkeypatch.setattr(autotuner, "_process_policy", None)
        call(triton.autotune(kernels.CONFIGS, key=["size"])(kernels.scale.fn))
        assert len(left_to_triton) == len(kernels.CONFIGS)
        assert link.asked_keys == []


class TestTraces:
    """What ``torch.compile`` sees of a function."""

    def test_it_is_an_autotuner_to_others(self) -> None:
        """Of Triton's class, with its fields."""
        assert type(kernels.scale) is Autotuner
        assert kernels.scale.configs == kernels.CONFIGS
        assert not kernels.scale.user_defined_pre_hook

    @pytest.mark.parametrize("mode", ["background", "wait"])
    def test_a_compiled_program_gets_the_winner_alone(
        self, mode: str, link: FakeDaemonLink, launched: Launches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``torch.compile`` traces one config and prunes nothing, once this process knows the winner; the function has
        all of them again behind it.
        """
        # As on a machine with a GPU.
        monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
        link.answer = Answer(text(256, 4), is_final=True)
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
        assert chosen(launched) == [(256, 4)] * 2
        assert function.configs == kernels.CONFIGS
        assert function.early_config_prune is kernels.at_least_128

    def test_a_trace_sees_all_configs_while_nothing_is_decided(self, link: FakeDaemonLink, launched: Launches) -> None:
        """A tuning that goes on, or two keys with different winners."""
        from torch._guards import TracingContext, tracing
        from torch._subclasses import FakeTensorMode

        function = scale()
        call(function)
        with tracing(TracingContext(FakeTensorMode())):
            assert function.configs == kernels.CONFIGS
        link.answer = Answer(text(256, 4), is_final=True)
        call(function, SIZE // 2)
        with tracing(TracingContext(FakeTensorMode())):
            assert function.configs == kernels.CONFIGS

    def test_a_trace_sees_the_same_configs_to_its_end(self, link: FakeDaemonLink, launched: Launches) -> None:
        """A grid that was traced for one config is wrong for another."""
        from torch._guards import TracingContext, tracing
        from torch._subclasses import FakeTensorMode

        link.answer = Answer(text(256, 4), is_final=True)
        function = scale()
        call(function)
        with tracing(TracingContext(FakeTensorMode())):
            (seen,) = function.configs
            function.__dict__["_ktuned"]._calls.clear()
            assert function.configs == [seen]

    def test_a_torch_that_hides_its_traces_is_warned_about_once(
        self,
        link: FakeDaemonLink,
        launched: Launches,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The function has all its configs then, and Inductor tunes them."""
        import torch._guards

        function = scale()
        call(function)
        monkeypatch.delattr(torch._guards, "TracingContext")
        monkeypatch.setattr("ktuned_triton.compile_trace._get_context", None)
        with caplog.at_level(logging.WARNING, "ktuned.triton"):
            assert [function.configs, function.configs] == [kernels.CONFIGS] * 2
        (record,) = caplog.records
        assert record.message.endswith("does not report its traces: torch.compile tunes by itself")


class TestLeftAlone:
    """Calls that another process cannot make are Triton's, each with its reason."""

    def test_a_call_with_a_table_of_pointers_is_left_to_triton(
        self, link: FakeDaemonLink, left_to_triton: list[Any], launched: Launches
    ) -> None:
        """Their content means something in this process alone."""
        x = torch.ones(SIZE)
        scale()[grid](torch.tensor([x.data_ptr()] * SIZE), x, SIZE, 2.0)
        assert list(account.left_alone.values()) == ["its argument x is a table of pointers"]
        assert len(left_to_triton) == 4

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (torch.ones(SIZE, dtype=torch.complex64), "x is a tensor of complex64, which Triton does not have"),
            (object(), "x is a object"),
        ],
        ids=["complex", "object"],
    )
    def test_a_call_that_no_other_process_can_make_is_left_to_triton(
        self, value: Any, reason: str, link: FakeDaemonLink, left_to_triton: list[Any], launched: Launches
    ) -> None:
        """Other addresses, other types."""
        scale()[grid](value, torch.ones(SIZE), SIZE, 2.0)
        assert next(iter(account.left_alone.values())) == f"its argument {reason}"
        assert len(left_to_triton) == 4

    @pytest.mark.parametrize(
        ("hooks", "reason"),
        [
            ({"pre_hook": kernels.clear}, "its pre_hook writes values other than zeros"),
            ({"post_hook": kernels.note}, "its post_hook writes values other than zeros"),
            ({}, "a config's pre_hook writes values other than zeros"),
        ],
        ids=["pre", "post", "config"],
    )
    def test_a_key_whose_hook_is_more_than_data_is_left_to_triton(
        self, hooks: dict[str, Any], reason: str, link: FakeDaemonLink, left_to_triton: list[Any], launched: Launches
    ) -> None:
        """No other process imports it."""
        configs = [
            triton.Config({"BLOCK": 64}, pre_hook=None if hooks else kernels.clear),
            triton.Config({"BLOCK": 128}),
        ]
        autotune(configs, key=[], **hooks)(kernels.plain_x)[(1,)](torch.zeros(128))
        assert list(account.left_alone.values()) == [reason]

    def test_a_function_with_an_ir_override_is_left_to_triton(
        self, link: FakeDaemonLink, left_to_triton: list[Any], launched: Launches
    ) -> None:
        """An ``ir_override`` is a path that means nothing elsewhere."""
        configs = [triton.Config({"BLOCK": 64}, ir_override="/tmp/x.ttgir"), triton.Config({"BLOCK": 128})]
        autotune(configs, key=["size"])(kernels.plain)[(1,)](torch.ones(128), 64)
        assert "ir_override" in next(iter(account.left_alone.values()))


class TestRecords:
    """A call as data."""

    def test_grids_heuristics_and_types_are_those_of_the_call(self) -> None:
        """For each config that the pruning leaves."""
        x = torch.ones(SIZE)
        args, kwargs = (x, torch.empty_like(x), SIZE, 2.0), {"grid": grid, "warmup": False}
        found = evaluate_call(kernels.scale, kernels.CONFIGS, args, kwargs).call
        recipe = found.recipes[text(256, 4)]
        assert (found.args, recipe.args, recipe.grid) == (("x", "y", SIZE, 2.0), None, (SIZE // 256,))
        assert recipe.constants == {"BLOCK": 256, "THROUGH": None, "EVEN": True}
        assert recipe.sizes == {"num_warps": 4, "num_ctas": 1, "num_stages": 3}

    def test_tensors_of_the_same_memory_are_one_tensor(self) -> None:
        """From their first element on; the same memory is one tensor."""
        whole = torch.ones(SIZE)
        args = (whole[16:32], whole[16:32], SIZE, 2.0)
        found = evaluate_call(kernels.scale, kernels.CONFIGS, args, {"grid": grid}).call
        assert {name: entry.elements for name, entry in found.tensors.items()} == {"x": SIZE - 16}
        assert found.args == ("x", "x", SIZE, 2.0)

    @pytest.mark.parametrize(
        ("make", "expected"),
        [
            (lambda: (torch.ones(SIZE + 1)[1:], torch.ones(8)), {"x": (SIZE, 4, "", 0), "y": (8, 0, "", 0)}),
            (lambda: (torch.ones(SIZE)[80:96], torch.ones(8)), {"x": (SIZE - 80, 64, "", 0), "y": (8, 0, "", 0)}),
            (lambda: (torch.ones(8)[:0], torch.ones(0)), {"x": (0, 0, "", 0)}),
            (
                lambda: (torch.ones(2, 3, 1, 2, 2).expand(2, 3, 9, 2, 2), torch.ones(1).expand(SIZE)),
                {"x": (24, 0, "", 0), "y": (1, 0, "", 0)},
            ),
            (
                lambda: (whole := torch.ones(16, 64), whole[:, 48:]),
                {"x": (1024, 0, "x", 0), "y": (1024 - 48, 192, "x", 192)},
            ),
            (
                lambda: (torch.ones(96)[32:], torch.ones(8)),
                {"x": (64, 128, "", 0), "y": (8, 0, "", 0)},
            ),
        ],
        ids=["misaligned", "offset", "zero-size", "expanded-5d", "overlapping", "128"],
    )
    def test_a_tensor_is_data_with_its_layout(self, make: Callable[[], Any], expected: dict[str, Any]) -> None:
        """Elements, address modulo 256, whose memory it shares, and the distance in bytes."""
        found = evaluate_call(kernels.scale, kernels.CONFIGS, (*make(), SIZE, 2.0), {"grid": grid}).call
        layouts = {name: (one.elements, one.remainder, one.memory, one.offset) for name, one in found.tensors.items()}
        assert layouts == expected

    def test_an_alignment_that_triton_specialises_by_is_a_part_of_the_key(
        self, link: FakeDaemonLink, launched: Launches, spool: Path
    ) -> None:
        """Other addresses are not: each would be tuned."""
        whole = torch.ones(2 * SIZE)
        for first in (1, 2, 4, 8):
            scale()[grid](whole[first : first + SIZE], torch.ones(SIZE), SIZE, 2.0)
        assert [key.problem["@types"] for key in link.asked_keys] == ["f32~,f32"] * 2 + ["f32,f32"] * 2
        assert len({canonical(key.problem) for key in link.asked_keys}) == 2
        (unaligned, *_, aligned) = (json.loads(record.call)["tensors"]["x"] for record in records(spool))
        assert (unaligned["remainder"], aligned["remainder"]) == (4, 32)

    def test_values_that_are_no_scalars_are_text(self) -> None:
        """Each config has a text of its own."""
        assert len({canonical(read_knobs(config)) for config in kernels.CONFIGS}) == len(kernels.CONFIGS)

    def test_what_the_autotuner_sets_must_not_be_passed(self) -> None:
        """As with Triton's."""
        x = torch.ones(SIZE)
        with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
            evaluate_call(kernels.scale, kernels.CONFIGS, (x, x, SIZE, 2.0), {"grid": grid, "BLOCK": 64})

    def test_tensors_of_integers_have_the_content_of_the_call(
        self, link: FakeDaemonLink, launched: Launches, spool: Path
    ) -> None:
        """They may be indices."""
        from safetensors.torch import load

        rows = torch.arange(SIZE, dtype=torch.int32).flip(0)
        x = torch.ones(SIZE)
        kernels.gather.cache.clear()
        kernels.gather[grid](x, rows, torch.empty_like(x), SIZE)
        (record,) = records(spool)
        (content,) = (one for name, one in record.files.items() if name.endswith(".safetensors"))
        assert torch.equal(load(content)["rows"], rows)

    def test_a_hook_that_zeroes_is_data(self, link: FakeDaemonLink, launched: Launches, spool: Path) -> None:
        """Seen where it is called; the lane's tensor begins as zeros, and nothing of the user's is imported for it."""
        import json

        kernels.zeroed.cache.clear()
        x, y = torch.ones(SIZE), torch.ones(SIZE)
        kernels.zeroed[grid](x, y, SIZE)
        (record,) = records(spool)
        assert json.loads(record.call)["tensors"]["y"]["fill"] == "zeros"
        assert not y.any()

    def test_a_descriptor_has_each_configs_block(
        self, link: FakeDaemonLink, spool: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A hook reshapes it, as host-side TMA kernels do."""
        import json

        def reshape(named: dict[str, Any]) -> None:
            named["x"].block_shape = [named["BLOCK"], 16]

        configs = [triton.Config({"BLOCK": block}, pre_hook=reshape) for block in (16, 32)]
        function = autotune(configs, key=["size"])(kernels.plain)
        monkeypatch.setattr(kernels.plain, "run", lambda *args, **kwargs: None)
        function[(1,)](TensorDescriptor.from_tensor(torch.ones(64, 64), [1, 1]), 64)
        (record,) = records(spool)
        recipes = json.loads(record.call)["recipes"].values()
        own = [recipe["args"] or json.loads(record.call)["args"] for recipe in recipes]
        assert [args[0]["block_shape"] for args in own] == [[16, 16], [32, 16]]
        assert without_constants(record.problem) == {"size": 64, "@types": "f32"}

    def test_keys_may_have_any_name(self, link: FakeDaemonLink, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also those of ktuned's own."""
        monkeypatch.setattr(kernels.odd_names, "run", lambda *args, **kwargs: None)
        configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
        autotune(configs, key=["call", "dtypes"])(kernels.odd_names)[(1,)](torch.ones(64), 3, 4)
        (record,) = records(spool)
        assert without_constants(record.problem) == {"call": 3, "dtypes": 4, "@types": "f32"}

    def test_a_pruner_may_make_configs(self, link: FakeDaemonLink, launched: Launches, spool: Path) -> None:
        """That are not in the list."""

        def make(configs: list[Any], named: dict[str, Any], **rest: Any) -> list[Any]:
            return [triton.Config({"BLOCK": block, "THROUGH": None}, num_warps=8) for block in (512, 1024)]

        prune = {"early_config_prune": make}
        call(autotune(kernels.CONFIGS, key=["size"], prune_configs_by=prune)(kernels.scale.fn))
        (record,) = records(spool)
        assert [config["BLOCK"] for config in record.configs] == [512, 1024]
        assert launched[0]["BLOCK"] == 512

    def test_an_own_way_of_measuring_is_noted_once(self, link: FakeDaemonLink, launched: Launches, spool: Path) -> None:
        """It is measured in ktuned's way."""
        kernels.benched.cache.clear()
        kernels.benched[(1,)](torch.ones(128))
        kernels.benched[(1,)](torch.ones(128).half())
        assert len(records(spool)) == 2
        assert [*account.notes] == [
            "tests.plugins.triton_app.kernels.benched has its own do_bench; ktuned times it in ktuned's way"
        ]

    def test_the_same_call_is_the_same_record_in_every_process(
        self, link: FakeDaemonLink, launched: Launches, spool: Path
    ) -> None:
        """Its file is named by its content."""
        call(scale())
        call(scale())
        assert len(records(spool)) == 1

    @pytest.mark.parametrize("change", ["configs", "variables", "interpreter"])
    def test_what_decides_a_measurement_is_the_identity(
        self, change: str, link: FakeDaemonLink, launched: Launches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another list, another variable of Triton's, another interpreter."""
        call(scale())
        if change == "configs":
            call(autotune(kernels.CONFIGS[2:], key=["size"])(kernels.scale.fn))
        else:
            if change == "variables":
                monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
            else:
                monkeypatch.setattr("sys.executable", "/another/python")
            call(scale())
        first, second = link.asked_keys
        assert first.identity != second.identity

    def test_what_the_application_computes_is_a_part_of_the_key(self, link: FakeDaemonLink, launched: Launches) -> None:
        """The configs that pruning leaves, what heuristics return, and the options of the call."""

        def call_with(heuristic: Any = lambda args: True, first: int = 2, last: int = 6, **options: Any) -> None:
            prune = {"early_config_prune": lambda configs, named, **rest: configs[first:last]}
            heuristics = triton.heuristics({"EVEN": heuristic})(find_jit_function(kernels.scale))
            function = autotune(kernels.CONFIGS, key=["size"], prune_configs_by=prune)(heuristics)
            x = torch.ones(SIZE)
            function[grid](x, torch.empty_like(x), SIZE, 2.0, **options)

        call_with()
        call_with(lambda args: args["size"] >= 1)
        assert link.asked_keys[0] == link.asked_keys[1]
        for changes in (
            {"first": 3},
            {"last": 5},
            {"heuristic": lambda args: args["BLOCK"] == 128},
            {"enable_fp_fusion": False},
        ):
            call_with(**changes)
        assert len({canonical(key.problem) for key in link.asked_keys}) == 5
        assert {key.identity for key in link.asked_keys} == {link.asked_keys[0].identity}
