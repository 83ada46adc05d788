"""The script for the first start on a machine with a GPU, with stand-ins for the driver, Python and ktuned."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ktuned.cli.program import cli
from tests.packaging.distributions import ROOT

SCRIPT = ROOT / "examples/first_start.sh"
BASH = shutil.which("bash") or "bash"

# It stands for the system's Python, and for that of the environment that it makes: `-c` runs in a real interpreter.
PYTHON = """#!{bash}
echo "python $*" >> {log}
case "$1 $2" in
"-c import sys"*) exit {version} ;;
"-c import os, sys, sysconfig"*) exit {headers} ;;
"-c"*) exec {python} "$@" ;;
"-m venv") mkdir -p "$3/bin"; cp {bin}/python3 "$3/bin/python"; cp {bin}/stand-in-ktuned "$3/bin/ktuned" ;;
esac
"""

KTUNED = """#!{bash}
echo "ktuned $*" >> {log}
case "$1" in
status) echo '{{"jobs": {{"running": 0, "queued": 0}}}}' ;;
{failing}) exit 1 ;;
esac
"""


class Machine:
    """A directory of stand-ins, which log how they were called."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.bin, self.log = directory, directory / "bin", directory / "log"
        self.bin.mkdir()
        for name in ("dist", "temporary"):
            (directory / name).mkdir()
        (directory / "dist/ktuned-0.1.0-py3-none-any.whl").touch()
        self.add("nvidia-smi", f"#!{BASH}\necho 'GPU 0: NVIDIA H200'\n")
        self.add("gcc", f"#!{BASH}\n")
        self.add_python()

    def add(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def add_python(self, version: int = 0, headers: int = 0, failing: str = "nothing") -> None:
        """``version`` and ``headers`` are the exit statuses of the script's questions, ``failing`` a command's name."""
        places = {"bash": BASH, "log": self.log, "bin": self.bin, "python": sys.executable}
        self.add("python3", PYTHON.format(version=version, headers=headers, **places))
        self.add("stand-in-ktuned", KTUNED.format(failing=failing, **places))

    def run_script(self) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.bin}:{os.defpath}", "TMPDIR": str(self.directory / "temporary")}
        command = [BASH, str(SCRIPT), str(self.directory / "dist")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_driver_the_script_says_so_and_ends(machine: Machine) -> None:
    """Before it runs anything else."""
    done = subprocess.run([BASH, str(SCRIPT)], env={"PATH": ""}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "there is no NVIDIA driver" in done.stderr
    assert "docs/guide/first-kernel.md" in done.stderr

    machine.add("nvidia-smi", f"#!{BASH}\necho 'No devices were found'\nexit 6\n")
    done = machine.run_script()
    assert (done.returncode, machine.log.exists()) == (1, False)
    assert "the NVIDIA driver finds no GPU" in done.stderr


@pytest.mark.parametrize(
    ("missing", "remedy"), [("version", "python3-venv"), ("headers", "python3-dev"), ("wheels", "make wheels")]
)
def test_what_is_missing_is_named_before_anything_is_made(machine: Machine, missing: str, remedy: str) -> None:
    if missing == "wheels":
        shutil.rmtree(machine.directory / "dist")
    else:
        machine.add_python(version=int(missing == "version"), headers=int(missing == "headers"))
    done = machine.run_script()
    assert done.returncode == 1
    assert remedy in done.stderr
    assert list((machine.directory / "temporary").iterdir()) == []


def test_each_step_runs_in_its_order_and_has_a_time(machine: Machine) -> None:
    done = machine.run_script()
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line.removeprefix("== ").partition(":")[0] for line in done.stdout.splitlines() if line[:3] == "== "]
    times = done.stdout.partition("== times\n")[2].splitlines()[:-1]
    assert [line.split(" s  ")[1] for line in times] == steps[:-1]
    assert all(float(line.split(" s  ")[0]) >= 0 for line in times)
    called = [line.split()[1] for line in machine.log.read_text().splitlines() if line.startswith("ktuned ")]
    assert called == ["doctor", "run", "status", "run", "stop", "stop"]


def test_a_step_that_fails_is_named(machine: Machine) -> None:
    machine.add_python(failing="doctor")
    done = machine.run_script()
    assert done.returncode == 1
    assert "the step failed: check the installation" in done.stderr
    assert "first start" not in done.stdout


def test_each_command_of_the_script_is_one_of_the_command_line(machine: Machine) -> None:
    machine.run_script()
    lines = [line.split()[1:] for line in machine.log.read_text().splitlines() if line.startswith("ktuned ")]
    assert lines
    for name, *words in lines:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        command.make_context(name, words)
