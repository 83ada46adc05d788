"""The drop-ins for TileLang's autotuner: what the daemon is given to tune, and the kernel that a call gets."""

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tilelang.autotuner.tuner as theirs
import torch
from tilelang.autotuner import set_autotune_inputs
from tilelang.autotuner.param import AutotuneResult

from ktuned.cli.commands.run import HOOK
from ktuned.dropin import CALL_KEY, Best, Tunings, account
from ktuned.spec.loader import load_file
from ktuned_client import Client
from ktuned_tilelang import AutoTuner, autotune, tuning
from ktuned_tilelang.elaboration import elaborate
from tests.e2e.harness import Daemon
from tests.fake_tunings import FakeTunings
from tests.tilelang import app

STAND_IN = Path(__file__).parent / "stand_in"
TEXT = {block: f'{{"block":{block}}}' for block in (128, 512)}


class FakeKernel:
    """A compiled kernel, which knows its config."""

    def __init__(self, config: Any) -> None:
        self.compiled = config
        self.prim_func = None
        self.torch_function = lambda *inputs: config

    def update_tuner_result(self, **values: Any) -> None:
        """Keep the result of its tuning."""
        vars(self).update(values)

    def get_kernel_source(self) -> str:
        """Return a source."""
        return "source"


@pytest.fixture
def tunings(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTunings]:
    """Return the daemon's stand-in; nothing is compiled in this process."""
    fake = FakeTunings()
    monkeypatch.setattr(tuning, "shared", lambda pin: fake)
    compiled = lambda self, config: FakeKernel(dict(config))  # noqa: E731
    monkeypatch.setattr(AutoTuner, "_compiled", compiled)
    account.left_alone.clear()
    yield fake
    account.left_alone.clear()


