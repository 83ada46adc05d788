"""Kernel files for real workers, waits for what they do, and a fake GPU."""

import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import anyio
import psutil

from ktuned.fleet.executor import Environment
from ktuned.fleet.fleet import Fleet
from ktuned.ipc import requests
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Target

FAKE_DIRECTORY = Path(__file__).parents[1] / "fake_backend"
PROJECT = "play"
DEADLINE_S = 30.0
"""Longer than anything here takes on a busy machine."""

DEADLINES = {"spawn": DEADLINE_S, "inspect": DEADLINE_S, "load": DEADLINE_S, "compile": DEADLINE_S}
BRIEF_S = 0.2
"""A deadline that is meant to pass."""

KERNEL_OF_THREE_FILES = """
from ktuned import kernel, space, tensor
from ktuned_fake import Build
import helper
@kernel(backend="fake", sources=["one.c"], space=space(tag=["x"]), problems=[dict(n=1)],
        inputs=lambda p: dict(x=tensor(1), y=tensor(1)), check=None)
def it(p, c):
    return Build(tag=c.tag)
"""
"""A kernel file that imports ``helper.py`` and compiles ``one.c``."""

CHILDREN = """\
import pathlib, subprocess
here = pathlib.Path(__file__).parent
sleeper = ["sleep", "1000"]
children = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)]
(here / "pids.part").write_text(" ".join(str(child.pid) for child in children))
(here / "pids.part").rename(here / "pids")
"""
"""Starts a child in the worker's process group and a child in a session of its own."""

HANG = "import signal\nwhile True:\n    signal.pause()\n"


GPU = Device(DeviceName("cuda:0"), DeviceModel("a GPU"), Target("sm_90"))

FAKE_TORCH = """\
import os, pathlib, signal
device = pathlib.Path(__file__).parent / "device"

# There are no kernels that a spare could load.
from ktuned.worker import canary
canary.rehearse_problem = lambda device: None

class Numbers:
    def sum(self):
        return 28

def arange(count, device_name=None, device=None):
    state = globals()["device"].read_text()
    if state == "hung":
        while True:
            signal.pause()
    if state != "well":
        raise RuntimeError(state)
    return Numbers()
"""
"""The part of torch that the canary uses; the file ``device`` beside it has the device's state."""


class Playground:
    """A directory with kernel files, and requests that make a worker run them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._count = 0

    def write_and_request(self, *bodies: str) -> requests.Inspect:
        """Write each body as a kernel file; return the request that imports them one by one."""
        files = []
        for body in bodies:
            self._count += 1
            name = f"tune_{self._count}.py"
            (self.root / name).write_text(textwrap.dedent(body))
            files.append(name)
        return requests.Inspect(PROJECT, tuple(files))

    def make_compile_request(self, *builds: Mapping[str, object]) -> requests.Compile:
        """Return the request that compiles fake units, one for each Build, given by its fields."""
        units = tuple(requests.UnitRef(f"unit{index}", build) for index, build in enumerate(builds))
        return requests.Compile(self.make_kernel_ref("it"), "fake", "into", units)

    def make_kernel_ref(
        self, name: str, file: str = "tune_it.py", digests: Mapping[str, str] | None = None
    ) -> requests.KernelRef:
        """Return a kernel of the fake backend by its name, its file and the digests that are checked."""
        return requests.KernelRef(PROJECT, file, name, "fake", (), digests or {})

    async def read_file(self, name: str) -> str:
        """Return a file's text as soon as a worker has written it."""
        return await wait_for_file(self.root / name)

    async def read_child_pids(self) -> list[int]:
        """Return the ids of the processes that :data:`CHILDREN` has started."""
        return [int(word) for word in (await self.read_file("pids")).split()]


async def wait_until(is_so: Callable[[], object]) -> None:
    """Wait for another process's effect by polling."""
    with anyio.fail_after(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - another process sets no event of ours
            await anyio.sleep(0.005)


async def wait_for_file(path: Path) -> str:
    """Return a file's text as soon as it exists; its writer must rename it into place."""
    await wait_until(path.exists)
    return path.read_text()


def make_base_env() -> dict[str, str]:
    """Return this process's environment, with the fake backend on the path."""
    return dict(os.environ) | {"PYTHONPATH": str(FAKE_DIRECTORY)}


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def wait_until_gone(pids: Iterable[int]) -> None:
    """Wait until all of these processes have ended."""
    remaining = list(pids)
    await wait_until(lambda: not any(is_running(pid) for pid in remaining))


def make_gpu_environment(tmp_path: Path, state: str) -> Environment:
    """Return an environment whose torch has a GPU in this state."""
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "torch.py").write_text(FAKE_TORCH)
    (torch / "device").write_text(state)
    return Environment(sys.executable, str(tmp_path), (("PYTHONPATH", f"{FAKE_DIRECTORY}:{torch}"),))


def count_warm_spares(fleet: Fleet, device: str = GPU.name) -> int:
    """Return how many idle workers belong to a device."""
    return sum(worker.device == device for worker in fleet.machine.idle)
