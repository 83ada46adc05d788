"""Applications with the drop-in and a real daemon, to the winner: the CPU stands in for a GPU.

An application's imports, a daemon and its first tuning take seconds of CPU each. So most tests share a daemon, and
each has keys of its own.
"""

import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ktuned.spool import RECORD_SUFFIX, CallRecord, leave_record, spool_directory
from ktuned_client.answers import ENDED_STATES
from tests.e2e.harness import Daemon
from tests.forked_processes.forker import ForkedDaemon
from tests.forked_processes.starting import start_triton_program

STAND_IN = Path(__file__).parent / "triton_stand_in"
APPLICATION = Path(__file__).parent / "triton_app" / "application.py"
DEADLINE_S = 120.0

numbers = itertools.count()
"""Tells the files of the programs' outputs apart."""


def make_daemon(directory: Path, *, spares: bool = False) -> Daemon:
    """Return a daemon, not started, whose triton backend is the stand-in; applications have its home."""
    path = os.pathsep.join([str(STAND_IN), *filter(None, sys.path)])
    return Daemon(directory, tensors="torch", spares=spares, env={"PYTHONPATH": path})


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Yield a daemon of the test's own, not started."""
    made = make_daemon(tmp_path)
    yield made
    made.__exit__(None, None, None)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Yield a running daemon that tests with sizes of their own share."""
    with make_daemon(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture(scope="module")
def absent(tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    """Return a daemon that never runs: records stay in its home."""
    return make_daemon(tmp_path_factory.mktemp("absent"))


@pytest.fixture(scope="module")
def record(absent: Daemon) -> CallRecord:
    """Return a record that an application has left."""
    call(absent, "512")
    return take_record(absent)


def take_record(daemon: Daemon) -> CallRecord:
    """Return the only record that waits, and remove it."""
    (place,) = list_records(daemon)
    taken = CallRecord.from_bytes(place.read_bytes())
    place.unlink()
    return taken


def start_program(daemon: Daemon, *words: str, **variables: str) -> tuple[ForkedDaemon, Path]:
    """Start a program and return it with the file of its output."""
    output = daemon.directory / f"output-{next(numbers)}"
    with output.open("wb") as stream:
        return start_triton_program({**daemon.env, **variables}, words, (stream.fileno(), stream.fileno())), output


def run_program(daemon: Daemon, *words: str, **variables: str) -> list[str]:
    """Run a program to its end, and return the lines that it printed."""
    process, output = start_program(daemon, *words, **variables)
    assert process.wait(DEADLINE_S) == 0, output.read_text()
    return output.read_text().splitlines()


def call(daemon: Daemon, sizes: str, *words: str, **variables: str) -> list[str]:
    """Run the application to its end, and return the lines that it printed."""
    return run_program(daemon, str(APPLICATION), sizes, *words, **variables)


def ended_jobs(daemon: Daemon, count: int, *sizes: int) -> list[dict[str, Any]]:
    """Return the jobs of some sizes, or all, once so many have ended and none is open."""
    found: list[dict[str, Any]] = []

    def have_ended() -> bool:
        jobs = daemon.client.call("jobs", limit=1000)["jobs"]
        found[:] = [job for job in jobs if not sizes or job["problem"]["size"] in sizes]
        return len(found) >= count and all(job["state"] in ENDED_STATES for job in found)

    daemon.wait_until(have_ended, f"{count} jobs to end")
    return found


def list_records(daemon: Daemon) -> list[Path]:
    """Return the records that wait."""
    return sorted(spool_directory(daemon.home).glob(f"*{RECORD_SUFFIX}"))


def test_programs_that_end_at_once_have_their_keys_tuned_by_a_daemon_that_starts_later(daemon: Daemon) -> None:
    """Also by ``os._exit``, each key once; the next program launches the winners at once, and is recorded no more."""
    for process, output in [start_program(daemon, str(APPLICATION), "4096,2048", "exit") for _ in range(2)]:
        assert (process.wait(DEADLINE_S), output.read_text()) == (0, "called 128 128\n")
    assert len(list_records(daemon)) == 2
    daemon.start()
    jobs = ended_jobs(daemon, 2)
    assert sorted((job["state"], job["problem"]["size"]) for job in jobs) == [("done", 2048), ("done", 4096)]
    assert {job["kernel"] for job in jobs} == {"tests:plugins.triton_app.kernels.scale"}
    daemon.wait_until(lambda: not list_records(daemon), "the records to be gone")
    assert call(daemon, "4096,2048") == ["called 256 256"]
    assert list_records(daemon) == []
    assert len(daemon.client.call("jobs")["jobs"]) == 2


def test_exact_numerics_keep_to_the_bits_of_the_first_config(shared: Daemon) -> None:
    """The application launches the first config meanwhile. A tuning by tolerance is the same kernel's."""
    assert call(shared, "4000", KTUNED_RUN_NUMERICS="exact") == ["called 128"]
    (job,) = ended_jobs(shared, 1, 4000)
    assert (job["state"], job["objective"]) == ("done", "exact:latency"), job
    found = shared.client.call("results", kernel=job["kernel"])["trials"]
    # One that has other bits on its first input already is launched on no other.
    classes = {(trial["config"]["THROUGH"], trial["class"].rstrip("?")) for trial in found}
    assert classes == {("~None", "A"), ("~triton.language.float16", "B")}
    (winner,) = [trial["config"] for trial in found if trial["winner"]]
    assert (winner["BLOCK"], winner["THROUGH"]) == (256, "~None")
    assert call(shared, "4000", KTUNED_RUN_NUMERICS="exact") == ["called 256"]
    call(shared, "4000", KTUNED_RUN_NUMERICS="tolerance")
    both = {(job["kernel"], job["objective"]) for job in ended_jobs(shared, 2, 4000)}
    assert both == {(job["kernel"], "latency"), (job["kernel"], "exact:latency")}


