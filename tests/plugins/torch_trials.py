"""Trials of the torch plugin's examples in this process, without a daemon."""

from __future__ import annotations

from pathlib import Path

from ktuned.backends.contract import Launch, Unit
from ktuned.checking.problem_data import ProblemData
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.loader import load_file
from ktuned.model.device import Device
from ktuned.model.values import Config, Problem
from ktuned_torch import Build, Torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL: Problem = {"BATCH": 1, "HEADS": 2, "LENGTH": 96, "WIDTH": 16, "DTYPE": "bfloat16"}
"""A problem of the attention example."""


def load_kernel(example: str, file: str) -> Kernel:
    """Return an example's kernel as a worker loads it."""
    loaded = load_file(EXAMPLES / example / file, EXAMPLES)
    assert loaded.errors == ()
    return loaded.kernels[0]


class Trials:
    """One problem of a kernel on one device."""

    def __init__(self, kernel: Kernel, problem: Problem, device: Device, scratch: Path) -> None:
        self.kernel, self.problem, self.device, self.scratch = kernel, problem, device, scratch
        self.data = ProblemData(kernel, problem, device)
        self.data.provide_expected_outputs(scratch / "expected.safetensors")
        self.tried_configs = 0

    def make_launch(self, config: Config) -> Launch:
        """Return a config's launch, made through plain data and an artifact."""
        key = f"config{self.tried_configs}"
        self.tried_configs += 1
        (self.scratch / key).mkdir()
        build = Build.from_plain(self.kernel.build(self.problem, config).to_plain())
        unit = Unit(key, build, (), self.kernel.file, self.kernel.name, self.device.target)
        (result,) = Torch().compile([unit], self.scratch)
        assert result.outcome is None, result.message
        return Torch().load(self.scratch / key, unit, self.device).bind(self.data.tensors)

    def is_right(self, config: Config) -> bool:
        """Launch a config once and compare it with the reference."""
        launch = self.make_launch(config)
        self.data.reset_tensors()
        launch()
        return self.data.check_outputs().ok
