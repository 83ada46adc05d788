"""A config that kills the daemon costs two daemons, and then is quarantined: the rest of its job goes on."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.harness import Daemon, make_kernel_text

INNOCENT = 12


def await_death(daemon: Daemon) -> None:
    """Wait until the daemon was killed."""
    process = daemon.process
    assert process is not None
    daemon.wait_until(lambda: process.poll() is not None, "the daemon to be killed")


@pytest.mark.parametrize("does", ["kill_daemon", "compile_kill_daemon"])
def test_a_config_that_kills_the_daemon_is_quarantined_after_the_second_time(daemon: Daemon, does: str) -> None:
    """It is named by ``jobs``, ``kernels`` and ``doctor``; the configs beside it in a request are measured."""
    innocent = {f"t{index}": "measured" for index in range(INNOCENT)}
    configs = [{"us": 50.0 + index, "does": "work", "tag": tag} for index, tag in enumerate(innocent)]
    configs[INNOCENT // 2]["does"] = does
    innocent[f"t{INNOCENT // 2}"] = "crashed"
    path = daemon.write_kernel(make_kernel_text(f"space({configs})", strategy="'exhaustive'", early_stop="100.0"))
    daemon.client.call("tune", path=str(path))
    await_death(daemon)
    daemon.launch()
    await_death(daemon)
    daemon.start()
    daemon.wait_until(lambda: daemon.client.call("jobs")["jobs"][0]["state"] == "done", "the job to be finished")

    trials = daemon.fetch_trials()
    assert {tag: trial["outcome"] for tag, trial in trials.items()} == innocent
    deadly = trials[f"t{INNOCENT // 2}"]
    assert deadly["message"] == "the daemon died 2 times while a worker had this config"
    named = f"is quarantined: {deadly['message']}; `ktuned forget project:it --outcome crashed` lifts that"
    for command in (["jobs", "it"], ["kernels", "it"], ["doctor"]):
        assert named in " ".join(daemon.run_ktuned(*command).stdout.split()), command
    assert any(named in notice for notice in daemon.client.call("status")["notices"])

    # Once it is forgotten, it is tried again; and it kills again.
    assert daemon.run_ktuned("forget", "it", "--outcome", "crashed").returncode == 0
    assert not any("is quarantined" in notice for notice in daemon.client.call("status")["notices"])
    daemon.client.call("tune", path=str(path))
    await_death(daemon)


def test_a_job_that_cost_four_daemons_is_paused(daemon: Daemon) -> None:
    """Its reference, which is at fault, runs as a part of trials. Most configs are not blamed."""
    configs = [{"us": 50.0 + index, "does": "work", "tag": f"t{index}"} for index in range(INNOCENT)]
    path = daemon.write_kernel(
        "from ktuned_fake import kill_daemon\n\n\ndef refer(x):\n    kill_daemon()\n\n\n"
        + make_kernel_text(f"space({configs})", reference="refer")
    )
    daemon.client.call("tune", path=str(path))
    for _ in range(3):
        await_death(daemon)
        daemon.launch()
    await_death(daemon)
    daemon.start()
    (job,) = daemon.client.call("jobs")["jobs"]
    assert job["state"] == "paused"
    told = "the daemon died 4 times while a worker had this job; `ktuned jobs 1 --resume` tries again"
    assert told in " ".join(daemon.run_ktuned("jobs", "it").stdout.split())
    assert Counter(trial["outcome"] for trial in daemon.fetch_trials().values())["crashed"] <= 2

    assert daemon.run_ktuned("jobs", "1", "--resume").returncode == 0
    await_death(daemon)
