import contextlib
import copy
import json
import os
import pickle  # noqa: TID251 - that a client pickles is the property
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ktuned_client import Client, DaemonError, DaemonUnavailable, wire
from ktuned_client.answers import Backoff
from tests.client import daemon

DEFAULT = {"BM": 64}
PATIENT_S = 60.0
"""A deadline that a loaded machine does not miss."""


@contextlib.contextmanager
def open_silent_listener(path: str) -> Iterator[socket.socket]:
    """Listen on a socket without ever answering."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        yield listening


def copy_by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - its own bytes


def wait_until_served(client: Client, kernel: str = "gemm") -> Any:
    give_up = time.monotonic() + 30
    while True:
        hit = client.lookup(kernel, {"M": 5}, DEFAULT)
        if hit.status != "unavailable" or time.monotonic() > give_up:
            return hit


@pytest.mark.usefixtures("server_process")
def test_a_lookup_gives_the_daemons_answer(socket_path: str) -> None:
    """Fields that only newer daemons send are ignored."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        hit = client.lookup("gemm", {"M": 4096}, DEFAULT, device="cpu:0")
    assert (hit.kernel, hit.problem, hit.device, hit.status) == ("gemm", {"M": 4096}, "cpu:0", "fresh")
    assert (hit.config, hit.latency_us, hit.artifact, hit.decided) == ({"BM": 4096}, 1.5, None, 1.0)
    assert hit.message == ""


@pytest.mark.usefixtures("server_process")
def test_an_answer_without_config_gives_the_callers_default(socket_path: str) -> None:
    """This holds for an ``unknown`` kernel and for one without a default."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        hit = client.lookup("undeclared", {"M": 1}, DEFAULT)
    assert (hit.status, hit.config) == ("unknown", DEFAULT)


@pytest.mark.usefixtures("server_process")
@pytest.mark.parametrize(
    ("kernel", "problem", "status", "message"),
    [
        ("missing", {}, "unavailable", "there is no kernel 'missing'; see `ktuned kernels`"),
        ("garbled", {}, "unavailable", "the daemon's reply is not the answer to a lookup"),
        ("misspelt", {"m": 1}, "invalid", "there is no problem key 'm'"),
        ("gemm", {"M": object()}, "invalid", "only numbers, bool and str"),
        ("gemm", {"M": 2**70}, "invalid", "64 bits"),
        ("gemm", {"M": "\ud800"}, "invalid", "surrogates"),
        ("\ud800", {"M": 1}, "invalid", r"\ud800 is not UTF-8"),
    ],
)
def test_a_refused_lookup_gives_the_default_and_says_why(
    socket_path: str, kernel: str, problem: dict[str, Any], status: str, message: str
) -> None:
    """The lookup does not raise, and the next one works."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        hit = client.lookup(kernel, problem, DEFAULT)
        assert (hit.status, hit.config) == (status, DEFAULT)
        assert message in hit.message
        assert client.lookup_many([(kernel, problem, DEFAULT)])[0][3:5] == (status, DEFAULT)
        assert client.lookup("gemm", {}).status == "fresh"


@pytest.mark.usefixtures("server_process")
def test_a_strict_client_raises_for_its_callers_errors_alone(socket_path: str) -> None:
    """A strict client raises for an invalid question, but not if the daemon fails."""
    with Client(socket_path, deadline_s=PATIENT_S, strict=True) as client:
        for kernel, problem in (("misspelt", {"m": 1}), ("gemm", {"M": object()})):
            with pytest.raises(DaemonError) as refusal:
                client.lookup(kernel, problem, DEFAULT)
            assert refusal.value.code == "usage"
            with pytest.raises(DaemonError):
                client.lookup_many([("gemm", {"M": 1}), (kernel, problem)])
        assert client.lookup("garbled", {}, DEFAULT).status == "unavailable"
    with Client(f"{socket_path}.none", strict=True) as client:
        assert client.lookup("gemm", {"M": 1}, DEFAULT).status == "unavailable"


@pytest.mark.usefixtures("server_process")
def test_scalars_of_numpy_and_torch_are_numbers(socket_path: str) -> None:
    """An array with one dimension is no number."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        for value in (np.int64(512), np.uint8(7), np.float32(0.5), np.bool_(True), torch.tensor(3), np.array(4)):
            hit = client.lookup("gemm", {"M": value}, DEFAULT)
            assert (hit.status, hit.config, hit.problem) == ("fresh", {"BM": value.item()}, {"M": value.item()})
        assert client.lookup("gemm", {"M": np.array([1])}, DEFAULT).status == "invalid"


@pytest.mark.parametrize(
    "problem", [{1: 1}, {None: 1}, {"M": None}, {"M": [1]}, {"M": b"x"}, {"M": {}}, "M=1", None, [("M", 1)], 4]
)
def test_a_problem_that_no_daemon_could_answer_is_invalid(socket_path: str, problem: Any) -> None:
    """The same holds without a daemon; a connection stays open."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        hit = client.lookup("gemm", problem, DEFAULT)
        assert (hit.status, hit.config) == ("invalid", DEFAULT)
        assert "a problem" in hit.message