def test_a_busy_application_gets_the_winner(shared: Daemon) -> None:
    """Its loop never stops, and the winner takes the config's place."""
    assert call(shared, "4096", "loop", "stretch") == ["called 128", "winner"]


def test_bad_records_are_a_notice_each_and_delay_nothing(shared: Daemon, record: CallRecord, tmp_path: Path) -> None:
    """A damaged one, a link, one of a library that is gone, one of an interpreter that is."""
    spool = spool_directory(shared.home)
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    lost = {**record.declaration, "module": "no_such_library"}
    leave_record(spool, replace(record, declaration=lost, identity="0" * 16, function="gone"))
    leave_record(spool, replace(record, python="/no/such/python", identity="1" * 16, function="nowhere"))
    (spool / "0000000000000000.call").write_bytes(b"half a record")
    (spool / "1111111111111111.call").symlink_to(tmp_path / "elsewhere")
    (spool / "strange.txt").write_text("strange")
    leave_record(spool, record)
    jobs = ended_jobs(shared, 2, 512)
    good, bad = sorted(jobs, key=lambda job: job["state"])
    assert (good["state"], bad["state"], bad["kernel"].rpartition(":")[2]) == ("done", "failed", "gone")
    assert "no_such_library cannot be imported: ModuleNotFoundError" in bad["message"]
    shared.wait_until(lambda: not list_records(shared), "the records to be gone")
    notices = shared.client.call("status")["notices"]
    for reason in ("it is damaged", "it is a link", "it is not a record"):
        assert sum(reason in notice for notice in notices) == 1, notices


def test_an_edit_of_the_function_is_another_kernel(shared: Daemon, tmp_path: Path) -> None:
    """Told apart by the beginning of its identity; the application launches what was measured with its own source."""
    source = APPLICATION.with_name("kernels.py").read_text()
    package = tmp_path / "own"
    package.mkdir()
    (package / "edited.py").write_text(source)
    program = package / "program.py"
    program.write_text(
        APPLICATION.read_text().replace("from tests.plugins.triton_app import kernels", "import edited as kernels")
    )

    def run() -> list[str]:
        return run_program(shared, str(program), "3500")

    assert run() == ["called 128"]
    ended_jobs(shared, 1, 3500)
    assert run() == ["called 256"]
    (package / "edited.py").write_text(source.replace("values * factor", "values * factor + 0.0"))
    assert run() == ["called 128"]
    first, second = sorted({job["kernel"] for job in ended_jobs(shared, 2, 3500)})
    assert first == "edited:scale"
    assert second.startswith("edited:scale-")
    assert run() == ["called 256"]


