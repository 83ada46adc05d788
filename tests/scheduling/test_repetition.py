"""Repetition: what no observer sees makes answers stale after a while, at a bounded price."""

from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ktuned.catalog import Catalog
from ktuned.model import KernelName
from ktuned.protocol import ExportParams
from ktuned.scheduling.job_requests import TuningRequest
from ktuned.scheduling.repetition import FIRST_S, OVERDUE_S, SHARE, SHORTEST_S, Repeated, Repetition
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text
from tests.fake_tensors import INPUTS, REFERENCE

pytestmark = pytest.mark.anyio

LIBC = ctypes.CDLL(None)
LIBC.shmat.restype = ctypes.c_void_p
LIBC.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)

READS_HIDDEN = """\
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype, libc.shmat.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
HIDDEN = ctypes.c_int.from_address(libc.shmat({number}, None, 0)).value
"""
"""Code whose reading leaves no note: shared memory of System V has no name in any file system."""


@pytest.fixture
def hidden() -> Iterator[tuple[int, ctypes.c_int]]:
    """Return the number of a piece of shared memory, and the integer in it."""
    number = LIBC.shmget(0, 4096, 0o600)
    place = LIBC.shmat(number, None, 0)
    yield number, ctypes.c_int.from_address(place)
    LIBC.shmdt(ctypes.c_void_p(place))
    LIBC.shmctl(number, 0, None)


async def test_hidden_change_is_stale_after_a_repetition(tmp_path: Path, hidden: tuple[int, ctypes.c_int]) -> None:
    number, value = hidden
    value.value = 1
    text = READS_HIDDEN.format(number=number) + make_kernel_text(rtol="HIDDEN * 1e-4")
    async with assemble_daemon(tmp_path) as parts, parts.run_jobs():
        await parts.inspect_file(text)
        await parts.tune()
        repeat = parts.daemon.repetition.repeat_kernel
        tuned = parts.catalog.resolve_kernel("it").digest
        await repeat("project:it")
        await repeat("project:it")
        assert (parts.look_up().status, parts.catalog.resolve_kernel("it").digest) == ("fresh", tuned)
        assert parts.recorder.list_events("stale") == []
        value.value = 2
        assert parts.look_up().status == "fresh"
        await repeat("project:it")
        assert parts.catalog.resolve_kernel("it").digest != tuned
        assert [event["kernel"] for event in parts.recorder.list_events("stale")] == ["project:it"]
        value.value = 1
        await repeat("project:it")
        assert (parts.look_up().status, parts.catalog.resolve_kernel("it").digest) == ("fresh", tuned)


async def test_what_a_reference_reads_unnoticed_is_never_seen(tmp_path: Path, hidden: tuple[int, ctypes.c_int]) -> None:
    """No reference runs in a repetition."""
    number, value = hidden
    value.value = 1
    body = "".join(f"    {line}\n" for line in READS_HIDDEN.format(number=number).splitlines())
    text = f"def hidden():\n{body}    return HIDDEN\n\n"
    async with tune_noted(tmp_path, text, reference="lambda x: dict(y=2 * x * (hidden() == 1))") as parts:
        await parts.daemon.repetition.repeat_kernel("project:it")
        value.value = 2
        await parts.daemon.repetition.repeat_kernel("project:it")
        assert parts.look_up().status == "fresh"


NOTED = "from pathlib import Path\nNOTED = Path(__file__).with_name('noted.txt').read_text()\n"
"""Code that reads a file, which decides nothing unless the kernel uses ``NOTED``."""


SIZED = "lambda p: dict(x=tensor((p.n * noted(),)), y=tensor((p.n * noted(),), output=True))"

NO_PEER: Any = None

READS_LATE = (
    NOTED
    + """
def noted():
    return int(Path(__file__).with_name("noted.txt").read_text())

"""
)


@asynccontextmanager
async def tune_noted(directory: Path, text: str = NOTED, **options: str) -> AsyncIterator[Parts]:
    """Tune a kernel file that begins with ``text``, beside ``noted.txt`` with the content ``1``."""
    options = {"inputs": INPUTS, "reference": REFERENCE, **options}
    async with assemble_daemon(directory) as parts, parts.run_jobs():
        parts.open_gate("launch")
        parts.write_file("1", "noted.txt")
        await parts.inspect_file(text + make_kernel_text(**options))
        await parts.tune()
        yield parts


