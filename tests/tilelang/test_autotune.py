"""The drop-ins for TileLang's autotuner: what the daemon is given to tune, and the kernel that a call gets."""

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
TEXT = {block: f'{{"block":{block}}}' for block in (128, 512)}
OUTDATED = Answer(TEXT[512], latency_us=12.0)
WINNER = Answer(TEXT[512], is_final=True, latency_us=12.0)


class FakeKernel(JITKernel):  # type: ignore[misc]
    """A compiled kernel, which knows its config."""

    def __init__(self, config: Any) -> None:
        self.compiled = config
        self.prim_func = None
        self.torch_function = lambda *inputs: config

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """Return a source."""
        return "source"


class FakeLink:
    """A daemon that knows what a test says, and keeps what it is asked."""

    def __init__(self, spool: Path) -> None:
        self.known: Answer | None = Answer()
        self.ends_with: Answer | None = WINNER
        self.waited: list[CallKey] = []
        self.followed: list[tuple[CallKey, Callable[[Answer], bool]]] = []
        self._spool = spool

    def ask_about(self, key: CallKey) -> Answer | None:
        """Return what the test says."""
        return self.known

    def await_tuning(self, key: CallKey) -> Answer | None:
        """End a tuning at once."""
        self.waited.append(key)
        return self.ends_with

    def follow_key(self, key: CallKey, on_answer: Callable[[Answer], bool]) -> None:
        """Keep who is to be told."""
        self.followed.append((key, on_answer))

    @property
    def records(self) -> list[CallRecord]:
        """What lies in the spool, oldest first."""
        files = sorted(self._spool.glob(f"*{RECORD_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        return [CallRecord.from_bytes(read_file(path)) for path in files]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the application a home of its own, and an empty account."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "home"))
    account.left_alone.clear()
    account.keys.clear()
    yield tmp_path / "home"
    account.left_alone.clear()
    account.keys.clear()


