"""T1 files: parameters, conditions, sizes and arguments become a kernel that compiles; wrong files are one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ktuned.backends import Unit
from ktuned.cli.t1_file import write_kernel_file
from ktuned.model import UsageError
from ktuned.spec import Kernel, load_file
from ktuned_nvrtc import Build, Nvrtc, i32
from ktuned_nvrtc.t1 import MAX_BYTES

HERE = Path(__file__).parent
T1 = "scale.T1.json"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory with a T1 file, its source and the kernel file that names it."""
    for name in (T1, "t1_scale.cu"):
        shutil.copy(HERE / name, tmp_path)
    assert write_kernel_file(tmp_path / T1) == (tmp_path / "tune_scale.py", True)
    return tmp_path


def declared(project: Path) -> Kernel:
    """Return the kernel that the kernel file declares."""
    loaded = load_file(project / "tune_scale.py", project)
    assert not loaded.errors, loaded.errors
    (kernel,) = loaded.kernels
    return kernel


def edited(project: Path, edit: Callable[[Any], object]) -> str:
    """Return the message of the T1 file's error after an edit."""
    data = json.loads((project / T1).read_text())
    edit(data)
    (project / T1).write_text(json.dumps(data))
    (error,) = load_file(project / "tune_scale.py", project).errors
    return error.message


def test_the_space_holds_what_the_conditions_admit(project: Path) -> None:
    """Values may be text or a list; conditions are parsed; the defaults are one config."""
    kernel = declared(project)
    assert (kernel.name, kernel.list_problems(), kernel.plan.trials) == ("scale_it", ({"P0": 1000},), 5)
    assert kernel.default == {"block_size_x": 64, "tile": 1, "taps": 3}
    configs = list(kernel.bind_space({"P0": 1000}))
    found = {(config["block_size_x"], config["tile"]) for config in configs}
    assert found == {(x, tile) for x in (32, 64, 128) for tile in (1, 2, 4)}


def test_sizes_and_arguments_follow_the_problem(project: Path) -> None:
    """The grid is divided as Kernel Tuner divides it; vector types, constants and scalars become arguments."""
    kernel = declared(project)
    build = kernel.build({"P0": 1000}, {"block_size_x": 128, "tile": 2, "taps": 3})
    assert isinstance(build, Build)
    assert (build.entry, build.grid, build.block, build.shared_bytes) == ("scale_it", (4, 1, 1), (128, 1, 1), 8)
    assert (build.args, build.constants) == (("y", "x", i32(1000)), {"weights": "weights"})
    assert (build.defines, build.flags) == ({"block_size_x": 128, "tile": 2, "taps": 3}, ("--use_fast_math",))
    specs = kernel.evaluate_inputs({"P0": 1000})
    assert {name: spec.shape for name, spec in specs.items()} == {"y": (1000,), "x": (1004,), "weights": (3,)}
    assert (specs["y"].output, specs["weights"].range[0], specs["x"].resolved_fill) == (True, 2.0, "uniform")


def test_every_config_compiles(project: Path, tmp_path: Path) -> None:
    """What the file describes is a kernel that NVRTC compiles, with no device."""
    kernel = declared(project)
    unit = Unit(
        key="unit",
        build=kernel.build({"P0": 1000}, dict(kernel.default or {})),
        sources=kernel.source_paths,
        kernel_file=kernel.file,
        kernel=kernel.name,
        target="sm_90a",
    )
    (tmp_path / "into" / "unit").mkdir(parents=True)
    (compiled,) = Nvrtc().compile([unit], tmp_path / "into")
    assert compiled.outcome is None, compiled.message


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda data: data.pop("KernelSpecification"), "KernelSpecification is missing"),
        (lambda data: data["KernelSpecification"].update(Language="OpenCL"), "only CUDA"),
        (lambda data: data["KernelSpecification"]["Arguments"][0].update(Type="quad"), "unknown type quad"),
        (lambda data: data["KernelSpecification"]["Arguments"][0].update(MemoryType="Tape"), "MemoryType Tape"),
        (lambda data: data["KernelSpecification"].update(ProblemSize=["__import__('os')"]), "calls __import__"),
        (lambda data: data["KernelSpecification"].update(ProblemSize=["1 / 3"]), "not a whole number"),
        (lambda data: data["ConfigurationSpace"]["TuningParameters"][0].update(Values="[]"), "no list of Values"),
        (lambda data: data["ConfigurationSpace"]["Conditions"][0].update(Expression="tile.x"), "'tile.x'"),
        (lambda data: data["KernelSpecification"].pop("KernelFile"), "KernelFile is missing"),
        (lambda data: data["KernelSpecification"].update(CompilerOptions=3), "is not of the format's kind: TypeError"),
        (lambda data: data["ConfigurationSpace"]["TuningParameters"][0].update(Values="1/0"), "division by zero"),
        (lambda data: data["ConfigurationSpace"]["TuningParameters"][1].update(Values=[None]), "tune_scale.py:5: "),
    ],
)
def test_an_invalid_file_is_one_line_that_names_the_part(
    project: Path, edit: Callable[[Any], object], words: str
) -> None:
    """A part that is missing or makes no sense is named, with the file."""
    message = edited(project, edit)
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("content", ["[]", "{", "null", " " * (MAX_BYTES + 1)])
def test_a_file_that_is_no_t1_file_is_one_line(project: Path, content: str) -> None:
    """Whatever a file holds, the error is one line."""
    (project / T1).write_text(content)
    (error,) = load_file(project / "tune_scale.py", project).errors
    assert T1 in error.message


def test_the_kernel_file_is_written_once(project: Path) -> None:
    """A kernel file that names the T1 file is kept as it is; another one of that name is not touched."""
    place = project / "tune_scale.py"
    place.write_text(place.read_text() + "# mine\n")
    assert write_kernel_file(project / T1) == (place, False)
    assert place.read_text().endswith("# mine\n")
    place.write_text("x = 1\n")
    with pytest.raises(UsageError, match="is another kernel file"):
        write_kernel_file(project / T1)
    assert place.read_text() == "x = 1\n"
