"""The client keeps answers for as long as the table of winners says that they hold."""

import os
import sys
import threading
from collections import OrderedDict
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from ktuned_client import Client, memo
from ktuned_client.answers import Question
from ktuned_client.table import FIRST_SLOT, TABLE_NAME, WATCHED_WORD, WORDS, Table, find_slot
from tests.client import daemon

DEFAULT = {"BM": 64}
PATIENT_S = 60.0
LOOP = 1000
GEMM = Question("gemm", "gemm", {}, None, None, None)


def count_lookups(client: Client) -> int:
    """Return how many lookups the daemon has answered."""
    return int(client.call("count_lookups"))


@pytest.mark.usefixtures("server_process")
def test_a_known_answer_is_not_requested_again(socket_path: str) -> None:
    """A thousand lookups with ``lookup`` and with ``bind`` cost one request."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        first = client.lookup("gemm", {"M": 1})
        bound = client.bind("gemm")
        assert all(client.lookup("gemm", {"M": 1}) is first for _ in range(LOOP))
        assert all(bound({"M": 1}) is first for _ in range(LOOP))
        assert count_lookups(client) == 1


@pytest.mark.usefixtures("server_process")
def test_a_bumped_generation_is_seen_at_once(socket_path: str) -> None:
    """Answers of kernels in other slots stay."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        bound = client.bind("gemm", DEFAULT)
        for kernel in ("gemm", "softmax"):
            client.lookup(kernel, {"M": 1})
        before = bound({"M": 1}).generation
        client.call("bump", kernel="gemm")
        assert bound({"M": 1}).generation == before + 1  # type: ignore[operator]
        client.lookup("softmax", {"M": 1})
        assert count_lookups(client) == 3


@pytest.mark.usefixtures("server_process")
def test_equal_numbers_of_two_types_are_two_problems(socket_path: str) -> None:
    """``1``, ``1.0`` and ``True`` are requested and answered separately, and so is each device."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        values: list[Any] = [1, 1.0, True, 0, False]
        for _ in range(2):
            assert [type(client.lookup("gemm", {"M": value}).config["BM"]) for value in values] == list(  # type: ignore[index]
                map(type, values)
            )
        assert client.lookup("gemm", {"M": 1}, device="cpu:1").device == "cpu:1"
        assert count_lookups(client) == len(values) + 1


@pytest.mark.usefixtures("server_process")
def test_subclasses_of_dict_and_numbers_are_equal_problems(socket_path: str) -> None:
    class Size(int):
        pass

    with Client(socket_path, deadline_s=PATIENT_S) as client:
        first = client.lookup("gemm", {"M": 1})
        assert client.lookup("gemm", OrderedDict(M=1)) is first
        assert client.lookup("gemm", {"M": Size(1)}) is first
        assert count_lookups(client) == 1


@pytest.mark.usefixtures("server_process")
def test_an_answer_without_config_is_completed_by_each_caller(socket_path: str) -> None:
    """A caller's default is not given to another caller."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        configs = [client.lookup("undeclared", {}, default).config for default in (DEFAULT, {"BM": 1}, None)]
        assert configs == [DEFAULT, {"BM": 1}, None]
        assert count_lookups(client) == 1


