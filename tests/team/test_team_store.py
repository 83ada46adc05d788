"""Daemons with homes of their own exchange winners through one store, with nothing replaced.

Each config takes three times as long as the next, so that no load of this machine changes the winner.
"""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_parts import make_kernel_text
from tests.e2e.harness import Daemon
from tests.team.conftest import Home

OPTIONS = {"configs": "[dict(us=100.0 * 3**n) for n in range(5)]", "default": "dict(us=8100.0)"}
KERNEL = make_kernel_text(**OPTIONS)
BEST = {"us": 100.0}
SECOND = {"us": 300.0}


def tune(member: Daemon, text: str = KERNEL) -> dict[str, Any]:
    """Tune a kernel file of one problem, and return the job as it ended."""
    _, (job,) = member.tune(path=str(member.write_kernel(text)))
    return dict(job)


def answer(member: Daemon) -> tuple[str, dict[str, Any]]:
    """Return the status and the config of a lookup that asks for no tuning."""
    found = member.client.call("lookup", kernel="it", problem={"n": 64}, tune=False)
    return found["status"], found["config"]


def objects(store: Path) -> list[Path]:
    """Return the objects in a directory."""
    return sorted(path for path in store.rglob("*.json") if path.is_file())


def notices(member: Daemon) -> list[str]:
    """Return the notices about the store."""
    return [line for line in member.client.call("status")["notices"] if "team's store" in line]


def put(place: Path, document: Any, name: str = "") -> None:
    """Put an object beside others, under the name that its content asks for."""
    content = document if isinstance(document, str) else json.dumps(document)
    (place / (name or f"{sha256(content.encode()).hexdigest()}.json")).write_text(content)


def test_a_winner_of_one_is_fresh_at_the_other(home: Home, store: Path) -> None:
    """Within ``pull_s``, after a restart, and for a job, which then searches nothing; measuring again searches."""
    table = f'url = "{store}"\npull_s = 5'
    first, second = home("first", table), home("second", table)
    second.client.call("add", path=str(second.write_kernel(KERNEL).parent))
    assert tune(first)["done"] == 5
    second.wait_until(lambda: answer(second) == ("fresh", BEST), "the winner of the other")
    second.kill()
    second.start()
    second.wait_until(lambda: answer(second) == ("fresh", BEST), "the winner after a restart")
    job = tune(second)
    assert (job["state"], job["done"]) == ("done", 1)
    assert "nothing was searched" in job["message"]
    _, (again,) = second.tune(kernel="it", again=True)
    assert again["done"] == 5
    assert notices(first) + notices(second) == []


def test_a_job_waits_for_the_winners_of_others(home: Home, store: Path) -> None:
    """A member whose first act is to tune gets what others have found, although it looks only every hour."""
    table = f'url = "{store}"\npull_s = 3600'
    first = home("first", table)
    tune(first)
    first.wait_until(lambda: len(objects(store)) == 1, "the winner in the store")
    second = home("second", table)
    assert tune(second)["done"] == 1
    # What was saved meanwhile is looked for as well.
    edited = KERNEL.replace("8100.0", "2700.0").replace("range(5)", "range(1, 5)")
    assert tune(first, f"{edited}\nVALUE = 1\n")["done"] == 4
    first.wait_until(lambda: len(objects(store)) == 2, "the new winner in the store")
    assert tune(second, f"{edited}\nVALUE = 1\n")["done"] == 1
    assert answer(second) == ("fresh", SECOND)


def test_two_that_write_at_once_lose_nothing(home: Home, store: Path) -> None:
    """Each winner is an object of its own, also where both have found the same."""
    members = [home(name, f'url = "{store}"') for name in ("first", "second")]
    texts = [f"{KERNEL}\n\n{make_kernel_text(name, **OPTIONS)}" for name in ("one", "two")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda member, text: member.tune(path=str(member.write_kernel(text))), members, texts))
        pushed = list(pool.map(lambda member: member.run_ktuned("share", "push"), members))
    assert [done.returncode for done in pushed] == [0, 0], pushed
    found = [json.loads(path.read_text())["kernel"] for path in objects(store)]
    assert {*found} == {"shop:it", "shop:one", "shop:two"}


