"""One real worker process: requests, deadlines, kills with all its children, and how its end is described."""

import os
import resource
import signal
from pathlib import Path
from typing import Any, ClassVar, Never

import anyio
import msgspec
import psutil
import pytest
from msgspec.structs import replace

from ktuned.fleet.executor import Environment
from ktuned.fleet.failures import (
    DeadlineExpired,
    JournalFailed,
    Output,
    RequestFailed,
    WorkerDied,
    describe_exit,
    name_signal,
)
from ktuned.fleet.local_executor import SET_IN_WORKERS, choose_worker_variables
from ktuned.fleet.process import WorkerProcess, spawn_worker
from ktuned.fleet.process_group import TAIL_BYTES, OutputTail
from ktuned.ipc import Places, replies, requests
from ktuned.model.errors import WorkerError
from ktuned.model.keys import Phase, Role
from ktuned.model.plan import Plan
from ktuned.model.values import Scalar
from tests.fleet.conftest import StartWorker
from tests.fleet.playground import (
    BRIEF_S,
    CHILDREN,
    DEADLINE_S,
    DEADLINES,
    HANG,
    Playground,
    is_running,
    wait_until,
    wait_until_gone,
)

pytestmark = pytest.mark.anyio

LONGER_BRIEF_S = 4.0
"""A deadline that passes after user code has printed or started something."""


class UnknownRequest(requests.Request[replies.Empty, Never], frozen=True):
    """An operation of a later version."""

    first_phase: ClassVar = Phase.INSPECT


KERNEL = """\
from ktuned import kernel, space, tensor
from ktuned_fake import Build

@kernel(backend="fake", space=space(lambda p: [dict(s="x")]), inputs=lambda p: dict(x=tensor(1)), check=None)
def it(p, c):
    return Build(tag="y" * p.size)
"""


async def send_and_collect(
    worker: WorkerProcess, request: requests.Request[Any, Any], **deadlines: float
) -> tuple[list[Any], Output]:
    """Let user code run; return the items that were sent meanwhile, and the output."""
    items: list[Any] = []
    _, output = await worker.send_request(request, DEADLINES | deadlines, on_item=items.append)
    return items, output


async def test_a_worker_answers_again_and_again(worker: WorkerProcess, playground: Playground) -> None:
    """Requests follow each other in one process, and items arrive in order."""
    for _ in range(3):
        items, _ = await send_and_collect(worker, playground.write_and_request("x = 1", "1 / 0", "x = 2"))
        assert [len(item.errors) for item in items] == [0, 1, 0]
    assert (worker.is_alive, worker.requests) == (True, 3)


async def test_a_failed_request_keeps_the_worker(worker: WorkerProcess, playground: Playground) -> None:
    """The error has its code, one line and its traceback."""
    with pytest.raises(RequestFailed, match=r"^ask comes after explore$") as caught:
        await worker.send_request(requests.Ask(1), DEADLINES)
    assert (caught.value.code, caught.value.phase) == ("usage", "inspect")
    assert "Traceback" in caught.value.failure.trace
    with pytest.raises(RequestFailed, match="Invalid value 'UnknownRequest'") as caught:
        await worker.send_request(UnknownRequest(), DEADLINES)
    assert caught.value.code == "invalid_message"
    assert len((await send_and_collect(worker, playground.write_and_request("")))[0]) == 1


async def test_large_messages_pass_both_ways(worker: WorkerProcess, playground: Playground) -> None:
    """Messages of megabytes exceed a pipe's capacity many times."""
    request = playground.write_and_request(KERNEL)
    large = "x" * 3_000_000
    kernel = playground.make_kernel_ref("it", request.files[0])
    problem: dict[str, Scalar] = {"size": len(large), "padding": large}
    explore = requests.Explore(kernel, problem, Plan(strategy="exhaustive"), ({"s": "x"},))
    opened, _ = await worker.send_request(explore, DEADLINES)
    assert opened.size is None
    answer, _ = await worker.send_request(requests.Ask(1), DEADLINES)
    build = answer.proposals[0].build
    assert build is not None
    assert len(build["tag"]) == len(large)


