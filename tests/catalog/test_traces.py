"""Learning: an input that only compiling shows is a part of its kernel from then on, and nothing known is lost."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from ktuned.catalog.catalog import Inspection
from ktuned.catalog.traces import SourceChanged
from ktuned.model.kernel import KernelInfo
from ktuned.model.trace import Observation, extend_digest
from ktuned.protocol.winners import Status
from ktuned.serve.explain import Explainer
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text

pytestmark = pytest.mark.anyio

READING = make_kernel_text(configs="[dict(us=50.0, reads='cfg.txt'), dict(us=90.0, reads='')]")
PROBLEM = {"n": 64}


async def tune_kernel(parts: Parts, text: str | None = None) -> KernelInfo:
    """Tune the kernel, if given with another text, and return what the catalog has afterwards."""
    if text is not None:
        await parts.inspect_file(text)
    ended = await parts.tune()
    assert ended["state"] == "done", ended
    return parts.catalog.resolve_kernel("it")


def count_artifacts(parts: Parts) -> int:
    return sum(1 for _ in parts.artifacts.directory.glob("[!.]*/*/kernel.json"))


async def test_what_a_compiler_read_makes_the_answer_stale(tmp_path: Path) -> None:
    """A file that no inspection finds counts once it was read: after its edit the answer is stale, after undoing it
    fresh.
    """
    async with assemble_daemon(tmp_path) as parts, parts.run_jobs():
        cfg = parts.write_file("one", "cfg.txt")
        before = await parts.inspect_file(READING)
        kernel = await tune_kernel(parts)
        assert "cfg.txt" in kernel.learned
        news = {name: entry for name, entry in kernel.learned.items() if name not in before.learned}
        assert kernel.digest == extend_digest(before.digest, news.values())
        assert str(cfg) in {path for path, _ in parts.catalog.list_inspected_stamps()}
        assert parts.look_up().status is Status.FRESH
        assert any("cfg.txt" in event["names"] for event in parts.recorder.list_events("learned"))

        cfg.write_text("two")
        edited = await parts.inspect_file()
        assert edited.digest == extend_digest(before.digest, {**news, "cfg.txt": edited.learned["cfg.txt"]}.values())
        assert edited.digest != kernel.digest
        assert parts.look_up().status is Status.STALE
        why = Explainer(parts.catalog, parts.daemon.states, parts.store).explain_winners(edited)
        assert [change.where for entry in why for change in entry.changes] == ["cfg.txt"]

        count = count_artifacts(parts)
        assert await tune_kernel(parts) == edited
        assert parts.look_up().status is Status.FRESH
        assert count_artifacts(parts) == count + 2  # of each config, as its key has the name now

        cfg.write_text("one")
        await parts.inspect_file()
        await parts.request_jobs()
        undone = (await parts.recorder.wait_for_ended_jobs(3))[-1]
        assert not undone["cost"].get("compile_s")
        assert parts.look_up().status is Status.FRESH


async def test_the_next_daemon_knows_what_was_learned(tmp_path: Path) -> None:
    """Names and renamed contexts are stored: after a restart the winner is fresh, and an edit makes it stale."""
    async with assemble_daemon(tmp_path) as parts, parts.run_jobs():
        parts.write_file("one", "cfg.txt")
        learned = await tune_kernel(parts, READING)
    async with assemble_daemon(tmp_path) as parts:
        assert parts.catalog.resolve_kernel("it") == learned
        assert await parts.inspect_file() == learned
        assert parts.look_up().status is Status.FRESH
        parts.write_file("two", "cfg.txt")
        await parts.inspect_file()
        assert parts.look_up().status is Status.STALE


async def test_a_file_that_was_missing_is_followed(tmp_path: Path) -> None:
    """The name is learned as absent, so the answer is stale once the file exists."""
    async with assemble_daemon(tmp_path) as parts, parts.run_jobs():
        kernel = await tune_kernel(parts, READING)
        assert kernel.learned["cfg.txt"].digest == ""
        assert parts.look_up().status is Status.FRESH
        parts.write_file("now it is", "cfg.txt")
        await parts.inspect_file()
        assert parts.look_up().status is Status.STALE


async def test_two_kernels_share_no_artifact_of_other_contents(tmp_path: Path) -> None:
    """A kernel with the same sources and Builds that has learned nothing yet gets no artifact of an older file."""
    async with assemble_daemon(tmp_path) as parts, parts.run_jobs():
        cfg = parts.write_file("one", "cfg.txt")
        await tune_kernel(parts, READING)
        cfg.write_text("two")
        other = READING.replace("def it(", "def other(")
        parts.write_file(other, "tune_other.py")
        await parts.inspect_file(name="tune_other.py")
        await parts.tune("other")
        answer = parts.look_up("other")
        assert answer.config == {"us": 50.0, "reads": "cfg.txt"}
        assert answer.artifact is not None
        assert '"tag": "two"' in Path(answer.artifact, "kernel.json").read_text()


async def test_older_states_of_a_kernel_have_the_name_too(tmp_path: Path) -> None:
    """After undoing an edit, the older state is fresh again, although the name was learned later."""
    plain = make_kernel_text(rtol="1e-3")
    async with assemble_daemon(tmp_path) as parts, parts.run_jobs():
        await tune_kernel(parts, plain)
        kernel = await parts.inspect_file(make_kernel_text(rtol="1e-4"))
        observed = Observation("cfg.txt", "", places=("cfg.txt",), is_source=True)
        traces = parts.daemon.traces
        await traces.learn_names(kernel, [observed])
        undone = await parts.inspect_file(plain)
        assert "cfg.txt" in undone.learned
        assert parts.look_up().status is Status.FRESH


async def test_an_inspection_that_began_earlier_keeps_what_was_learned(tmp_path: Path) -> None:
    """A name that is learned during an inspection is in its result."""
    async with assemble_daemon(tmp_path) as parts:
        kernel = await parts.inspect_file(make_kernel_text())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parts.inspector.inspect_files, parts.root, [kernel.file])
            await anyio.lowlevel.checkpoint()
            await parts.daemon.traces.learn_names(
                kernel, [Observation("cfg.txt", "", places=("cfg.txt",), is_source=True)]
            )
        assert "cfg.txt" in parts.catalog.resolve_kernel("it").learned


async def test_what_was_read_must_be_what_is_known(tmp_path: Path) -> None:
    """An observation of other bytes than the kernel's is refused, and changes nothing."""
    async with assemble_daemon(tmp_path) as parts:
        kernel = await parts.inspect_file(make_kernel_text())
        with pytest.raises(SourceChanged, match=r"tune_it\.py changed"):
            await parts.daemon.traces.learn_names(kernel, [Observation("tune_it.py", "ff", places=("tune_it.py",))])
        assert parts.catalog.resolve_kernel("it") == kernel


async def test_a_name_that_one_of_two_equal_inspections_sees_is_none_of_its_kernels(tmp_path: Path) -> None:
    """A package reads it once per process; if contents changed, further reads are the kernel's."""
    async with assemble_daemon(tmp_path) as parts:
        kernel = await parts.inspect_file(make_kernel_text())
        await parts.daemon.traces.learn_names(kernel, [Observation("a.txt", "aa", places=("a.txt",))])
        before = parts.catalog.resolve_kernel("it")
        chance = Observation("env:CHANCE", "")
        changes = parts.catalog.apply_inspections([Inspection(kernel.file, (before.with_observed([chance]),))])
        assert (changes.changed, parts.catalog.resolve_kernel("it").digest) == ((), before.digest)
        edited = kernel.with_observed([Observation("a.txt", "bb", places=before.learned["a.txt"].places), chance])
        changes = parts.catalog.apply_inspections([Inspection(kernel.file, (edited,))])
        assert changes.changed == (kernel.name,)
        assert "env:CHANCE" in parts.catalog.resolve_kernel("it").learned