async def save_noted(parts: Parts, content: str, *, saved: bool = True) -> tuple[str, int]:
    """Save ``noted.txt`` as the watcher would; return the answer's status in the end, and the number of jobs."""
    parts.write_file(content, "noted.txt")
    changes = await parts.inspector.inspect_files(parts.root, [str(parts.project / "tune_it.py")])
    parts.touch_answers()
    await parts.daemon.repetition.react_to_changes(changes, saved)
    if parts.catalog.compared:
        assert "is being inspected" in parts.look_up().message
    await parts.daemon.repetition.compare_asked()
    assert parts.catalog.compared == set()
    return parts.look_up().status, len(parts.store.list_jobs())


async def test_noise_is_fresh_again_without_a_job(tmp_path: Path) -> None:
    """A change of what decides nothing is compared once; the two values count as one from then on, also later."""
    async with tune_noted(tmp_path) as parts:
        tuned = parts.look_up()
        assert await save_noted(parts, "2") == ("fresh", 1)
        digest = parts.catalog.resolve_kernel("it").digest
        assert (parts.look_up().config, parts.look_up().latency_us) == (tuned.config, tuned.latency_us)
        assert await save_noted(parts, "1") == ("fresh", 1)
        assert parts.catalog.resolve_kernel("it").digest == digest
        stored = parts.store.learned.list_names()[KernelName("project:it")]["noted.txt"]
        assert [len(stored.alike), stored.is_noise] == [2, False]


@pytest.mark.parametrize("decided", ["inputs", "reference"])
async def test_a_change_that_decides_is_tuned_again(tmp_path: Path, decided: str) -> None:
    """The reference is not run to compare: what it has read must be equal."""
    options = {
        "inputs": SIZED,
        "reference": "lambda x: dict(y=2 * x * (noted() > 0))",
    }
    async with tune_noted(tmp_path, READS_LATE, **{decided: options[decided]}) as parts:
        assert await save_noted(parts, "2") != ("fresh", 1)
        await parts.recorder.wait_for_ended_jobs(2)
        assert parts.look_up().status == "fresh"


async def test_noise_of_three_times_is_compared_by_repetitions(tmp_path: Path) -> None:
    """Until the repetition such a change is fresh; if it decides after all, it counts at once from then on."""
    inputs = "lambda p: dict(x=tensor((p.n * (1 + (noted() > 9)),)))"
    async with tune_noted(tmp_path, READS_LATE, inputs=inputs, reference="", check="None") as parts:
        for content in ("2", "3", "4", "5"):
            assert await save_noted(parts, content) == ("fresh", 1)
        digest = parts.catalog.resolve_kernel("it").digest
        await parts.daemon.repetition.repeat_kernel("project:it")
        assert (parts.look_up().status, parts.catalog.resolve_kernel("it").digest) == ("fresh", digest)
        assert await save_noted(parts, "10") == ("fresh", 1)
        await parts.daemon.repetition.repeat_kernel("project:it")
        assert not parts.catalog.resolve_kernel("it").learned["noted.txt"].is_noise
        assert parts.look_up().status == "stale"
        await parts.recorder.wait_for_ended_jobs(2)
        assert parts.look_up().status == "fresh"


async def test_a_job_that_runs_when_noise_decides_begins_again(tmp_path: Path) -> None:
    """What it measures holds for a state that the kernel has left."""
    inputs = "lambda p: dict(x=tensor((p.n * (1 + (noted() > 9)),)))"
    body = "Build(us=c.us, gate='launch')"
    async with tune_noted(tmp_path, READS_LATE, inputs=inputs, reference="", check="None", body=body) as parts:
        for content in ("2", "3", "4", "10"):
            assert await save_noted(parts, content) == ("fresh", 1)
        parts.close_gate("launch")
        await parts.request_jobs(problem={"n": 128})
        await parts.wait_until_reached("launch")
        await parts.daemon.repetition.repeat_kernel("project:it")
        parts.open_gate("launch")
        await parts.recorder.wait_for_ended_jobs(3)
        assert parts.look_up(problem={"n": 128}).status == "fresh"


async def test_another_environment_after_a_restart_is_compared(tmp_path: Path) -> None:
    """A variable that decides nothing, and one that does."""
    text = "import os\nNOTED = os.environ['NOTED']\nWIDE = os.environ['WIDE']\n"
    text += "def wide():\n    return int(os.environ['WIDE'])\n\n"
    text += make_kernel_text(inputs="lambda p: dict(x=tensor((p.n * wide(),)))", check="None")
    statuses: list[tuple[str, int]] = []
    for noted, wide in (("1", "1"), ("2", "1"), ("2", "2")):
        env = {"NOTED": noted, "WIDE": wide}
        async with assemble_daemon(tmp_path, env=env) as parts, parts.run_jobs():
            if not statuses:
                await parts.requests.request_jobs(await parts.inspect_file(text), TuningRequest())
                await parts.recorder.wait_for_ended_jobs()
            changes = await parts.inspector.inspect_root(parts.root)
            parts.end_doubts()
            await parts.daemon.repetition.react_to_changes(changes, False)
            await parts.daemon.repetition.compare_asked()
            statuses.append((parts.look_up().status, len(parts.store.list_jobs())))
    assert statuses == [("fresh", 1), ("fresh", 1), ("stale", 2)]