@pytest.mark.usefixtures("server_process")
def test_what_cannot_be_sent_is_invalid_and_loses_no_connection(socket_path: str) -> None:
    """Cases: names and problems beyond the daemon's limits, names that are not UTF-8.

    Many long problems travel in several requests.
    """
    questions: list[Any] = [
        ("gemm\udc80", {"M": 1}),
        ("g" * 10_000_000, {"M": 1}),
        (["gemm"], {"M": 1}),
        ("gemm", {"M": "x" * 10_000_000}),
        ("gemm", {f"M{index}": "x" * 100 for index in range(1000)}),
    ]
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        for kernel, problem in questions:
            assert client.lookup(kernel, problem, DEFAULT).status == "invalid"
            hits = client.lookup_many([("gemm", {"M": 1}), (kernel, problem)])
            assert [hit.status for hit in hits] == ["fresh", "invalid"]
        assert client.lookup("gemm", {"M": 2}).status == "fresh"
        many = client.lookup_many([("gemm", {"M": place, "text": "x" * 50_000}) for place in range(60)])
        assert {hit.status for hit in many} == {"fresh"}


@pytest.mark.usefixtures("server_process")
def test_a_hit_has_a_copy_of_the_problem(socket_path: str) -> None:
    """Later changes of the caller's dict, or of the hit's, do not reach the memo."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        asked = {"M": 4}
        hit = client.lookup("gemm", asked)
        asked["M"] = 5
        problem: Any = hit.problem
        with pytest.raises(TypeError, match="read-only"):
            problem["M"] = 6
        assert client.lookup("gemm", {"M": 4}).problem == {"M": 4}


@pytest.mark.usefixtures("server_process")
def test_a_config_cannot_be_changed(socket_path: str) -> None:
    """All callers share a hit's config, and the caller's default too. It works like a dict otherwise."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        for hit in (client.lookup("gemm", {"M": 4}), client.lookup("undeclared", {"M": 4}, {"BM": 4})):
            config: Any = hit.config
            changes: tuple[tuple[str, list[Any]], ...] = (
                ("update", [{"BM": 1}]),
                ("__setitem__", ["BM", 1]),
                ("__delitem__", ["BM"]),
                ("__ior__", [{"BM": 1}]),
                ("setdefault", ["x", 1]),
                ("pop", ["BM"]),
                ("popitem", []),
                ("clear", []),
            )
            for method, arguments in changes:
                with pytest.raises(TypeError, match="read-only"):
                    getattr(config, method)(*arguments)
            assert json.loads(json.dumps(config)) == {**config} == copy_by_pickle(config) == {"BM": 4}
            copied = dict(config)
            copied["BM"] = 1
        assert client.lookup("gemm", {"M": 4}).config == {"BM": 4}


@pytest.mark.usefixtures("server_process")
def test_a_hit_is_data(socket_path: str) -> None:
    """A hit can be pickled, copied and written as JSON, and none of its maps can be changed."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        hit = client.lookup("gemm", {"M": 4})
    assert copy_by_pickle(hit) == copy.deepcopy(hit) == hit
    assert json.loads(json.dumps(hit._asdict()))["config"] == {"BM": 4}
    for mapping in (hit.config, hit.problem, hit.metrics):
        with pytest.raises(TypeError):
            mapping["BM"] = 5  # type: ignore[index]


@pytest.mark.usefixtures("server_process")
def test_a_client_pickles(socket_path: str) -> None:
    """The copy asks the same daemon over a connection of its own."""
    with Client(socket_path, deadline_s=PATIENT_S, strict=True) as client:
        assert client.lookup("gemm", {"M": 4}).status == "fresh"
        with copy_by_pickle(client) as other:
            assert other.lookup("gemm", {"M": 5}).status == "fresh"
            assert other.deadline_s == PATIENT_S
            with pytest.raises(DaemonError):
                other.lookup("misspelt", {})


@pytest.mark.usefixtures("server_process")
def test_fewer_answers_than_questions_give_the_defaults(socket_path: str) -> None:
    """No caller gets an exception or the answer of another question."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        hits = client.lookup_many([("omitted", {}, DEFAULT), ("gemm", {"M": 1}, DEFAULT)])
        assert [(hit.kernel, hit.status, hit.config) for hit in hits] == [
            ("omitted", "unavailable", DEFAULT),
            ("gemm", "unavailable", DEFAULT),
        ]


