"""A tuning of a wrong file and a killed daemon leave an error, and nobody waits for ever."""

from __future__ import annotations

import pytest

from ktuned_client import Client, LoadError
from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import Daemon, make_kernel_text

TEXT = make_kernel_text("space([dict(us=20.0, tag='a'), dict(us=30.0, tag='b')])")

ERRORS = {
    "syntax": ("def (\n", "SyntaxError"),
    "declaration": (TEXT.replace("preset='fast'", "preset='quick'"), "quick"),
    "dies": ("import os\nos._exit(7)\n", "exited with code 7"),
}
"""What is saved into a known kernel file, and a word of its error."""


def test_tuning_a_file_that_became_wrong_ends_with_its_error(daemon: Daemon) -> None:
    """The kernel may be named by path or by name; the repaired file is tuned."""
    path = daemon.write_kernel(TEXT)
    assert daemon.run_ktuned("tune", str(path)).returncode == 0
    for number, (text, word) in enumerate(ERRORS.values()):
        target = str(path) if number % 2 else "project:it"
        path.write_text(text)
        done = daemon.run_ktuned("tune", target, timeout_s=PATIENCE_S / 2)
        assert done.returncode == 1
        assert word in done.stderr
        assert "queued" not in done.stdout
        path.write_text(TEXT)
        assert daemon.run_ktuned("tune", "project:it" if number % 2 else str(path)).returncode == 0


def test_a_job_ends_if_its_file_becomes_wrong_meanwhile(daemon: Daemon) -> None:
    """The client that waits for the job gets its end at once, not after a repair of the file."""
    gate = daemon.make_gate("first")
    path = daemon.write_kernel(
        make_kernel_text("space([dict(us=20.0, gate='first', tag='a'), dict(us=20.0, tag='b', gate='')])")
    )
    with daemon.client.tune(path=path) as tuning:
        gate.wait_until_reached()
        path.write_text("def (\n")
        gate.open()
        jobs = [event["job_state"] for event in tuning if event["type"] == "job_done"]
    assert [job["state"] for job in jobs] in (["failed"], ["done"])


def test_no_answer_is_fresh_after_a_stop(daemon: Daemon) -> None:
    """The table says so itself: nobody watches the files, also for an answer that a process keeps."""
    daemon.tune(path=daemon.write_kernel(TEXT))
    # Once, so that the daemon publishes it, and again, from the table.
    assert {daemon.look_up().status for _ in range(2)} == {"fresh"}
    assert daemon.stop() == 0
    kept = daemon.look_up()
    with Client(str(daemon.socket)) as other:
        asked = other.lookup("it", dict(n=64))
    for hit in (kept, asked):
        assert (hit.status, hit.config) == ("stale", dict(us=20.0, tag="a"))
        assert "no daemon serves" in hit.message
        with pytest.raises(LoadError, match="the answer is 'stale': no daemon serves"):
            hit.load()
