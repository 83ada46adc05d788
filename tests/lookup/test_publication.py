"""What lookups would be answered is in the table of winners, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from ktuned.lookup.publication import SHORTEST_PAUSE_S
from ktuned.model import KernelName
from ktuned.model.kernel import KernelInfo
from ktuned.model.plan import Plan
from ktuned.protocol import Event, JobDone
from ktuned_client.answers import Hit, Question, make_hit
from ktuned_client.memo import pack_problem
from ktuned_client.table import find_slot
from ktuned_client.table_answers import TableAnswers
from tests.daemon_parts import ALL_ROUNDS, PATIENCE_S, Parts, assemble_daemon, make_kernel_text, make_winner_key

pytestmark = pytest.mark.anyio

MANY = "us=[10.0, 20.0]"


def read_table(
    parts: Parts, problem: dict[str, Any] | None = None, name: str = "project:it", **options: Any
) -> Hit | None:
    """Return what a new client finds in the table."""
    client = TableAnswers(str(parts.project.parent), place=options.pop("directory", None))
    try:
        problem = {"n": 64} if problem is None else problem
        question = Question(name, name, problem, None, options.pop("device", None), None)
        entry = client.find_entry(question, pack_problem(problem), **options)
        return None if entry is None else entry[3]
    finally:
        client.close()


async def wait_until_found(parts: Parts, problem: dict[str, Any], **options: Any) -> Hit:
    """Wait until the table has an answer."""
    with anyio.fail_after(PATIENCE_S):
        while (hit := read_table(parts, problem, **options)) is None:  # noqa: ASYNC110 - no event reports it
            await anyio.sleep(0.005)
    return hit


def look_up(parts: Parts, problem: dict[str, Any] | None = None, *, tune: bool = False, **options: Any) -> Hit:
    """Look the kernel up as a client does that asks the daemon."""
    name = options.pop("name", "project:it")
    answer = parts.lookups.look_up(name, problem or {"n": 64}, options.pop("device", None), tune=tune, **options).answer
    return make_hit(msgspec.to_builtins(answer))


async def declare_tuned_kernel(parts: Parts, sizes: tuple[int, ...] = (64,), **options: str) -> KernelInfo:
    """Declare a kernel with winners for some sizes, of a daemon that has looked at all files."""
    kernel = await parts.inspect_file(make_kernel_text(**{"configs": MANY, **options}))
    for size in sizes:
        await parts.record_measurements(kernel, {20.0: 5.0 + size}, {"n": size}, rounds=ALL_ROUNDS)
    parts.touch_answers(kernel.name)
    parts.end_doubts()
    return kernel


async def test_the_table_says_what_the_daemon_says(parts: Parts) -> None:
    """An answer from the table equals that of the daemon in every field."""
    await declare_tuned_kernel(parts)
    assert read_table(parts) is None
    hit = look_up(parts)
    assert hit.status == "fresh"
    assert read_table(parts) == hit
    assert read_table(parts, device="cpu:0") == hit
    assert read_table(parts, device="Fake CPU") == hit
    assert read_table(parts, device="H100") is None


async def test_all_winners_are_there_without_a_question(parts: Parts) -> None:
    """They follow each change, under the kernel's full name and its short one, and do not stay in memory."""
    kernel = await declare_tuned_kernel(parts, sizes=tuple(range(1, 60)))
    assert (await wait_until_found(parts, {"n": 59})).latency_us == 64.0
    assert read_table(parts, {"n": 59}, name="it", directory="/elsewhere") == read_table(parts, {"n": 59})
    await anyio.sleep(2 * SHORTEST_PAUSE_S)
    assert parts.daemon.states._states == {}
    assert (await wait_until_found(parts, {"n": 59})).latency_us == 64.0
    assert look_up(parts, {"n": 7}) == read_table(parts, {"n": 7})
    parts.touch_answers(kernel.name)
    assert read_table(parts, {"n": 7}) is None
    await wait_until_found(parts, {"n": 59})
    assert read_table(parts, {"n": 60}) is None


async def test_before_every_file_was_looked_at_winners_are_the_last_resort(parts: Parts) -> None:
    """Until the watcher has caught up, an answer is the daemon's to give: it looks at the kernel's files first.

    What the store has is only given by clients that get no answer, and as stale.
    """
    kernel = await parts.inspect_file(make_kernel_text(configs=MANY))
    await parts.record_measurements(kernel, {20.0: 5.0}, rounds=ALL_ROUNDS)
    parts.touch_answers(kernel.name)
    assert look_up(parts).status == "fresh"
    hit = await wait_until_found(parts, {"n": 64}, unwatched="it is busy")
    assert (hit.status, hit.config) == ("stale", {"us": 20.0})
    assert hit.message == "not checked since the daemon started: its files"
    assert read_table(parts) is None
    parts.end_doubts()
    assert read_table(parts) is None
    assert (await wait_until_found(parts, {"n": 64})).status == "fresh"


