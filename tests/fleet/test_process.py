"""One real worker process: asked, timed out, killed with all that it started, and what is said of its end."""

import os
import resource
import signal
from pathlib import Path
from typing import Any, ClassVar, Never

import anyio
import msgspec
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
from ktuned.fleet.process import WorkerProcess, spawn_worker
from ktuned.fleet.process_group import TAIL_BYTES, OutputTail
from ktuned.ipc import Places, replies, requests
from ktuned.model.errors import WorkerError
from ktuned.model.keys import Phase, Role
from ktuned.model.plan import Plan
from ktuned.model.values import Scalar
from tests.fleet.conftest import StartWorker
from tests.fleet.playing import BRIEF_S, CHILDREN, DEADLINE_S, DEADLINES, HANG, Playground, gone, is_running

pytestmark = pytest.mark.anyio

SPOKEN_S = 4.0
"""A deadline that is meant to pass, though not before user code has said or started something."""


class Sing(requests.Request[replies.Empty, Never], frozen=True):
    """An operation of a later version."""

    first_phase: ClassVar = Phase.INSPECT


KERNEL = """\
from ktuned import kernel, space, tensor
from ktuned_fake import Build

@kernel(backend="fake", space=space(lambda p: [dict(s="x")]), inputs=lambda p: dict(x=tensor(1)), check=None)
def it(p, c):
    return Build(tag="y" * p.size)
"""


async def ask(
    worker: WorkerProcess, request: requests.Request[Any, Any], **deadlines: float
) -> tuple[list[Any], Output]:
    """Have user code run and return the items that were sent meanwhile, and what was printed."""
    items: list[Any] = []
    _, output = await worker.send_request(request, DEADLINES | deadlines, on_item=items.append)
    return items, output


async def test_a_worker_answers_again_and_again(worker: WorkerProcess, playground: Playground) -> None:
    """Requests follow each other in one process; each item arrives, in order."""
    for _ in range(3):
        items, _ = await ask(worker, playground.request("x = 1", "1 / 0", "x = 2"))
        assert [len(item.errors) for item in items] == [0, 1, 0]
    assert (worker.is_alive, worker.requests) == (True, 3)


async def test_a_failed_request_keeps_the_worker(worker: WorkerProcess, playground: Playground) -> None:
    """The error arrives with its code, its one line and its traceback; the process goes on."""
    with pytest.raises(RequestFailed, match=r"^ask comes after explore$") as caught:
        await worker.send_request(requests.Ask(1), DEADLINES)
    assert (caught.value.code, caught.value.phase) == ("usage", "inspect")
    assert "Traceback" in caught.value.failure.trace
    with pytest.raises(RequestFailed, match="Invalid value 'Sing'") as caught:
        await worker.send_request(Sing(), DEADLINES)
    assert caught.value.code == "invalid_message"
    assert len((await ask(worker, playground.request("")))[0]) == 1


async def test_large_messages_pass_both_ways(worker: WorkerProcess, playground: Playground) -> None:
    """A request and an answer of megabytes, many times what a pipe holds, arrive whole."""
    request = playground.request(KERNEL)
    large = "x" * 3_000_000
    kernel = playground.kernel("it", request.files[0])
    problem: dict[str, Scalar] = {"size": len(large), "padding": large}
    wanted = requests.Explore(kernel, problem, Plan(strategy="exhaustive"), ({"s": "x"},))
    opened, _ = await worker.send_request(wanted, DEADLINES)
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
    """The signal or the exit code, the phase, and what was printed last are all there."""
    with pytest.raises(WorkerDied) as caught:
        await ask(worker, playground.request(f"import os\nos.write(1, b'out\\n'); os.write(2, b'a\\nlast\\n')\n{body}"))
    died = caught.value
    assert (died.signal, died.phase, died.code) == (signal_name, "inspect", "worker_died")
    assert died.message == f"the worker {ending} during inspect" + ("" if signal_name else ": last")
    assert died.output == Output("out\n", "a\nlast\n")
    assert not worker.is_alive
    with pytest.raises(WorkerDied, match=ending):
        await ask(worker, playground.request(""))


async def test_items_sent_before_a_death_are_kept(worker: WorkerProcess, playground: Playground) -> None:
    """What was finished before the crash was finished."""
    items: list[replies.InspectedFile] = []
    with pytest.raises(WorkerDied):
        await worker.send_request(
            playground.request("x = 1", "import os\nos._exit(1)"), DEADLINES, on_item=items.append
        )
    assert len(items) == 1


async def test_a_phase_past_its_deadline_kills_the_worker(worker: WorkerProcess, playground: Playground) -> None:
    """The error names phase, deadline and last words, and the process is gone at once."""
    body = f"import sys\nprint('waiting for the lock', file=sys.stderr, flush=True)\n{HANG}"
    with pytest.raises(DeadlineExpired, match=r"^inspect timed out after 4 s: waiting for the lock$") as caught:
        await ask(worker, playground.request(body), inspect=SPOKEN_S)
    assert (caught.value.phase, caught.value.deadline_s) == ("inspect", SPOKEN_S)
    assert caught.value.output.stderr == "waiting for the lock\n"
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()


