"""Applications with the drop-in and a real daemon, to the winner: the CPU stands in for a GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ktuned.spool import RECORD_SUFFIX, CallRecord, leave_record, spool_directory
from ktuned_client.answers import ENDED_STATES
from tests.e2e.harness import Daemon

STAND_IN = Path(__file__).parent / "triton_stand_in"
APPLICATION = Path(__file__).parent / "triton_app" / "application.py"
DEADLINE_S = 120.0


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Return a daemon, not started, whose triton backend is the stand-in; applications have its home."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), *filter(None, sys.path)]))
    made = Daemon(tmp_path, tensors="torch")
    yield made
    made.__exit__(None, None, None)


def start_call(daemon: Daemon, sizes: str, how: str = "end") -> subprocess.Popen[str]:
    """Start the application."""
    return subprocess.Popen(
        [sys.executable, str(APPLICATION), sizes, how],
        env=daemon.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(daemon: Daemon, sizes: str, how: str = "end") -> list[str]:
    """Run the application to its end, and return the lines that it printed."""
    with start_call(daemon, sizes, how) as process:
        said, wrong = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, wrong
    return said.splitlines()


def ended_jobs(daemon: Daemon, count: int) -> list[dict[str, Any]]:
    """Return all jobs once so many have ended, and none is open."""
    found: list[dict[str, Any]] = []

    def have_ended() -> bool:
        found[:] = daemon.client.call("jobs")["jobs"]
        return len(found) >= count and all(job["state"] in ENDED_STATES for job in found)

    daemon.until(have_ended, f"{count} jobs to end")
    return found


def spooled(daemon: Daemon) -> list[Path]:
    """Return the records that wait."""
    return sorted(spool_directory(daemon.home).glob(f"*{RECORD_SUFFIX}"))


def test_a_program_that_ends_at_once_has_its_keys_tuned_by_a_daemon_that_starts_later(daemon: Daemon) -> None:
    """Also by ``os._exit``; the next program launches the winners in its first calls, and is recorded no more."""
    assert call(daemon, "4096,2048", "exit") == ["called 128 128"]
    assert len(spooled(daemon)) == 2
    daemon.start()
    jobs = ended_jobs(daemon, 2)
    assert [(job["state"], job["problem"]["size"]) for job in jobs] == [("done", 4096), ("done", 2048)] or [
        (job["state"], job["problem"]["size"]) for job in jobs
    ] == [("done", 2048), ("done", 4096)], jobs
    assert {job["kernel"] for job in jobs} == {"tests:plugins.triton_app.kernels.scale"}
    daemon.until(lambda: not spooled(daemon), "the records to be gone")
    assert call(daemon, "4096,2048") == ["called 256 256"]
    assert spooled(daemon) == []
    assert len(daemon.client.call("jobs")["jobs"]) == 2


def test_exact_numerics_keep_to_the_bits_of_the_first_config(daemon: Daemon) -> None:
    """Which the application launches meanwhile; a tuning by tolerance of the same function is another kernel's."""
    daemon.env["KTUNED_RUN_NUMERICS"] = "exact"
    daemon.start()
    assert call(daemon, "4096") == ["called 128"]
    (job,) = ended_jobs(daemon, 1)
    assert (job["state"], job["objective"]) == ("done", "exact:latency"), job
    found = daemon.client.call("results", kernel=job["kernel"])["trials"]
    # One that has other bits on its first input already is launched on no other.
    classes = {(trial["config"]["THROUGH"], trial["class"].rstrip("?")) for trial in found}
    assert classes == {("~None", "A"), ("~triton.language.float16", "B")}
    (winner,) = [trial["config"] for trial in found if trial["winner"]]
    assert (winner["BLOCK"], winner["THROUGH"]) == (256, "~None")
    assert call(daemon, "4096") == ["called 256"]
    daemon.env["KTUNED_RUN_NUMERICS"] = "tolerance"
    call(daemon, "4096")
    assert {job["objective"] for job in ended_jobs(daemon, 2)} == {"latency", "exact:latency"}


def test_a_busy_application_gets_the_winner(daemon: Daemon) -> None:
    """Its loop never stops, and the winner takes the config's place."""
    daemon.start()
    assert call(daemon, "4096", "loop") == ["called 128", "winner"]


def test_many_processes_that_record_one_key_are_one_job(daemon: Daemon) -> None:
    """Their records have one name; what comes later finds the winner."""
    processes = [start_call(daemon, "4096") for _ in range(8)]
    for process in processes:
        said, wrong = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, said) == (0, "called 128\n"), wrong
    assert len(spooled(daemon)) == 1
    daemon.start()
    assert len(ended_jobs(daemon, 1)) == 1