def test_without_a_daemon_a_lookup_gives_the_default(socket_path: str) -> None:
    """The message has the command that starts a daemon."""
    hit = Client(socket_path).lookup("gemm", {"M": 1}, DEFAULT)
    assert (hit.status, hit.config, hit.problem) == ("unavailable", DEFAULT, {"M": 1})
    assert "`ktuned start` starts one" in hit.message


def test_a_silent_daemon_costs_a_lookup_its_deadline_and_no_more(socket_path: str) -> None:
    """The following lookups do not ask the daemon for a while."""
    with open_silent_listener(socket_path), Client(socket_path, deadline_s=0.05) as client:
        start = time.monotonic()
        hit = client.lookup("gemm", {}, DEFAULT)
        took_s = time.monotonic() - start
        assert (hit.status, hit.config) == ("unavailable", DEFAULT)
        assert "within 0.05 s" in hit.message
        assert 0.05 <= took_s < PATIENT_S
        client._knowledge.backoff = Backoff(PATIENT_S, PATIENT_S)
        client._knowledge.backoff.record_failure("still silent")
        assert client.lookup("gemm", {}, DEFAULT).message == "still silent"


def test_a_daemon_that_drips_does_not_stretch_the_deadline(socket_path: str) -> None:
    """The deadline holds although single bytes keep arriving."""
    with open_silent_listener(socket_path) as listening, Client(socket_path, deadline_s=0.1) as client:
        done = threading.Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"\x94\x01\x01\xc0\xdb\x00\x0f\xff\xff")
                while not done.wait(0.01):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        start = time.monotonic()
        assert client.lookup("gemm", {}, DEFAULT).status == "unavailable"
        took_s = time.monotonic() - start
        done.set()
        thread.join()
    assert took_s < PATIENT_S


def test_garbage_from_the_daemon_gives_the_default(socket_path: str) -> None:
    with open_silent_listener(socket_path) as listening, Client(socket_path, deadline_s=PATIENT_S) as client:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        assert client.lookup("gemm", {}, DEFAULT).status == "unavailable"
        thread.join()