def settings(function: Any, *own: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, but for some, with their defaults."""
    return {name: value.default for name, value in inspect.signature(function).parameters.items() if name not in own}


class TestSignatures:
    """They are TileLang's, and what ktuned adds comes by name."""

    def test_of_the_decorator(self) -> None:
        """The type of supply is TileLang's own default if it is not given."""
        own = settings(autotune, "mode", "upgrade", "without_daemon", "pin", "supply_type")
        assert own == settings(theirs.autotune, "supply_type")

    def test_of_the_tuner(self) -> None:
        """Its options of pipeline, groups and devices as well."""
        assert settings(AutoTuner.run) == settings(theirs.AutoTuner.run)
        assert issubclass(AutoTuner, theirs.AutoTuner)

    def test_values_are_checked(self) -> None:
        """A choice is one of those that there are."""
        with pytest.raises(ValueError, match="mode='later': give one of 'wait', 'background'"):
            app.tuned(mode="later")


class TestACall:
    """It gets the winner, or the best that is known."""

    def test_it_waits_for_the_winner(self, tunings: FakeTunings) -> None:
        """Once for each key; the kernel has config and latency in milliseconds."""
        tunings.known = Best(TEXT[512], False, None, 12.0)
        function = app.tuned()
        kernel = function(app.SIZE)
        assert (kernel.compiled, kernel.latency) == ({"block": 512}, 0.012)
        assert function(app.SIZE) is kernel
        function(app.SIZE, factor=2.0)
        first, second = (request.problem for request in tunings.waited)
        assert first != second

    def test_what_is_fresh_is_not_tuned(self, tunings: FakeTunings) -> None:
        """As in a second start of the program."""
        tunings.known = Best(TEXT[128], True, None, 12.0)
        assert app.tuned()(app.SIZE).compiled == {"block": 128}
        assert tunings.waited == []

    def test_a_kernel_is_exchanged_in_place(self, tunings: FakeTunings) -> None:
        """In the background: the first config's is launched until the winner is there."""
        kernel = app.tuned(mode="background")(app.SIZE)
        assert kernel.compiled == {"block": 128}
        ((_, upgrade),) = tunings.asked
        assert upgrade(TEXT[512], None)
        assert kernel.config == {"block": 512}
        assert kernel.torch_function() == {"block": 512}
        assert app.tuned(mode="background", upgrade="always")(app.SIZE) is not kernel

    def test_upgrades_can_be_refused(self, tunings: FakeTunings) -> None:
        """The daemon tunes for the next start."""
        app.tuned(mode="background", upgrade="never")(app.SIZE)
        ((_, upgrade),) = tunings.asked
        assert upgrade is None

    def test_a_knob_in_the_call_skips_tuning(self, tunings: FakeTunings) -> None:
        """By name or by position."""
        for kernel in (app.tuned()(app.SIZE, block=256), app.tuned()(app.SIZE, 3.0, 256)):
            assert kernel.compiled == {}
        assert tunings.waited == []

    @pytest.mark.parametrize(
        "configs", [app.CONFIGS, {"block": [128, 512]}, lambda size: ({"block": block} for block in (128, 512))]
    )
    def test_configs_are_a_list_axes_or_a_function(self, configs: Any, tunings: FakeTunings) -> None:
        """All make the same programs."""
        tunings.known = Best(TEXT[512], False, None)
        app.tuned(configs=configs)(app.SIZE)
        (request,) = tunings.waited
        assert set(request.evaluated.configs) == set(TEXT.values())

    def test_configs_are_checked(self, tunings: FakeTunings) -> None:
        """In TileLang's words."""
        with pytest.raises(ValueError, match=r"Unused keys in config: \{'blocks'\}"):
            app.tuned(configs=[{"blocks": 1}])(app.SIZE)
        with pytest.raises(ValueError, match="No configurations to tune"):
            app.tuned(configs=[])(app.SIZE)
        with pytest.raises(ValueError, match=r"early_stop_factor must be >= 1\.0"):
            app.tuned(early_stop=True, early_stop_factor=0.5)(app.SIZE)

    def test_without_a_winner_it_fails_as_tilelang_does(self, tunings: FakeTunings) -> None:
        """Nothing that failed is launched."""
        with pytest.raises(RuntimeError, match="Auto-tuning failed: No configuration successfully compiled"):
            app.tuned()(app.SIZE)

    def test_without_a_daemon_it_is_tilelangs(self, tunings: FakeTunings, monkeypatch: pytest.MonkeyPatch) -> None:
        """Or the first config, by choice."""
        tunings.runs = False
        assert app.tuned(without_daemon="first")(app.SIZE).compiled == {"block": 128}
        left = AutotuneResult(kernel="tilelang's", config={})
        monkeypatch.setattr(theirs.AutoTuner, "run", lambda self, *options: left)
        assert app.tuned()(app.SIZE) == "tilelang's"

    def test_other_targets_are_left_to_tilelang(self, tunings: FakeTunings, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the reason."""
        left = AutotuneResult(kernel="tilelang's", config={})
        monkeypatch.setattr(theirs.AutoTuner, "run", lambda self, *options: left)
        monkeypatch.setattr(app.scale, "target", "c")
        assert app.tuned()(app.SIZE) == "tilelang's"
        assert list(account.left_alone.values()) == [
            "its target is c, and ktuned runs TileLang's kernels on NVIDIA GPUs"
        ]


class TestTuner:
    """``AutoTuner`` takes closures, and returns TileLang's result."""

    def test_a_closure_is_its_program(self, tunings: FakeTunings) -> None:
        """What it has closed over counts, and its name does not."""
        tunings.known = Best(TEXT[512], False, None, 12.0)
        result = app.tuner(3.0).run(warmup=3, rep=20)
        assert (result.config, result.latency, result.libcode) == ({"block": 512}, 0.012, "source")
        app.tuner(3.0).run()
        app.tuner(4.0).run()
        first, second, third = (request.problem for request in tunings.waited)
        assert first == second != third


class TestTensors:
    """What is measured on is what the application gives."""

    def test_indices_are_captured_and_symbolic_sizes_known(self, tunings: FakeTunings, tmp_path: Path) -> None:
        """Integers may be indices; of numbers the distribution counts."""
        tunings.known = Best(TEXT[512], False, None)
        at = torch.arange(64, dtype=torch.int32)
        with set_autotune_inputs(torch.ones(app.SIZE), at):
            app.tuned(app.gather)(app.SIZE)
        (request,) = tunings.waited
        tensors = request.evaluated.call.tensors
        assert [tensors[name].fill for name in ("x", "at", "y")] == ["normal", "captured", "empty"]
        assert (tensors["y"].shape, request.evaluated.captured["at"].tolist()) == ((64,), at.tolist())

    def test_without_them_a_symbolic_size_is_left_to_tilelang(
        self, tunings: FakeTunings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With what mends it."""
        left = AutotuneResult(kernel="tilelang's", config={})
        monkeypatch.setattr(theirs.AutoTuner, "run", lambda self, *options: left)
        app.tuned(app.gather)(app.SIZE)
        assert "give inputs by set_autotune_inputs" in next(iter(account.left_alone.values()))


class TestKernelFiles:
    """What the application writes is a kernel file, which imports nothing of the application's."""

    def test_it_declares_the_call(self, tunings: FakeTunings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its programs are what the function makes."""
        monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "home"))
        tunings.known = Best(TEXT[512], False, None)
        app.tuner(3.0).run(timeout=7)
        (request,) = tunings.waited
        file, problem = request.write()
        assert "tests" not in [
            line.split()[1].partition(".")[0] for line in file.read_text().splitlines() if "import" in line
        ]
        (kernel,) = load_file(file, file.parent).kernels
        assert [dict(config) for config in kernel.bound_space(problem)] == app.CONFIGS
        assert kernel.bound_space({CALL_KEY: problem[CALL_KEY], "programs": "x"}) is not None
        assert kernel.plan.deadlines == dict.fromkeys(("first_launch", "check", "timing"), 7.0)
        build: Any = kernel.build(problem, {"block": 512})
        program = elaborate(build, file, "sm_90a").prim_func
        assert program.script() == request.evaluated.prim_funcs[TEXT[512]].script()


class TestApplication:
    """Beside a real daemon, to the winner: the CPU stands in for a GPU."""

    @pytest.fixture
    def daemon(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
        """Run a daemon whose tilelang backend is the stand-in."""
        monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "application"))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), *filter(None, sys.path)]))
        with Daemon(tmp_path, tensors="torch") as daemon:
            yield daemon

    def test_it_gets_the_winners_artifact(self, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
        """TileLang loads it and compiles nothing; a second start tunes nothing."""
        with Client(daemon.client.socket) as client:
            made = Tunings(client)
            monkeypatch.setattr(tuning, "shared", lambda pin: made)
            monkeypatch.setattr(AutoTuner, "_compiled", lambda self, config: pytest.fail("compiled here"))
            kernel = app.tuned()(app.SIZE)
            assert kernel.config == {"block": 512}
            assert kernel.execution_backend == "tvm_ffi"
            assert kernel.latency < 2.0
            assert "* 512)" in kernel.get_kernel_source()
            again = app.tuned()(app.SIZE)
            assert again.config == {"block": 512}
            (job,) = daemon.client.call("jobs")["jobs"]
            assert (job["state"], job["outcomes"]) == ("done", {"measured": 2})


def test_ktuned_run_takes_them_over(tmp_path: Path) -> None:
    """By every name that TileLang has for them, in a program that does not know of it."""
    code = """if True:
        import tilelang, tilelang.autotuner
        from tilelang.autotuner import AutoTuner, autotune
        assert tilelang.autotune is autotune is tilelang.autotuner.tuner.autotune
        from tests.tilelang import kernels
        function = autotune(configs=[{"block": 64}])(kernels.scale)
        print(type(function).__name__, function.choices.mode, AutoTuner.__module__, AutoTuner.choices.mode)
    """
    paths = os.pathsep.join([str(HOOK), *filter(None, sys.path)])
    environment = {"PYTHONPATH": paths, "KTUNED_RUN_MODE": "background", "KTUNED_RUN_SUMMARY": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "KtunedFunction wait ktuned_tilelang.autotuner wait", done.stderr
