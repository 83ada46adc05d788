"""The sandbox: what a candidate cannot do, in each layer alone and in all of them."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ktuned.judging.sandbox import FILTER, LANDLOCK, LAYERS, NAMESPACES, Sandbox
from tests.judging.confined import ORDINARY_USER, make_command, make_sandbox, run_confined, start_confined

USERS = [0, *([ORDINARY_USER] if os.getuid() == 0 else [])]
"""This user, and an ordinary one if this is root."""

ATTEMPTS = """
def connect(family, address):
    with socket.socket(family) as client:
        client.connect(address)

def touch(path):
    with open(path, "w") as stream:
        stream.write("it was here")

def read(path):
    with open(path, "rb") as stream:
        if not stream.read(1):
            raise OSError("empty")

base, judge = {base!r}, {judge}
try_all(
    scratch=lambda: touch("in_scratch"),
    outside=lambda: read(base + "/outside/old"),
    artifact=lambda: read(base + "/daemon/artifact/library"),
    thread=lambda: threading.Thread(target=int).start(),
    device=lambda: touch("/dev/null"),
    itself=lambda: read("/proc/self/maps"),
    network=lambda: connect(socket.AF_INET, ("127.0.0.1", {port})),
    daemon_socket=lambda: connect(socket.AF_UNIX, base + "/daemon/socket"),
    other_socket=lambda: connect(socket.AF_UNIX, base + "/outside/socket"),
    abstract_socket=lambda: connect(socket.AF_UNIX, {abstract!r}),
    store=lambda: read(base + "/daemon/store"),
    new_file=lambda: touch(base + "/outside/new"),
    overwriting=lambda: touch(base + "/outside/old"),
    removing=lambda: os.remove(base + "/outside/gone"),
    emptying=lambda: os.truncate(base + "/outside/old", 0),
    metadata=lambda: os.utime(base + "/outside/old"),
    sight=lambda: read("/proc/%d/cmdline" % judge),
    memory=lambda: read("/proc/%d/maps" % judge),
    signal=lambda: os.kill(judge, 0),
    slowing=lambda: os.sched_setaffinity(judge, os.sched_getaffinity(judge)),
    starting=lambda: os.waitpid(os.fork() or os._exit(0), 0),
    timer=lambda: signal.setitimer(signal.ITIMER_REAL, 1000),
)
"""
ALLOWED = {"scratch", "outside", "artifact", "thread", "device", "itself"}
FILES = {"store", "new_file", "overwriting", "removing", "emptying"}
OF_EQUALS = set[str]() if os.getuid() == 0 else {"memory", "slowing"}
"""What processes of one user can do to each other. Root's candidate has given up its capabilities and cannot."""

PROCESSES = {"sight", "signal", *OF_EQUALS}
SOCKETS = {"network", "daemon_socket", "other_socket", "abstract_socket"}
EVERYTHING = ALLOWED | FILES | PROCESSES | SOCKETS | {"metadata", "starting", "timer"}

DONE_IN = {
    frozenset(LAYERS): ALLOWED,
    frozenset({NAMESPACES}): ALLOWED | {"other_socket", "starting", "timer"},
    frozenset({LANDLOCK, FILTER}): ALLOWED,
    frozenset({LANDLOCK}): ALLOWED
    | {"daemon_socket", "other_socket", "metadata", "starting", "timer"}
    | OF_EQUALS - {"memory"},
    frozenset({FILTER}): ALLOWED | {"store", "new_file", "overwriting", "removing", "sight"} | OF_EQUALS - {"slowing"},
    frozenset[str](): EVERYTHING,
}
"""What a candidate can do with these layers alone."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A daemon's files and sockets, as a directory and the attempts to reach them; this process is the judge."""
    for directory in ("daemon/artifact", "outside"):
        (tmp_path / directory).mkdir(parents=True)
    for name in ("daemon/store", "daemon/artifact/library", "outside/old", "outside/gone"):
        (tmp_path / name).write_text("bytes")
    abstract = f"\0{tmp_path}"
    with ExitStack() as stack:
        network = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for address in (f"{tmp_path}/daemon/socket", f"{tmp_path}/outside/socket", abstract):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen(8)
        # A process of the same user that Landlock and `ptrace` would let it see.
        judge = stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        stack.callback(judge.kill)
        yield (
            tmp_path,
            ATTEMPTS.format(base=str(tmp_path), judge=judge.pid, port=network.getsockname()[1], abstract=abstract),
        )