def test_functions_that_exec_has_made_are_tuned(shared: Daemon, tmp_path: Path) -> None:
    """The program lowers them itself, and gets the winner while it runs; its next start has it at once."""
    importing = "from tests.plugins.triton_app import kernels"
    executing = (
        "from types import SimpleNamespace\n"
        f"file, names = {str(APPLICATION.with_name('kernels.py'))!r}, {{}}\n"
        "exec(compile(open(file).read(), file, 'exec'), names)\n"
        "kernels = SimpleNamespace(**names)\n"
    )
    program = tmp_path / "program.py"
    program.write_text(APPLICATION.read_text().replace(importing, executing))

    def run(*words: str) -> list[str]:
        return run_program(shared, str(program), "4097", *words)

    assert run("loop", "stretch") == ["called 128", "winner"]
    (job,) = ended_jobs(shared, 1, 4097)
    assert (job["state"], job["kernel"]) == ("done", "program:stretch"), job
    assert run("end", "stretch") == ["called 256"]


def test_a_wait_gets_the_winner_in_its_first_call(shared: Daemon) -> None:
    """Under ``ktuned run --wait``, and the summary says what became of it."""
    done = shared.run_ktuned("run", "--wait", sys.executable, str(APPLICATION), "3000,3001", timeout_s=DEADLINE_S)
    assert done.stdout.splitlines() == ["called 256 256"], done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert "adopted 1 function: tests: scale" in lines[-2], lines
    assert "2 tuning keys: 2 tuned, 0 recorded now" in lines[-1], lines


def test_a_key_whose_record_is_on_its_way_has_no_ending_yet(shared: Daemon, record: CallRecord) -> None:
    """An application that waits for it is told nothing that it would take for the end of a tuning."""
    leave_record(spool_directory(shared.home), replace(record, problem={**record.problem, "size": 1024}))
    ended_jobs(shared, 1, 1024)

    def answer(size: int) -> dict[str, Any]:
        key = {
            "identity": record.identity,
            "problem": {**record.problem, "size": size},
            "device": record.device or None,
        }
        (found,) = shared.client.call("calls", keys=[key])["answers"]
        return dict(found)

    assert (answer(1024)["status"], answer(1024)["message"]) == ("fresh", "")
    assert (answer(1025)["is_open"], answer(1025)["message"]) == (False, "")


def test_without_a_device_a_call_waits(daemon: Daemon, record: CallRecord) -> None:
    """Nothing is compiled that nobody asked for; a daemon with a device tunes it."""
    spool = spool_directory(daemon.home)
    spool.mkdir(mode=0o700, parents=True)
    leave_record(spool, record)
    with_device = daemon.env["PYTHONPATH"]
    daemon.env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    daemon.start()

    def notices() -> str:
        return " ".join(daemon.client.call("status")["notices"])

    daemon.wait_until(lambda: "a call of an application waits for a GPU" in notices(), "the notice")
    assert daemon.client.call("jobs")["jobs"] == []
    assert len(list_records(daemon)) == 1
    daemon.stop()
    daemon.env["PYTHONPATH"] = with_device
    daemon.start()
    (job,) = ended_jobs(daemon, 1)
    assert job["state"] == "done", job
    assert list_records(daemon) == []


def test_of_a_function_with_many_keys_few_are_tuned_and_their_winners_serve_the_others(daemon: Daemon) -> None:
    """The first 16, each with one of two blocks; each other key gets the nearest one's block, and is not tuned."""
    daemon.start()
    tuned = [*range(1000, 1800, 100), *range(16_000, 20_000, 500)]
    others = [1050, 1850, 4_000, 14_000, 21_000]
    sizes = ",".join(map(str, [*tuned, *others]))
    call(daemon, sizes, "end", "stretch")
    ended_jobs(daemon, 16)
    jobs = daemon.client.call("jobs")["jobs"]
    assert sorted({job["problem"]["size"] for job in jobs}) == tuned
    expected = ["256" if size < 8_000 else "128" for size in [*tuned, *others]]
    assert call(daemon, sizes, "end", "stretch") == ["called " + " ".join(expected)]

    call(daemon, ",".join(["64"] * 200 + ["65"]), "end", "stretch")
    ended_jobs(daemon, 1, 64)
    daemon.wait_until(lambda: not list_records(daemon), "the records to be taken in")
    assert ended_jobs(daemon, 0, 65) == []