@pytest.mark.parametrize(("inputs", "status"), [(INPUTS, "fresh"), (SIZED, "stale")])
async def test_an_import_with_other_contents_is_compared(tmp_path: Path, inputs: str, status: str) -> None:
    """A file that decides nothing may differ on the other machine. From then on its changes count here, too."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    async with tune_noted(there, READS_LATE, inputs=inputs) as parts:
        params = ExportParams(kernel="it", device="Fake CPU")
        document = (await parts.daemon.exchange.handle_export(params, NO_PEER)).document
        assert document is not None
    async with assemble_daemon(here) as parts, parts.run_jobs():
        parts.write_file("2", "noted.txt")
        await parts.inspect_file((there / "project/tune_it.py").read_text())
        (winner,) = (await parts.daemon.exchange.import_document(document)).winners
        assert (winner.status, parts.look_up().status) == (status, status)
        assert "noted.txt" in parts.catalog.resolve_kernel("it").learned


async def test_what_a_late_launch_reads_counts(tmp_path: Path) -> None:
    """The third launch of a config is a timed one; what it reads belongs to the kernel, and cannot be noise."""
    late = tmp_path / "late.txt"
    late.write_text("1")
    configs = f"[dict(us=50.0, does='reads_late', every=3, tag={str(late)!r})]"
    async with tune_noted(tmp_path, "", configs=configs) as parts:
        assert parts.look_up().status == "fresh"
        learned = parts.catalog.resolve_kernel("it").learned
        assert [one.is_run for name, one in learned.items() if name.endswith("late.txt")] == [True], list(learned)
        late.write_text("2")
        assert await save_noted(parts, "1") != ("fresh", 1)


def make_repetition(clock: list[float], used: list[str], catalog: Catalog | None = None) -> Repetition:
    """Return a repetition whose clock and used kernels are lists, and that repeats nothing."""
    unused: Any = None
    known: Any = SimpleNamespace(catalog=catalog or Catalog(), machine=unused, store=unused)
    return Repetition(
        known,
        fleet=unused,
        traces=unused,
        list_used_kernels=lambda: used,
        list_live_kernels=tuple,
        on_changes=unused,
        publish=lambda event: None,
        clock=lambda: clock[0],
    )


async def test_repetitions_take_their_share_of_a_core() -> None:
    """A pause follows that is as long as the CPU time asks for; a costly kernel also waits for longer itself."""
    clock, used = [0.0], ["p:one", "p:two"]
    repetition = make_repetition(clock, used)
    assert repetition.choose_due_kernel() is None
    clock[0] = FIRST_S
    assert repetition.choose_due_kernel() == "p:one"
    repetition.record_repetition("p:one", cpu_s=30.0)
    clock[0] += 30.0 / SHARE - 1.0
    assert repetition.choose_due_kernel() is None
    clock[0] += 1.0
    assert repetition.choose_due_kernel() == "p:two"
    assert repetition.find_interval("p:one") == 30.0 / SHARE
    repetition.record_repetition("p:two", cpu_s=0.5)
    assert repetition.find_interval("p:two") == SHORTEST_S
    assert repetition.last_repetitions["p:two"] == Repeated(clock[0], 0.5)


async def test_answers_say_that_an_hour_went_by_without_a_repetition(tmp_path: Path) -> None:
    async with assemble_daemon(tmp_path) as parts:
        await parts.record_measurements(await parts.inspect_file(make_kernel_text()), {50.0: 50.0})
        clock = [0.0]
        repetition = make_repetition(clock, ["project:it"], parts.catalog)
        repetition.note_overdue()
        assert parts.catalog.unrepeated == set()
        clock[0] = OVERDUE_S + 1.0
        repetition.note_overdue()
        parts.touch_answers()
        assert "not made again for an hour" in parts.look_up().message
        repetition.record_repetition("project:it", cpu_s=1.0)
        repetition.note_overdue()
        parts.touch_answers()
        assert parts.look_up().message == ""
