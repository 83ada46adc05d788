"""Two homes on one machine share winners through each kind of store, by commands, as CI and developers do.

Configs are judged by the energy that the fake device says they take: figures that no load of this machine changes.
"""

from __future__ import annotations

import pytest

from tests.assembled import kernel_text
from tests.team.conftest import Home, Server

pytestmark = pytest.mark.skip(reason="written for a search by energy; these tests go with the exchange itself")

CONFIGS = "[dict(us=50.0, joules=joule / 100) for joule in range(2, 9)]"
BEST = {"us": 50.0, "joules": 0.02}
KERNEL = kernel_text(configs=CONFIGS, default="dict(us=50.0, joules=0.08)", objective="'min:energy'")


def test_ci_tunes_and_developers_pull(home: Home, store: Server, request: pytest.FixtureRequest) -> None:
    """The developer's home verifies CI's winner, serves it fresh, and searches nothing; `kill -9` loses nothing."""
    if not store.url.startswith("unix:"):
        # One of them is enough each time: a server, whose client is the longer way.
        request.getfixturevalue("only_in_chaos")
    ci = home("ci", f'url = "{store.url}"', **store.env)
    _, (job,) = ci.tune(path=str(ci.kernel_file(KERNEL)))
    assert job["done"] == 7
    ci.kill()
    ci.start()
    pushed = ci.ktuned("share", "push")
    assert (pushed.returncode, pushed.stderr) == (0, "")
    developer = home("developer", f'url = "{store.url}"\nread_only = true', **store.env)
    assert developer.ktuned("add", str(developer.kernel_file(KERNEL).parent)).returncode == 0
    pulled = developer.ktuned("share", "pull", "it")
    assert pulled.returncode == 0, pulled.stderr
    assert "nothing else was searched" in pulled.stdout
    hit = developer.client.lookup("it", {"n": 64})
    assert (hit.status, dict(hit.config or {})) == ("fresh", BEST)
    refused = developer.ktuned("share", "push")
    assert (refused.returncode, "only read here" in refused.stderr) == (2, True)
    status = developer.ktuned("share", "status")
    assert status.returncode == 0
    assert "only read" in status.stdout


def test_a_server_that_is_gone_is_a_notice(home: Home) -> None:
    """Tuning goes on; `push` and `status` say what is wrong, and exit with 1."""
    ci = home("ci", 'url = "redis://user:secret@127.0.0.1:9/0"')
    _, (job,) = ci.tune(path=str(ci.kernel_file(KERNEL)))
    assert (job["state"], job["done"]) == ("done", 7)
    for command in ("push", "status"):
        done = ci.ktuned("share", command)
        assert done.returncode == 1
        assert "redis://…@127.0.0.1:9/0" in done.stdout + done.stderr
        assert "secret" not in done.stdout + done.stderr
    (notice,) = [line for line in ci.client.call("status")["notices"] if "shared store" in line]
    assert "tuning continues without it" in notice