@pytest.mark.parametrize(
    ("body", "ending", "signal_name"),
    [
        ("import os\nos._exit(3)", "exited with code 3", None),
        ("import os\nos._exit(0)", "exited with code 0", None),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV", "SIGSEGV"),
        ("import os\nos.abort()", "was killed by SIGABRT", "SIGABRT"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGRTMIN + 3)", "was killed by signal 37", "signal 37"),
    ],
    ids=["exit-3", "exit-0", "segfault", "abort", "realtime"],
)
async def test_a_death_is_described(
    worker: WorkerProcess, playground: Playground, body: str, ending: str, signal_name: str | None
) -> None:
    """The description has the signal or exit code, the phase and the last output."""
    with pytest.raises(WorkerDied) as caught:
        await send_and_collect(
            worker,
            playground.write_and_request(f"import os\nos.write(1, b'out\\n'); os.write(2, b'a\\nlast\\n')\n{body}"),
        )
    death = caught.value
    assert (death.signal, death.phase, death.code) == (signal_name, "inspect", "worker_died")
    assert death.message == f"the worker {ending} during inspect" + ("" if signal_name else ": last")
    assert death.output == Output("out\n", "a\nlast\n")
    assert not worker.is_alive
    with pytest.raises(WorkerDied, match=ending):
        await send_and_collect(worker, playground.write_and_request(""))


async def test_items_sent_before_a_death_are_kept(worker: WorkerProcess, playground: Playground) -> None:
    items: list[replies.InspectedFile] = []
    with pytest.raises(WorkerDied):
        await worker.send_request(
            playground.write_and_request("x = 1", "import os\nos._exit(1)"), DEADLINES, on_item=items.append
        )
    assert len(items) == 1


async def test_a_phase_past_its_deadline_kills_the_worker(worker: WorkerProcess, playground: Playground) -> None:
    """The error names phase, deadline and last output."""
    body = f"import sys\nprint('waiting for the lock', file=sys.stderr, flush=True)\n{HANG}"
    with pytest.raises(DeadlineExpired, match=r"^inspect timed out after 4 s: waiting for the lock$") as caught:
        await send_and_collect(worker, playground.write_and_request(body), inspect=LONGER_BRIEF_S)
    assert (caught.value.phase, caught.value.deadline_s) == ("inspect", LONGER_BRIEF_S)
    assert caught.value.output.stderr == "waiting for the lock\n"
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()


async def test_a_paused_worker_goes_on_where_it_was(worker: WorkerProcess, playground: Playground) -> None:
    """Neither it nor its child runs meanwhile, and it answers afterwards."""
    body = """\
        import pathlib, subprocess
        here = pathlib.Path(__file__).parent
        child = subprocess.Popen(["sh", "-c", "while :; do :; done"])
        (here / "pids.part").write_text(str(child.pid))
        (here / "pids.part").rename(here / "pids")
        while not (here / "go").exists():
            pass
        child.kill()
        child.wait()
    """
    found: list[object] = []

    async def run_user_code() -> None:
        items, _ = await send_and_collect(worker, playground.write_and_request(body))
        found.extend(items)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_user_code)
        (child,) = await playground.read_child_pids()
        worker.pause_work()
        await wait_until(lambda: {psutil.Process(pid).status() for pid in (worker.pid, child)} == {"stopped"})
        (playground.root / "go").touch()
        await anyio.sleep(BRIEF_S)
        assert found == []
        worker.resume_work()
    assert len(found) == 1


async def test_a_paused_worker_can_be_killed(worker: WorkerProcess, playground: Playground) -> None:
    """A caller that is cancelled leaves nothing behind."""
    with anyio.move_on_after(BRIEF_S):
        worker.pause_work()
        await send_and_collect(worker, playground.write_and_request(HANG))
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()
    assert not is_running(worker.pid)


