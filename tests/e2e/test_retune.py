"""From a save to the new winner: what is tuned again, and what lookups answer meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic
from typing import Any

from ktuned.ipc import manifest
from ktuned_client import Client, Hit
from tests.e2e.harness import UNHURRIED, Daemon, make_kernel_text

SPACE = (
    "space([dict(us={us}, does='work', tag='a', gate={gate!r}), dict(us=900.0, does='work', tag='b', gate={gate!r})])"
)

OTHER_BODY = "Build(**{**c, 'us': c.us + 1.0})"
"""The same configs, compiled to something else: what was measured before does not hold."""


def make_text(us: float = 300.0, gate: str = "", **options: str) -> str:
    return make_kernel_text(SPACE.format(us=us, gate=gate), deadlines=UNHURRIED, **options)


def list_jobs(daemon: Daemon) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = daemon.client.call("jobs")["jobs"]
    return sorted(jobs, key=lambda job: int(job["id"]))


def are_jobs_done(daemon: Daemon, count: int) -> bool:
    jobs = list_jobs(daemon)
    return len(jobs) >= count and all(job["state"] not in ("queued", "running") for job in jobs)


def test_an_edit_is_stale_and_then_fresh_and_a_comment_changes_nothing(daemon: Daemon) -> None:
    # Another gate would be another space, without the winner.
    text = make_text(gate="door")
    door = daemon.make_gate("door")
    door.open()
    path = daemon.write_kernel(text)
    daemon.tune(path=path)
    assert daemon.look_up().status == "fresh"

    path.write_text(f"# a comment\n{text}\n\n# and another\n")
    # A second file, saved after the comment, is the event that reports that the comment has been seen.
    daemon.write_kernel(text.replace("def it(", "def other("), "tune_other.py")
    daemon.wait_until(lambda: len(list_jobs(daemon)) == 2, "the other kernel's job")
    daemon.wait_until(lambda: are_jobs_done(daemon, 2), "it to end")
    assert [job["kernel"] for job in list_jobs(daemon)] == ["project:it", "project:other"]
    assert daemon.look_up().status == "fresh"

    door.close()
    daemon.write_kernel(make_text(gate="door", body=OTHER_BODY))
    door.wait_until_reached()
    hit = daemon.look_up()
    assert hit.status == "stale"
    assert hit.config is not None
    assert hit.config["tag"] == "a"
    door.open()
    daemon.wait_until(lambda: are_jobs_done(daemon, 3), "the re-tune")
    assert daemon.look_up().status == "fresh"
    assert list_jobs(daemon)[-1]["reason"] == "saved"
    assert len(list_jobs(daemon)) == 3


def test_a_taken_over_measurement_keeps_its_tensors(daemon: Daemon) -> None:
    """An edit with another artifact of equal bytes: nothing is measured, and a callable still checks its tensors."""
    path = daemon.write_kernel(make_text())
    daemon.tune(path=path)
    first = find_artifact(daemon)
    path.write_text(make_text(body="Build(**{**c})"))
    job = daemon.tune_one(path=path)
    assert (job["state"], job["cost"]["reused"]) == ("done", 2)
    second = find_artifact(daemon)
    assert first != second
    assert manifest.read_tensors(second) == manifest.read_tensors(first) != {}

    # Without its record, the measurement cannot be taken over.
    for artifact in (first, second):
        (artifact / manifest.TENSORS_NAME).unlink()
    path.write_text(make_text(body="Build(**{**{**c}})"))
    job = daemon.tune_one(path=path)
    assert job["cost"].get("reused", 0) < 2
    assert manifest.read_tensors(find_artifact(daemon)) != {}


def find_artifact(daemon: Daemon) -> Path:
    hit = daemon.look_up()
    assert hit.status == "fresh"
    assert hit.artifact is not None
    return Path(hit.artifact)


def write_reading_kernel(daemon: Daemon, reading: str, more: str = "") -> Path:
    """Write a kernel file whose reference reads something first."""
    text = make_text(reference="doubled").replace("@kernel(", f"@kernel({more}", 1)
    head, _, tail = text.partition("@kernel(")
    function = f"import pathlib, subprocess\n\ndef doubled(x):\n    {reading}\n    return dict(y=2 * x)\n\n"
    return daemon.write_kernel(f"{head}{function}@kernel({tail}")


def test_an_unobservable_kernel_is_stale(daemon: Daemon) -> None:
    """A kernel that connects to another program is stale and queues nothing; ``depends`` makes it fresh."""
    asking = "import socket; socket.socket().connect_ex(('127.0.0.1', 9))"
    path = write_reading_kernel(daemon, asking)
    daemon.tune(path=path)
    answer = daemon.look_up()
    assert (answer.status, answer.latency_us is not None) == ("stale", True)
    assert answer.message.startswith("not fully observed: a connection to another program")
    assert len(list_jobs(daemon)) == 1
    entry = daemon.client.call("kernels", kernel="it", why=True)["kernels"][0]["why"][0]
    assert (entry["status"], entry["message"]) == ("stale", answer.message)
    write_reading_kernel(daemon, asking, "depends='data/*.bin', ")
    daemon.wait_until(lambda: are_jobs_done(daemon, 2), "the re-tune")
    assert daemon.look_up().status == "fresh"


def test_an_edit_without_a_daemon_is_tuned_at_the_next_start(daemon: Daemon) -> None:
    path = daemon.write_kernel(make_text())
    daemon.tune(path=path)
    daemon.stop()
    path.write_text(make_text(body=OTHER_BODY))
    daemon.start()
    daemon.wait_until(lambda: are_jobs_done(daemon, 2), "the re-tune")
    assert daemon.look_up().status == "fresh"


def test_lookups_during_a_retune_get_valid_configs_in_time(daemon: Daemon) -> None:
    """The last lookup gets the new winner."""
    door = daemon.make_gate("door")
    door.open()
    daemon.tune(path=daemon.write_kernel(make_text(gate="door")))
    door.close()
    deadline_s, is_over = 10.0, threading.Event()
    hits: list[tuple[float, Hit]] = []

    def application() -> None:
        with Client(str(daemon.socket), deadline_s=deadline_s) as client:
            while not is_over.wait(0.001):
                began = monotonic()
                hit = client.lookup("it", dict(n=64))
                hits.append((monotonic() - began, hit))

    thread = threading.Thread(target=application)
    thread.start()
    try:
        more = make_text(gate="door", body=OTHER_BODY)
        daemon.write_kernel(more.replace("])", ", dict(us=50.0, does='work', tag='c', gate='door')])", 1))
        door.wait_until_reached()
        daemon.wait_until(lambda: bool(hits) and hits[-1][1].status == "stale", "the loop to see that it is stale")
        door.open()
        daemon.wait_until(lambda: are_jobs_done(daemon, 2), "the re-tune")
        daemon.wait_until(lambda: (hits[-1][1].config or {}).get("tag") == "c", "the loop to see the new winner")
    finally:
        is_over.set()
        thread.join()
    assert {hit.status for _, hit in hits} <= {"fresh", "stale"}
    assert {(hit.config or {}).get("tag") for _, hit in hits} <= {"a", "b", "c"}
    assert max(took for took, _ in hits) < 5 * deadline_s
    assert hits[-1][1].status == "fresh"