@pytest.mark.parametrize("layers", DONE_IN, ids=lambda layers: "+".join(sorted(layers)) or "none")
def test_each_layer_refuses_its_part(world: tuple[Path, str], layers: frozenset[str]) -> None:
    base, attempts = world
    said = run_confined(make_sandbox(base, tuple(layers)), attempts)
    assert set(said["done"]) == DONE_IN[layers]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("layers", [LAYERS, {LANDLOCK, FILTER}], ids=["all", "no namespaces"])
def test_an_ordinary_user_has_the_same_sandbox(world: tuple[Path, str], layers: frozenset[str]) -> None:
    base, attempts = world
    for directory in (base, *base.parents):
        if directory.owner() == "root" and not directory.stat().st_mode & 1:
            directory.chmod(0o711)
    said = run_confined(make_sandbox(base, tuple(layers)), attempts, user=ORDINARY_USER)
    assert (set(said["done"]), said["not_enforced"]) == (ALLOWED, [])


@pytest.mark.parametrize(
    ("layers", "gaps"),
    [
        (LAYERS, []),
        ({LANDLOCK, FILTER}, []),
        ({NAMESPACES}, ["processes and timers could be started (seccomp: not used)"]),
        (
            {FILTER},
            [
                f"{gap} (user namespaces: not used, Landlock: not used)"
                for gap in (
                    "writes outside the scratch directory were possible",
                    "the daemon's files and its store could be read",
                    "other processes, and the memory of the judge, could be seen",
                )
            ],
        ),
        (
            {LANDLOCK},
            [
                "the network and the daemon's socket could be reached (user namespaces: not used, seccomp: not used)",
                "processes could be left behind (user namespaces: not used, seccomp: not used)",
            ],
        ),
    ],
    ids=["all", "no namespaces", "namespaces alone", "filter alone", "Landlock alone"],
)
def test_what_is_not_enforced_is_said(tmp_path: Path, layers: frozenset[str], gaps: list[str]) -> None:
    assert run_confined(make_sandbox(tmp_path, tuple(layers)), "try_all()")["not_enforced"] == gaps


def test_namespaces_that_the_system_refuses_are_replaced(world: tuple[Path, str]) -> None:
    """The user may have no further namespace, as on systems that turn them off."""
    base, attempts = world
    code = f"""
import subprocess, sys
with open("/proc/sys/user/max_user_namespaces", "w") as stream:
    stream.write("0")
sys.exit(subprocess.run({make_command(make_sandbox(base), attempts)!r}).returncode)
"""
    # In a user namespace of its own, the limit is that namespace's.
    outer = ["unshare", "--user", "--map-root-user", "--mount-proc", "--pid", "--fork", sys.executable, "-c", code]
    ended = subprocess.run(outer, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    done = {name for name in EVERYTHING if f'"{name}"' in ended.stdout}
    assert done - PROCESSES == ALLOWED


@pytest.mark.parametrize("layers", [LAYERS, {LANDLOCK, FILTER}], ids=["namespaces", "no namespaces"])
def test_a_candidate_ends_with_its_judge(tmp_path: Path, layers: frozenset[str]) -> None:
    """Killing the judge, which can do nothing any more, ends the candidate, although that ignores everything."""
    code = """
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_IGN)
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
say(pid=confinement.pid)
while True:
    signal.pause()
"""
    command = make_command(make_sandbox(tmp_path, tuple(layers)), code)
    judge_code = f"import subprocess; subprocess.run({command!r})"
    with subprocess.Popen([sys.executable, "-c", judge_code], stdout=subprocess.PIPE, text=True) as judge:
        assert judge.stdout is not None
        candidate = psutil.Process(_read_pid(judge.stdout.readline()))
        judge.kill()
        candidate.wait(20)


def _read_pid(line: str) -> int:
    return int(line.partition('"pid":')[2].strip(" }\n"))


def test_everything_ends_with_its_candidate(tmp_path: Path) -> None:
    """Without the filter a candidate can start processes. They end even if they detached themselves."""
    code = """
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writer, b"+")
        while True:
            signal.pause()
    os._exit(0)
os.read(reader, 1)
say(pid=confinement.pid)
sys.stdin.read()
os._exit(0)
"""
    sandbox = make_sandbox(tmp_path, (NAMESPACES,))._replace(descriptors=(0,))
    with start_confined(sandbox, code) as (process, said):
        outer = psutil.Process(process.pid)
        (init,) = outer.children()
        everything = init.children(recursive=True)
        assert said["pid"] in [found.pid for found in everything]
        assert len(everything) >= 2
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
        assert psutil.wait_procs([init, *everything], 20)[1] == []


@pytest.mark.parametrize(
    ("layers", "killed"), [(LAYERS, "outer"), (LAYERS, "init"), (LAYERS, "candidate"), ({LANDLOCK, FILTER}, "outer")]
)
def test_killing_any_of_its_processes_ends_all(tmp_path: Path, layers: frozenset[str], killed: str) -> None:
    sandbox = make_sandbox(tmp_path, tuple(layers))
    with start_confined(sandbox, "say(pid=confinement.pid)\nwhile True: signal.pause()") as (process, said):
        outer = psutil.Process(process.pid)
        everything = [outer, *outer.children(recursive=True)]
        victims = {"outer": outer, "init": everything[1 % len(everything)], "candidate": psutil.Process(said["pid"])}
        victims[killed].kill()
        assert process.wait(20) == -signal.SIGKILL
        assert psutil.wait_procs(everything[1:], 20)[1] == []


@pytest.mark.parametrize("layers", [LAYERS, {LANDLOCK, FILTER}], ids=["namespaces", "no namespaces"])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("os.abort()", -signal.SIGABRT),
        ("ctypes.string_at(0)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os._exit(7)", 7),
        ("sys.exit(0)", 0),
    ],
)
def test_the_process_ends_as_its_candidate(tmp_path: Path, layers: frozenset[str], code: str, status: int) -> None:
    ended = subprocess.run(make_command(make_sandbox(tmp_path, tuple(layers)), code), capture_output=True, timeout=60)
    assert ended.returncode == status


