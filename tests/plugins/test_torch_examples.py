"""The torch plugin's examples: what the CPU supports computes correctly, the rest is unsupported or needs a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ktuned.backends import cpu
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.loader import load_file
from ktuned.measuring.cuda_timer import CudaTimer
from ktuned.measuring.race import RaceRules
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model.errors import Unsupported
from ktuned.model.plan import PRESETS
from ktuned_torch import Torch
from tests.plugins.examples_on_gpus import find_first_gpu
from tests.plugins.torch_trials import EXAMPLES, SMALL, Trials, load_kernel

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class TestAttention:
    """examples/attention_choice."""

    def load_kernel(self) -> Kernel:
        """Return it."""
        return load_kernel("attention_choice", "tune_attention.py")

    def test_the_space_has_each_implementation_eager_and_the_fusible_one_compiled(self) -> None:
        """The fusible implementation is compiled in two ways."""
        kernel = self.load_kernel()
        (problem,) = kernel.list_problems()
        configs = list(kernel.bind_space(problem))
        assert kernel.default in configs
        assert [config["COMPILE"] for config in configs].count("eager") == 5
        assert len(configs) == 7

    def test_what_the_cpu_has_agrees_with_float32(self, tmp_path: Path) -> None:
        """Three implementations run eagerly; torch.compile is torch's own concern."""
        trials = Trials(self.load_kernel(), SMALL, cpu.device(), tmp_path)
        for name in ("math", "flash", "composed"):
            assert trials.is_right({"IMPLEMENTATION": name, "COMPILE": "eager"}), name

    @pytest.mark.parametrize("name", ["efficient", "cudnn"])
    def test_what_the_cpu_lacks_is_unsupported(self, name: str, tmp_path: Path) -> None:
        """It is no error of the config."""
        trials = Trials(self.load_kernel(), SMALL, cpu.device(), tmp_path)
        launch = trials.make_launch({"IMPLEMENTATION": name, "COMPILE": "eager"})
        with pytest.raises(Unsupported, match="No viable backend"):
            launch()

    @pytest.mark.gpu
    @pytest.mark.allow_leaks(reason="a progress bar of Inductor's own autotuning keeps a thread until the process ends")
    @pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # torch 2.11's own autotuning
    def test_every_config_agrees_on_the_gpu_and_one_beats_the_default(self, tmp_path: Path) -> None:
        """The declared problem, timed as jobs time it."""
        kernel = self.load_kernel()
        (problem,) = kernel.list_problems()
        check_that_one_config_beats_the_default(Trials(kernel, problem, find_first_gpu(Torch()), tmp_path))


class TestSoftmax:
    """examples/triton_softmax."""

    def test_without_triton_the_example_says_what_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "triton", None)
        file = EXAMPLES / "triton_softmax" / "tune_softmax.py"
        (error,) = load_file(file, EXAMPLES).errors
        assert error.message.startswith(f"{file}:4: triton is not installed: ")
        assert error.hint.startswith("pip install triton into ")

    @pytest.mark.gpu
    def test_every_config_agrees_on_the_gpu_and_one_beats_the_default(self, tmp_path: Path) -> None:
        """All of them, also the blocks that are wider than a row."""
        kernel = load_kernel("triton_softmax", "tune_softmax.py")
        (problem,) = kernel.list_problems()
        check_that_one_config_beats_the_default(Trials(kernel, problem, find_first_gpu(Torch()), tmp_path))

    @pytest.mark.gpu
    def test_more_shared_memory_than_there_is_is_unsupported(self, tmp_path: Path) -> None:
        """Triton notices it when binding loads the kernel; nothing has been launched."""
        kernel = load_kernel("triton_softmax", "tune_softmax.py")
        trials = Trials(kernel, {"ROWS": 8, "COLUMNS": 262144, "DTYPE": "float32"}, find_first_gpu(Torch()), tmp_path)
        with pytest.raises(Unsupported, match="out of resource"):
            trials.make_launch({"BLOCK": 32768, "WARPS": 16, "STAGES": 4})


def check_that_one_config_beats_the_default(trials: Trials) -> None:
    """Check every config that the device supports, and that the best one is faster than the default."""
    timer = CudaTimer(trials.device.name, "events")
    latency_us: dict[str, float] = {}
    for config in trials.kernel.bind_space(trials.problem):
        try:
            launch = trials.make_launch(config)
        except Unsupported:
            continue
        trials.data.reset_tensors()
        launch()
        verdict = trials.data.check_outputs()
        assert verdict.ok, f"{config}: {verdict.message}"
        timing = timer.time_launches(TimedLaunches(launch), RaceRules(PRESETS["fast"]))
        latency_us[str(dict(config))] = timing.samples.median_us
    default = latency_us[str(dict(trials.kernel.default or {}))]
    best = min(latency_us, key=lambda name: latency_us[name])
    print(
        f"{len(latency_us)} configs of {trials.kernel.name}: default {default:.1f} µs, {best} {latency_us[best]:.1f} µs"
    )
    assert latency_us[best] < default