@pytest.mark.parametrize("end", ["deadline", "exit", "cancel"])
async def test_all_that_a_worker_started_dies_with_it(worker: WorkerProcess, playground: Playground, end: str) -> None:
    """Its process group ends at once, a child in its own session at the clean-up, however the worker ended."""
    body = CHILDREN + ("import os\nos._exit(1)" if end == "exit" else HANG)
    pids: list[int] = []

    async def run_user_code() -> None:
        await send_and_collect(
            worker, playground.write_and_request(body), inspect=LONGER_BRIEF_S if end == "deadline" else DEADLINE_S
        )

    if end == "cancel":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_user_code)
            pids = await playground.read_child_pids()
            tasks.cancel_scope.cancel()
    else:
        with pytest.raises((DeadlineExpired, WorkerDied)):
            await run_user_code()
        pids = await playground.read_child_pids()
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()
    in_group, detached = pids
    await wait_until_gone([in_group])
    assert is_running(detached)
    worker.remove_traces()
    await wait_until_gone([detached])


async def test_a_worker_whose_deadlines_cannot_be_watched_is_killed(
    worker: WorkerProcess, playground: Playground
) -> None:
    """If no file can be written, not even the journal, the request fails with one line."""
    request = playground.write_and_request("x = 1")
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard_limit))
    try:
        with pytest.raises(JournalFailed, match=r"^the journal of a worker cannot be written: File too large$"):
            await send_and_collect(worker, request)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft_limit, hard_limit))
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()


async def test_cancelling_a_request_kills_the_worker(worker: WorkerProcess, playground: Playground) -> None:
    """Its state is unknown, and nobody waits for it."""
    with anyio.move_on_after(BRIEF_S) as scope:
        await send_and_collect(worker, playground.write_and_request(HANG))
    assert scope.cancelled_caught
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()
    assert not is_running(worker.pid)


async def test_a_flood_of_output_is_capped_and_blocks_nobody(worker: WorkerProcess, playground: Playground) -> None:
    """Of tens of megabytes only the last part is kept, separately for stderr."""
    body = """\
        import os
        for _ in range(300):
            os.write(1, b"x" * 100_000)
        os.write(1, b"the end")
        os.write(2, b"last words\\n")
    """
    items, output = await send_and_collect(worker, playground.write_and_request(body))
    assert len(items) == 1
    assert output.stdout == "x" * (TAIL_BYTES - 7) + "the end"
    assert output.stderr == "last words\n"


async def test_a_flood_that_outlives_the_worker_blocks_nobody(worker: WorkerProcess, playground: Playground) -> None:
    """A detached child that prints endlessly does not keep the daemon reading."""
    flood = "import subprocess, os\nsubprocess.Popen(['yes'], start_new_session=True)\nos._exit(3)"
    with anyio.fail_after(DEADLINE_S), pytest.raises(WorkerDied, match="exited with code 3"):
        await send_and_collect(worker, playground.write_and_request(flood))


def test_an_endless_stream_is_not_read_to_its_end() -> None:
    """A fast writer must not block the event loop."""
    with open("/dev/zero", "rb", buffering=0) as endless:
        tail = OutputTail(endless.fileno())
        tail.read_rest()
        assert tail.take_text() == "\0" * TAIL_BYTES


async def test_output_belongs_to_its_request(worker: WorkerProcess, playground: Playground) -> None:
    """One request's output is not shown with the next request's failure; invalid text is replaced."""
    _, first = await send_and_collect(worker, playground.write_and_request("print('first')"))
    _, second = await send_and_collect(worker, playground.write_and_request("import os\nos.write(2, b'\\xff\\n')"))
    assert (first, second) == (Output("first\n"), Output("", "\N{REPLACEMENT CHARACTER}\n"))


