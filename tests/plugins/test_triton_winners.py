"""``ktuned run --winners``: real processes launch the configs of exported files, and no daemon runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.test_triton_application import APPLICATION, DEADLINE_S, call, ended_jobs, make_daemon

SCALE = "tests.plugins.triton_app.kernels.scale"

PROCESSES = f"""\
import multiprocessing, os, subprocess, sys
sys.argv = ["application.py", sys.argv[1]]
sys.path.insert(0, {str(APPLICATION.parent)!r})

def call(who):
    print(who, flush=True)
    import application

if __name__ == "__main__":
    if os.fork() == 0:
        call("forked")
        os._exit(0)
    os.wait()
    # What comes later in the run does not see that the files were replaced.
    for name in os.listdir("winners"):
        open(os.path.join("winners", name), "w").close()
    os.chdir("/")
    spawned = multiprocessing.get_context("spawn").Process(target=call, args=("spawned",))
    spawned.start()
    spawned.join()
"""
"""Starts processes that call the function: one that is forked, and one with an interpreter of its own."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of a daemon that tuned two functions for applications; it has ended."""
    directory = tmp_path_factory.mktemp("exported")
    with make_daemon(directory, spares=True) as daemon:
        call(daemon, "4096,9000")
        call(daemon, "4000", KTUNED_RUN_NUMERICS="exact")
        call(daemon, "700", "end", "stretch")
        ended_jobs(daemon, 4)
        done = daemon.run_ktuned("export", "--all", str(directory / "winners"))
        assert done.returncode == 0, done.stderr
    return directory / "winners"


@pytest.fixture
def winners(exported: Path, tmp_path: Path) -> Path:
    """Return a copy of the files that a test may change."""
    return Path(shutil.copytree(exported, tmp_path / "winners"))


def run(directory: Path, *words: str) -> tuple[list[str], list[str]]:
    """Run a program under ``ktuned run``; return the lines of its output and of the summary. Nothing else is left."""
    done = run_process(directory, *words)
    assert done.returncode == 0, done.stderr
    assert not (directory / "home").exists()
    return done.stdout.splitlines(), done.stderr.splitlines()


def state_of(line: str, size: int) -> str:
    """Return the state of a key from its line in the summary."""
    key, _, state = line.partition("}: ")
    assert key.startswith(SCALE)
    assert key.endswith(f'"size":{size}')
    return state


def run_process(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``ktuned run`` where no daemon can be."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "KTUNED_HOME": str(directory / "home"),
        "KTUNED_SOCKET": str(directory / "no" / "daemon"),
    }
    return subprocess.run(
        [sys.executable, "-m", "ktuned", "run", *words],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def edit_file(directory: Path, name: str, **changes: Any) -> None:
    """Change fields in the file of a function's fastest winners."""
    for path in directory.iterdir():
        document = json.loads(path.read_text())
        if document["function"]["name"] == name and document["winners"]:
            path.write_text(json.dumps(document | changes))


def read_winners(winners: Path, name: str) -> dict[int, dict[str, Any]]:
    """Return a function's fastest winners by size."""
    documents = [json.loads(path.read_text()) for path in winners.iterdir()]
    return {
        winner["problem"]["size"]: winner
        for document in documents
        if document["function"]["name"] == name
        for winner in document["winners"]
    }


def test_every_process_launches_the_configs_of_the_files(winners: Path, tmp_path: Path) -> None:
    """Forked or started later, though the files were replaced meanwhile; also a config that the function does not list.

    What the files lack launches its first config, and is listed.
    """
    found = read_winners(winners, SCALE)
    assert found[4096]["config"]["BLOCK"] == 256
    found[9000]["config"]["BLOCK"] = 512
    edit_file(winners, SCALE, winners=list(found.values()))
    (tmp_path / "program.py").write_text(PROCESSES)
    output, summary = run(tmp_path, "--winners", "winners", sys.executable, "program.py", "4096,9000,5000")
    assert output == ["forked", "called 256 512 128", "spawned", "called 256 512 128"]
    assert summary[0] == "adopted 1 function: tests: scale"
    assert summary[1] == "3 tuning keys: 2 as in winners"
    assert state_of(summary[2], 5000) == "winners lacks it: the first config is launched"
    assert summary[3].startswith("no call launched a winner of winners/tests-plugins.triton_app.kernels.stretch")
    assert len(summary) == 4


def test_exact_numerics_launch_only_winners_with_the_anchors_bits(winners: Path, tmp_path: Path) -> None:
    """A winner by a tolerance is none; one of another source is launched, and listed."""
    for path in winners.iterdir():
        document = json.loads(path.read_text())
        document["function"]["source"] = "other"
        path.write_text(json.dumps(document))
    words = "--numerics", "exact", "--winners", str(winners), sys.executable, str(APPLICATION), "4000,4096"
    output, summary = run(tmp_path, *words)
    assert output == ["called 256 128"]
    assert summary[1] == f"2 tuning keys: 0 as in {winners}"
    assert state_of(summary[2], 4000).startswith(f"its winner in {winners}/")
    assert summary[2].endswith(".json was made from different source or configs")
    assert state_of(summary[3], 4096).startswith(f"{winners} has no winner with exact numerics for it")


def test_a_file_of_another_function_is_named(winners: Path, tmp_path: Path) -> None:
    """The program launches its first configs."""
    (other,) = [path for path in winners.iterdir() if "stretch" in path.name]
    output, summary = run(tmp_path, "--winners", str(other), sys.executable, str(APPLICATION), "4096")
    assert output == ["called 128"]
    assert state_of(summary[2], 4096) == f"{other} lacks it: the first config is launched"
    assert summary[3:] == [f"no call launched a winner of {other}"]


def test_a_file_that_cannot_be_read_ends_the_command(winners: Path, tmp_path: Path) -> None:
    """In one line, before the program starts."""
    damaged = next(winners.iterdir())
    damaged.write_text(damaged.read_text()[:-9])
    done = run_process(tmp_path, "--winners", "winners", sys.executable, str(APPLICATION), "4096")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ktuned: winners/{damaged.name} is not JSON")


ON_A_GPU = """\
import torch, triton
from tests.plugins.triton_app import kernels

x = torch.arange(4096.0, device="cuda")
y = torch.empty_like(x)
for _ in range(2):
    kernels.scale[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](x, y, 4096, 2.0)
print(kernels.scale.best_config.kwargs["BLOCK"], torch.equal(y, 2.0 * x))
"""


@pytest.mark.gpu
def test_a_gpu_launches_the_winners_of_its_own_model(winners: Path, tmp_path: Path) -> None:
    """Here a config that the function does not list; another model's winner is none."""
    import torch

    (tmp_path / "program.py").write_text(ON_A_GPU)
    words = "--winners", "winners", sys.executable, "program.py"
    output, summary = run(tmp_path, *words)
    assert output == ["128 True"]
    model = torch.cuda.get_device_name()
    assert summary[2].endswith(f"winners has it for a GPU's stand-in, not for {model}: the first config is launched")
    found = read_winners(winners, SCALE)[4096]
    found["config"]["BLOCK"] = 512
    edit_file(winners, SCALE, winners=[found], device=model)
    output, summary = run(tmp_path, *words)
    assert output == ["512 True"]
    assert summary[1] == "1 tuning key: 1 as in winners"
