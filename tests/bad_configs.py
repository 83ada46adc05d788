"""Configs that are bad in every way, each of which has its outcome, for tests of backends on a GPU."""

from pathlib import Path
from shutil import copy

from tests.e2e.harness import Daemon

KERNEL_FILE = """\
from ktuned import kernel, space, tensor
from ktuned_{backend} import Build
from {module} import {function} as function

N = 1 << 20

@kernel(
    backend="{backend}",
    space=space(mode=["right", "endless", "illegal", "wrong", "shared", "syntax"], block=[256, 512]),
    problems=[dict(n=N)],
    inputs=lambda p: dict(x=tensor(p.n), y=tensor(p.n, output=True)),
    reference="default",
    default=dict(mode="right", block=256),
    deadlines=dict(first_launch=3.0),
    strategy="exhaustive",
    preset="fast",
)
def bad(p, c):
    return Build(function, {arguments})
"""

OUTCOMES = {
    "right": "measured",
    "endless": "hung",
    "illegal": "launch_error",
    "wrong": "mismatch",
    "shared": "unsupported",
    "syntax": "compile_error",
}


def check_bad_configs(directory: Path, backend: str, module: Path, function: str, arguments: str) -> None:
    """Check the outcome of each config: one that never ends, an illegal address, a wrong output, what a compiler sees.

    The rest is measured.

    Args:
        directory: An empty directory.
        backend: The backend's name.
        module: The file with the function.
        function: The function's name.
        arguments: The further arguments of the Build, as Python.
    """
    project = directory / "project"
    project.mkdir()
    copy(module, project)
    text = KERNEL_FILE.format(backend=backend, module=module.stem, function=function, arguments=arguments)
    (project / "tune_bad.py").write_text(text)
    # The spares take over from what is killed.
    with Daemon(directory, spares=True, tensors="torch") as daemon:
        with daemon.client.tune(path=project / "tune_bad.py") as tuning:
            for _ in tuning:
                pass
        trials = daemon.client.call("results", kernel="bad")["trials"]
    found = {(trial["config"]["mode"], trial["config"]["block"]): trial["outcome"] for trial in trials}
    assert found == {(mode, block): outcome for mode, outcome in OUTCOMES.items() for block in (256, 512)}, trials