def test_a_daemon_that_is_killed_takes_each_record_in_once(daemon: Daemon) -> None:
    """Wherever it was: the record stays until its job is committed."""
    call(daemon, "4096,2048,1024,512")
    for _ in range(4):
        daemon.start()
        daemon.until(lambda: len(spooled(daemon)) < 4, "a record to be taken in")
        daemon.kill()
    daemon.start()
    jobs = ended_jobs(daemon, 4)
    assert sorted(job["problem"]["size"] for job in jobs) == [512, 1024, 2048, 4096]
    assert spooled(daemon) == []


def test_bad_records_are_a_notice_each_and_delay_nothing(daemon: Daemon, tmp_path: Path) -> None:
    """A damaged one, a link, one of a library that is gone, one of an interpreter that is."""
    call(daemon, "4096")
    (good,) = spooled(daemon)
    record = CallRecord.from_bytes(good.read_bytes())
    origin = {**record.declaration["origin"], "module": "no_such_library"}
    lost = {**record.declaration, "origin": origin}
    leave_record(good.parent, replace(record, declaration=lost, identity="0" * 16, function="gone"))
    leave_record(good.parent, replace(record, python="/no/such/python", identity="1" * 16, function="nowhere"))
    (good.parent / "0000000000000000.call").write_bytes(good.read_bytes()[:-5])
    (good.parent / "1111111111111111.call").symlink_to(tmp_path / "elsewhere")
    (good.parent / "strange.txt").write_text("strange")
    daemon.start()
    jobs = ended_jobs(daemon, 2)
    states = {job["kernel"].rpartition(":")[2]: (job["state"], job["message"]) for job in jobs}
    assert states["plugins.triton_app.kernels.scale"][0] == "done"
    assert states["gone"][0] == "failed"
    assert "no_such_library cannot be imported: ModuleNotFoundError" in states["gone"][1]
    daemon.until(lambda: not spooled(daemon), "the records to be gone")
    notices = daemon.client.call("status")["notices"]
    for reason in ("it is damaged", "it is a link", "it is not a record"):
        assert sum(reason in notice for notice in notices) == 1, notices