async def test_a_worker_that_does_not_read_is_given_up(worker: WorkerProcess, playground: Playground) -> None:
    """A large request to a stopped process ends at its first phase's deadline, and the process with it."""
    os.kill(worker.pid, signal.SIGSTOP)
    request = replace(playground.write_and_request(""), project="x" * 1_000_000)
    with pytest.raises(DeadlineExpired, match=r"^inspect timed out"):
        await send_and_collect(worker, request, inspect=BRIEF_S)
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()


async def test_a_worker_that_is_killed_during_a_request_is_reported_as_dead(
    worker: WorkerProcess, playground: Playground
) -> None:
    """The kernel may kill it while a request is being written."""
    os.kill(worker.pid, signal.SIGSTOP)
    request = replace(playground.write_and_request(""), project="x" * 1_000_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, os.kill, worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="was killed by SIGKILL during inspect"):
            await send_and_collect(worker, request)


@pytest.mark.parametrize(
    "written_bytes",
    [
        "b'\\xff' * 64",
        "frame({'done': 5})",
        "frame({'what': {}})",
        "frame({'failed': 'x'})",
        "frame({'phase': 'check'})",
        "frame({'item': {'file': 1}})",
    ],
)
async def test_nonsense_in_the_pipe_kills_the_worker(
    worker: WorkerProcess, playground: Playground, written_bytes: str
) -> None:
    """User code that writes into the daemon's pipe ends only its own process, with a reason."""
    body = f"""\
        import os
        from ktuned.ipc.frames import encode as frame
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, {written_bytes})
            except OSError:
                pass
    """
    with pytest.raises(WorkerDied, match="the worker sent an invalid answer") as caught:
        await send_and_collect(worker, playground.write_and_request(body, HANG))
    assert not caught.value.is_outside_kill


async def test_a_forked_child_that_returns_answers_nobody(worker: WorkerProcess, playground: Playground) -> None:
    """User code forks and both processes return: the worker continues and its copy ends."""
    for _ in range(2):
        items, _ = await send_and_collect(worker, playground.write_and_request("import os\nos.fork()", ""))
        assert [item.errors for item in items] == [(), ()]


@pytest.mark.parametrize(
    "raises", ["SystemExit(3)", "KeyboardInterrupt", "GeneratorExit", "type('E', (BaseException,), {})()"]
)
async def test_whatever_user_code_raises_is_reported(
    worker: WorkerProcess, playground: Playground, raises: str
) -> None:
    """No exception ends the worker, and each is reported with its line."""
    (wrong_item, fine_item), _ = await send_and_collect(worker, playground.write_and_request(f"\nraise {raises}", ""))
    (error,) = wrong_item.errors
    assert error.line == 2
    assert error.message.split(": ")[1] in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "E")
    assert fine_item.errors == ()


async def test_exit_handlers_of_user_code_do_not_delay_a_workers_end(
    worker: WorkerProcess, playground: Playground
) -> None:
    """They cannot make a death look like a hang."""
    body = """\
        import atexit, os, threading
        atexit.register(threading.Event().wait)
        threading.Thread(target=threading.Event().wait).start()
        os.closerange(3, 64)
    """
    with pytest.raises(WorkerDied, match="exited with code 1"):
        await send_and_collect(worker, playground.write_and_request(body))


