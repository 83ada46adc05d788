"""What every test gets: no leaks, no other daemon in reach, one event loop's flavour."""

import atexit
import compileall
import fcntl
import inspect
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import leaks
from tests.assembled import Parts, assembled
from tests.e2e.harness import SHARED_HEADERS
from tests.rewriting import rewrite_assertions

# A loaded machine makes an example slow, not wrong; equal seeds make a failure in CI a failure here.
hypothesis.settings.register_profile("ktuned", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ktuned")

_FAILED = pytest.StashKey[bool]()

_REPOSITORY = Path(__file__).parent.parent

_STARTED = ("ktuned", "client", "plugins", "tests/fake_backend")
"""Code that tests start in hundreds of processes."""


def pytest_configure(config: pytest.Config) -> None:
    """Mark this run's processes before the first one starts, and spare them the compilation of what they import."""
    leaks.mark_environment()
    # Where the environment forbids bytecode, each worker that measures would also compile torch, for a second or two.
    sys.dont_write_bytecode = False
    if not hasattr(config, "workerinput"):
        for directory in _STARTED:
            compileall.compile_dir(_REPOSITORY / directory, quiet=2)
        if config.getoption("numprocesses", None):
            rewrite_assertions(config)
    # Each test's own Inductor cache would begin with ten seconds of that.
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that starts us in the background has it ignored, and so would what the tests start and interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """Have this process end without telling the user's own daemon what its tests have launched."""
    launch_counts = sys.modules.get("ktuned.dropin.launch_counts")
    if launch_counts is not None:
        atexit.unregister(launch_counts.leave_launch_counts)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run."""
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA driver on this machine (/dev/nvidiactl is missing)")
    if item.get_closest_marker("gpu"):
        # The driver's descriptors and threads come with the first context, and stay: they are no test's leak.
        import torch

        torch.zeros(1, device="cuda")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure, so that what a failed test left behind is not a second one."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Check async tests for tasks that they leave behind."""
    is_checked = inspect.iscoroutinefunction(pyfuncitem.obj) and not pyfuncitem.get_closest_marker("allow_leaks")
    if is_checked:
        pyfuncitem.obj = leaks.without_leaked_tasks(pyfuncitem.obj)
    return (yield)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run tests marked ``anyio`` on asyncio, which the daemon is built on."""
    return "asyncio", {"loop_factory": leaks.tracking_loop}


@pytest.fixture(scope="session", autouse=True)
def _private_directories(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Keep tests away from the daemon, the store and the settings of anyone who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("KTUNED_") and name != "KTUNED_TEST_RUN"]:
            patch.delenv(name)
        for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            directory = tmp_path_factory.mktemp(name.lower())
            directory.chmod(0o700)
            patch.setenv(name, str(directory))
        yield


@pytest.fixture(autouse=True)
def _leaks_nothing(request: pytest.FixtureRequest) -> Generator[None]:
    """Fail a test that leaves a process, a thread or a file descriptor behind."""
    mark = request.node.get_closest_marker("allow_leaks")
    if mark and not (mark.args or mark.kwargs.get("reason")):
        pytest.fail("allow_leaks needs its reason: @pytest.mark.allow_leaks(reason=…)")
    before = leaks.Snapshot.take()
    yield
    found = before.leaked_since()
    if found and not mark and not request.node.stash.get(_FAILED, False):
        pytest.fail("the test left behind:\n  " + "\n  ".join(found))


@pytest.fixture(scope="session", autouse=True)
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Return one cache of precompiled headers, which all processes of the suite may use at a time."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiler-cache"
    (cache / "tvm_ffi").mkdir(mode=0o700, parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SHARED_HEADERS, str(cache / "tvm_ffi"))
        yield cache


@pytest.fixture(autouse=True)
def _turn_on_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Have a test that is marked ``gpu(alone=True)`` wait for those of other processes, and them for it."""
    mark = request.node.get_closest_marker("gpu")
    if mark is None:
        yield
        return
    base = tmp_path_factory.getbasetemp()
    places = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (places / "gpu-entry").open("w") as entry, (places / "gpu").open("w") as gpu:
        # None enters while one waits to be alone: a lock that many share is never free otherwise.
        fcntl.flock(entry, fcntl.LOCK_EX)
        fcntl.flock(gpu, fcntl.LOCK_EX if mark.kwargs.get("alone") else fcntl.LOCK_SH)
        fcntl.flock(entry, fcntl.LOCK_UN)
        yield


@pytest.fixture
def only_in_chaos(request: pytest.FixtureRequest) -> None:
    """Skip what `make test` has no time for."""
    # Where the whole suite runs, the file that adds the option is read after the command line.
    if request.config.getoption("chaos", "slice") != "full":
        pytest.skip("a part of `make chaos`")


@pytest.fixture(scope="session")
def forking(_private_directories: None) -> None:
    """Start the process from which the client's servers are forked, which is no test's leak."""
    from tests.client import daemon

    daemon.start_forking()


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncGenerator[Parts]:
    """Assemble the daemon's deciding parts over the fake backend."""
    async with assembled(tmp_path) as together:
        yield together
