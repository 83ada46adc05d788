"""The wheels: their metadata, their contents, and that ktuned works from them alone."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.packaging.distributions import PROJECTS, ROOT
from tests.packaging.release_check import HEAVY, try_wheel

pytestmark = pytest.mark.timeout(300)

UNITS = ("ktuned.service", "ktuned.socket")
"""systemd's user units, which are installed with ktuned."""


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def read_entry_points(wheel: Path) -> dict[str, dict[str, str]]:
    parser = ConfigParser(delimiters=("=",))
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".dist-info/entry_points.txt"):
                parser.read_string(archive.read(name).decode())
    return {section: dict(parser[section]) for section in parser.sections()}


@pytest.mark.parametrize("name", PROJECTS)
def test_metadata_is_complete(wheels: dict[str, Path], name: str) -> None:
    """Name, licence (PEP 639), Python range, description and typing."""
    metadata = read_metadata(wheels[name])
    classifiers = metadata.get_all("Classifier", [])
    assert metadata["Name"] == name
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"]
    assert str(metadata.get_payload()).startswith("#")
    assert "Typing :: Typed" in classifiers
    assert not [text for text in classifiers if text.startswith("License ::")]


@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_contains_its_package_alone(wheels: dict[str, Path], name: str) -> None:
    """Every module of it, and no tests, examples or other distributions."""
    project, package = PROJECTS[name]
    with zipfile.ZipFile(wheels[name]) as archive:
        entries = {entry for entry in archive.namelist() if ".dist-info/" not in entry}
    expected = {
        path.relative_to(project).as_posix()
        for path in (project / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if name == "ktuned":
        expected |= {f"{wheels[name].name.partition('-py3')[0]}.data/data/share/systemd/user/{unit}" for unit in UNITS}
    assert entries == expected
    assert f"{package}/py.typed" in entries


def test_make_wheels_builds_every_distribution() -> None:
    """The tests of this directory know every distribution, too."""
    steps = subprocess.run(["make", "-n", "wheels"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    built = {(ROOT / argument).resolve() for argument in re.findall(r"\./\S+", steps.partition("--wheel-dir dist")[2])}
    directories = {path.parent for pattern in ("*", "client/*", "plugins/*/*") for path in ROOT.glob(pattern)
             if path.name == "pyproject.toml"}  # fmt: skip
    assert built == directories == {project for project, _ in PROJECTS.values()}


def test_make_release_check_tries_every_distribution(wheels: dict[str, Path], tmp_path: Path) -> None:
    """The test tries the light ones."""
    steps = subprocess.run(["make", "-n", "release-check"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "tests/packaging/release_check.py" in steps
    (tmp_path / "home").mkdir()
    try_wheel("ktuned-client", wheels, tmp_path, with_dependencies=False)
    assert set(PROJECTS) > HEAVY


def test_each_wheel_has_the_licence(wheels: dict[str, Path]) -> None:
    texts = set()
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            texts |= {archive.read(name) for name in archive.namelist() if name.endswith("licenses/LICENSE")}
    assert texts == {(ROOT / "LICENSE").read_bytes()}


def test_the_metadata_has_command_strategies_and_backend(wheels: dict[str, Path]) -> None:
    assert read_entry_points(wheels["ktuned"]) == {
        "console_scripts": {"ktuned": "ktuned.cli:main"},
        "ktuned.loaders": {"winner": "ktuned.backends:load_winner"},
        "ktuned.strategies": {
            "exhaustive": "ktuned.search:Exhaustive",
            "guided": "ktuned.search.guided:Guided",
            "random": "ktuned.search:Random",
        },
    }
    assert read_entry_points(wheels["ktuned-command"]) == {
        "ktuned.backends": {"command": "ktuned_command:Command", "command_cuda": "ktuned_command:CommandOnCuda"}
    }
    assert read_entry_points(wheels["ktuned-cutedsl"]) == {"ktuned.backends": {"cutedsl": "ktuned_cutedsl:CuteDsl"}}
    assert read_entry_points(wheels["ktuned-inductor"]) == {
        "ktuned.backends": {"inductor": "ktuned_inductor.backend:Inductor"}
    }
    assert read_entry_points(wheels["ktuned-mcp"]) == {}
    assert read_entry_points(wheels["ktuned-nvrtc"]) == {"ktuned.backends": {"nvrtc": "ktuned_nvrtc:Nvrtc"}}
    assert read_entry_points(wheels["ktuned-optuna"]) == {
        "ktuned.strategies": {
            "optuna_cmaes": "ktuned_optuna:CmaEs",
            "optuna_gp": "ktuned_optuna:Gp",
            "optuna_nsgaii": "ktuned_optuna:NsgaII",
            "optuna_tpe": "ktuned_optuna:Tpe",
        }
    }
    assert read_entry_points(wheels["ktuned-ray"]) == {}
    assert read_entry_points(wheels["ktuned-team"]) == {}
    assert read_entry_points(wheels["ktuned-tilelang"]) == {"ktuned.backends": {"tilelang": "ktuned_tilelang:TileLang"}}
    assert read_entry_points(wheels["ktuned-torch"]) == {"ktuned.backends": {"torch": "ktuned_torch:Torch"}}
    assert read_entry_points(wheels["ktuned-triton"]) == {"ktuned.backends": {"triton": "ktuned_triton:Triton"}}
    assert read_entry_points(wheels["ktuned-tvm-ffi"]) == {
        "ktuned.backends": {"tvm_ffi": "ktuned_tvm_ffi:TvmFfi", "tvm_ffi_cuda": "ktuned_tvm_ffi:TvmFfiCuda"}
    }
    assert read_entry_points(wheels["ktuned-client"]) == {}


def test_dependencies_are_few_and_without_upper_bound(wheels: dict[str, Path]) -> None:
    """The client needs msgpack alone, and the daemon no torch."""
    needed = {
        name: {
            text.partition(";")[0]
            for text in read_metadata(wheel).get_all("Requires-Dist", [])
            if "extra ==" not in text
        }
        for name, wheel in wheels.items()
    }
    assert {re.split(r"[<>=!~]", text)[0] for text in needed["ktuned-client"]} == {"msgpack"}
    assert not [text for text in needed["ktuned"] if text.startswith(("torch", "apache-tvm-ffi", "ktuned-tvm-ffi"))]
    assert not [text for texts in needed.values() for text in texts if "<" in text or "==" in text]


@pytest.fixture(scope="module")
def installed_environment(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with ktuned from the wheels, and everything else from this environment."""
    home = tmp_path_factory.mktemp("from-wheels")
    venv.create(home, symlinks=True)
    python = home / "bin/python"
    (site,) = home.glob("lib/python*/site-packages")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "-q",
        "--no-compile",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*command, *map(str, wheels.values())], check=True, capture_output=True, text=True)
    # After the install, or pip takes the editable ones for installed; behind it in sys.path, so that the wheels win.
    (site / "development.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


@pytest.fixture
def command_environment(installed_environment: Path, tmp_path: Path) -> dict[str, str]:
    """Return the variables of the wheels' environment: a home and a socket of its own."""
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home/config.toml").write_text("spares = false\n")
    inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return {
        **inherited,
        "PATH": f"{installed_environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "KTUNED_HOME": str(tmp_path / "home"),
        "KTUNED_SOCKET": str(tmp_path / "run/ktuned.sock"),
    }


def run_command(installed: Path, environment: dict[str, str], cwd: Path, *command: str) -> str:
    done = subprocess.run(
        [str(installed / "bin" / command[0]), *command[1:]],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_packages_are_imported_from_the_wheels(
    installed_environment: Path, command_environment: dict[str, str], tmp_path: Path
) -> None:
    """Not from the checkout."""
    packages = ", ".join(package for _, package in PROJECTS.values())
    script = f"import {packages}\nfor package in ({packages}): print(package.__file__)"
    for file in run_command(installed_environment, command_environment, tmp_path, "python", "-c", script).split():
        assert Path(file).is_relative_to(installed_environment)


def test_the_command_runs(installed_environment: Path, command_environment: dict[str, str], tmp_path: Path) -> None:
    """``python -m ktuned`` is the same command."""
    version = run_command(installed_environment, command_environment, tmp_path, "ktuned", "--version")
    assert read_installed_version(installed_environment) in version
    assert (
        run_command(installed_environment, command_environment, tmp_path, "python", "-m", "ktuned", "--version")
        == version
    )


def read_installed_version(installed: Path) -> str:
    (info,) = installed.glob("lib/python*/site-packages/ktuned-*.dist-info")
    return info.name.removeprefix("ktuned-").removesuffix(".dist-info")


GUIDE = ROOT / "docs/guide/first-kernel.md"


def read_blocks(language: str) -> Iterator[str]:
    yield from re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_guide_s_kernel_is_tuned_from_the_wheels(
    installed_environment: Path, command_environment: dict[str, str], tmp_path: Path
) -> None:
    """The lookup gets the winner."""
    project = tmp_path / "project"
    project.mkdir()
    kernel_file, lookup, _ = read_blocks("python")
    (source,) = read_blocks("cpp")
    # An application would go on without an answer after 5 ms; a loaded machine may need longer, and here it is awaited.
    lookup = lookup.replace("deadline_s=1", "deadline_s=30")
    # Workers would import torch for 2 s each; the tutorial's test shows that none is needed.
    (project / "tune_dot.py").write_text(f"import sys\nsys.modules['torch'] = None\n{kernel_file}")
    (project / "dot.cc").write_text(source)

    try:
        output = run_command(
            installed_environment, command_environment, project, "ktuned", "tune", ".", "--preset", "fast", "--json"
        )
        last = json.loads(output.splitlines()[-1])
        looked_up = run_command(installed_environment, command_environment, project, "python", "-c", lookup)
        results = json.loads(
            run_command(installed_environment, command_environment, project, "ktuned", "results", "dot", "--json")
        )
    finally:
        run_command(installed_environment, command_environment, project, "ktuned", "stop")

    assert [job["state"] for job in last["jobs"]] == ["done"]
    trials = results["trials"] if isinstance(results, dict) else results
    assert {trial["config"]["LANES"] for trial in trials} == {1, 4, 16, 64}
    assert "fresh" in looked_up
    assert any(str(trial["config"]) in looked_up for trial in trials if trial["outcome"] == "measured")
