"""The daemon's log: its forms, and whose ids its lines bear."""

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
    """On a full disk the daemon goes on."""
    words = [sys.executable, "-c", f"{SAYS}print('on')", "LOGFMT"]
    with open("/dev/full", "w") as full:
        assert subprocess.run(words, stdout=subprocess.PIPE, stderr=full, text=True).stdout == "on\n"


def said(form: str) -> list[str]:
    """Return the lines that a process logs in a form."""
    done = subprocess.run([sys.executable, "-c", SAYS, form], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr.splitlines()


def test_json_is_one_event_a_line() -> None:
    """Line ends and tracebacks stay inside their line; what is bound is in it."""
    first, second = map(json.loads, said("JSON"))
    assert (first["event"], first["level"], first["what"]) == ("said", "info", "a\nb")
    assert (first["job"], first["trial"]) == (3, 14)
    assert first["timestamp"]
    assert "ZeroDivisionError" in second["exception"]
    assert "job" not in second


def test_the_journal_gets_priorities_and_no_stamps() -> None:
    """Each line begins with its syslog priority; the rest is JSON without a time, which the journal has."""
    lines = said("JOURNAL")
    assert [line[:3] for line in lines] == ["<6>", "<3>"]
    assert [set(json.loads(line[3:])) for line in lines] == [
        {"event", "level", "what", "job", "trial"},
        {"event", "level", "exception"},
    ]


def test_the_journal_is_known_by_its_stream(tmp_path: Path) -> None:
    """The variable counts only where stderr is still the stream that it names."""
    reader, writer = os.pipe()
    try:
        found = os.fstat(writer)
        environ = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert choose_format(environ, writer, as_json=False) is LogFormat.JOURNAL
        with (tmp_path / "file").open("w") as other:
            assert choose_format(environ, other.fileno(), as_json=True) is LogFormat.JSON
            assert choose_format({}, other.fileno(), as_json=False) is LogFormat.LOGFMT
            gone = other.fileno()
        assert not is_journal_stream(environ, gone)
    finally:
        os.close(reader)
        os.close(writer)


def test_events_of_a_trial_carry_its_job_and_id(tmp_path: Path) -> None:
    """A trial that crashes is found in the log by its job and its id."""
    daemon = Daemon(tmp_path)
    with daemon:
        daemon.write_kernel(make_kernel_text("space([dict(tag='a', does=''), dict(tag='b', does='segfault')])"))
        _, (job,) = daemon.tune(path=str(tmp_path / "project"))
        crashed = daemon.fetch_trials()["b"]
    assert crashed["outcome"] == "crashed"
    (line,) = [line for line in daemon.log.read_text().splitlines() if "event=trial_crashed" in line]
    assert f"job={job['id']} " in f"{line} "
    assert f"trial={crashed['id']} " in f"{line} "
