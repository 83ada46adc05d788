"""The drop-ins for TileLang's autotuner: what the daemon gets to tune, and which kernel a call gets."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest
import tilelang.autotuner.tuner as theirs
import torch
from tilelang.autotuner import set_autotune_inputs
from tilelang.autotuner.param import AutotuneResult
from tilelang.jit.kernel import JITKernel

from ktuned.adoption import AdoptedDirectory
from ktuned.cli.commands.run import HOOK, hook_environment
from ktuned.declaration.loader import load_file
from ktuned.dropin import CALL_KEY, PROGRAMS_KEY, Account, Answer, CallKey, CallRecord, DaemonLink, account
from ktuned.spool import RECORD_SUFFIX, read_file, spool_directory
from ktuned_client import Client
from ktuned_tilelang import AutoTuner, autotune, autotuner, keyed_call
from ktuned_tilelang.elaboration import elaborate_build
from tests.e2e.harness import Daemon
from tests.tilelang import app

STAND_IN = Path(__file__).parent / "stand_in"
CONFIG_TEXTS = {block: f'{{"block":{block}}}' for block in (128, 512)}
OUTDATED = Answer(CONFIG_TEXTS[512], latency_us=12.0)
WINNER = Answer(CONFIG_TEXTS[512], is_final=True, latency_us=12.0)


class FakeKernel(JITKernel):  # type: ignore[misc]
    """A compiled kernel that knows its config."""

    def __init__(self, config: Any) -> None:
        self.compiled = config
        self.prim_func = None
        self.torch_function = lambda *inputs: config

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        return "source"


class FakeLink:
    """A daemon with given answers, which records the requests."""

    def __init__(self, spool: Path) -> None:
        self.known: Answer | None = Answer()
        self.ends_with: Answer | None = WINNER
        self.waited: list[CallKey] = []
        self.followed: list[tuple[CallKey, Callable[[Answer], bool]]] = []
        self._spool = spool

    def ask_about(self, key: CallKey) -> Answer | None:
        """Return the answer that the test has set."""
        return self.known

    def await_tuning(self, key: CallKey) -> Answer | None:
        """End a tuning at once."""
        self.waited.append(key)
        return self.ends_with

    def follow_key(self, key: CallKey, on_answer: Callable[[Answer], bool]) -> None:
        """Record who wants the answer."""
        self.followed.append((key, on_answer))

    @property
    def records(self) -> list[CallRecord]:
        """Return the records in the spool, oldest first."""
        files = sorted(self._spool.glob(f"*{RECORD_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        return [CallRecord.from_bytes(read_file(path)) for path in files]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The application's own state directory; the account is empty."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "home"))
    account.left_alone.clear()
    account.keys.clear()
    yield tmp_path / "home"
    account.left_alone.clear()
    account.keys.clear()


@pytest.fixture
def link(home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    """The fake daemon; nothing is compiled in this process."""
    fake = FakeLink(spool_directory(home))
    monkeypatch.setattr("ktuned.dropin.keyed_call.daemon_link", lambda: fake)

    def compile_nothing(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(kwargs)
        return FakeKernel({**given.pop("__tune_params", {}), **{k: v for k, v in given.items() if k == "block"}})

    monkeypatch.setattr(type(app.scale), "__call__", compile_nothing)
    monkeypatch.setattr(theirs.AutoTuner, "_default_compile", compile_nothing)
    return fake


@pytest.fixture
def tilelang_tunes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tuners that were left to TileLang's own tuner, which finds a kernel at once."""
    tuners: list[Any] = []

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        tuners.append(self)
        return AutotuneResult(kernel="tilelang's", config={})

    # The drop-in calls TileLang's method as it was when the class was adopted.
    original_run = theirs.AutoTuner.run
    run.__signature__ = inspect.signature(original_run)  # type: ignore[attr-defined]
    param = sys.modules["tilelang.autotuner.param"]
    monkeypatch.setattr(theirs.AutoTuner, "run", autotuner._wrap_run(run, param))
    return tuners