@pytest.fixture
def link(home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    """Return the daemon's stand-in; nothing is compiled in this process."""
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
    """Have TileLang's own tuner find a kernel at once, and return the tuners that were left to it."""
    left: list[Any] = []

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        left.append(self)
        return AutotuneResult(kernel="tilelang's", config={})

    # What the drop-in calls is TileLang's method as it was when the class was adopted.
    decide = theirs.AutoTuner.run
    run.__signature__ = inspect.signature(decide)  # type: ignore[attr-defined]
    param = sys.modules["tilelang.autotuner.param"]
    monkeypatch.setattr(theirs.AutoTuner, "run", autotuner._wrap_run(run, param))
    return left


def settings(function: Any, *own: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, but for some, with their defaults."""
    return {name: value.default for name, value in inspect.signature(function).parameters.items() if name not in own}


class TestSignatures:
    """They are TileLang's, and what ktuned adds comes by name."""

    def test_the_decorator_has_tilelangs_parameters(self) -> None:
        """The type of supply is TileLang's own default if it is not given."""
        own = settings(autotune, "mode", "upgrade", "without_daemon", "numerics", "winners", "supply_type")
        assert own == settings(theirs.autotune, "supply_type")

    def test_the_tuner_keeps_tilelangs_methods_and_parameters(self) -> None:
        """The class is changed in place, and keeps its methods' names and parameters."""
        assert settings(AutoTuner.run) == settings(inspect.unwrap(theirs.AutoTuner.run))
        assert issubclass(AutoTuner, theirs.AutoTuner)

    def test_an_option_with_an_unknown_value_is_refused(self) -> None:
        """A choice is one of those that there are."""
        with pytest.raises(ValueError, match="mode='later': give one of 'background', 'wait'"):
            app.tuned(mode="later")
        with pytest.raises(ValueError, match="without_daemon='last': give one of 'tilelang', 'first'"):
            app.tuner(3.0).set_tuning_args(without_daemon="last")


class TestACall:
    """It gets the winner, or the best that is known."""

    def test_it_waits_for_the_winner(self, link: FakeLink) -> None:
        """Once for each key; the kernel has config and latency in milliseconds."""
        function = app.tuned()
        kernel = function(app.SIZE)
        assert (kernel.compiled, kernel.latency, kernel.config) == ({"block": 512}, 0.012, {"block": 512})
        assert function(app.SIZE) is kernel
        function(app.SIZE, factor=2.0)
        first, second = (key.problem for key in link.waited)
        assert first != second
        assert [record.problem for record in link.records] == [first, second]
        assert set(account.keys.values()) == {"tuned"}

    def test_a_final_winner_is_not_recorded(self, link: FakeLink) -> None:
        """As in a second start of the program."""
        link.known = Answer(TEXT[128], is_final=True, latency_us=12.0)
        assert app.tuned()(app.SIZE).compiled == {"block": 128}
        assert (link.waited, link.records) == ([], [])

    def test_a_kernel_is_exchanged_in_place(self, link: FakeLink) -> None:
        """In the background: the first config's is launched until the winner is there."""
        kernel = app.tuned(mode="background")(app.SIZE)
        assert kernel.compiled == {"block": 128}
        ((_, on_answer),) = link.followed
        assert not on_answer(WINNER)
        assert (kernel.config, kernel.latency) == ({"block": 512}, 0.012)
        assert kernel() == {"block": 512}
        assert app.tuned(mode="background", upgrade="always")(app.SIZE) is not kernel
        ((_, follows_on),) = link.followed[1:]
        assert follows_on(WINNER)

    def test_what_is_known_of_another_state_is_launched_meanwhile(self, link: FakeLink) -> None:
        """In the background."""
        link.known = OUTDATED
        kernel = app.tuned(mode="background", upgrade="never")(app.SIZE)
        assert (kernel.compiled, kernel.latency) == ({"block": 512}, 0.012)
        assert (len(link.records), link.followed) == (1, [])

    def test_launches_are_counted(self, link: FakeLink) -> None:
        """Each call of the kernel, and whatever it is exchanged for."""
        kernel = app.tuned(mode="background")(app.SIZE)
        kernel()
        ((_, on_answer),) = link.followed
        on_answer(WINNER)
        kernel()
        assert (kernel.launch_counter.launches, kernel.launch_counter.key.identity) == (2, link.records[0].identity)

    def test_a_knob_in_the_call_skips_tuning(self, link: FakeLink, tilelang_tunes: list[Any]) -> None:
        """By name or by position; TileLang compiles it."""
        app.tuned()(app.SIZE, block=256)
        app.tuned()(app.SIZE, 3.0, 256)
        assert (len(tilelang_tunes), link.waited, account.left_alone) == (2, [], {})

    @pytest.mark.parametrize(
        "configs", [app.CONFIGS, {"block": [128, 512]}, lambda size: ({"block": block} for block in (128, 512))]
    )
    def test_configs_are_a_list_axes_or_a_function(self, configs: Any, link: FakeLink) -> None:
        """All make the same record."""
        app.tuned(configs=configs)(app.SIZE)
        (record,) = link.records
        assert list(record.configs) == app.CONFIGS
        assert list(json.loads(record.call)["programs"]) == list(TEXT.values())

    def test_the_error_of_a_wrong_call_is_tilelangs(self, link: FakeLink, monkeypatch: pytest.MonkeyPatch) -> None:
        """In its own words."""
        monkeypatch.setattr(theirs, "_init_logger_handlers", lambda: None)
        with pytest.raises(ValueError, match=r"Unused keys in config: \{'blocks'\}"):
            app.tuned(configs=[{"blocks": 1}])(app.SIZE)
        with pytest.raises(ValueError, match="No configurations to tune"):
            app.tuned(configs=[])(app.SIZE)
        with pytest.raises(ValueError, match=r"early_stop_factor must be >= 1\.0"):
            app.tuned(early_stop=True, early_stop_factor=0.5)(app.SIZE)

    def test_without_a_winner_it_fails_as_tilelang_does(self, link: FakeLink) -> None:
        """Nothing that failed is launched."""
        link.ends_with = Answer(message="all configs failed")
        failed = "Auto-tuning failed: No configuration successfully compiled .* all configs failed"
        with pytest.raises(RuntimeError, match=failed):
            app.tuned()(app.SIZE)

    def test_a_call_that_the_daemon_does_not_accept_is_left_to_tilelang(
        self, link: FakeLink, tilelang_tunes: list[Any]
    ) -> None:
        """A config without a latency is nothing for programs that read it at once."""
        link.ends_with = Answer()
        assert app.tuned()(app.SIZE) == "tilelang's"
        assert list(account.left_alone.values()) == ["the daemon did not accept its call; `ktuned status` may say why"]

    @pytest.mark.parametrize("dies", [False, True])
    def test_without_a_daemon_a_call_is_recorded_and_left_to_tilelang(
        self, dies: bool, link: FakeLink, tilelang_tunes: list[Any]
    ) -> None:
        """Or the first config's, by choice; also where the daemon ends while it is waited for."""
        link.known, link.ends_with = (Answer(), None) if dies else (None, None)
        assert app.tuned(without_daemon="first")(app.SIZE).compiled == {"block": 128}
        assert app.tuned()(app.SIZE) == "tilelang's"
        assert (len(tilelang_tunes), len(link.records)) == (1, 1)
        assert list(account.left_alone.values()) == ["no daemon runs"]

    def test_other_targets_are_left_to_tilelang(
        self, link: FakeLink, tilelang_tunes: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the reason."""
        monkeypatch.setattr(app.scale, "target", "c")
        assert app.tuned()(app.SIZE) == "tilelang's"
        assert list(account.left_alone.values()) == [
            "its target is c, and ktuned runs TileLang's kernels on NVIDIA GPUs"
        ]

    def test_a_capture_gets_the_first_config_once(self, link: FakeLink, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is asked or recorded meanwhile; the next call outside decides."""
        monkeypatch.setattr("ktuned.dropin.keyed_call.is_capturing", lambda: True)
        function = app.tuned()
        assert function(app.SIZE).compiled == {"block": 128}
        assert (link.waited, link.records) == ([], [])
        monkeypatch.setattr("ktuned.dropin.keyed_call.is_capturing", lambda: False)
        kernel = function(app.SIZE)
        assert kernel.compiled == {"block": 512}
        assert function(app.SIZE) is kernel

    def test_a_winner_that_ref_prog_contradicts_is_not_used(
        self, link: FakeLink, tilelang_tunes: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The function is left to TileLang; in the background the first config's kernel stays."""
        monkeypatch.setattr(keyed_call, "_confirm_results", lambda task, found: False)
        assert app.tuned(ref_prog=torch.clone)(app.SIZE) == "tilelang's"
        assert "are not those of ref_prog" in next(iter(account.left_alone.values()))
        kernel = app.tuned(ref_prog=torch.clone, mode="background")(app.SIZE)
        ((_, on_answer),) = link.followed
        assert not on_answer(WINNER)
        assert kernel() == {"block": 128}


class TestClasses:
    """What is adopted is a class: instances are seen wherever they were made."""

    @pytest.fixture
    def in_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Adopt all tuners, as ``ktuned run`` does."""
        monkeypatch.setattr(autotuner, "_process_policy", None)
        autotuner.adopt_process(theirs, "wait")

    def test_tuners_that_are_not_adopted_behave_as_before(self, link: FakeLink, tilelang_tunes: list[Any]) -> None:
        """Those that neither the drop-in nor ``ktuned run`` has adopted."""
        function = theirs.autotune(configs=app.CONFIGS)(app.scale)
        assert function(app.SIZE) == "tilelang's"
        assert (link.records, account.left_alone) == ([], {})

    def test_a_function_that_was_made_before_is_adopted(self, link: FakeLink, in_process: None) -> None:
        """And a tuner."""
        assert theirs.autotune(configs=app.CONFIGS)(app.scale)(app.SIZE).compiled == {"block": 512}
        made = theirs.AutoTuner(app.closure(3.0), app.CONFIGS).set_compile_args(out_idx=[-1], target=app.TARGET)
        assert made.run().config == {"block": 512}
        assert len(link.records) == 2

    def test_a_subclasss_own_run_comes_first(self, link: FakeLink, in_process: None) -> None:
        """Its cache, for one; the configs that it leaves are the list."""

        class Cached(theirs.AutoTuner):  # type: ignore[misc]
            def run(self, *args: Any, **kwargs: Any) -> Any:
                self.configs: Any = self.configs[1:]
                return super().run(*args, **kwargs)

        made = Cached(app.closure(3.0), app.CONFIGS).set_compile_args(out_idx=[-1], target=app.TARGET)
        assert made.run(timeout=3).config == {"block": 512}
        assert [list(record.configs) for record in link.records] == [[{"block": 512}]]
        assert autotuner.explain_non_adoption(Cached) == ""

    def test_a_subclass_out_of_reach_is_named(self, link: FakeLink, in_process: None) -> None:
        """With the reason, when it is called, and left as it was."""

        class Own(theirs.AutoTuner):  # type: ignore[misc]
            def run(self) -> str:
                return "own"

        class OwnFunction(theirs.AutoTuneImpl):  # type: ignore[misc]
            def __call__(self, *args: Any, **kwargs: Any) -> str:
                return "own"

        assert account.left_alone == {}
        assert (Own(app.closure(3.0), app.CONFIGS).run(), OwnFunction(app.scale)()) == ("own", "own")
        assert [reason.partition(" has ")[2] for reason in account.left_alone.values()] == [
            "a run of its own, which never calls TileLang's",
            "a __call__ of its own, which never calls TileLang's",
        ]


class TestTuner:
    """``AutoTuner`` takes closures, and returns TileLang's result."""

    def test_a_closure_is_its_program(self, link: FakeLink) -> None:
        """What it has closed over counts, and its name does not."""
        result = app.tuner(3.0).run(warmup=3, rep=20)
        assert (result.config, result.latency, result.libcode) == ({"block": 512}, 0.012, "source")
        app.tuner(3.0).run()
        app.tuner(4.0).run()
        first, second, third = (key.problem for key in link.waited)
        assert first == second != third


class TestTensors:
    """What is measured on is what the application gives."""

    def test_indices_are_captured_and_symbolic_sizes_known(self, link: FakeLink) -> None:
        """Integers may be indices; of numbers the distribution counts."""
        at = torch.arange(64, dtype=torch.int32)
        with set_autotune_inputs(torch.ones(app.SIZE), at):
            app.tuned(app.gather)(app.SIZE)
        (record,) = link.records
        call = json.loads(record.call)
        assert [call["tensors"][name]["fill"] for name in ("x", "at", "y")] == ["normal", "captured", "empty"]
        assert {name: text for name, text in record.problem.items() if name != PROGRAMS_KEY} == {
            "x": "f32[4096]",
            "at": "i32[64]",
            "y": "f32[64]",
        }
        from safetensors.torch import load

        assert torch.equal(load(record.files[call["content"]])["at"], at)

    def test_a_call_with_large_captured_tensors_is_left_to_tilelang(
        self, link: FakeLink, tilelang_tunes: list[Any]
    ) -> None:
        """A copy of them would stall the application."""
        at = torch.zeros((1 << 24) + 1, dtype=torch.int32)
        with set_autotune_inputs(torch.ones(app.SIZE), at):
            assert app.tuned(app.gather)(app.SIZE) == "tilelang's"
        assert next(iter(account.left_alone.values())) == (
            "its tensors of integers (at) have 64 MiB, more than is captured of a call (64 MiB)"
        )

    def test_a_symbolic_size_without_inputs_is_left_to_tilelang(
        self, link: FakeLink, tilelang_tunes: list[Any]
    ) -> None:
        """With what helps."""
        app.tuned(app.gather)(app.SIZE)
        assert "give inputs by set_autotune_inputs" in next(iter(account.left_alone.values()))


class TestKernelFiles:
    """What the daemon writes of a record is a kernel file, which imports nothing of the application's."""

    def test_a_kernel_file_declares_the_recorded_call(
        self, link: FakeLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its programs are what the function makes."""
        monkeypatch.setenv("TILELANG_ENABLE_IR_SPAN", "0")
        monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path))
        app.tuner(3.0).run(timeout=7)
        (record,) = link.records
        assert (record.package, record.function) == ("tests", "tilelang.app.closure.kernel")
        assert record.variables == {"TILELANG_ENABLE_IR_SPAN": "0"}
        file, call = AdoptedDirectory(tmp_path).write_record(record)
        problem = {**record.problem, CALL_KEY: call}
        (kernel,) = load_file(file, file.parent).kernels
        assert (kernel.name, kernel.is_data) == (record.function, True)
        assert [dict(config) for config in kernel.bind_space(problem)] == app.CONFIGS
        assert kernel.plan.deadlines == dict.fromkeys(("first_launch", "check", "timing"), 7.0)
        build: Any = kernel.build(problem, {"block": 512})
        program = elaborate_build(build, file, "sm_90a").prim_func
        assert program.script() == app.closure(3.0)(512).script()

    def test_two_processes_leave_the_same_record(self, link: FakeLink, tmp_path: Path) -> None:
        """Byte for byte, so that it is one file."""
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
                app.tuned(mode="wait")(app.SIZE)
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
    """A winners file fixes the config of each key; no daemon is asked, and nothing is recorded."""

    @pytest.fixture
    def file(self, tmp_path: Path, link: FakeLink) -> Callable[..., Path]:
        """Return a function that writes a file with a winner of ``scale``, whose key a recorded call shows."""
        link.known = Answer(is_open=True)
        app.tuned(mode="background")(app.SIZE)
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
        ("config", "more", "block", "state"),
        [
            ({"block": 512}, {}, 512, "fixed"),
            ({"block": 256}, {}, 256, "fixed"),
            ({"block": 256}, {PROGRAMS_KEY: "other"}, 256, "was made from other source or configs"),
            ({"height": 256}, {}, 128, "is no config of the function: the first config is launched"),
            ({"block": 512}, {"x": "f32[1]"}, 128, "lacks it: the first config is launched"),
        ],
        ids=["listed", "unlisted", "other-source", "no-config", "missing"],
    )
    def test_a_call_gets_the_files_config(
        self,
        config: dict[str, Any],
        more: dict[str, Any],
        block: int,
        state: str,
        file: Callable[..., Path],
        link: FakeLink,
    ) -> None:
        """At once, with the file's latency."""
        link.followed.clear()
        account.keys.clear()
        kernel = app.tuned(winners=file(config, **more))(app.SIZE)
        assert kernel.config == {"block": block}
        assert (link.waited, link.followed, link.records) == ([], [], [])
        assert next(iter(account.keys.values())).endswith(state)
        assert kernel.latency == (None if "first config" in state else 0.012)


class TestApplication:
    """Beside a real daemon, to the winner: the CPU stands in for a GPU."""

    @pytest.fixture
    def daemon(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
        """Run a daemon whose tilelang backend is the stand-in."""
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), *filter(None, sys.path)]))
        with Daemon(tmp_path, tensors="torch") as daemon:
            yield daemon

    def test_it_gets_the_winners_artifact(self, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
        """TileLang loads it and compiles nothing; a second start tunes nothing."""
        monkeypatch.setenv("KTUNED_HOME", str(daemon.home))
        monkeypatch.setattr(type(app.scale), "__call__", lambda *args, **kwargs: pytest.fail("compiled here"))
        with Client(daemon.client.socket) as client:
            made = DaemonLink(client)
            monkeypatch.setattr("ktuned.dropin.keyed_call.daemon_link", lambda: made)
            kernel = app.tuned()(app.SIZE)
            assert kernel.config == {"block": 512}
            assert kernel.execution_backend == "tvm_ffi"
            assert kernel.latency < 2.0
            assert "* 512)" in kernel.get_kernel_source()
            again = app.tuned()(app.SIZE)
            assert again.config == {"block": 512}
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
    """No daemon runs, the program is unchanged and skips its exit handlers; a daemon that starts later tunes it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), *filter(None, sys.path)]))
    (tmp_path / "summary").mkdir()
    environment = {
        **os.environ,
        **hook_environment("background", "tolerance", str(tmp_path / "summary"), os.environ),
        "KTUNED_HOME": str(tmp_path / "home"),
        "KTUNED_SOCKET": str(tmp_path / "none"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 7, done.stderr
    found = Account.from_directory(tmp_path / "summary")
    assert (found.adopted, list(found.keys.values())) == ({"tests.tilelang.app.scale"}, ["recorded"]), done.stderr
    assert list(found.left_alone.values()) == ["no daemon runs"]
    with Daemon(tmp_path, tensors="torch") as daemon:
        until = monotonic() + 60
        while monotonic() < until:
            jobs = daemon.client.call("jobs")["jobs"]
            if jobs and jobs[0]["state"] == "done":
                break
            Event().wait(0.1)
        assert [(job["kernel"], job["outcomes"]) for job in jobs] == [("tests:tilelang.app.scale", {"measured": 2})]
        assert not list(spool_directory(daemon.home).iterdir())


def test_ktuned_run_adopts_all_tuners(tmp_path: Path) -> None:
    """Also what was imported and made before anything of ktuned's is called; nothing is replaced."""
    code = """if True:
        import tilelang, tilelang.autotuner
        from tilelang.autotuner import AutoTuner, autotune
        assert tilelang.autotune is autotune is tilelang.autotuner.tuner.autotune
        from ktuned_tilelang import autotuner
        print(AutoTuner.__module__, autotuner._process_policy.mode, AutoTuner.run.__wrapped__.__name__)
    """
    paths = os.pathsep.join([str(HOOK), *filter(None, sys.path)])
    environment = {"PYTHONPATH": paths, "KTUNED_RUN_MODE": "background", "KTUNED_RUN_SUMMARY": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "tilelang.autotuner.tuner wait run", done.stderr