async def test_a_workers_variables_come_from_daemon_then_root_then_worker(
    start_worker: StartWorker, environment: Environment, tmp_path: Path
) -> None:
    """The worker's own variables are its scratch, and its mark, which each child has; its directory is the root."""
    body = """\
        import json, os, pathlib, subprocess
        names = ("A", "B", "TMPDIR")
        seen = [os.getcwd(), os.getsid(0) == os.getpid(), *map(os.environ.get, names)]
        child = subprocess.run(["env", "-i", "cat", "/proc/self/environ"], stdout=subprocess.PIPE).stdout
        seen += [text for text in child.decode().split(chr(0)) if text.startswith("KTUNED_WORKER")]
        pathlib.Path("seen").write_text(json.dumps(seen))
    """
    playground = Playground(Path(environment.cwd))
    worker = await start_worker(
        msgspec.structs.replace(environment, env=(("B", "root's"),)), A="daemon's", B="daemon's"
    )
    await send_and_collect(worker, playground.write_and_request(body))
    mark = f"{os.getpid()}-{tmp_path.name}-0"
    scratch = tmp_path / "scratch" / mark
    seen = f'["{environment.cwd}", true, "daemon\'s", "root\'s", "{scratch}", "KTUNED_WORKER={mark}"]'
    assert (playground.root / "seen").read_text() == seen


async def test_a_module_in_the_root_shadows_nothing(start_worker: StartWorker, playground: Playground) -> None:
    """A project may have its own json.py."""
    for name in ("json", "msgpack", "struct"):
        (playground.root / f"{name}.py").write_text("raise ImportError('the wrong one')\n")
    assert (await start_worker()).is_alive


async def test_the_scratch_directory_goes_with_the_worker(
    worker: WorkerProcess, playground: Playground, tmp_path: Path
) -> None:
    """The clean-up removes files that user code left in its temporary directory."""
    await send_and_collect(worker, playground.write_and_request("import tempfile\ntempfile.mkdtemp()"))
    (scratch,) = (tmp_path / "scratch").iterdir()
    assert [path for path in scratch.iterdir() if path.name.startswith("tmp")]
    worker.kill()
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()
    worker.remove_traces()
    assert not scratch.exists()


@pytest.mark.parametrize(
    ("python", "cwd", "reason"),
    [("/no/such/python", "", "No such file"), ("", "/no/such/root", "No such file"), ("/etc/passwd", "", "Permission")],
    ids=["no-interpreter", "no-directory", "not-executable"],
)
async def test_an_interpreter_that_cannot_start_is_one_line(
    environment: Environment, tmp_path: Path, python: str, cwd: str, reason: str
) -> None:
    """The line names interpreter, directory, reason and remedy; no descriptor stays open."""
    broken = Environment(python or environment.python, cwd or environment.cwd)
    with pytest.raises(
        WorkerError,
        match=rf"^cannot start a worker with {broken.python} in {broken.cwd}: {reason}",
    ) as caught:
        spawn_worker(
            broken,
            role=Role.INSPECT,
            base_env={},
            places=Places({}, "", ""),
            worker_id="x",
            scratch=tmp_path / "scratch",
        )
    assert "`python`" in caught.value.hint


async def test_a_worker_that_is_never_ready_is_killed(
    start_worker: StartWorker, environment: Environment, tmp_path: Path
) -> None:
    """The interpreter starts but never answers."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    with pytest.raises(DeadlineExpired, match=r"^spawn timed out after 0\.2 s$"):
        await start_worker(msgspec.structs.replace(environment, python=str(python)), ready_s=BRIEF_S)


def test_ends_are_described_in_words() -> None:
    """Signals have names if they exist."""
    assert [describe_exit(code) for code in (0, 7, -9)] == [
        "exited with code 0",
        "exited with code 7",
        "was killed by SIGKILL",
    ]
    assert (name_signal(11), name_signal(250)) == ("SIGSEGV", "signal 250")
    assert (Output(stderr="a\nb\n\n").quote_last_line(), Output("only out").quote_last_line()) == (": b", "")


def test_workers_do_not_get_what_describes_a_shell() -> None:
    """A daemon that is started from another directory gives its workers the same variables."""
    given = {"PWD": "/tmp", "OLDPWD": "/", "SHLVL": "2", "_": "/bin/ktuned", "HOME": "/home/me"}
    assert choose_worker_variables(given) == {**SET_IN_WORKERS, "HOME": "/home/me"}
