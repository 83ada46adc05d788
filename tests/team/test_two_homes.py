"""Two homes on one machine share winners through a store: what is served, what is searched, what is published.

Configs are judged by the energy that the fake device says they take: figures that no load of this machine changes.
"""

from __future__ import annotations

from pathlib import Path

from tests.assembled import kernel_text
from tests.team.conftest import Home

CONFIGS = "[dict(us=50.0, joules=joule / 100) for joule in range(2, 9)]"
BEST = {"us": 50.0, "joules": 0.02}
KERNEL = kernel_text(configs=CONFIGS, default="dict(us=50.0, joules=0.08)", objective="'energy'")


def test_two_homes_share_through_a_directory(home: Home, tmp_path: Path) -> None:
    """The second home verifies the first one's winner, serves it fresh, and searches nothing."""
    store = tmp_path / "store"
    store.mkdir()
    first = home("first", f'url = "{store}"')
    _, (job,) = first.tune(path=str(first.kernel_file(KERNEL)))
    assert job["done"] == 7
    assert first.ktuned("team", "push").returncode == 0
    second = home("second", f'url = "{store}"')
    _, (job,) = second.tune(path=str(second.kernel_file(KERNEL)))
    assert "nothing else was searched" in job["message"]
    # The shared config, and the default for the speed-up.
    assert job["done"] == 2
    hit = second.client.lookup("it", {"n": 64})
    assert (hit.status, dict(hit.config or {})) == ("fresh", BEST)
    # A verified winner is no news.
    assert second.client.call("team_push")["sent"] == 0
