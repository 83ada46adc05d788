"""Hooks and fixtures of every test: leak checks, private directories, one event loop, turns on the GPU."""

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
from tests.daemon_parts import Parts, assemble_daemon
from tests.e2e.harness import SHARED_HEADERS
from tests.rewriting import rewrite_assertions

# A loaded machine makes an example slow, not wrong; equal seeds make a failure in CI a failure here.
hypothesis.settings.register_profile("ktuned", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ktuned")

_FAILED = pytest.StashKey[bool]()

_REPOSITORY = Path(__file__).parent.parent

_STARTED = ("ktuned", "client", "plugins", "tests/fake_backend")
"""Directories with code that tests start in hundreds of processes."""


def pytest_configure(config: pytest.Config) -> None:
    """Mark this run's processes before the first one starts, and compile what they will import."""
    leaks.mark_environment()
    # If the environment forbids bytecode, each bench worker would compile torch, which takes 1 to 2 s.
    sys.dont_write_bytecode = False
    if not hasattr(config, "workerinput"):
        for directory in _STARTED:
            compileall.compile_dir(_REPOSITORY / directory, quiet=2)
        if config.getoption("numprocesses", None):
            rewrite_assertions(config)
    # Each test has an Inductor cache of its own, and would spend 10 s on precompiled headers.
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that starts pytest in the background ignores SIGINT, which processes of the tests would inherit.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """Keep this process from reporting the tests' launches to the user's own daemon when it exits."""
    launch_counts = sys.modules.get("ktuned.dropin.launch_counts")
    if launch_counts is not None:
        atexit.unregister(launch_counts.leave_launch_counts)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that is marked ``gpu(alone=True)`` run while no other process tests on the GPU.

    A turn covers all fixtures of a test: those of a module tune on the GPU, too. Waiting for a turn is not part of a
    test's timeout.
    """
    mark = item.get_closest_marker("gpu")
    if mark is None:
        return (yield)
    # The files that are locked are any two that all processes of this checkout share.
    with Path(__file__).open() as entry, Path(leaks.__file__).open() as gpu:
        # No test enters while one waits to be alone: otherwise a shared lock might never become free.
        fcntl.flock(entry, fcntl.LOCK_EX)
        fcntl.flock(gpu, fcntl.LOCK_EX if mark.kwargs.get("alone") else fcntl.LOCK_SH)
        fcntl.flock(entry, fcntl.LOCK_UN)
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip GPU tests on a machine without a driver, with the reason."""
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA driver on this machine (/dev/nvidiactl is missing)")
    if item.get_closest_marker("gpu"):
        # The first CUDA context opens descriptors and threads that stay, and that no test leaks.
        import torch

        torch.zeros(1, device="cuda")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure, so that leaks of a failed test are not reported as a second failure."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail async tests that leave tasks behind."""
    is_checked = inspect.iscoroutinefunction(pyfuncitem.obj) and not pyfuncitem.get_closest_marker("allow_leaks")
    if is_checked:
        pyfuncitem.obj = leaks.fail_on_leaked_tasks(pyfuncitem.obj)
    return (yield)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run tests marked ``anyio`` on asyncio, as the daemon does."""
    return "asyncio", {"loop_factory": leaks.make_tracking_loop}


@pytest.fixture(scope="session", autouse=True)
def _private_directories(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Keep tests away from the daemon, the store and the settings of the user who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("KTUNED_") and name != "KTUNED_TEST_RUN"]:
            patch.delenv(name)
        for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            directory = tmp_path_factory.mktemp(name.lower())
            directory.chmod(0o700)
            patch.setenv(name, str(directory))
        yield


@pytest.fixture(autouse=True)
def _leak_check(request: pytest.FixtureRequest) -> Generator[None]:
    """Fail a test that leaves a process, a thread or a file descriptor behind, unless it is marked ``allow_leaks``."""
    mark = request.node.get_closest_marker("allow_leaks")
    if mark and not (mark.args or mark.kwargs.get("reason")):
        pytest.fail("allow_leaks needs its reason: @pytest.mark.allow_leaks(reason=…)")
    before = leaks.Snapshot.take()
    yield
    leaked = before.find_leaks()
    if leaked and not mark and not request.node.stash.get(_FAILED, False):
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaked))


@pytest.fixture(scope="session", autouse=True)
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Return a cache of precompiled headers that all processes of the suite share."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiler-cache"
    (cache / "tvm_ffi").mkdir(mode=0o700, parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SHARED_HEADERS, str(cache / "tvm_ffi"))
        yield cache


@pytest.fixture
def only_in_chaos(request: pytest.FixtureRequest) -> None:
    """Skip a test that is too long for `make test`, unless `make chaos` runs."""
    # The option is absent if pytest reads tests/chaos/conftest.py only after the command line.
    if request.config.getoption("chaos", "slice") != "full":
        pytest.skip("a part of `make chaos`")


@pytest.fixture(scope="session")
def client_server_forker(_private_directories: None) -> None:
    """Start the process that forks the client tests' servers; the leak check of each test ignores it."""
    from tests.client import daemon

    daemon.start_forkserver()


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncGenerator[Parts]:
    """Assemble a daemon's parts over the fake backend."""
    async with assemble_daemon(tmp_path) as assembled:
        yield assembled