def get_parameter_defaults(function: Any, *excluded: str) -> dict[str, inspect.Parameter]:
    """Return the defaults of a function's parameters, except some."""
    return {
        name: value.default for name, value in inspect.signature(function).parameters.items() if name not in excluded
    }


class TestSignatures:
    """The signatures are TileLang's; ktuned's own options are keywords."""

    def test_the_decorator_has_tilelangs_parameters(self) -> None:
        """``supply_type`` falls back to TileLang's own default."""
        defaults = get_parameter_defaults(
            autotune, "mode", "upgrade", "without_daemon", "numerics", "winners", "supply_type"
        )
        assert defaults == get_parameter_defaults(theirs.autotune, "supply_type")

    def test_the_tuner_keeps_tilelangs_methods_and_parameters(self) -> None:
        """The class is changed in place."""
        assert get_parameter_defaults(AutoTuner.run) == get_parameter_defaults(inspect.unwrap(theirs.AutoTuner.run))
        assert issubclass(AutoTuner, theirs.AutoTuner)

    def test_an_option_with_an_unknown_value_is_refused(self) -> None:
        """The message lists the choices."""
        with pytest.raises(ValueError, match="mode='later': give one of 'background', 'wait'"):
            app.make_autotuned_function(mode="later")
        with pytest.raises(ValueError, match="without_daemon='last': give one of 'tilelang', 'first'"):
            app.make_tuner(3.0).set_tuning_args(without_daemon="last")


