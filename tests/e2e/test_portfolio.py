"""Portfolios from a save to a file in git: eight tuned keys answer for others, with a daemon and without."""

from pathlib import Path
from typing import Any

from ktuned_client import Client
from tests.e2e.harness import Daemon
from tests.scheduling.test_portfolios import SIZES, kernel_file


def test_a_portfolio_is_fitted_exported_and_read_without_a_daemon(daemon: Daemon, tmp_path: Path) -> None:
    """A new size gets the tree's config, from the daemon and from the file alike."""
    _, jobs = daemon.tune(path=str(daemon.kernel_file(kernel_file())))
    assert [job["state"] for job in jobs] == ["done"] * len(SIZES)

    def look_up(size: int) -> dict[str, Any]:
        return dict(daemon.client.call("lookup", kernel="it", problem={"n": size}, tune=False))

    daemon.until(lambda: "expected_loss" in look_up(300), "the fit")
    answered = {size: look_up(size) for size in (20, 300, 1000)}
    assert "expected loss" in daemon.ktuned("lookup", "it", "-p", "n=300").stdout
    assert daemon.ktuned("export", str(tmp_path / "winners"), "--kernel", "it").returncode == 0
    alone = Client(str(tmp_path / "no.sock"), winners=tmp_path / "winners")
    for size, answer in answered.items():
        hit = alone.lookup("it", {"n": size})
        assert (hit.status, hit.config, hit.expected_loss) == ("near", answer["config"], answer["expected_loss"])
    assert alone.lookup("it", {"n": SIZES[0]}).status == "stale"
