"""The table of winners answers lookups without the daemon, and as the daemon would."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ktuned_client import Client
from ktuned_client.table import TABLE_NAME, USES_NAME, WATCHED_WORD, Table, find_slot
from tests.client import daemon
from tests.client.test_memo import PATIENT_S, age_answers, count_lookups, write_word

Publish = Callable[..., None]


@pytest.fixture
def publish_winner(socket_path: str, server_process: object) -> Publish:
    def publish(problem: dict[str, Any], **options: Any) -> None:
        with Client(socket_path, deadline_s=PATIENT_S) as client:
            client.call("publish_winner", kernel="p:gemm", problem=problem, **options)

    return publish


def test_a_problem_that_was_never_asked_needs_no_daemon(socket_path: str, publish_winner: Publish) -> None:
    """The answer is complete, stays the same object, and opens no connection; its use is recorded."""
    publish_winner({"M": 1, "N": 2}, config={"BM": 64})
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        hit = client.lookup("p:gemm", {"N": 2, "M": 1})
        assert client.bind("p:gemm")({"N": 2, "M": 1}) is hit
        assert client.lookup_many([("p:gemm", {"M": 1, "N": 2})])[0]._replace(problem=hit.problem) == hit
        assert client._transport._shared is None
        assert hit._replace(generation=None) == (
            "p:gemm",
            {"N": 2, "M": 1},
            "cpu",
            "fresh",
            {"BM": 64},
            1.5,
            None,
            1.0,
            None,
            "",
            True,
            {},
            "/tune.py",
            None,
            "latency",
        )
        assert client.lookup("p:gemm", {"M": 1, "N": 2}, device="cpu:0", objective="latency").config == {"BM": 64}
        assert count_lookups(client) == 0
    uses = (Path(socket_path).parent / USES_NAME).read_bytes()
    assert any(uses[8 * find_slot("p:gemm") :][:8])


def test_the_last_resort_is_given_when_no_daemon_answers(socket_path: str, publish_winner: Publish) -> None:
    """The daemon confirms a winner that may have changed. If it is silent, the winner is better than a default."""
    publish_winner({"M": 1}, config={"BM": 64}, status="stale", asks_first=True)
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        assert client.lookup("p:gemm", {"M": 1}).config == {"BM": 1}
        assert count_lookups(client) == 1
    with Client(str(Path(socket_path).parent / "none"), deadline_s=PATIENT_S) as client:
        hit = client.lookup("p:gemm", {"M": 1}, {"BM": 2})
        assert (hit.status, hit.config) == ("stale", {"BM": 64})


def test_a_question_that_the_table_lacks_goes_to_the_daemon(socket_path: str, publish_winner: Publish) -> None:
    """Cases: other problems, types, devices, objectives and kernels."""
    publish_winner({"M": 1})
    questions: list[dict[str, Any]] = [
        {"problem": {"M": 2}},
        {"problem": {"M": 1.0}},
        {"problem": {"M": True}},
        {"problem": {"M": 1}, "device": "cpu:1"},
        {"problem": {"M": 1}, "objective": "min:energy"},
        {"problem": {"M": 1}, "kernel": "p:other"},
        {"problem": {"M": 1}, "kernel": "gemm"},
    ]
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        for count, question in enumerate(questions, start=1):
            client.lookup(**{"kernel": "p:gemm", **question})
            assert count_lookups(client) == count


def test_a_problem_is_answered_by_its_bucket(socket_path: str, publish_winner: Publish) -> None:
    """The client applies rules that are data; the answer names the measured problem if it differs."""
    whole = {"N": 1024, "name": "x", "scale": 1.0}
    publish_winner(
        {"N": 1024},
        config={"BN": 8},
        specialize=["N"],
        bucket={"N": "pow2"},
        keys=[["N", "name", "scale"]],
        measured=whole,
    )
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        for problem, measured in (
            ({"name": "y", "N": 1000, "scale": 1.0}, whole),
            ({"name": "x", "N": 1024, "scale": 1.0}, None),
            ({"name": "x", "N": 1024, "scale": 1}, whole),
        ):
            hit = client.lookup("p:gemm", problem)
            assert (hit.status, hit.config, hit.problem, hit.measured) == ("fresh", {"BN": 8}, problem, measured)
        assert count_lookups(client) == 0
        refused: list[dict[str, Any]] = [
            {"N": 1000},
            {"N": 1000, "name": "x", "scale": float("nan")},
            {"N": 1000, "nmae": "x", "scale": 1.0},
            {"N": 3000, "name": "x", "scale": 1.0},
        ]
        for count, problem in enumerate(refused, start=1):
            client.lookup("p:gemm", problem)
            assert count_lookups(client) == count


def test_an_answer_that_is_not_fresh_is_asked_for_again_in_time(socket_path: str, publish_winner: Publish) -> None:
    """The daemon counts who waits for a tuning; a fresh answer holds as long as the table says so."""
    publish_winner({"M": 1}, status="stale")
    publish_winner({"M": 2})
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        assert [client.lookup("p:gemm", {"M": size}).status for size in (1, 2)] == ["stale", "fresh"]
        age_answers(client)
        assert client.lookup("p:gemm", {"M": 2}).status == "fresh"
        assert count_lookups(client) == 0
        client.lookup("p:gemm", {"M": 1})
        assert count_lookups(client) == 1


def test_a_change_is_seen_at_once(socket_path: str, publish_winner: Publish) -> None:
    """A bump invalidates the entry and its decoded copy; the next published entry answers again."""
    publish_winner({"M": 1}, config={"BM": 1})
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        assert client.lookup("p:gemm", {"M": 1}).config == {"BM": 1}
        client.call("bump", kernel="p:gemm")
        client.lookup("p:gemm", {"M": 1})
        assert count_lookups(client) == 1
        client.call("bump", kernel="p:gemm")
        publish_winner({"M": 1}, config={"BM": 2})
        assert client.lookup("p:gemm", {"M": 1}).config == {"BM": 2}
        assert count_lookups(client) == 1


def test_the_table_answers_while_no_daemon_does(socket_path: str) -> None:
    """A new process has the winners, too: fresh until the watch has ended, then stale with the reason."""
    with daemon.run_server(socket_path) as process:
        with Client(socket_path, deadline_s=PATIENT_S) as client:
            client.call("publish_winner", kernel="p:gemm", problem={"M": 1})
        process.kill()
        process.join()
        with Client(socket_path, deadline_s=PATIENT_S) as client:
            assert client.lookup("p:gemm", {"M": 1}).status == "fresh"
            write_word(socket_path, WATCHED_WORD, 1)
            age_answers(client)
            assert client.lookup("p:gemm", {"M": 1}).status == "stale"
        with Client(socket_path, deadline_s=PATIENT_S) as client:
            hit = client.lookup("p:gemm", {"M": 1})
            assert (hit.status, hit.config) == ("stale", {"M": 1})
            assert hit.message.startswith("no daemon watches its files now: ")
            assert client.lookup("p:gemm", {"M": 2}).status == "unavailable"


def test_the_next_daemons_table_is_found(socket_path: str) -> None:
    """The client drops the last daemon's table."""
    with Client(socket_path, deadline_s=PATIENT_S) as client:
        for turn in range(3):
            with daemon.run_server(socket_path) as process:
                if turn:
                    client.lookup("p:gemm", {"M": 1})
                    assert count_lookups(client) == 1
                client.call("publish_winner", kernel="p:gemm", problem={"M": 1}, config={"turn": turn})
                client._memo.answers.clear()
                assert client.lookup("p:gemm", {"M": 1}).config == {"turn": turn}
                process.kill()
                process.join()


def test_words_have_the_byte_order_of_the_machine(socket_path: str, publish_winner: Publish) -> None:
    """Word 1 is the number of words, in the machine's byte order."""
    publish_winner({"M": 1})
    content = (Path(socket_path).parent / TABLE_NAME).read_bytes()
    assert int.from_bytes(content[8:16], sys.byteorder) == len(content)
    table = Table(str(Path(socket_path).parent / TABLE_NAME))
    assert len(table.words) == len(content) // 8
    table.close()