class TestCalls:
    """A call gets the winner, or the best known config."""

    def test_a_call_waits_for_the_winner(self, link: FakeLink) -> None:
        """It waits once for each key; the kernel has its config, and its latency in ms."""
        function = app.make_autotuned_function()
        kernel = function(app.SIZE)
        assert (kernel.compiled, kernel.latency, kernel.config) == ({"block": 512}, 0.012, {"block": 512})
        assert function(app.SIZE) is kernel
        function(app.SIZE, factor=2.0)
        first, second = (key.problem for key in link.waited)
        assert first != second
        assert [record.problem for record in link.records] == [first, second]
        assert set(account.keys.values()) == {"tuned"}

    def test_a_final_winner_is_not_recorded(self, link: FakeLink) -> None:
        """This is the second start of a program."""
        link.known = Answer(CONFIG_TEXTS[128], is_final=True, latency_us=12.0)
        assert app.make_autotuned_function()(app.SIZE).compiled == {"block": 128}
        assert (link.waited, link.records) == ([], [])

    def test_a_kernel_is_exchanged_in_place(self, link: FakeLink) -> None:
        """In the background mode, the first config's kernel is launched until the winner is known."""
        kernel = app.make_autotuned_function(mode="background")(app.SIZE)
        assert kernel.compiled == {"block": 128}
        ((_, on_answer),) = link.followed
        assert not on_answer(WINNER)
        assert (kernel.config, kernel.latency) == ({"block": 512}, 0.012)
        assert kernel() == {"block": 512}
        assert app.make_autotuned_function(mode="background", upgrade="always")(app.SIZE) is not kernel
        ((_, follows_on),) = link.followed[1:]
        assert follows_on(WINNER)

    def test_in_the_background_an_outdated_winner_is_launched_meanwhile(self, link: FakeLink) -> None:
        link.known = OUTDATED
        kernel = app.make_autotuned_function(mode="background", upgrade="never")(app.SIZE)
        assert (kernel.compiled, kernel.latency) == ({"block": 512}, 0.012)
        assert (len(link.records), link.followed) == (1, [])

    def test_launches_are_counted(self, link: FakeLink) -> None:
        """All launches of the kernel count, before and after it is exchanged."""
        kernel = app.make_autotuned_function(mode="background")(app.SIZE)
        kernel()
        ((_, on_answer),) = link.followed
        on_answer(WINNER)
        kernel()
        assert (kernel.launch_counter.launches, kernel.launch_counter.key.identity) == (2, link.records[0].identity)

    def test_a_knob_in_the_call_skips_tuning(self, link: FakeLink, tilelang_tunes: list[Any]) -> None:
        """TileLang compiles the call, whether the knob is given by name or by position."""
        app.make_autotuned_function()(app.SIZE, block=256)
        app.make_autotuned_function()(app.SIZE, 3.0, 256)
        assert (len(tilelang_tunes), link.waited, account.left_alone) == (2, [], {})

    @pytest.mark.parametrize(
        "configs", [app.CONFIGS, {"block": [128, 512]}, lambda size: ({"block": block} for block in (128, 512))]
    )
    def test_configs_are_a_list_axes_or_a_function(self, configs: Any, link: FakeLink) -> None:
        """All three forms make the same record."""
        app.make_autotuned_function(configs=configs)(app.SIZE)
        (record,) = link.records
        assert list(record.configs) == app.CONFIGS
        assert list(json.loads(record.call)["programs"]) == list(CONFIG_TEXTS.values())

    def test_the_error_of_a_wrong_call_is_tilelangs(self, link: FakeLink, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(theirs, "_init_logger_handlers", lambda: None)
        with pytest.raises(ValueError, match=r"Unused keys in config: \{'blocks'\}"):
            app.make_autotuned_function(configs=[{"blocks": 1}])(app.SIZE)
        with pytest.raises(ValueError, match="No configurations to tune"):
            app.make_autotuned_function(configs=[])(app.SIZE)
        with pytest.raises(ValueError, match=r"early_stop_factor must be >= 1\.0"):
            app.make_autotuned_function(early_stop=True, early_stop_factor=0.5)(app.SIZE)

    def test_a_call_without_a_winner_fails_as_in_tilelang(self, link: FakeLink) -> None:
        """No failed config is launched."""
        link.ends_with = Answer(message="all configs failed")
        failed = "Auto-tuning failed: No configuration successfully compiled .* all configs failed"
        with pytest.raises(RuntimeError, match=failed):
            app.make_autotuned_function()(app.SIZE)

    def test_a_call_that_the_daemon_does_not_accept_is_left_to_tilelang(
        self, link: FakeLink, tilelang_tunes: list[Any]
    ) -> None:
        """Programs read the kernel's latency at once, so a config without latency is no answer."""
        link.ends_with = Answer()
        assert app.make_autotuned_function()(app.SIZE) == "tilelang's"
        assert list(account.left_alone.values()) == ["the daemon did not accept its call; `ktuned status` may say why"]

    @pytest.mark.parametrize("dies", [False, True])
    def test_without_a_daemon_a_call_is_recorded_and_left_to_tilelang(
        self, dies: bool, link: FakeLink, tilelang_tunes: list[Any]
    ) -> None:
        """With without_daemon='first' the first config is used. The same holds if the daemon ends while the call
        waits.
        """
        link.known, link.ends_with = (Answer(), None) if dies else (None, None)
        assert app.make_autotuned_function(without_daemon="first")(app.SIZE).compiled == {"block": 128}
        assert app.make_autotuned_function()(app.SIZE) == "tilelang's"
        assert (len(tilelang_tunes), len(link.records)) == (1, 1)
        assert list(account.left_alone.values()) == ["no daemon runs"]

    def test_other_targets_are_left_to_tilelang(
        self, link: FakeLink, tilelang_tunes: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(app.scale, "target", "c")
        assert app.make_autotuned_function()(app.SIZE) == "tilelang's"
        assert list(account.left_alone.values()) == [
            "its target is c, and ktuned runs TileLang's kernels on NVIDIA GPUs"
        ]
        # TileLang's tuner might choose other bits.
        exact = app.make_autotuned_function(numerics="exact")(app.SIZE)
        assert (exact.compiled, len(tilelang_tunes)) == ({"block": 128}, 1)

    def test_a_capture_gets_the_first_config_once(self, link: FakeLink, monkeypatch: pytest.MonkeyPatch) -> None:
        """During the capture nothing is asked or recorded; the next call outside decides."""
        monkeypatch.setattr("ktuned.dropin.keyed_call.is_capturing", lambda: True)
        function = app.make_autotuned_function()
        assert function(app.SIZE).compiled == {"block": 128}
        assert (link.waited, link.records) == ([], [])
        monkeypatch.setattr("ktuned.dropin.keyed_call.is_capturing", lambda: False)
        kernel = function(app.SIZE)
        assert kernel.compiled == {"block": 512}
        assert function(app.SIZE) is kernel

    def test_a_winner_that_ref_prog_contradicts_is_not_used(
        self, link: FakeLink, tilelang_tunes: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The function is left to TileLang; in the background, the first config's kernel stays."""
        monkeypatch.setattr(keyed_call, "_confirm_results", lambda task, found: False)
        assert app.make_autotuned_function(ref_prog=torch.clone)(app.SIZE) == "tilelang's"
        assert "are not those of ref_prog" in next(iter(account.left_alone.values()))
        kernel = app.make_autotuned_function(ref_prog=torch.clone, mode="background")(app.SIZE)
        ((_, on_answer),) = link.followed
        assert not on_answer(WINNER)
        assert kernel() == {"block": 128}


class TestClasses:
    """A class is adopted, so instances are adopted wherever they were made."""

    @pytest.fixture
    def adopt_all_tuners(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Adopt all tuners, as ``ktuned run`` does."""
        monkeypatch.setattr(autotuner, "_process_policy", None)
        autotuner.adopt_process(theirs, "wait")

    def test_tuners_that_are_not_adopted_behave_as_before(self, link: FakeLink, tilelang_tunes: list[Any]) -> None:
        """Neither the drop-in nor ``ktuned run`` has adopted them."""
        function = theirs.autotune(configs=app.CONFIGS)(app.scale)
        assert function(app.SIZE) == "tilelang's"
        assert (link.records, account.left_alone) == ([], {})

    def test_a_function_that_was_made_before_the_adoption_is_adopted(
        self, link: FakeLink, adopt_all_tuners: None
    ) -> None:
        """So is a tuner."""
        assert theirs.autotune(configs=app.CONFIGS)(app.scale)(app.SIZE).compiled == {"block": 512}
        tuner = theirs.AutoTuner(app.make_closure(3.0), app.CONFIGS).set_compile_args(out_idx=[-1], target=app.TARGET)
        assert tuner.run().config == {"block": 512}
        assert len(link.records) == 2

    def test_a_subclasss_own_run_comes_first(self, link: FakeLink, adopt_all_tuners: None) -> None:
        """For example, the subclass has a cache and tunes only the remaining configs."""

        class CachedTuner(theirs.AutoTuner):  # type: ignore[misc]
            def run(self, *args: Any, **kwargs: Any) -> Any:
                self.configs: Any = self.configs[1:]
                return super().run(*args, **kwargs)

        tuner = CachedTuner(app.make_closure(3.0), app.CONFIGS).set_compile_args(out_idx=[-1], target=app.TARGET)
        assert tuner.run(timeout=3).config == {"block": 512}
        assert [list(record.configs) for record in link.records] == [[{"block": 512}]]
        assert autotuner.explain_non_adoption(CachedTuner) == ""

    def test_a_subclass_that_never_calls_tilelangs_method_is_named(
        self, link: FakeLink, adopt_all_tuners: None
    ) -> None:
        """A call names the class and the reason; the class works as before."""

        class OwnTuner(theirs.AutoTuner):  # type: ignore[misc]
            def run(self) -> str:
                return "own"

        class OwnFunction(theirs.AutoTuneImpl):  # type: ignore[misc]
            def __call__(self, *args: Any, **kwargs: Any) -> str:
                return "own"

        assert account.left_alone == {}
        assert (OwnTuner(app.make_closure(3.0), app.CONFIGS).run(), OwnFunction(app.scale)()) == ("own", "own")
        assert [reason.partition(" has ")[2] for reason in account.left_alone.values()] == [
            "a run of its own, which never calls TileLang's",
            "a __call__ of its own, which never calls TileLang's",
        ]


class TestTuners:
    """``AutoTuner`` takes closures and returns TileLang's result."""

    def test_a_closure_is_identified_by_its_program(self, link: FakeLink) -> None:
        """The values in its closure count; its name does not."""
        result = app.make_tuner(3.0).run(warmup=3, rep=20)
        assert (result.config, result.latency, result.libcode) == ({"block": 512}, 0.012, "source")
        app.make_tuner(3.0).run()
        app.make_tuner(4.0).run()
        first, second, third = (key.problem for key in link.waited)
        assert first == second != third


class TestTensors:
    """Configs are measured on the application's tensors."""

    def test_indices_are_captured_and_symbolic_sizes_known(self, link: FakeLink) -> None:
        """Integers may be indices, so they are captured; of floats only the distribution is kept."""
        indices = torch.arange(64, dtype=torch.int32)
        with set_autotune_inputs(torch.ones(app.SIZE), indices):
            app.make_autotuned_function(app.gather)(app.SIZE)
        (record,) = link.records
        call = json.loads(record.call)
        assert [call["tensors"][name]["fill"] for name in ("x", "at", "y")] == ["normal", "captured", "empty"]
        assert {name: text for name, text in record.problem.items() if name != PROGRAMS_KEY} == {
            "x": "f32[4096]",
            "at": "i32[64]",
            "y": "f32[64]",
        }
        from safetensors.torch import load

        assert torch.equal(load(record.files[call["content"]])["at"], indices)

    def test_a_call_with_large_captured_tensors_is_left_to_tilelang(
        self, link: FakeLink, tilelang_tunes: list[Any]
    ) -> None:
        """Copying them would stall the application."""
        indices = torch.zeros((1 << 24) + 1, dtype=torch.int32)
        with set_autotune_inputs(torch.ones(app.SIZE), indices):
            assert app.make_autotuned_function(app.gather)(app.SIZE) == "tilelang's"
        assert next(iter(account.left_alone.values())) == (
            "its tensors of integers (at) have 64 MiB, more than is captured of a call (64 MiB)"
        )

    def test_a_symbolic_size_without_inputs_is_left_to_tilelang(
        self, link: FakeLink, tilelang_tunes: list[Any]
    ) -> None:
        """The reason says what to do."""
        app.make_autotuned_function(app.gather)(app.SIZE)
        assert "give inputs by set_autotune_inputs" in next(iter(account.left_alone.values()))


class TestKernelFiles:
    """The daemon writes a record as a kernel file, which imports nothing from the application."""

    def test_a_kernel_file_declares_the_recorded_call(
        self, link: FakeLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its programs are those that the function makes."""
        monkeypatch.setenv("TILELANG_ENABLE_IR_SPAN", "0")
        monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path))
        app.make_tuner(3.0).run(timeout=7)
        (record,) = link.records
        assert (record.package, record.function) == ("tests", "tilelang.app.make_closure.kernel")
        assert record.variables == {"TILELANG_ENABLE_IR_SPAN": "0"}
        path, call = AdoptedDirectory(tmp_path).write_record(record)
        problem = {**record.problem, CALL_KEY: call}
        (kernel,) = load_file(path, path.parent).kernels
        assert (kernel.name, kernel.is_data) == (record.function, True)
        assert [dict(config) for config in kernel.bind_space(problem)] == app.CONFIGS
        assert kernel.plan.deadlines == dict.fromkeys(("first_launch", "check", "timing"), 7.0)
        build: Any = kernel.build(problem, {"block": 512})
        program = elaborate_build(build, path, "sm_90a").prim_func
        assert program.script() == app.make_closure(3.0)(512).script()

    def test_two_processes_leave_the_same_record(self, link: FakeLink, tmp_path: Path) -> None:
        """The records are equal byte for byte, so they are one file."""
        code = """if True:
            import sys
            from ktuned.dropin import Answer, keyed_call
            from tests.tilelang import app
            class Link:
                def ask_about(self, key): return Answer()
                def await_tuning(self, key): return Answer()
            keyed_call.daemon_link = lambda: Link()
            from ktuned_tilelang import autotuner
            from tilelang.autotuner import tuner
            try:
                app.make_autotuned_function(mode="wait")(app.SIZE)
            except Exception:
                pass  # there is no GPU that TileLang could tune on
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for seed in ("1", "2"):
            environment["PYTHONHASHSEED"] = seed
            subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True, timeout=120)
        (record,) = link.records
        assert record.function == "tilelang.app.scale"


class TestWinners:
    """A winners file fixes the config of each key; the daemon is not asked, and nothing is recorded."""

    @pytest.fixture
    def write_winners_file(self, tmp_path: Path, link: FakeLink) -> Callable[..., Path]:
        """A function that writes a file with a winner of ``scale``, whose key a recorded call shows."""
        link.known = Answer(is_open=True)
        app.make_autotuned_function(mode="background")(app.SIZE)
        (record,) = link.records
        for path in spool_directory(tmp_path / "home").iterdir():
            path.unlink()

        def write(config: dict[str, Any], **problem: Any) -> Path:
            context = {"decided": 1.0, "digest": "", "toolchain": "", "device_fingerprint": "", "measuring_version": 1}
            values = {"problem": {**record.problem, **problem}, "config": config, "latency_us": 12.0}
            function = {"name": f"{record.package}.{record.function}", "source": ""}
            rules: dict[str, Any] = {"default": None, "specialize": None, "bucket": {}, "names": {}}
            document = {"ktuned_winners": 1, "kernel": "tests:scale", "device": "a GPU", "function": function, **rules}
            path = tmp_path / "winners.json"
            path.write_text(json.dumps({**document, "winners": [{**context, **values}]}))
            return path

        return write

    @pytest.mark.parametrize(
        ("config", "problem_changes", "block", "state"),
        [
            ({"block": 512}, {}, 512, "fixed"),
            ({"block": 256}, {}, 256, "fixed"),
            ({"block": 256}, {PROGRAMS_KEY: "other"}, 256, "was made from different source or configs"),
            ({"height": 256}, {}, 128, "is no config of the function: the first config is launched"),
            ({"block": 512}, {"x": "f32[1]"}, 128, "lacks it: the first config is launched"),
        ],
        ids=["listed", "unlisted", "other-source", "no-config", "missing"],
    )
    def test_a_call_gets_the_files_config(
        self,
        config: dict[str, Any],
        problem_changes: dict[str, Any],
        block: int,
        state: str,
        write_winners_file: Callable[..., Path],
        link: FakeLink,
    ) -> None:
        """The call gets it at once, with the file's latency."""
        link.followed.clear()
        account.keys.clear()
        kernel = app.make_autotuned_function(winners=write_winners_file(config, **problem_changes))(app.SIZE)
        assert kernel.config == {"block": block}
        assert (link.waited, link.followed, link.records) == ([], [], [])
        assert next(iter(account.keys.values())).endswith(state)
        assert kernel.latency == (None if "first config" in state else 0.012)


class TestApplication:
    """An application and a real daemon, up to the winner; the CPU stands in for a GPU."""

    @pytest.fixture
    def daemon(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
        """A daemon whose tilelang backend is the stand-in."""
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), *filter(None, sys.path)]))
        with Daemon(tmp_path, tensors="torch") as daemon:
            yield daemon

    def test_an_application_gets_the_winners_artifact(self, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
        """TileLang loads the artifact and compiles nothing; a second start tunes nothing."""
        monkeypatch.setenv("KTUNED_HOME", str(daemon.home))
        monkeypatch.setattr(type(app.scale), "__call__", lambda *args, **kwargs: pytest.fail("compiled here"))
        with Client(daemon.client.socket) as client:
            link = DaemonLink(client)
            monkeypatch.setattr("ktuned.dropin.keyed_call.daemon_link", lambda: link)
            kernel = app.make_autotuned_function()(app.SIZE)
            assert kernel.config == {"block": 512}
            assert kernel.execution_backend == "tvm_ffi"
            assert kernel.latency < 2.0
            assert "* 512)" in kernel.get_kernel_source()
            second_kernel = app.make_autotuned_function()(app.SIZE)
            assert second_kernel.config == {"block": 512}
            (job,) = daemon.client.call("jobs")["jobs"]
            assert (job["state"], job["outcomes"]) == ("done", {"measured": 2})
            assert job["kernel"] == "tests:tilelang.app.scale"


PROGRAM = """\
import os
import tilelang
from tests.tilelang import app

function = tilelang.autotune(configs=app.CONFIGS)(app.scale)
try:
    function(app.SIZE)
finally:
    os._exit(7)
"""


def test_a_program_that_ends_at_once_is_tuned_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon runs, and the unchanged program skips its exit handlers; a daemon that starts later tunes it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), *filter(None, sys.path)]))
    (tmp_path / "summary").mkdir()
    environment = {
        **os.environ,
        **hook_environment("background", "tolerance", str(tmp_path / "summary"), os.environ),
        "KTUNED_HOME": str(tmp_path / "home"),
        "KTUNED_SOCKET": str(tmp_path / "none"),
    }
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 7, process.stderr
    summary = Account.from_directory(tmp_path / "summary")
    assert (summary.adopted, list(summary.keys.values())) == ({"tests.tilelang.app.scale"}, ["recorded"]), (
        process.stderr
    )
    assert list(summary.left_alone.values()) == ["no daemon runs"]
    with Daemon(tmp_path, tensors="torch") as daemon:
        deadline = monotonic() + 60
        while monotonic() < deadline:
            jobs = daemon.client.call("jobs")["jobs"]
            if jobs and jobs[0]["state"] == "done":
                break
            Event().wait(0.1)
        assert [(job["kernel"], job["outcomes"]) for job in jobs] == [("tests:tilelang.app.scale", {"measured": 2})]
        assert not list(spool_directory(daemon.home).iterdir())


