"""``ktuned tune --remeasure``: known configs are measured again, and nothing is forgotten meanwhile."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.harness import Daemon, make_kernel_text

SPACE = """space([
    dict(us=900.0, does='work', tag='slow', gate='door'),
    dict(us=300.0, does='work', tag='quick', gate='other'),
])"""


def told_apart(daemon: Daemon) -> dict[str, tuple[int, str, Any, float]]:
    """Return each config's trial: its id, outcome and latency, and when it ended."""
    found = daemon.fetch_trials()
    return {tag: (trial["id"], trial["outcome"], trial["latency_us"], trial["updated"]) for tag, trial in found.items()}


def served(daemon: Daemon) -> tuple[str, Any]:
    """Return what an application gets: the status, and the config by its tag."""
    answer = daemon.client.lookup("it", dict(n=64))
    return answer.status, (answer.config or {}).get("tag")


def test_again_measures_the_named_configs_and_keeps_results_until_then(daemon: Daemon) -> None:
    """``--config`` limits it to one; while that is measured, lookups and results are what they were."""
    path = daemon.write_kernel(make_kernel_text(SPACE))
    slow, quick = daemon.make_gate("door"), daemon.make_gate("other")
    slow.open()
    quick.open()
    daemon.tune(path=str(path))
    before = told_apart(daemon)
    slow.close()
    daemon.run_ktuned("tune", "it", "--remeasure", "--config", "us=900.0,does=work,tag=slow,gate=door", "--detach")
    slow.wait_until_reached()
    (job,) = daemon.client.call("jobs", state="running")["jobs"]
    assert served(daemon) == ("fresh", "quick")
    assert told_apart(daemon) == before
    slow.open()
    daemon.wait_until(lambda: daemon.client.call("jobs", job=job["id"])["jobs"][0]["state"] == "done", "the job's end")
    after = told_apart(daemon)
    assert after["quick"][1] == after["slow"][1] == "measured"
    assert after["slow"][3] > before["slow"][3]
    assert len(after) == len(before) == 2
    assert served(daemon) == ("fresh", "quick")


def test_again_alone_measures_everything_known_again(daemon: Daemon) -> None:
    """Without it a second tuning is done at once; with it, every config gets a newer measurement."""
    path = daemon.write_kernel(make_kernel_text(SPACE.replace("'door'", "''").replace("'other'", "''")))
    daemon.tune(path=str(path))
    before = told_apart(daemon)
    assert daemon.run_ktuned("tune", "it").returncode == 0
    assert {tag: trial[0] for tag, trial in told_apart(daemon).items()} == {
        tag: trial[0] for tag, trial in before.items()
    }
    ran = daemon.run_ktuned("tune", "it", "--remeasure", "--json")
    assert ran.returncode == 0, ran.stderr
    (job,) = json.loads(ran.stdout.splitlines()[-1])["jobs"]
    assert (job["state"], job["done"]) == ("done", 2)
    after = told_apart(daemon)
    assert all(after[tag][3] > before[tag][3] for tag in ("slow", "quick"))


def test_a_config_that_is_none_of_the_space_is_refused(daemon: Daemon) -> None:
    """With exit status 2 and the reason; nothing is queued."""
    path = daemon.write_kernel(make_kernel_text(SPACE))
    daemon.client.call("pause")
    daemon.run_ktuned("add", str(path))
    for config in ("us=5.0,does=work,tag=slow,gate=door", "us=900.0", "nonsense=1"):
        ran = daemon.run_ktuned("tune", "it", "--remeasure", "--config", config, "--detach")
        assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert daemon.client.call("jobs")["jobs"] == []
