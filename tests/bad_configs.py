"""A kernel whose configs fail in every way that a GPU backend must report, each with its own outcome."""

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
    """Tune the bad configs and compare each config's outcome with :data:`OUTCOMES`.

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
    # Spares replace the killed workers.
    with Daemon(directory, spares=True, tensors="torch") as daemon:
        with daemon.client.tune(path=project / "tune_bad.py") as tuning:
            for _ in tuning:
                pass
        trials = daemon.client.call("results", kernel="bad")["trials"]
    outcomes = {(trial["config"]["mode"], trial["config"]["block"]): trial["outcome"] for trial in trials}
    assert outcomes == {(mode, block): outcome for mode, outcome in OUTCOMES.items() for block in (256, 512)}, trials