@pytest.mark.parametrize(("winners", "is_announced"), [("", True), ("winners.json", False)])
def test_the_daemon_hears_of_the_import_when_it_begins(winners: str, is_announced: bool, tmp_path: Path) -> None:
    """Its workers import TileLang, with torch, at the same time; with a file of winners none is needed."""
    code = """if True:
        import sys
        import ktuned.dropin
        from ktuned_tilelang.environment import find_deciding_variables
        before = find_deciding_variables()
        class Link:
            def prepare_workers(self, *told): print(told == ("tilelang", before), "torch" in sys.modules)
        ktuned.dropin.daemon_link = Link
        import tilelang
        assert find_deciding_variables() == before
    """
    environment = {
        **os.environ,
        **hook_environment("background", "tolerance", str(tmp_path), os.environ),
        "KTUNED_RUN_WINNERS": winners and str(tmp_path / winners),
    }
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert process.stdout.strip() == ("True False" if is_announced else ""), process.stderr


def test_ktuned_run_adopts_all_tuners(tmp_path: Path) -> None:
    """This includes tuners that were imported before ktuned; the class is not replaced."""
    code = """if True:
        import tilelang, tilelang.autotuner
        from tilelang.autotuner import AutoTuner, autotune
        assert tilelang.autotune is autotune is tilelang.autotuner.tuner.autotune
        from ktuned_tilelang import autotuner
        print(AutoTuner.__module__, autotuner._process_policy.mode, AutoTuner.run.__wrapped__.__name__)
    """
    paths = os.pathsep.join([str(HOOK), *filter(None, sys.path)])
    environment = {"PYTHONPATH": paths, "KTUNED_RUN_MODE": "background", "KTUNED_RUN_SUMMARY": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert process.stdout.strip() == "tilelang.autotuner.tuner wait run", process.stderr
