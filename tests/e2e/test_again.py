"""``ktuned tune --remeasure`` measures known configs again and forgets nothing meanwhile."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.harness import Daemon, make_kernel_text

SPACE = """space([
    dict(us=900.0, does='work', tag='slow', gate='door'),
    dict(us=300.0, does='work', tag='quick', gate='other'),
])"""


def fetch_measurements(daemon: Daemon) -> dict[str, tuple[int, str, Any, float]]:
    """Return each config's trial by its tag: its id, outcome, latency and end."""
    trials = daemon.fetch_trials()
    return {
        tag: (trial["id"], trial["outcome"], trial["latency_us"], trial["updated"]) for tag, trial in trials.items()
    }


def look_up_tag(daemon: Daemon) -> tuple[str, Any]:
    """Return the status of a lookup, and the tag of the config."""
    answer = daemon.look_up()
    return answer.status, (answer.config or {}).get("tag")


def test_remeasure_with_config_measures_that_config_again(daemon: Daemon) -> None:
    """Until the config is measured, lookups and results stay as they were."""
    path = daemon.write_kernel(make_kernel_text(SPACE))
    slow, quick = daemon.make_gate("door"), daemon.make_gate("other")
    slow.open()
    quick.open()
    daemon.tune(path=path)
    before = fetch_measurements(daemon)
    slow.close()
    daemon.run_ktuned("tune", "it", "--remeasure", "--config", "us=900.0,does=work,tag=slow,gate=door", "--detach")
    slow.wait_until_reached()
    (job,) = daemon.client.call("jobs", state="running")["jobs"]
    assert look_up_tag(daemon) == ("fresh", "quick")
    assert fetch_measurements(daemon) == before
    slow.open()
    daemon.wait_until(lambda: daemon.client.call("jobs", job=job["id"])["jobs"][0]["state"] == "done", "the job's end")
    after = fetch_measurements(daemon)
    assert after["quick"][1] == after["slow"][1] == "measured"
    assert after["slow"][3] > before["slow"][3]
    assert len(after) == len(before) == 2
    assert look_up_tag(daemon) == ("fresh", "quick")


def test_remeasure_alone_measures_all_known_configs_again(daemon: Daemon) -> None:
    """Without the option, a second tuning ends at once."""
    path = daemon.write_kernel(make_kernel_text(SPACE.replace("'door'", "''").replace("'other'", "''")))
    daemon.tune(path=path)
    before = fetch_measurements(daemon)
    assert daemon.run_ktuned("tune", "it").returncode == 0
    assert {tag: trial[0] for tag, trial in fetch_measurements(daemon).items()} == {
        tag: trial[0] for tag, trial in before.items()
    }
    result = daemon.run_ktuned("tune", "it", "--remeasure", "--json")
    assert result.returncode == 0, result.stderr
    (job,) = json.loads(result.stdout.splitlines()[-1])["jobs"]
    assert (job["state"], job["done"]) == ("done", 2)
    after = fetch_measurements(daemon)
    assert all(after[tag][3] > before[tag][3] for tag in ("slow", "quick"))
