"""Shape buckets in a real daemon: every problem of a bucket gets the winner of the bucket's representative."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ktuned_client import Client, LoadError
from tests.e2e.harness import Daemon, make_kernel_text

SPACE = 'space(us=[60.0, 300.0], tag=["a"])'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon with a tuned kernel that has a bucket rule."""
    with Daemon(tmp_path_factory.mktemp("buckets")) as running:
        text = make_kernel_text(
            SPACE, problems="[dict(n=90)]", bucket='dict(n="pow2")', default='dict(us=300.0, tag="a")'
        )
        path = running.write_kernel(text.replace("def it(", "def ruled("), "tune_ruled.py")
        job = running.tune_one(path=path)
        assert job["state"] == "done"
        running.client.lookup("none", {})
        yield running


def test_every_size_of_a_bucket_has_its_winner(daemon: Daemon) -> None:
    """``load`` refuses problems other than the representative."""
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
    """Two problems of one bucket share a job."""
    first = daemon.tune_one(kernel="ruled", problem={"n": 17})
    assert first["problem"] == {"n": 32}
    compiles = daemon.compile_log.read_text()
    second = daemon.tune_one(kernel="ruled", problem={"n": 30})
    assert second["problem"] == {"n": 32}
    assert daemon.compile_log.read_text() == compiles


def test_exported_winners_have_their_rules(daemon: Daemon, tmp_path: Path) -> None:
    done = daemon.run_ktuned("export", str(tmp_path / "winners"), "--kernel", "ruled")
    assert done.returncode == 0, done.stderr
    hit = Client(str(tmp_path / "no.sock"), winners=tmp_path / "winners").lookup("ruled", {"n": 100})
    assert (hit.status, hit.measured) == ("stale", {"n": 128})


def test_a_change_of_the_bucket_rule_makes_winners_stale(daemon: Daemon) -> None:
    """The rule is part of the digest."""
    path = daemon.directory / "project" / "tune_ruled.py"
    digest = daemon.client.call("kernels", kernel="ruled")["kernels"][0]["digest"]
    path.write_text(path.read_text().replace('"pow2"', "64"))

    def has_new_digest() -> bool:
        return bool(daemon.client.call("kernels", kernel="ruled")["kernels"][0]["digest"] != digest)

    daemon.wait_until(has_new_digest, "the edit to be seen")
    daemon.wait_until(lambda: daemon.client.lookup("ruled", {"n": 120}).status == "fresh", "the bucket's new winner")
