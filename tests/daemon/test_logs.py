"""The daemon's log: its formats, and the ids in its lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ktuned.daemon.logs import LogFormat, choose_format, is_journal_stream
from tests.e2e.harness import Daemon, make_kernel_text

SAYS = """
import structlog, sys
from ktuned.daemon import logs
logs.configure_logging("info", logs.LogFormat[sys.argv[1]])
log = structlog.get_logger()
with structlog.contextvars.bound_contextvars(job=3, trial=14):
    log.debug("unheard")
    log.info("said", what="a\\nb")
try:
    1 / 0
except ZeroDivisionError as error:
    log.error("broke", exc_info=error)
"""


def test_a_log_that_cannot_be_written_is_dropped() -> None:
    """The daemon goes on when the disk is full."""
    words = [sys.executable, "-c", f"{SAYS}print('on')", "LOGFMT"]
    with open("/dev/full", "w") as full:
        assert subprocess.run(words, stdout=subprocess.PIPE, stderr=full, text=True).stdout == "on\n"


def log_in_process(form: str) -> list[str]:
    """Return the lines that a process logs in a format."""
    done = subprocess.run([sys.executable, "-c", SAYS, form], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr.splitlines()


def test_json_logs_have_one_event_a_line() -> None:
    """Line ends and tracebacks stay inside their line; bound values are included."""
    first, second = map(json.loads, log_in_process("JSON"))
    assert (first["event"], first["level"], first["what"]) == ("said", "info", "a\nb")
    assert (first["job"], first["trial"]) == (3, 14)
    assert first["timestamp"]
    assert "ZeroDivisionError" in second["exception"]
    assert "job" not in second


def test_the_journal_gets_priorities_and_no_times() -> None:
    """Each line begins with its syslog priority; the journal has its own times."""
    lines = log_in_process("JOURNAL")
    assert [line[:3] for line in lines] == ["<6>", "<3>"]
    assert [set(json.loads(line[3:])) for line in lines] == [
        {"event", "level", "what", "job", "trial"},
        {"event", "level", "exception"},
    ]


def test_the_journal_is_known_by_its_stream(tmp_path: Path) -> None:
    """The variable counts only if stderr is the stream that it names."""
    reader, writer = os.pipe()
    try:
        status = os.fstat(writer)
        environ = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert choose_format(environ, writer, as_json=False) is LogFormat.JOURNAL
        with (tmp_path / "file").open("w") as other:
            assert choose_format(environ, other.fileno(), as_json=True) is LogFormat.JSON
            assert choose_format({}, other.fileno(), as_json=False) is LogFormat.LOGFMT
            closed = other.fileno()
        assert not is_journal_stream(environ, closed)
    finally:
        os.close(reader)
        os.close(writer)


def test_events_of_a_trial_carry_its_job_and_id(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    with daemon:
        daemon.write_kernel(make_kernel_text("space([dict(tag='a', does=''), dict(tag='b', does='segfault')])"))
        job = daemon.tune_one(path=tmp_path / "project")
        crashed = daemon.fetch_trials()["b"]
    assert crashed["outcome"] == "crashed"
    (line,) = [line for line in daemon.log.read_text().splitlines() if "event=trial_crashed" in line]
    assert f"job={job['id']} " in f"{line} "
    assert f"trial={crashed['id']} " in f"{line} "
