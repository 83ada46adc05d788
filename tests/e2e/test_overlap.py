"""Jobs overlap: the next jobs compile while one is measured, and get the lane one after the other."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.harness import Daemon, make_kernel_text

CONFIGS = "space([dict(us=50.0 + 100 * n, tag=str(n)) for n in range(3)])"
BODY = "Build(us=c.us, tag=f'{p.n}-{c.tag}', gate='launch' if p.n == 1 else '')"
"""Each problem has artifacts of its own; the first one's configs stand at a gate when they are launched."""

KERNEL = make_kernel_text(
    CONFIGS, body=BODY, problems="[dict(n=n) for n in (1, 2, 3)]", strategy="'exhaustive'", early_stop="100.0"
)


def count_in_channel(daemon: Daemon, name: str) -> int:
    """Return the number of configs in a job's channel."""
    used: int = daemon.client.call("status")["channels"].get(name, {"used": 0})["used"]
    return used


def request_jobs(daemon: Daemon) -> list[int]:
    """Request all three jobs and return their ids."""
    return [job["id"] for job in daemon.client.call("tune", path=str(daemon.write_kernel(KERNEL)))["jobs"]]


def list_states(daemon: Daemon, jobs: list[int]) -> list[str]:
    states = {job["id"]: job["state"] for job in daemon.client.call("jobs")["jobs"]}
    return [states[job] for job in jobs]


def hold_first_at_launch(daemon: Daemon, jobs: list[int]) -> None:
    """Wait until the first job is measured and the others have compiled everything."""
    daemon.make_gate("launch").wait_until_reached()
    # Each channel holds two of three configs, because the lane's task has taken one.
    names = [f"bench (job {job})" for job in jobs[1:]]
    daemon.wait_until(lambda: all(count_in_channel(daemon, name) == 2 for name in names), "all to be compiled")


def test_a_killed_daemon_resumes_all_running_jobs(tmp_path: Path) -> None:
    """Nothing is compiled twice."""
    with Daemon(tmp_path, config="compile_slots = 2\n") as daemon:
        jobs = request_jobs(daemon)
        hold_first_at_launch(daemon, jobs)
        daemon.kill()
        daemon.make_gate("launch").open()
        daemon.start()

        daemon.wait_until(lambda: list_states(daemon, jobs) == ["done"] * 3, "the jobs to be done")
        assert daemon.compile_log.read_text().count("compile ") == 9