@pytest.mark.usefixtures("server_process")
def test_many_are_asked_for_in_one_request(socket_path: str) -> None:
    """Known answers are not requested, and a refused question does not affect the others."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        client.lookup("gemm", {"M": 2})
        questions: list[Any] = [("gemm", {"M": size}) for size in range(600)]
        questions[7] = ("missing", {}, DEFAULT)
        questions[8] = ("undeclared", {}, DEFAULT)
        hits = client.lookup_many(questions)
        assert [hit.config for hit in hits[:7]] == [{"BM": size} for size in range(7)]
        assert [hit.status for hit in hits[7:10]] == ["unavailable", "unknown", "fresh"]
        assert [hit.config for hit in hits[7:9]] == [DEFAULT, DEFAULT]
        assert count_lookups(client) == 600
        assert client.lookup_many(questions[9:]) == hits[9:]
        assert count_lookups(client) == 600
        assert client.lookup_many([]) == []


def test_a_dead_daemons_answers_hold_until_the_next_one_starts(socket_path: str) -> None:
    """``kill -9`` changes no answer; the next daemon, which continues the table, makes the client request all again."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        with daemon.run_server(socket_path) as process:
            first = client.lookup("gemm", {"M": 1})
            process.kill()
            process.join()
            assert all(client.lookup("gemm", {"M": 1}) is first for _ in range(LOOP))
        with daemon.run_server(socket_path):
            hit = client.lookup("gemm", {"M": 1})
            assert hit.generation == first.generation + 1  # type: ignore[operator]
            assert count_lookups(client) == 1


def age_answers(client: Client) -> None:
    """Make all answers in the memo so old that the client requests them again."""
    for answer in client._memo.answers.values():
        for problem, (slot, generation, _, hit) in answer.items():
            answer[problem] = (slot, generation, 0.0, hit)


def write_word(path: str, word: int, value: int) -> None:
    """Write a word of the table as a daemon does."""
    with open(os.path.join(os.path.dirname(path), TABLE_NAME), "r+b") as stream:
        stream.seek(8 * word)
        stream.write(value.to_bytes(8, sys.byteorder))


def test_without_a_daemon_the_last_answer_is_given(socket_path: str) -> None:
    """An old answer stays, and is marked only if the table has changed."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        with daemon.run_server(socket_path):
            first = client.lookup("gemm", {"M": 1}, DEFAULT)
            age_answers(client)
            assert client.lookup("gemm", {"M": 1}, DEFAULT) is not first
            assert count_lookups(client) == 2
        age_answers(client)
        assert client.lookup("gemm", {"M": 1}, DEFAULT) == first
        write_word(socket_path, find_slot("gemm"), 2**64 - 1)
        hit = client.lookup("gemm", {"M": 1}, DEFAULT)
        assert (hit.status, hit.config) == ("unavailable", first.config)
        assert "no daemon serves" in hit.message
        assert client.lookup("gemm", {"M": 2}, DEFAULT).config == DEFAULT


def test_without_a_daemon_a_fresh_answer_becomes_stale_when_the_watch_has_ended(socket_path: str) -> None:
    """No daemon watches the files: the config stays, and the status and the message say so. Other statuses stay."""
    now = monotonic()
    answers = memo.Memo(os.path.dirname(socket_path), clock=lambda: now)
    with daemon.run_server(socket_path), Client(socket_path, deadline_s=PATIENT_S) as client:
        hits = [client.lookup("gemm", {"M": size}) for size in range(2)]
        hits[1] = hits[1]._replace(status="near")
        for number, hit in enumerate(hits):
            answers.keep_answer(GEMM, bytes([number]), hit)
    write_word(socket_path, WATCHED_WORD, int((now + 10.0) * 1e9))
    now += 9.9
    assert [answers.find_last_answer(GEMM, bytes([number]), "gone") for number in range(2)] == hits
    now += 0.1
    assert answers.find_hit(GEMM, b"\0", reads_table=False) == (None, True)
    stale, near = (answers.find_last_answer(GEMM, bytes([number]), "gone") for number in range(2))
    assert stale is not None
    assert (stale.status, stale.config) == ("stale", hits[0].config)
    assert stale.message == "no daemon watches its files now: gone"
    assert near == hits[1]
    assert answers.find_hit(GEMM, b"\0", reads_table=False) == (stale, True)
    answers.close()


def test_a_removed_table_is_noticed_when_the_watch_has_ended(socket_path: str) -> None:
    """If the socket's directory was deleted, the client asks again when the watch has ended."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        with daemon.run_server(socket_path) as process:
            first = client.lookup("gemm", {"M": 1})
            process.kill()
            process.join()
        write_word(socket_path, WATCHED_WORD, 0)
        for file in Path(socket_path).parent.iterdir():
            file.unlink()
        age_answers(client)
        with daemon.run_server(socket_path):
            hit = client.lookup("gemm", {"M": 1})
            assert hit.status == "fresh"
            assert hit.generation != first.generation
            assert client.lookup("gemm", {"M": 1}) is hit


