"""Projects: a new name takes along all that the store holds of the old one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ktuned.model.kernel import Root
from ktuned.model.keys import KernelName, WinnerKey
from ktuned.model.values import Outcome, canonical
from ktuned.store import Capture
from ktuned.store.database import Store
from tests.store.samples import CONTEXT, PROBLEM, failed, kernel_info, measured, new_job, tried

pytestmark = pytest.mark.anyio

RENAMED = replace(CONTEXT, kernel=KernelName("other:gemm"))


async def named(store: Store, **names: str) -> None:
    """Give roots their names."""
    await store.projects.save_names({f"/{path}": name for path, name in names.items()})


def key(kernel: str) -> WinnerKey:
    """Return the key of a kernel's winner."""
    return CONTEXT.key._replace(kernel=KernelName(kernel))


def question(kernel: str) -> str:
    """Return what is asked under a pin."""
    return canonical({"kernel": kernel, "problem": PROBLEM, "device": None})


async def test_everything_follows_a_new_name(database: Path) -> None:
    """Winners, trials, jobs, captures, kernels and pins are found under it, and the old one is an alias."""
    async with Store.open(database) as store:
        await named(store, p="proj")
        job = await new_job(store)
        trial = await tried(store, job, 8, measured(5.0))
        await tried(store, job, 16, failed(Outcome.HUNG))
        await store.save_kernels([kernel_info()])
        await store.captured.save_capture(Capture("proj:gemm", CONTEXT.problem, "0" * 64, 10, 1.0))
        answer = json.dumps({"kernel": "proj:gemm", "config": {"BM": 8}})
        await store.pinned.hold_answer("run", [question("gemm"), question("proj:gemm")], answer, now=1.0, limit=10)
        await named(store, p="other")
    async with Store.open(database) as store:
        winner = store.get_winner(key("other:gemm"))
        assert winner is not None
        assert (winner.trial, winner.context) == (trial, RENAMED)
        assert store.get_winner(key("proj:gemm")) is None
        assert [one.outcome for one in store.list_trials(kernel="other:gemm")] == [Outcome.HUNG, Outcome.MEASURED]
        assert [one.id for one in store.list_jobs(kernel="other:gemm")] == [job.id]
        assert [(one.project, one.name) for one in store.load_kernels()] == [("other", "other:gemm")]
        assert store.load_digest_parts("other:gemm", "d") is not None
        assert [one.kernel for one in store.captured.list_captures()] == ["other:gemm"]
        held = {
            asked: store.pinned.find_answer("run", question(asked)) for asked in ("gemm", "proj:gemm", "other:gemm")
        }
        assert {json.loads(text or "{}").get("kernel") for text in held.values()} == {"other:gemm"}
        assert (store.projects.load_names(), store.projects.load_aliases()) == ({"/p": "other"}, {"proj": "other"})
        await named(store, p="third")
        assert store.projects.load_aliases() == {"proj": "third", "other": "third"}
        await named(store, p="proj")
        assert store.projects.load_aliases() == {"other": "proj", "third": "proj"}
        assert store.get_winner(CONTEXT.key) is not None


async def test_names_that_begin_alike_are_other_projects(store: Store) -> None:
    """A project's name may have a colon or begin as another's does."""
    await named(store, p="proj")
    job = await new_job(store)
    others = ["proj:x:gemm", "project:gemm", "pro:gemm", "proj-2:gemm"]
    for kernel in others:
        await tried(store, job, 8, measured(5.0), replace(CONTEXT, kernel=KernelName(kernel)))
    await named(store, p="other")
    assert sorted(winner.context.kernel for winner in store.list_winners()) == sorted(others)


async def test_what_the_new_name_has_already_stays(store: Store) -> None:
    """Trials of both come together; of two winners that of the present name stays."""
    await named(store, p="proj")
    job = await new_job(store)
    for context, figures in ((CONTEXT, {8: 5.0, 16: 6.0}), (RENAMED, {8: 7.0, 32: 8.0})):
        for config, latency_us in figures.items():
            await tried(store, job, config, measured(latency_us), context)
    await named(store, p="other")
    found = {one.config["BM"]: one.latency_us for one in store.list_trials(kernel="other:gemm")}
    assert found == {8: 7.0, 16: 6.0, 32: 8.0}
    (winner,) = store.list_winners()
    assert (winner.context, winner.config, winner.latency_us) == (RENAMED, {"BM": 8}, 7.0)


async def test_a_winner_whose_trial_is_there_twice_is_served_by_the_other(store: Store) -> None:
    """Of a config that both names measured the old name's trial goes, and its winner with it or to its twin."""
    await named(store, p="proj")
    job = await new_job(store)
    await tried(store, job, 8, measured(5.0))
    number = await tried(store, job, 8, measured(7.0), RENAMED)
    await store.finish_trial(number, failed(Outcome.HUNG))
    await store.finish_trial(number, measured(7.0))
    await named(store, p="other")
    (winner,) = store.list_winners()
    assert (winner.trial, winner.latency_us) == (number, 7.0)


async def test_names_move_on_in_one_step(store: Store) -> None:
    """One project may take the name that another gives up; two that swap names keep their rows where they are."""
    await named(store, a="one", b="two")
    job = await new_job(store)
    for kernel in ("one:gemm", "two:gemm"):
        await tried(store, job, len(kernel), measured(5.0), replace(CONTEXT, kernel=KernelName(kernel)))
    first, second = store.list_winners()
    await named(store, a="two", b="three")
    assert {one.context.kernel: one.trial for one in store.list_winners()} == {
        "two:gemm": first.trial,
        "three:gemm": second.trial,
    }
    assert store.projects.load_aliases() == {"one": "two"}, "what another project is called is no alias"
    await named(store, a="three", b="two")
    assert {one.context.kernel: one.trial for one in store.list_winners()} == {
        "two:gemm": first.trial,
        "three:gemm": second.trial,
    }
    assert store.projects.load_names() == {"/a": "three", "/b": "two"}


async def test_a_name_that_was_given_up_is_free(store: Store) -> None:
    """A root that is not watched any more has no claim to the name that another one has since."""
    await named(store, a="one")
    await named(store, b="one")
    assert store.projects.load_names() == {"/b": "one"}
    await named(store, a="two")
    assert store.projects.load_aliases() == {}


async def test_a_watched_root_is_renamed_too(store: Store) -> None:
    """The next daemon finds the root under its name."""
    await store.add_root(Root("/p", "proj", "python"))
    await named(store, p="proj")
    await named(store, p="other")
    assert [root.name for root in store.load_roots()] == ["other"]