async def test_each_phase_has_its_own_deadline(worker: WorkerProcess, playground: Playground) -> None:
    """The worker's word for what it does decides which deadline runs."""
    with pytest.raises(DeadlineExpired, match=r"^compile timed out") as caught:
        await ask(worker, playground.compile_request({"does": "compile_hang"}), compile=BRIEF_S)
    assert (caught.value.phase, caught.value.deadline_s) == ("compile", BRIEF_S)


@pytest.mark.parametrize("end", ["deadline", "exit", "cancel"])
async def test_all_that_a_worker_started_dies_with_it(worker: WorkerProcess, playground: Playground, end: str) -> None:
    """Its process group at once, and a child that called setsid when it is buried; however the worker ended."""
    body = CHILDREN + ("import os\nos._exit(1)" if end == "exit" else HANG)
    pids: list[int] = []

    async def run() -> None:
        await ask(worker, playground.request(body), inspect=SPOKEN_S if end == "deadline" else DEADLINE_S)

    if end == "cancel":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            pids = await playground.pids()
            tasks.cancel_scope.cancel()
    else:
        with pytest.raises((DeadlineExpired, WorkerDied)):
            await run()
        pids = await playground.pids()
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()
    in_group, detached = pids
    await gone([in_group])
    assert is_running(detached)
    worker.remove_traces()
    await gone([detached])


async def test_a_worker_whose_deadlines_cannot_be_watched_is_killed(
    worker: WorkerProcess, playground: Playground
) -> None:
    """No file may be written any more, not even the journal: the request is given up in one line, and no more."""
    request = playground.request("x = 1")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(JournalFailed, match=r"^the journal of a worker cannot be written: File too large$"):
            await ask(worker, request)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()


async def test_cancelling_a_request_kills_the_worker(worker: WorkerProcess, playground: Playground) -> None:
    """No one knows what it was doing, and no one waits for it."""
    with anyio.move_on_after(BRIEF_S) as scope:
        await ask(worker, playground.request(HANG))
    assert scope.cancelled_caught
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()
    assert not is_running(worker.pid)


async def test_a_flood_of_output_is_capped_and_blocks_nobody(worker: WorkerProcess, playground: Playground) -> None:
    """Tens of megabytes are read away; the last ones are kept, and stderr is its own."""
    body = """\
        import os
        for _ in range(300):
            os.write(1, b"x" * 100_000)
        os.write(1, b"the end")
        os.write(2, b"last words\\n")
    """
    items, output = await ask(worker, playground.request(body))
    assert len(items) == 1
    assert output.stdout == "x" * (TAIL_BYTES - 7) + "the end"
    assert output.stderr == "last words\n"


async def test_a_flood_that_outlives_the_worker_blocks_nobody(worker: WorkerProcess, playground: Playground) -> None:
    """A detached child that prints without end does not keep the daemon reading when the worker is gone."""
    flood = "import subprocess, os\nsubprocess.Popen(['yes'], start_new_session=True)\nos._exit(3)"
    with anyio.fail_after(DEADLINE_S), pytest.raises(WorkerDied, match="exited with code 3"):
        await ask(worker, playground.request(flood))


def test_an_endless_stream_is_not_read_to_its_end() -> None:
    """Anyone who fills a pipe faster than it is read away does not hold up the loop that serves everyone."""
    with open("/dev/zero", "rb", buffering=0) as endless:
        tail = OutputTail(endless.fileno())
        tail.read_rest()
        assert tail.take_text() == "\0" * TAIL_BYTES


async def test_output_belongs_to_its_request(worker: WorkerProcess, playground: Playground) -> None:
    """What one request printed is not shown with the next one's failure; bytes that are no text are shown somehow."""
    _, first = await ask(worker, playground.request("print('first')"))
    _, second = await ask(worker, playground.request("import os\nos.write(2, b'\\xff\\n')"))
    assert (first, second) == (Output("first\n"), Output("", "\N{REPLACEMENT CHARACTER}\n"))


async def test_a_worker_that_does_not_read_is_given_up(worker: WorkerProcess, playground: Playground) -> None:
    """A large request to a stopped process ends with its first phase's deadline, and with the process."""
    os.kill(worker.pid, signal.SIGSTOP)
    request = replace(playground.request(""), project="x" * 1_000_000)
    with pytest.raises(DeadlineExpired, match=r"^inspect timed out"):
        await ask(worker, request, inspect=BRIEF_S)
    with anyio.fail_after(DEADLINE_S):
        await worker.gone.wait()


async def test_a_worker_killed_while_it_is_being_asked(worker: WorkerProcess, playground: Playground) -> None:
    """Killed (by the kernel, out of memory) while a request is being written: it died, and is said to have."""
    os.kill(worker.pid, signal.SIGSTOP)
    request = replace(playground.request(""), project="x" * 1_000_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, os.kill, worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="was killed by SIGKILL during inspect"):
            await ask(worker, request)


