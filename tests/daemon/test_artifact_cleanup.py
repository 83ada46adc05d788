"""The limit on artifacts: which ones are removed, and what stays."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.harness import Daemon, make_kernel_text

CONFIGS = "space([dict(us=50.0, tag='a'), dict(us=90.0, tag='b'), dict(us=120.0, tag='c')])"


def test_artifacts_of_losers_are_removed_first(tmp_path: Path) -> None:
    """Every result stays."""
    with Daemon(tmp_path) as daemon:
        daemon.write_kernel(make_kernel_text(CONFIGS))
        daemon.tune(path=tmp_path / "project")

        def count_artifacts() -> int:
            return len(list((tmp_path / "home" / "cache" / "artifacts").glob("[!.]*/*/kernel.json")))

        def lower_cap(size: float) -> None:
            config = tmp_path / "home" / "config.toml"
            config.write_text(f"contention = false\nspares = false\nartifacts_gib = {size / 2**30:.12f}\n")
            daemon.stop()
            daemon.start()

        assert count_artifacts() == 3
        lower_cap(daemon.client.call("status")["artifacts"]["bytes"] / 2)
        daemon.wait_until(lambda: count_artifacts() == 1, "the losers' artifacts to go")
        hit = daemon.look_up()
        assert hit.status == "fresh"
        assert hit.artifact is not None
        assert Path(hit.artifact, "kernel.json").exists()

        lower_cap(1)
        daemon.wait_until(lambda: count_artifacts() == 0, "the winner's artifact to go")
        daemon.wait_until(lambda: daemon.look_up().artifact is None, "the lookup to know")
        assert daemon.look_up().status == "fresh"
        assert {trial["outcome"] for trial in daemon.fetch_trials().values()} == {"measured"}