def test_descriptors_of_the_judge_are_closed(tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w+", encoding="utf-8") as secret:
        os.set_inheritable(secret.fileno(), True)
        command = make_command(make_sandbox(tmp_path), "say(open=sorted(map(int, os.listdir('/proc/self/fd')))[:-1])")
        ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, pass_fds=(secret.fileno(),))
    assert ended.stdout == b'{"open": [0, 1, 2]}\n'


def test_a_pipe_ends_with_its_candidate(tmp_path: Path) -> None:
    """Neither the process that waits outside nor init keeps the judge's pipes open."""
    reader, writer = os.pipe()
    try:
        sandbox = make_sandbox(tmp_path)._replace(descriptors=(writer,))
        command = make_command(sandbox, f"say(pid=confinement.pid)\nos.close({writer})\nwhile True: signal.pause()")
        with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=(writer,)) as process:
            os.close(writer)
            assert os.read(reader, 1) == b""
            process.kill()
    finally:
        os.close(reader)


def test_a_process_with_threads_cannot_enter(tmp_path: Path) -> None:
    code = """
import threading
gate = threading.Event()
threading.Thread(target=gate.wait).start()
try:
    enter_sandbox(Sandbox(parent=os.getppid(), scratch=plan["scratch"]))
except RuntimeError as error:
    say(error=str(error))
finally:
    gate.set()
"""
    said = run_confined(make_sandbox(tmp_path, ()), code)
    assert said["error"] == "a process enters a sandbox before it starts threads"


def test_an_artifact_may_be_put_there_later(tmp_path: Path) -> None:
    sandbox: Sandbox = make_sandbox(tmp_path)._replace(descriptors=(0,))
    code = """
say(before=os.listdir(plan["readable"][0]))
sys.stdin.readline()
say(after=os.listdir(plan["readable"][0]))
"""
    with start_confined(sandbox, code) as (process, said):
        (tmp_path / "daemon" / "artifact" / "library.so").write_text("bytes")
        assert said == {"before": []}
        assert process.communicate("go\n", 20)[0] == '{"after": ["library.so"]}\n'


@pytest.mark.parametrize("layers", [LAYERS, {LANDLOCK, FILTER}], ids=["namespaces", "no namespaces"])
def test_hidden_and_readable_directories_may_contain_each_other(tmp_path: Path, layers: frozenset[str]) -> None:
    names = ["a/secret", "a/b/secret", "a/b/c/open", "a/b/c/d/secret", "a/b/c/e/open", "a/f/open"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("bytes")
    hidden, readable = ["a", "a/b", "a/b/c/d", "a/absent"], ["a/b/c", "a/b/c/e", "a/f", "."]
    sandbox = make_sandbox(tmp_path, tuple(layers))._replace(
        hidden=tuple(str(tmp_path / name) for name in hidden), readable=tuple(str(tmp_path / name) for name in readable)
    )
    paths = {name: str(tmp_path / name) for name in names}
    code = f"""
found = []
for name, path in {paths!r}.items():
    try:
        open(path).close()
        found.append(name)
    except OSError:
        pass
say(found=found)
"""
    assert run_confined(sandbox, code) == {"found": [name for name in names if name.endswith("open")]}
