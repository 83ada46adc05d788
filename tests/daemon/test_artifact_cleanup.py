"""``ktuned prune``: what would go, what goes, and what is never lost by it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.harness import Daemon, kernel_text

CONFIGS = "space([dict(us=50.0, tag='a'), dict(us=90.0, tag='b'), dict(us=120.0, tag='c')])"


def test_artifacts_go_and_results_stay(tmp_path: Path) -> None:
    """Asked first, nothing goes; then the losers go before the winner, and every result is still there."""
    with Daemon(tmp_path) as daemon:
        daemon.kernel_file(kernel_text(CONFIGS))
        daemon.tune(path=str(tmp_path / "project"))

        def artifacts() -> int:
            return len(list((tmp_path / "home" / "cache" / "artifacts").glob("[!.]*/*/kernel.json")))

        before = daemon.client.call("status")["artifacts"]["bytes"]
        asked = json.loads(daemon.ktuned("prune", "--dry-run", "--keep", "0", "--json").stdout)
        assert (asked["artifacts"], asked["freed_bytes"], asked["bytes"]) == (3, before, before)
        assert artifacts() == 3
        assert json.loads(daemon.ktuned("prune", "--json").stdout)["artifacts"] == 0, "the cap holds already"

        room_for_one = str((before / 3 + 1) / 2**30)
        assert json.loads(daemon.ktuned("prune", "--keep", room_for_one, "--json").stdout)["artifacts"] == 2
        hit = daemon.client.lookup("it", {"n": 64})
        assert hit.status == "fresh"
        assert hit.artifact is not None
        assert Path(hit.artifact, "kernel.json").exists()

        said = daemon.ktuned("prune", "--keep", "0").stdout
        assert said.startswith("1 artifact removed, ")
        hit = daemon.client.lookup("it", {"n": 64})
        assert (hit.status, hit.artifact) == ("fresh", None)
        assert {trial["outcome"] for trial in daemon.trials().values()} == {"measured"}
        assert daemon.ktuned("prune", "--keep", "-1").returncode == 2