@pytest.mark.parametrize("content", [b"", b"short", bytes(8 * WORDS), b"ktunedW\x02" + bytes(8 * WORDS - 8)])
def test_a_file_that_is_not_a_table_is_rejected(socket_path: str, content: bytes) -> None:
    """Cases: another size, version or kind. A daemon replaces the file by its table."""
    table = Path(socket_path).with_name(TABLE_NAME)
    table.write_bytes(content)
    with pytest.raises(ValueError, match="table of winners"):
        Table(str(table))
    with daemon.run_server(socket_path), Client(socket_path, deadline_s=PATIENT_S) as client:
        assert client.lookup("gemm", {"M": 1}) is client.lookup("gemm", {"M": 1})


@pytest.mark.usefixtures("server_process")
def test_threads_share_the_memo(socket_path: str) -> None:
    """Eight threads that look up and bump generations get whole answers to their own questions."""
    wrong = []
    with Client(socket_path, deadline_s=PATIENT_S) as client:

        def look_up(size: int) -> None:
            for turn in range(300):
                hit = client.lookup("gemm", {"M": size})
                if hit.config != {"BM": size}:
                    wrong.append(hit)
                if turn % 100 == size:
                    client.call("bump", kernel="gemm")

        threads = [threading.Thread(target=look_up, args=(size,)) for size in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.usefixtures("server_process")
def test_a_forked_child_keeps_what_its_parent_knew(socket_path: str) -> None:
    """The child maps the table too: it gets the same answer, and sees changes after the fork."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        first = client.lookup("gemm", {"M": 1})
        child = os.fork()
        if not child:
            same = client.lookup("gemm", {"M": 1}) is first
            client.call("bump", kernel="gemm")
            other = client.lookup("gemm", {"M": 1})
            os._exit(0 if same and other.generation == first.generation + 1 else 1)  # type: ignore[operator]
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert client.lookup("gemm", {"M": 1}) is not first


def test_a_daemon_of_another_protocol_is_named(socket_path: str) -> None:
    """The lookup is not sent: the client gives the caller's default or the known answer, and names both versions."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        with daemon.run_server(socket_path) as process:
            before = client.lookup("gemm", {"M": 1}, DEFAULT)
            process.kill()
            process.join()
        with daemon.run_server(socket_path, protocol=2):
            for size, expected in ((1, ("stale", before.config)), (2, ("unavailable", DEFAULT))):
                hit = client.lookup("gemm", {"M": size}, DEFAULT)
                assert (hit.status, hit.config) == expected
                assert "protocol 2" in hit.message


def test_closing_a_client_unmaps_the_table(socket_path: str, server_process: BaseProcess) -> None:
    """A closed client holds no file, and can be used again."""
    client = Client(socket_path, deadline_s=PATIENT_S)
    first = client.lookup("gemm", {"M": 1})
    client.close()
    assert TABLE_NAME not in Path("/proc/self/maps").read_text()
    assert client.lookup("gemm", {"M": 1}) == first
    client.close()
    assert server_process.is_alive()


def test_the_memo_is_bounded(socket_path: str, server_process: BaseProcess) -> None:
    """A full memo is emptied, and answers stay right."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        client._memo.max_answers = 10
        assert [client.lookup("gemm", {"M": size}).config for size in range(35)] == [{"BM": s} for s in range(35)]
        assert len(client._memo.answers["gemm"]) <= 10
    assert server_process.is_alive()


def test_no_slot_is_in_the_header_of_the_table() -> None:
    slots = {find_slot(f"project:kernel{number}") for number in range(5000)}
    assert min(slots) >= FIRST_SLOT
    assert max(slots) < WORDS
    assert find_slot("project:gemm") == 3855