def test_an_edit_of_the_function_is_another_kernel(daemon: Daemon, tmp_path: Path) -> None:
    """Told apart by the beginning of its identity; the application launches what was measured with its own source."""
    source = APPLICATION.with_name("kernels.py").read_text()
    package = tmp_path / "own"
    package.mkdir()
    (package / "edited.py").write_text(source)
    daemon.env["PYTHONPATH"] = os.pathsep.join([str(package), daemon.env["PYTHONPATH"]])
    program = APPLICATION.read_text().replace(
        "from tests.plugins.triton_app import kernels", "import edited as kernels"
    )
    (package / "program.py").write_text(program)

    def run() -> list[str]:
        done = subprocess.run(
            [sys.executable, str(package / "program.py"), "4096"],
            env=daemon.env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        return done.stdout.splitlines()

    daemon.start()
    assert run() == ["called 128"]
    ended_jobs(daemon, 1)
    assert run() == ["called 256"]
    (package / "edited.py").write_text(source.replace("values * factor", "values * factor + 0.0"))
    assert run() == ["called 128"]
    jobs = ended_jobs(daemon, 2)
    first, second = sorted({job["kernel"] for job in jobs})
    assert first == "edited:scale"
    assert second.startswith("edited:scale-")
    assert run() == ["called 256"]


def test_a_wait_gets_the_winner_in_its_first_call(daemon: Daemon) -> None:
    """Under ``ktuned run --wait``, and the summary says what became of it."""
    daemon.start()
    done = daemon.ktuned("run", "--wait", sys.executable, str(APPLICATION), "4096,2048", timeout_s=DEADLINE_S)
    assert done.stdout.splitlines() == ["called 256 256"], done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert "adopted 1 function: tests: scale" in lines[-2], lines
    assert "2 tuning keys: 2 tuned, 0 recorded now" in lines[-1], lines


def test_a_key_whose_record_is_on_its_way_has_no_ending_yet(daemon: Daemon) -> None:
    """An application that waits for it is told nothing that it would take for the end of a tuning."""
    call(daemon, "4096")
    (place,) = spooled(daemon)
    record = CallRecord.from_bytes(place.read_bytes())
    daemon.start()
    ended_jobs(daemon, 1)

    def answer(size: int) -> dict[str, Any]:
        key = {
            "identity": record.identity,
            "problem": {**record.problem, "size": size},
            "device": record.device or None,
        }
        (found,) = daemon.client.call("calls", keys=[key])["answers"]
        return dict(found)

    assert (answer(4096)["status"], answer(4096)["message"]) == ("fresh", "")
    assert (answer(2048)["is_open"], answer(2048)["message"]) == (False, "")


SCRIPTS_END = """
import torch
from triton.runtime.jit import JITFunction
from ktuned.dropin import Policy
scaled.__dict__["_ktuned_policy"] = Policy("background", takes_over=True)
JITFunction.run = lambda self, *args, **kwargs: None  # nothing can be launched here
x = torch.ones(256)
scaled[(4,)](x, torch.empty_like(x), 256)
"""


def test_the_function_of_a_script_is_tuned_from_its_source(daemon: Daemon, tmp_path: Path) -> None:
    """No other process can import it, and the script may be gone by then."""
    script = tmp_path / "one_file.py"
    script.write_text((APPLICATION.parent / "as_script.py").read_text() + SCRIPTS_END)
    done = subprocess.run(
        [sys.executable, str(script)], env=daemon.env, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    script.unlink()
    daemon.start()
    (job,) = ended_jobs(daemon, 1)
    assert (job["state"], job["kernel"]) == ("done", "one_file:scaled"), job


def test_without_a_device_a_call_waits(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled that nobody asked for; a daemon with a device tunes it."""
    call(daemon, "4096")
    with_device = daemon.env["PYTHONPATH"]
    daemon.env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    daemon.start()

    def notices() -> str:
        return " ".join(daemon.client.call("status")["notices"])

    daemon.until(lambda: "a call of an application waits for a GPU" in notices(), "the notice")
    assert daemon.client.call("jobs")["jobs"] == []
    assert len(spooled(daemon)) == 1
    daemon.stop()
    daemon.env["PYTHONPATH"] = with_device
    daemon.start()
    (job,) = ended_jobs(daemon, 1)
    assert job["state"] == "done", job
    assert spooled(daemon) == []


def test_of_a_function_with_many_keys_few_are_tuned_and_the_others_get_the_config_of_one_near_them(
    daemon: Daemon,
) -> None:
    """The first 16 of 24 lengths that hardly differ; then a far one when it takes much time, and not its neighbour."""
    daemon.start()
    close = [4096 + number for number in range(24)]
    call(daemon, ",".join(map(str, close)))
    jobs = ended_jobs(daemon, 16)
    daemon.until(lambda: not spooled(daemon), "the records to be taken in")
    assert sorted(job["problem"]["size"] for job in jobs) == close[:16]
    assert call(daemon, ",".join(map(str, close))) == ["called " + " ".join(["256"] * 24)]
    call(daemon, ",".join(["64"] * 200))
    ended_jobs(daemon, 17)
    call(daemon, "65")
    daemon.until(lambda: not spooled(daemon), "the records to be taken in")
    jobs = ended_jobs(daemon, 17)
    assert [job["problem"]["size"] for job in jobs if job["problem"]["size"] < 4096] == [64]


def test_keys_that_are_not_tuned_get_the_configs_of_a_portfolio_that_is_fitted_to_the_tuned_ones(
    daemon: Daemon,
) -> None:
    """Each of 16 tuned lengths has one of two blocks; the portfolio's borders are measured on keys that have calls."""
    daemon.start()
    tuned = [*range(1000, 1800, 100), *range(16_000, 20_000, 500)]
    others = [1050, 1850, 4_000, 14_000, 21_000]
    call(daemon, ",".join(map(str, [*tuned, *others])))
    kernel = ended_jobs(daemon, 16)[0]["kernel"]
    found: dict[str, Any] = {}

    def is_made() -> bool:
        found.update(daemon.client.call("portfolio", kernel=kernel))
        return [build["state"] for build in found["making"]] == ["done"]

    daemon.until(is_made, "the portfolio to be made")
    (portfolio,) = found["portfolios"]
    assert {config["BLOCK"] for config in map(json.loads, portfolio["configs"])} == {128, 256}
    measured = [job["problem"]["size"] for job in daemon.client.call("jobs")["jobs"] if job["reason"] == "portfolio"]
    assert measured
    assert {*measured} <= {*others}
    calls = [*tuned, *others]
    expected = ["256" if size < 8_000 else "128" for size in calls]
    assert call(daemon, ",".join(map(str, calls))) == ["called " + " ".join(expected)]