def test_kill_9_loses_nothing(home: Home, store: Path) -> None:
    """The next daemon writes what the killed one had not; what is there is not written again."""
    member = home("first", f'url = "{store}"')
    tune(member)
    member.kill()
    member.start()
    member.wait_until(lambda: len(objects(store)) == 1, "the winner in the store")
    (place,) = objects(store)
    written = place.stat().st_mtime_ns
    member.kill()
    member.start()
    pushed = member.run_ktuned("share", "push")
    assert (pushed.returncode, pushed.stderr) == (0, "")
    assert [path.stat().st_mtime_ns for path in objects(store)] == [written]
    # A power failure may have cut off a file.
    place.write_text(place.read_text()[:100])
    member.kill()
    member.start()
    member.wait_until(lambda: place.stat().st_size > 100, "the whole object")


def test_what_is_no_winner_is_left_out(home: Home, store: Path) -> None:
    """It is one notice, whatever it is, and changes nothing; a removed object is not mentioned any more."""
    first = home("first", f'url = "{store}"')
    tune(first)
    first.wait_until(lambda: len(objects(store)) == 1, "the winner in the store")
    (good,) = objects(store)
    document = json.loads(good.read_text())
    (winner,) = document["winners"]
    place = good.parent
    put(place, {})
    put(place, "not JSON")
    put(place, "[" * 100_000)
    put(place, {**document, "ktuned_winners": 2})
    put(place, {**document, "kernel": "shop:other"})
    put(place, {**document, "winners": [winner, winner]})
    put(place, {**document, "names": {str(number): [] for number in range(5000)}})
    put(place, json.dumps({**document, "default": "x" * 2**20}))
    put(place, good.read_text().replace("100.0", "300.0"), good.name.replace(good.name[:4], "0000"))
    put(place, {**document, "winners": [{**winner, "spread_us": float("nan")}]})
    (place / ("0" * 64 + ".json")).symlink_to("/etc/passwd")
    second = home("second", f'url = "{store}"')
    second.client.call("add", path=str(second.write_kernel(KERNEL).parent))
    pulled = second.run_ktuned("share", "pull")
    assert (pulled.returncode, pulled.stderr) == (0, "")
    assert answer(second) == ("fresh", BEST)
    (notice,) = notices(second)
    assert "11 objects are left out" in notice
    assert second.client.call("status")["share"]["taken"] == 1
    for path in {*objects(store)} - {good}:
        path.unlink()
    assert second.run_ktuned("share", "pull").returncode == 0
    assert notices(second) == []


def test_winners_are_judged_as_by_an_import(home: Home, store: Path) -> None:
    """A config that the space does not hold is refused, and so is one that was tried here in the same context."""
    first = home("first", f'url = "{store}"')
    tune(first)
    first.wait_until(lambda: len(objects(store)) == 1, "the winner in the store")
    document = json.loads(objects(store)[0].read_text())
    (winner,) = document["winners"]
    for us in (50.0, 300.0):
        put(objects(store)[0].parent, {**document, "winners": [{**winner, "config": {"us": us}, "latency_us": 1.0}]})
    assert first.run_ktuned("share", "pull").returncode == 0
    assert (answer(first), notices(first)) == (("fresh", BEST), [])


def test_ci_pushes_and_developers_pull_through_s3(home: Home, s3: dict[str, str]) -> None:
    """By commands that wait; a developer may only read."""
    ci = home("ci", 'url = "s3://team/kernels"', **s3)
    tune(ci)
    pushed = ci.run_ktuned("share", "push")
    assert (pushed.returncode, pushed.stderr) == (0, "")
    developer = home("developer", 'url = "s3://team/kernels"\nread_only = true', **s3)
    assert developer.run_ktuned("add", str(developer.write_kernel(KERNEL).parent)).returncode == 0
    assert developer.run_ktuned("share", "pull").returncode == 0
    assert answer(developer) == ("fresh", BEST)
    refused = developer.run_ktuned("share", "push")
    assert (refused.returncode, "only read here" in refused.stderr) == (2, True)
    assert "s3://team/kernels: 1 winner taken, only read" in developer.run_ktuned("status").stdout


@pytest.mark.parametrize("kind", ["server", "directory"])
def test_a_store_that_is_gone_is_a_notice(home: Home, tmp_path: Path, kind: str) -> None:
    """Tuning goes on; the commands fail with the reason, and without a URL's secrets. A directory is not made."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    env = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "c"}
    url = {"server": "s3://user:hush@team/x", "directory": f"{tmp_path}/gone"}[kind]
    ci = home("ci", f'url = "{url}"', **env)
    assert tune(ci)["done"] == 5
    pushed = ci.run_ktuned("share", "push")
    assert pushed.returncode == 1
    (notice,) = notices(ci)
    assert "tuning continues without it" in notice
    assert "hush" not in pushed.stdout + pushed.stderr + notice + ci.log.read_text()
    assert not (tmp_path / "gone").exists()
