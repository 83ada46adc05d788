"""Worktrees and clones of one project share winners while they hold the same code."""

import shutil
from pathlib import Path

from tests.e2e.harness import UNHURRIED, Daemon

FILE = f"""
from ktuned import kernel, space, tensor
from ktuned_fake import Build

@kernel(
    backend="fake", space=space([dict(us=300.0, tag="slow"), dict(us=60.0, tag="quick")]), problems=[dict(n=64)],
    inputs=lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True)), reference=lambda x: dict(y=2 * x),
    deadlines={UNHURRIED}, preset="fast",
)
def it(p, c):
    return Build(**c)
"""


def test_checkouts_of_a_project_share_winners(tmp_path: Path) -> None:
    """A clone's first lookup gets the winner, and tuning it measures nothing; an edit affects one clone only."""
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(FILE)
        (path.parent / "ktuned.toml").write_text('name = "shared"\n')
        _, (job,) = daemon.tune(path=str(path))
        clone = tmp_path / "clone"
        shutil.copytree(path.parent, clone)
        assert daemon.run_ktuned("add", str(clone)).returncode == 0
        hit = daemon.client.lookup("shared-clone:it", {"n": 64})
        assert (hit.status, (hit.config or {})["tag"], hit.latency_us) == ("fresh", "quick", job["best_us"])
        assert len(daemon.client.call("jobs")["jobs"]) == 1

        # What another checkout has found is tried first, and gives way to nothing that is slower.
        daemon.tune(kernel="shared-clone:it", configs=[dict(us=300.0, tag="slow")])
        hit = daemon.client.lookup("shared-clone:it", {"n": 64})
        assert (hit.status, (hit.config or {})["tag"]) == ("fresh", "quick")
        _, (second,) = daemon.tune(kernel="shared-clone:it")
        assert (second["state"], second["best_us"]) == ("done", job["best_us"])
        details = [daemon.fetch_trial(trial["id"])["detail"]
                   for trial in daemon.client.call("results", kernel="shared-clone:it")["trials"]]  # fmt: skip
        assert all("carried_from" in detail["timing"] for detail in details)

        (clone / path.name).write_text(FILE.replace("2 * x", "x + x"))
        daemon.wait_until(lambda: daemon.client.lookup("shared-clone:it", {"n": 64}).status == "stale", "the edit")
        assert daemon.client.lookup("shared:it", {"n": 64}).status == "fresh"
