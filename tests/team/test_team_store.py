"""Daemons with their own homes exchange winners through one store, and replace nothing there.

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
from tests.team.conftest import StartMember

OPTIONS = {"configs": "[dict(us=100.0 * 3**n) for n in range(5)]", "default": "dict(us=8100.0)"}
KERNEL = make_kernel_text(**OPTIONS)
BEST = {"us": 100.0}
SECOND = {"us": 300.0}


def tune_kernel(member: Daemon, text: str = KERNEL) -> dict[str, Any]:
    """Tune a kernel file of one problem, and return the ended job."""
    job = member.tune_one(path=member.write_kernel(text))
    return dict(job)


def look_up(member: Daemon) -> tuple[str, dict[str, Any]]:
    """Return the status and the config of a lookup that starts no tuning."""
    answer = member.client.call("lookup", kernel="it", problem={"n": 64}, tune=False)
    return answer["status"], answer["config"]


def list_objects(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*.json") if path.is_file())


def list_notices(member: Daemon) -> list[str]:
    """Return the notices about the store."""
    return [line for line in member.client.call("status")["notices"] if "team's store" in line]


def write_object(directory: Path, document: Any, name: str = "") -> None:
    """Write an object beside others, under the name that its content requires."""
    content = document if isinstance(document, str) else json.dumps(document)
    (directory / (name or f"{sha256(content.encode()).hexdigest()}.json")).write_text(content)


def test_a_member_s_winner_is_fresh_at_the_others(start_member: StartMember, team_store: Path) -> None:
    """Cases: within ``pull_s``, after a restart, and in a job, which searches nothing unless it measures again."""
    table = f'url = "{team_store}"\npull_s = 5'
    first, second = start_member("first", table), start_member("second", table)
    second.client.call("add", path=str(second.write_kernel(KERNEL).parent))
    assert tune_kernel(first)["done"] == 5
    second.wait_until(lambda: look_up(second) == ("fresh", BEST), "the winner of the other")
    second.kill()
    second.start()
    second.wait_until(lambda: look_up(second) == ("fresh", BEST), "the winner after a restart")
    job = tune_kernel(second)
    assert (job["state"], job["done"]) == ("done", 1)
    assert "nothing was searched" in job["message"]
    again = second.tune_one(kernel="it", again=True)
    assert again["done"] == 5
    assert list_notices(first) + list_notices(second) == []


def test_a_job_first_fetches_the_winners_of_others(start_member: StartMember, team_store: Path) -> None:
    """A member that reads the store every hour tunes at once."""
    table = f'url = "{team_store}"\npull_s = 3600'
    first = start_member("first", table)
    tune_kernel(first)
    first.wait_until(lambda: len(list_objects(team_store)) == 1, "the winner in the store")
    second = start_member("second", table)
    assert tune_kernel(second)["done"] == 1
    # What was saved meanwhile is looked for as well.
    edited = KERNEL.replace("8100.0", "2700.0").replace("range(5)", "range(1, 5)")
    assert tune_kernel(first, f"{edited}\nVALUE = 1\n")["done"] == 4
    first.wait_until(lambda: len(list_objects(team_store)) == 2, "the new winner in the store")
    assert tune_kernel(second, f"{edited}\nVALUE = 1\n")["done"] == 1
    assert look_up(second) == ("fresh", SECOND)


def test_members_that_write_at_once_lose_nothing(start_member: StartMember, team_store: Path) -> None:
    """Each winner is an object of its own, even if both found the same."""
    members = [start_member(name, f'url = "{team_store}"') for name in ("first", "second")]
    texts = [f"{KERNEL}\n\n{make_kernel_text(name, **OPTIONS)}" for name in ("one", "two")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda member, text: member.tune(path=str(member.write_kernel(text))), members, texts))
        pushed = list(pool.map(lambda member: member.run_ktuned("share", "push"), members))
    assert [done.returncode for done in pushed] == [0, 0], pushed
    kernels = [json.loads(path.read_text())["kernel"] for path in list_objects(team_store)]
    assert {*kernels} == {"shop:it", "shop:one", "shop:two"}


def test_kill_9_loses_nothing(start_member: StartMember, team_store: Path) -> None:
    """The next daemon writes what the killed one did not, and nothing twice."""
    member = start_member("first", f'url = "{team_store}"')
    tune_kernel(member)
    member.kill()
    member.start()
    member.wait_until(lambda: len(list_objects(team_store)) == 1, "the winner in the store")
    (object_path,) = list_objects(team_store)
    written_ns = object_path.stat().st_mtime_ns
    member.kill()
    member.start()
    pushed = member.run_ktuned("share", "push")
    assert (pushed.returncode, pushed.stderr) == (0, "")
    assert [path.stat().st_mtime_ns for path in list_objects(team_store)] == [written_ns]
    # A power failure may have cut off a file.
    object_path.write_text(object_path.read_text()[:100])
    member.kill()
    member.start()
    member.wait_until(lambda: object_path.stat().st_size > 100, "the whole object")


def test_an_object_that_is_no_winner_is_one_notice(start_member: StartMember, team_store: Path) -> None:
    """It changes nothing; the notice ends with the object."""
    first = start_member("first", f'url = "{team_store}"')
    tune_kernel(first)
    first.wait_until(lambda: len(list_objects(team_store)) == 1, "the winner in the store")
    (good,) = list_objects(team_store)
    document = json.loads(good.read_text())
    (winner,) = document["winners"]
    directory = good.parent
    write_object(directory, {})
    write_object(directory, "not JSON")
    write_object(directory, "[" * 100_000)
    write_object(directory, {**document, "ktuned_winners": 2})
    write_object(directory, {**document, "kernel": "shop:other"})
    write_object(directory, {**document, "winners": [winner, winner]})
    write_object(directory, {**document, "names": {str(number): [] for number in range(5000)}})
    write_object(directory, json.dumps({**document, "default": "x" * 2**20}))
    write_object(directory, good.read_text().replace("100.0", "300.0"), good.name.replace(good.name[:4], "0000"))
    write_object(directory, {**document, "winners": [{**winner, "spread_us": float("nan")}]})
    (directory / ("0" * 64 + ".json")).symlink_to("/etc/passwd")
    second = start_member("second", f'url = "{team_store}"')
    second.client.call("add", path=str(second.write_kernel(KERNEL).parent))
    pulled = second.run_ktuned("share", "pull")
    assert (pulled.returncode, pulled.stderr) == (0, "")
    assert look_up(second) == ("fresh", BEST)
    (notice,) = list_notices(second)
    assert "11 objects are left out" in notice
    assert second.client.call("status")["share"]["taken"] == 1
    for path in {*list_objects(team_store)} - {good}:
        path.unlink()
    assert second.run_ktuned("share", "pull").returncode == 0
    assert list_notices(second) == []


def test_shared_winners_are_judged_as_by_an_import(start_member: StartMember, team_store: Path) -> None:
    """A config outside the space is refused, and so is one that was tried here in the same context."""
    first = start_member("first", f'url = "{team_store}"')
    tune_kernel(first)
    first.wait_until(lambda: len(list_objects(team_store)) == 1, "the winner in the store")
    document = json.loads(list_objects(team_store)[0].read_text())
    (winner,) = document["winners"]
    for us in (50.0, 300.0):
        write_object(
            list_objects(team_store)[0].parent,
            {**document, "winners": [{**winner, "config": {"us": us}, "latency_us": 1.0}]},
        )
    assert first.run_ktuned("share", "pull").returncode == 0
    assert (look_up(first), list_notices(first)) == (("fresh", BEST), [])


def test_ci_pushes_and_developers_pull_through_s3(start_member: StartMember, s3_variables: dict[str, str]) -> None:
    """Commands wait until they have ended; a developer may have read access only."""
    ci = start_member("ci", 'url = "s3://team/kernels"', **s3_variables)
    tune_kernel(ci)
    pushed = ci.run_ktuned("share", "push")
    assert (pushed.returncode, pushed.stderr) == (0, "")
    developer = start_member("developer", 'url = "s3://team/kernels"\nread_only = true', **s3_variables)
    assert developer.run_ktuned("add", str(developer.write_kernel(KERNEL).parent)).returncode == 0
    assert developer.run_ktuned("share", "pull").returncode == 0
    assert look_up(developer) == ("fresh", BEST)
    refused = developer.run_ktuned("share", "push")
    assert (refused.returncode, "only reads the team's store" in refused.stderr) == (2, True)
    assert "s3://team/kernels: 1 winner taken, only read" in developer.run_ktuned("status").stdout


@pytest.mark.parametrize("kind", ["server", "directory"])
def test_an_unreachable_store_is_a_notice(start_member: StartMember, tmp_path: Path, kind: str) -> None:
    """Tuning goes on; commands fail with the reason, without the URL's secrets. The directory is not created."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    env = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "c"}
    url = {"server": "s3://user:hush@team/x", "directory": f"{tmp_path}/gone"}[kind]
    ci = start_member("ci", f'url = "{url}"', **env)
    assert tune_kernel(ci)["done"] == 5
    pushed = ci.run_ktuned("share", "push")
    assert pushed.returncode == 1
    (notice,) = list_notices(ci)
    assert "tuning continues without it" in notice
    assert "hush" not in pushed.stdout + pushed.stderr + notice + ci.log.read_text()
    assert not (tmp_path / "gone").exists()
    if kind == "directory":
        # The notice ends with its cause.
        (tmp_path / "gone").mkdir()
        assert ci.run_ktuned("share", "push").returncode == 0
        assert list_notices(ci) == []
