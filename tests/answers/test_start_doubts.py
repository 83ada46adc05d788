"""Doubts: which kernels' files are compared at once after a start, which wait, and what is stale while inspected."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from ktuned.answers.start_doubts import LOOK_S, MAX_BYTES, MAX_FILES, StartDoubts
from ktuned.catalog import Changes, FileInspector
from ktuned.ipc import stamp
from ktuned.protocol import Root
from ktuned.watch.reinspection import Reinspection
from tests.daemon_parts import Parts, make_kernel_text

pytestmark = pytest.mark.anyio


async def test_files_are_compared_once_a_second_and_only_if_they_are_few(parts: Parts, tmp_path: Path) -> None:
    """An inspection ends a doubt; more than a lookup has time for is in doubt until the watcher has caught up."""
    kernel = await parts.inspect_file(make_kernel_text())
    sources = [tmp_path / f"{number}.h" for number in range(MAX_FILES + 1)]
    for source in sources:
        source.write_text("int x;")
    stamps = {str(source): stamp(source) for source in sources[:MAX_FILES]} | {str(tmp_path / "missing.h"): ""}
    few = replace(kernel, stamps=dict(list(stamps.items())[1:]))
    now = 0.0
    doubts = StartDoubts(parts.machine.environments, lambda: now)
    state = parts.daemon.states.find_state(kernel)
    assert doubts.find_doubt(replace(state, kernel=few)) == ""
    sources[1].write_text("int y;")
    changed = f"not checked since the daemon started: {sources[1]} changed"
    assert doubts.find_doubt(replace(state, kernel=few)) == "", "it was looked at just now"
    now += LOOK_S
    assert doubts.find_doubt(replace(state, kernel=few)) == changed
    inspected = replace(few, stamps={**few.stamps, str(sources[1]): stamp(sources[1])})
    assert doubts.find_doubt(replace(state, kernel=inspected)) == ""
    many = replace(kernel, stamps=stamps)
    sources[2].write_bytes(bytes(MAX_BYTES + 1))
    large = replace(kernel, stamps={str(sources[2]): stamp(sources[2])})
    for too_much in (many, large):
        assert StartDoubts(parts.machine.environments).find_doubt(replace(state, kernel=too_much)) == (
            "not checked since the daemon started: it has too many files to compare at once"
        )
    doubts.end_doubts()
    assert doubts.find_doubt(replace(state, kernel=few)) == doubts.find_doubt(replace(state, kernel=many)) == ""


async def test_a_variable_that_a_kernel_reads_is_compared_at_the_start(parts: Parts) -> None:
    """A daemon whose workers have another value knows nothing of the kernel's files until they are inspected."""
    kernel = await parts.inspect_file(f"import os\nMODE = os.environ.get('TEST_MODE')\n{make_kernel_text()}")
    assert "env:TEST_MODE" in kernel.learned
    doubts = StartDoubts(parts.machine.environments)
    state = parts.daemon.states.find_state(kernel)
    assert doubts.find_doubt(state) == ""
    other = msgspec.structs.replace(parts.environment, env=(("TEST_MODE", "2"),))
    doubts = StartDoubts(parts.machine.environments)
    assert (
        doubts.find_doubt(replace(state, environment=other))
        == "not checked since the daemon started: the environment variable TEST_MODE changed"
    )
    doubts.end_doubts()
    assert doubts.find_doubt(replace(state, kernel=kernel)) == ""


class Paused(FileInspector):
    """An inspector that waits, before it inspects, until it may go on."""

    def __init__(self, inner: FileInspector) -> None:
        self.begun, self.goes_on = anyio.Event(), anyio.Event()
        self._inner = inner

    async def inspect_files(self, root: Root, files: Iterable[str], gone: Iterable[str] = ()) -> Changes:
        """Wait, then inspect."""
        self.begun.set()
        await self.goes_on.wait()
        return await self._inner.inspect_files(root, files, gone)


@pytest.mark.parametrize("name", ["tune_it.py", "ktuned.toml"])
async def test_answers_are_stale_while_what_they_depend_on_is_inspected(
    parts: Parts, tmp_path: Path, name: str
) -> None:
    """From when a file is known to differ until it was inspected nothing of it is fresh, even if nothing changes."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 50.0})
    parts.end_doubts()

    def status() -> str:
        return parts.look_up().status

    assert status() == "fresh"
    paused, changes = Paused(parts.inspector), 0

    def count_change(names: Collection[str]) -> None:
        nonlocal changes
        changes += 1

    async def take_in(_: Changes, is_saved: bool) -> None:
        pass

    parts.catalog.when_doubts_change(count_change)
    reinspection = Reinspection(parts.catalog, paused, take_in)
    (parts.project / name).write_text(("" if name == "ktuned.toml" else make_kernel_text()) + "\n# another line\n")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reinspection.inspect_files, {str(parts.project / name)})
        await paused.begun.wait()
        answer = parts.look_up(tune=True)
        assert (answer.status, changes) == ("stale", 1)
        assert answer.message == f"{parts.project / name} or a file that it depends on changed, and is being inspected"
        paused.goes_on.set()
    assert (status(), changes) == ("fresh", 2)
    assert parts.jobs.list_live_jobs() == [], "nothing is tuned for a doubt"
