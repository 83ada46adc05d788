"""Shape buckets in a real daemon: lookups of any size get the winner of the problem that stands for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ktuned_client import Client, LoadError
from tests.e2e.harness import Daemon, kernel_text

SPACE = 'space(us=[60.0, 300.0], tag=["a"])'
FUNCTION = "lambda p: dict(n=-(-p.n // 100) * 100)"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon with two tuned kernels: one with a rule, one with a function."""
    with Daemon(tmp_path_factory.mktemp("buckets")) as running:
        for name, bucket in (("ruled", 'dict(n="pow2")'), ("chosen", FUNCTION)):
            text = kernel_text(SPACE, problems="[dict(n=90)]", bucket=bucket, default='dict(us=300.0, tag="a")')
            path = running.kernel_file(text.replace("def it(", f"def {name}("), f"tune_{name}.py")
            _, (job,) = running.tune(path=str(path))
            assert job["state"] == "done"
        running.client.lookup("none", {})
        yield running


def test_every_size_of_a_bucket_has_its_winner(daemon: Daemon) -> None:
    """The declared problem's representative was tuned, and answers for all of the bucket; load refuses other sizes."""
    hit = daemon.client.lookup("ruled", {"n": 70})
    assert (hit.status, hit.problem, hit.measured) == ("fresh", {"n": 70}, {"n": 128})
    exact = daemon.client.lookup("ruled", {"n": 128})
    assert (exact.status, exact.measured) == ("fresh", None)
    assert daemon.client.lookup("ruled", {"n": 300}).status == "near"
    with pytest.raises(LoadError, match="measured for n=128"):
        hit.load()
    (job,) = daemon.client.call("jobs", kernel="ruled", state="done")["jobs"]
    assert job["problem"] == {"n": 128}
    assert daemon.client.call("results", kernel="ruled", problem={"n": 99})["trials"]


def test_a_request_for_any_size_tunes_its_bucket(daemon: Daemon) -> None:
    """Two sizes of one bucket are one job's work."""
    _, (first,) = daemon.tune(kernel="ruled", problem={"n": 17})
    assert first["problem"] == {"n": 32}
    compiles = daemon.compiles.read_text()
    _, (second,) = daemon.tune(kernel="ruled", problem={"n": 30})
    assert second["problem"] == {"n": 32}
    assert daemon.compiles.read_text() == compiles


def test_a_function_is_asked_by_a_worker(daemon: Daemon) -> None:
    """The first lookup of a size says that its bucket is not known yet, and asks for it."""
    first = daemon.client.lookup("chosen", {"n": 33})
    assert (first.status, first.message.partition(":")[0]) == ("near", "its bucket is not known yet")
    daemon.until(lambda: daemon.client.lookup("chosen", {"n": 33}).status == "fresh", "the function's answer")
    assert daemon.client.lookup("chosen", {"n": 33}).measured == {"n": 100}
    (job,) = daemon.client.call("jobs", kernel="chosen")["jobs"]
    assert job["problem"] == {"n": 100}


def test_exported_winners_have_their_rules(daemon: Daemon, tmp_path: Path) -> None:
    """Without a daemon a file answers for all sizes of a bucket."""
    done = daemon.ktuned("export", str(tmp_path / "winners"), "--kernel", "ruled")
    assert done.returncode == 0, done.stderr
    hit = Client(str(tmp_path / "no.sock"), winners=tmp_path / "winners").lookup("ruled", {"n": 100})
    assert (hit.status, hit.measured) == ("stale", {"n": 128})


def test_a_change_of_the_rule_is_seen(daemon: Daemon) -> None:
    """The rule is part of the digest, so that a winner of other buckets is no longer fresh."""
    path = daemon.directory / "project" / "tune_ruled.py"
    digest = daemon.client.call("kernels", kernel="ruled")["kernels"][0]["digest"]
    path.write_text(path.read_text().replace('"pow2"', "64"))

    def changed() -> bool:
        return bool(daemon.client.call("kernels", kernel="ruled")["kernels"][0]["digest"] != digest)

    daemon.until(changed, "the edit to be seen")
    daemon.until(lambda: daemon.client.lookup("ruled", {"n": 120}).status == "fresh", "the bucket's new winner")


def test_wrong_rules_are_errors_of_the_file(daemon: Daemon) -> None:
    """A rule that is none, a function that moves its own results, or makes no problem."""
    for bucket, words in (
        ('dict(n="pow3")', "bucket: n is 'pow3', not 'pow2'"),
        ("lambda p: dict(n=p.n + 1)", "bucket maps"),
        ("lambda p: dict(m=1)", "bucket gives"),
        ("lambda p: 1 // 0", "ZeroDivisionError"),
    ):
        path = daemon.kernel_file(kernel_text(SPACE, bucket=bucket).replace("def it(", "def bad("), "tune_bad.py")
        (error,) = daemon.client.tune(path=str(path)).errors
        assert words in error["message"]


@pytest.mark.allow_leaks(reason="the module's daemon is another process from here on")
def test_the_next_daemon_knows_what_a_function_said(daemon: Daemon) -> None:
    """Representatives are stored: no lookup waits for a worker again."""
    daemon.stop()
    daemon.start()
    daemon.until(lambda: daemon.client.lookup("chosen", {"n": 33}).status == "fresh", "the start")
    assert "kernel_file_not_asked" not in daemon.log.read_text()
    # A daemon that a test has started is its own to stop.
    daemon.stop()