async def test_a_tuned_problem_is_there_when_its_job_ends(parts: Parts) -> None:
    """Whoever hears of the end finds the winner, though no one has asked for it, and nothing else had its turn."""
    await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0)]"))
    parts.end_doubts()
    hits: list[Hit | None] = []
    publish = parts.recorder.publish_event

    def on_event(event: Event) -> Event:
        if isinstance(event, JobDone):
            hits.extend((read_table(parts), read_table(parts, name="it", directory="/elsewhere")))
        return publish(event)

    parts.recorder.publish_event = on_event  # type: ignore[method-assign]
    async with parts.run_jobs():
        await parts.jobs.submit_job(make_winner_key({"n": 64}), {"n": 64}, priority=1, reason="asked", plan=Plan())
        await parts.recorder.wait_for_ended_jobs()
    assert [hit and (hit.status, hit.config) for hit in hits] == [("fresh", {"us": 1.0})] * 2


async def test_a_stale_winner_is_there_once_its_tuning_is_queued(parts: Parts) -> None:
    """A question that has nothing tuned leaves the next one to the daemon."""
    kernel = await declare_tuned_kernel(parts)
    edited = await parts.inspect_file(make_kernel_text(configs=MANY, rtol="0.5"))
    assert edited.digest != kernel.digest
    parts.touch_answers(kernel.name)
    assert look_up(parts, tune=False).status == "stale"
    assert read_table(parts) is None
    last_resort = await wait_until_found(parts, {"n": 64}, unwatched="it is busy")
    assert last_resort._replace(message="") == look_up(parts)
    assert read_table(parts) is None
    hit = look_up(parts, tune=True)
    entry = read_table(parts)
    assert entry == hit
    assert read_table(parts, is_old=True) is None, "who waits for a tuning is counted by the daemon"


async def test_near_and_default_answers_are_the_daemons(parts: Parts) -> None:
    """They have their problem tuned, which a reader of the table could not."""
    await declare_tuned_kernel(parts, default="dict(us=10.0)")
    assert look_up(parts, {"n": 65}, tune=True).status == "near"
    assert read_table(parts, {"n": 65}) is None


@pytest.mark.parametrize(
    ("options", "is_there"),
    [
        ({"configs": MANY, "specialize": "('n',)"}, True),
        ({"configs": MANY + ", where=lambda p, c: c.us <= p.k", "specialize": "('n',)"}, False),
        ({"configs": MANY, "bucket": "dict(k=128)"}, True),
        ({"configs": MANY + ", where=lambda p, c: c.us <= p.k"}, False),
    ],
)
async def test_a_key_that_stands_for_many_problems(parts: Parts, options: dict[str, str], is_there: bool) -> None:
    """It answers for all of them where its space is no code; else each is the daemon's."""
    kernel = await parts.inspect_file(make_kernel_text(problems="[dict(n=64, k=128)]", **options))
    await parts.record_measurements(kernel, {20.0: 5.0}, {"n": 64, "k": 128}, rounds=ALL_ROUNDS)
    parts.touch_answers(kernel.name)
    parts.end_doubts()
    with anyio.fail_after(PATIENCE_S):
        # User code is asked by a worker, in the background.
        while look_up(parts, {"n": 64, "k": 128}).status != "fresh":  # noqa: ASYNC110 - no event reports it
            await anyio.sleep(0.005)
    other = read_table(parts, {"n": 64, "k": 100})
    assert (other is not None) == is_there
    if other is not None:
        assert other == look_up(parts, {"n": 64, "k": 100})
        assert other.measured == {"n": 64, "k": 128}
        assert read_table(parts, {"n": 64, "m": 100}) is None
    parts.kill_workers()


async def test_a_short_name_means_what_it_meant_in_its_directory(parts: Parts) -> None:
    """If several projects have the name: after one question the table knows; elsewhere, the daemon must be asked."""
    kernel = await declare_tuned_kernel(parts)
    parts.catalog._kernels[KernelName("other:it")] = replace(kernel, project="other", file="/other/it.py")
    here = str(parts.project)
    await wait_until_found(parts, {"n": 64})
    assert read_table(parts, name="it", directory=here) is None
    hit = look_up(parts, name="it", directory=here)
    assert read_table(parts, name="it", directory=here) == hit
    assert read_table(parts, name="it", directory="/elsewhere") is None


async def test_who_reads_the_table_uses_the_kernel(parts: Parts) -> None:
    """Its files are looked at as often as if the daemon had been asked."""
    await declare_tuned_kernel(parts)
    look_up(parts)
    parts.lookups.table._use_times[find_slot("project:it")] = 0
    assert parts.lookups.publication.list_used_kernels() == []
    assert read_table(parts) is not None
    assert parts.lookups.publication.list_used_kernels() == ["project:it"]


async def test_a_machine_of_many_devices_is_described(tmp_path: Path) -> None:
    """Their names do not fit into an entry: a question that names none is answered, one that does is the daemon's."""
    names = " ".join(f"cuda:{number}" for number in range(256))
    async with assemble_daemon(tmp_path, env={"FAKE_DEVICES": names}) as parts:
        await declare_tuned_kernel(parts)
        hit = look_up(parts)
        assert hit.status == "fresh"
        assert read_table(parts) == hit
        assert read_table(parts, device="cuda:200") is None
        parts.kill_workers()


def test_the_table_lies_beside_the_socket(tmp_path: Path) -> None:
    """A reader without a table there has nothing, and says so without an error."""
    client = TableAnswers(str(tmp_path))
    question = Question("it", "it", {"n": 1}, None, None, None)
    assert client.find_entry(question, pack_problem({"n": 1})) is None
    client.close()