def test_a_full_backlog_gives_the_default(socket_path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as waiting:
        listening.bind(socket_path)
        listening.listen(0)
        for _ in range(3):
            connection = waiting.enter_context(socket.socket(socket.AF_UNIX))
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(socket_path)
        hit = Client(socket_path, deadline_s=PATIENT_S).lookup("gemm", {}, DEFAULT)
        assert (hit.status, hit.config) == ("unavailable", DEFAULT)
        assert "no free connection" in hit.message


def test_an_untrusted_socket_is_not_spoken_to(socket_path: str) -> None:
    """The message has the command that closes the directory."""
    with open_silent_listener(socket_path), Client(socket_path, deadline_s=PATIENT_S) as client:
        os.chmod(os.path.dirname(socket_path), 0o755)
        hit = client.lookup("gemm", {}, DEFAULT)
        assert hit.status == "unavailable"
        assert "chmod 700" in hit.message


def test_a_restarted_daemon_is_found_again(socket_path: str) -> None:
    """The client gives the default while no daemon runs."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        with daemon.run_server(socket_path) as process:
            assert wait_until_served(client).status == "fresh"
            process.kill()
            process.join()
            assert client.lookup("gemm", {}, DEFAULT).status == "unavailable"
        with daemon.run_server(socket_path):
            assert wait_until_served(client).config == {"BM": 5}


def test_a_restart_between_two_lookups_is_not_noticed(socket_path: str) -> None:
    """A connection that died while idle is replaced within the same lookup."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        for _ in range(2):
            with daemon.run_server(socket_path):
                assert client.lookup("gemm", {"M": 1}).status == "fresh"


@pytest.mark.usefixtures("server_process")
def test_threads_share_a_client(socket_path: str) -> None:
    """Each thread gets its own answers."""
    with Client(socket_path, deadline_s=PATIENT_S) as client, ThreadPoolExecutor(8) as threads:

        def ask(number: int) -> bool:
            return all(
                client.lookup("gemm", {"M": number * 1000 + i}).config == {"BM": number * 1000 + i} for i in range(100)
            )

        assert all(threads.map(ask, range(8)))


@pytest.mark.usefixtures("server_process")
def test_a_forked_child_has_its_own_connection(socket_path: str) -> None:
    """Parent and child look up at once after a fork during which a lock was held, and get their own answers."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        assert client.lookup("gemm", {"M": 0}).status == "fresh"
        client._transport._lock.acquire()
        child = os.fork()
        if child == 0:
            correct = all(client.lookup("gemm", {"M": -i}).config == {"BM": -i} for i in range(1, 200))
            os._exit(0 if correct else 1)
        client._transport._lock.release()
        assert all(client.lookup("gemm", {"M": i}).config == {"BM": i} for i in range(200))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.usefixtures("server_process")
def test_an_interrupted_lookup_leaves_no_stale_answer(socket_path: str) -> None:
    """An exception between question and answer drops the connection."""

    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    with open_silent_listener(socket_path + "2"), Client(socket_path + "2", deadline_s=PATIENT_S) as client:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with pytest.raises(Interrupted):  # noqa: PT012 - no one knows how soon the alarm comes
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                client.lookup("gemm", {})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        client._transport.path = socket_path
        assert client.lookup("gemm", {"M": 3}).config == {"BM": 3}


@pytest.mark.usefixtures("server_process")
def test_a_call_raises_what_the_daemon_says(socket_path: str) -> None:
    """The error has the daemon's code, message and hint, also for an unknown method."""
    with Client(socket_path) as client:
        with pytest.raises(DaemonError, match="there is no kernel") as caught:
            client.call("lookup", kernel="missing")
        assert (caught.value.code, caught.value.hint) == ("not_found", "see `ktuned kernels`")
        with pytest.raises(DaemonError, match="no method 'nonsense'") as caught:
            client.call("nonsense")
        assert caught.value.code == "unknown_method"


@pytest.mark.usefixtures("server_process")
def test_a_call_past_its_deadline_raises(socket_path: str) -> None:
    """Lookups go on meanwhile."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        with pytest.raises(DaemonUnavailable, match=r"within 0\.05 s"):
            client.call("hold", deadline_s=0.05)
        assert client.lookup("gemm", {}).status == "fresh"


def test_a_call_without_a_daemon_raises(socket_path: str) -> None:
    """The error names the socket and the command that starts a daemon."""
    with pytest.raises(DaemonUnavailable, match=socket_path) as caught:
        Client(socket_path).call("status")
    assert caught.value.hint == "`ktuned start` starts one"


@pytest.mark.usefixtures("server_process")
def test_a_tuning_is_the_stream_of_its_jobs_events(socket_path: str) -> None:
    """The iterator yields the events of its jobs since the request, and ends with the last job."""
    with Client(socket_path) as client, client.tune("p:k", trials=2) as tuning:
        assert [job["id"] for job in tuning.jobs] == [1, 2]
        client.call("publish", count=3, job=9)
        client.call("end", job=2)
        client.call("end", job=1)
        events = list(tuning)
        assert [(event["type"], event["job"]) for event in events] == [
            ("job_started", 1),
            ("job_started", 2),
            ("job_done", 2),
            ("job_done", 1),
        ]
        assert {job["state"] for job in tuning.jobs} == {"done"}
        assert events[-1].get("job_state") == {"id": 1, "kernel": "p:k", "state": "done"}


@pytest.mark.usefixtures("server_process")
def test_a_tuning_survives_a_gap_in_the_events(socket_path: str) -> None:
    """If the ring has dropped a job's end, the iterator asks for the jobs."""
    with Client(socket_path) as client:
        tuning = client.tune("p:k", trials=1)
        client.call("end", job=1)
        client.call("publish", count=100)
        events = list(tuning)
    assert [event["type"] for event in events] == ["gap", "job_done"]


def test_a_lost_daemon_ends_a_tuning_with_an_error(socket_path: str, server_process: BaseProcess) -> None:
    with Client(socket_path) as client, client.tune("p:k") as tuning:
        assert next(tuning)["type"] == "job_started"
        server_process.kill()
        with pytest.raises(DaemonUnavailable, match="lost"):
            next(tuning)


def test_events_in_the_same_bytes_as_the_answer_are_kept(socket_path: str) -> None:
    """Events that arrive together with the answer to ``subscribe`` are not lost."""
    with open_silent_listener(socket_path) as listening, Client(socket_path) as client:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                response = wire.encode_response(1, None, {"epoch": 1, "seq": 5})
                connection.sendall(response + wire.encode_notification("event", {"epoch": 1, "seq": 5}))

        thread = threading.Thread(target=answer)
        thread.start()
        with client.events(since=(1, 4)) as events:
            assert next(events)["seq"] == 5
        thread.join()


@pytest.mark.usefixtures("server_process")
def test_events_are_filtered_and_resumed(socket_path: str) -> None:
    """A stream knows its position, and another stream resumes there."""
    with Client(socket_path) as client:
        with client.events(types=["job_done"]) as first:
            client.call("tune", kernel="p:k")
            client.call("end", job=1)
            assert next(first)["type"] == "job_done"
        client.call("publish", count=2)
        with client.events(since=(first.epoch, first.seq)) as second:
            assert [next(second)["seq"], next(second)["seq"]] == [first.seq + 1, first.seq + 2]
        assert list(second) == []


def test_the_client_imports_little() -> None:
    """A synchronous client imports neither asyncio nor the daemon."""
    code = "import sys, ktuned_client; print(sorted({'asyncio', 'ktuned', 'anyio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path("/"))
    assert done.stdout == "[]\n"