@pytest.mark.parametrize(
    "scribble",
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
    worker: WorkerProcess, playground: Playground, scribble: str
) -> None:
    """User code that scribbles into the daemon's pipe ends its own process and nothing else, and is reported why."""
    body = f"""\
        import os
        from ktuned.ipc.frames import encode as frame
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, {scribble})
            except OSError:
                pass
    """
    with pytest.raises(WorkerDied, match="the worker sent what is no answer") as caught:
        await ask(worker, playground.request(body, HANG))
    assert not caught.value.is_outside_kill


async def test_a_forked_child_that_returns_answers_nobody(worker: WorkerProcess, playground: Playground) -> None:
    """User code forks and lets both return: the worker goes on, and its copy ends."""
    for _ in range(2):
        items, _ = await ask(worker, playground.request("import os\nos.fork()", ""))
        assert [item.errors for item in items] == [(), ()]


@pytest.mark.parametrize(
    "raises", ["SystemExit(3)", "KeyboardInterrupt", "GeneratorExit", "type('E', (BaseException,), {})()"]
)
async def test_what_user_code_raises_is_told_whatever_it_is(
    worker: WorkerProcess, playground: Playground, raises: str
) -> None:
    """No exception of its ends the worker, and each is reported with its line."""
    (wrong, fine), _ = await ask(worker, playground.request(f"\nraise {raises}", ""))
    (error,) = wrong.errors
    assert error.line == 2
    assert error.message.split(": ")[1] in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "E")
    assert fine.errors == ()


async def test_exit_handlers_of_user_code_do_not_delay_a_workers_end(
    worker: WorkerProcess, playground: Playground
) -> None:
    """What user code has registered for the interpreter's end cannot make a death look like a hang."""
    body = """\
        import atexit, os, threading
        atexit.register(threading.Event().wait)
        threading.Thread(target=threading.Event().wait).start()
        os.closerange(3, 64)
    """
    with pytest.raises(WorkerDied, match="exited with code 1"):
        await ask(worker, playground.request(body))


async def test_a_workers_variables_come_from_daemon_then_root_then_worker(
    start_worker: StartWorker, environment: Environment, tmp_path: Path
) -> None:
    """The daemon's variables, then the root's, then the worker's mark and scratch; the cwd is the root."""
    body = """\
        import json, os, pathlib
        names = ("A", "B", "KTUNED_WORKER", "TMPDIR")
        seen = [os.getcwd(), os.getsid(0) == os.getpid(), *(os.environ[name] for name in names)]
        pathlib.Path("seen").write_text(json.dumps(seen))
    """
    playground = Playground(Path(environment.cwd))
    worker = await start_worker(
        msgspec.structs.replace(environment, env=(("B", "root's"),)), A="daemon's", B="daemon's"
    )
    await ask(worker, playground.request(body))
    mark = f"{os.getpid()}-{tmp_path.name}-0"
    seen = f'["{environment.cwd}", true, "daemon\'s", "root\'s", "{mark}", "{tmp_path / "scratch" / mark}"]'
    assert (playground.root / "seen").read_text() == seen


async def test_a_module_in_the_root_shadows_nothing(start_worker: StartWorker, playground: Playground) -> None:
    """A project may have a json.py of its own; the worker still starts."""
    for name in ("json", "msgpack", "struct"):
        (playground.root / f"{name}.py").write_text("raise ImportError('the wrong one')\n")
    assert (await start_worker()).is_alive


async def test_the_scratch_directory_goes_with_the_worker(
    worker: WorkerProcess, playground: Playground, tmp_path: Path
) -> None:
    """What user code left in its temporary directory is removed when the worker is buried."""
    await ask(worker, playground.request("import tempfile\ntempfile.mkdtemp()"))
    (scratch,) = (tmp_path / "scratch").iterdir()
    assert [one for one in scratch.iterdir() if one.name.startswith("tmp")]
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
    """It names interpreter, directory and reason, says what mends it, and leaves no descriptor open."""
    wrong = Environment(python or environment.python, cwd or environment.cwd)
    with pytest.raises(WorkerError, match=rf"^cannot start a worker with {wrong.python} in {wrong.cwd}: {reason}") as e:
        spawn_worker(
            wrong,
            role=Role.INSPECT,
            base_env={},
            places=Places({}, "", ""),
            worker_id="x",
            scratch=tmp_path / "scratch",
        )
    assert "`python`" in e.value.hint


async def test_a_worker_that_is_never_ready_is_killed(
    start_worker: StartWorker, environment: Environment, tmp_path: Path
) -> None:
    """An interpreter that starts and says nothing is past the spawn deadline."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    with pytest.raises(DeadlineExpired, match=r"^spawn timed out after 0\.2 s$"):
        await start_worker(msgspec.structs.replace(environment, python=str(python)), ready_s=BRIEF_S)


def test_ends_are_described_in_words() -> None:
    """Signals by their names where they have one, exit codes as they are."""
    assert [describe_exit(code) for code in (0, 7, -9)] == [
        "exited with code 0",
        "exited with code 7",
        "was killed by SIGKILL",
    ]
    assert (name_signal(11), name_signal(250)) == ("SIGSEGV", "signal 250")
    assert (Output(stderr="a\nb\n\n").quote_last_line(), Output("only out").quote_last_line()) == (": b", "")
