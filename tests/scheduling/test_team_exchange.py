"""The exchange with a team's store, by real daemons' parts, a real bridge and a directory.

Configs are judged by the energy that the fake device says they take: figures that no load of this machine changes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any

import anyio
import anyio.lowlevel
import msgpack
import pytest

from ktuned.bridge.messages import Hello
from ktuned.model.job import Job
from ktuned.model.kernel import KernelInfo
from ktuned.model.objective import ENERGY
from ktuned.model.trace import Observation
from ktuned.model.trial import Context
from ktuned.model.values import Status
from ktuned.scheduling.job_requests import Wish
from ktuned.scheduling.team_link import TeamDown, Use
from ktuned.team.objects import LearnedName, SharedWinner, address_of, kernel_prefix, read_object, write_object
from ktuned.team.settings import TeamSettings
from tests.assembled import PATIENCE_S, Parts, assembled, kernel_text

pytestmark = pytest.mark.anyio

CONFIGS = "[dict(us=50.0, joules=joule / 100) for joule in range(2, 7)]"
KERNEL = kernel_text(configs=CONFIGS, default="dict(us=50.0, joules=0.06)", objective="'energy'")
BEST = {"us": 50.0, "joules": 0.02}
SECOND = {"us": 50.0, "joules": 0.03}


@pytest.fixture
async def member(tmp_path: Path, store: Path) -> AsyncIterator[Parts]:
    """Run a member's parts with a bridge to the team's store."""
    async with assembled(tmp_path) as parts, parts.daemon.bridge.running():
        parts.daemon.team_link.follow(TeamSettings(str(store)))
        # Its tasks are the fixture's.
        await parts.daemon.bridge.exchange(Hello(), PATIENCE_S)
        yield parts


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a directory for the team's store."""
    place = tmp_path / "store"
    place.mkdir()
    return place


def objects(store: Path) -> list[Path]:
    """Return the objects in a store."""
    return sorted(path for path in store.rglob("*") if path.is_file())


def shared(store: Path) -> dict[Path, SharedWinner]:
    """Return what a store shares."""
    return {path: read_object(str(path.relative_to(store)), path.read_bytes()) for path in objects(store)}


async def tuned(parts: Parts, kernel: KernelInfo, **wish: Any) -> Job:
    """Tune a kernel to the end."""
    ended = len(parts.told.of("job_done"))
    (job,) = await parts.requests.tune(kernel, Wish(**wish))
    await parts.told.ended(ended + 1)
    done = parts.jobs.job(job.id)
    assert done is not None
    return done


def looked_up(parts: Parts) -> tuple[Status, dict[str, Any]]:
    """Return a lookup's status and config."""
    answer = parts.lookups.lookup("it", {"n": 64}, None, tune=False)
    return answer.status, dict(answer.config or {})


def context_of(parts: Parts, kernel: KernelInfo) -> Context:
    """Return the present context of a kernel's problem."""
    device = parts.machine.device(parts.environment, "fake", None)
    return parts.machine.context(kernel, parts.environment, {"n": 64}, device)


def publish(
    store: Path, parts: Parts, kernel: KernelInfo, config: dict[str, float], joules: float, **fields: Any
) -> Path:
    """Put a winner into the store as another member would that has this very context; return its place."""
    context = context_of(parts, kernel)
    winner = SharedWinner(
        kernel=context.kernel,
        problem={"n": 64},
        device=context.device,
        digest=context.digest,
        toolchain=context.toolchain,
        device_fingerprint=context.device_fingerprint,
        measuring_version=context.measuring_version,
        config=config,
        latency_us=50.0,
        spread_us=0.1,
        decided=1.0,
        objective=ENERGY,
        metrics={"energy": joules},
    )
    name, data = write_object(replace(winner, **fields), address_of(context, kernel.learned.values(), ENERGY))
    (store / name).parent.mkdir(parents=True, exist_ok=True)
    (store / name).write_bytes(data)
    return store / name


async def decided(parts: Parts, kernel: KernelInfo) -> None:
    """Enter a winner as a final round would have left it."""
    await parts.measured(kernel, {50.0: 50.0})
    (winner,) = parts.store.winners(kernel.name)
    await parts.store.decide_winner(winner.trial)


async def test_a_shared_winner_is_verified_and_served_without_a_search(member: Parts, store: Path) -> None:
    """Its config and the default are measured, nothing else; it is no news to the store."""
    kernel = await member.inspect(KERNEL)
    publish(store, member, kernel, BEST, 0.02)
    async with member.working():
        job = await tuned(member, kernel)
        assert (job.outcomes, job.state) == ({"measured": 2}, "done")
        # The counter has steps: on a busy machine a short window's energy is one of few steps.
        words = r"the team's config holds here, 0\.02\d* J, 0\.02 J where it was found; nothing else was searched"
        assert re.fullmatch(words, job.message), job.message
        assert looked_up(member) == (Status.FRESH, BEST)
        assert await member.daemon.team_exchange.push() == 0
        # To tune what has a fresh winner is to look for a better one.
        assert (await tuned(member, kernel)).outcomes == {"measured": 5}
    assert len(objects(store)) == 1


async def test_a_config_that_does_not_hold_begins_the_search(member: Parts, store: Path) -> None:
    """A figure that is not reached here skips nothing: its config was the first candidate of a whole search."""
    kernel = await member.inspect(KERNEL)
    publish(store, member, kernel, SECOND, 0.001)
    async with member.working():
        job = await tuned(member, kernel)
    first = min(member.store.trials(kernel=job.kernel), key=lambda trial: trial.id)
    assert (first.config, job.outcomes) == (SECOND, {"measured": 5})
    assert "the team's config takes 0.03 J here, 0.001 J where it was found; the search went on" in job.message
    assert looked_up(member) == (Status.FRESH, BEST)


async def test_without_the_team_nothing_is_used_and_nothing_shared(member: Parts, store: Path) -> None:
    """`--no-team` searches, and its winner stays here; then what is better there competes, once."""
    kernel = await member.inspect(KERNEL)
    place = publish(store, member, kernel, BEST, 0.02)
    exchange = member.daemon.team_exchange
    async with member.working():
        await tuned(member, kernel, no_team=True, configs=(SECOND,))
        assert looked_up(member) == (Status.FRESH, SECOND)
        assert (await exchange.push(), objects(store)) == (0, [place])
        pulled = await exchange.look_around()
        await member.told.ended(2)
        assert (len(pulled.jobs), looked_up(member)) == (1, (Status.FRESH, BEST))
        assert (await exchange.look_around()).jobs == ()


async def test_a_look_around_verifies_for_what_is_stale(member: Parts, store: Path) -> None:
    """After an edit that another member has tuned, the winner from there is verified before anyone asks."""
    kernel = await member.inspect(KERNEL)
    await decided(member, await member.inspect(kernel_text(objective="'energy'")))
    kernel = await member.inspect(KERNEL)
    publish(store, member, kernel, BEST, 0.02)
    exchange = member.daemon.team_exchange
    async with member.working():
        pulled = await exchange.pull([kernel])
        assert (pulled.found, pulled.fresh, len(pulled.jobs)) == (1, 0, 1)
        # It works on that already.
        assert (await exchange.look_around()).jobs == ()
        await member.told.ended()
        job = member.jobs.job(pulled.jobs[0].id)
        assert job is not None
        assert (job.reason, job.outcomes) == ("shared by the team", {"measured": 2})
        assert looked_up(member) == (Status.FRESH, BEST)
        assert (await exchange.pull([kernel])).fresh == 1


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "newer", "endless"])
async def test_damage_is_a_notice_and_no_answer(member: Parts, store: Path, damage: str) -> None:
    """What is cut off, changed or not understood is left out; sound objects beside it count."""
    kernel = await member.inspect(KERNEL)
    place = publish(store, member, kernel, BEST, 0.02)
    data = place.read_bytes()
    if damage == "newer":
        text: bytes = msgpack.packb(msgpack.unpackb(data) | {"ktuned_team": 2})
        place.unlink()
        place.with_name(f"{place.name.partition('-')[0]}-{sha256(text).hexdigest()}").write_bytes(text)
    else:
        changed = {"cut": data[:-7], "changed": data.replace(b"us", b"uz"), "empty": b"", "endless": bytes(10**6)}
        place.write_bytes(changed[damage])
    link, winners, context = member.daemon.team_link, member.daemon.team_winners, context_of(member, kernel)
    assert await winners.best(kernel, context, ENERGY) is None
    (notice,) = link.notices
    assert "damaged objects, which are left out" in notice
    publish(store, member, kernel, SECOND, 0.03)
    await winners.look(kernel, [])
    best = await winners.best(kernel, context, ENERGY)
    assert (None if best is None else best.config, len(link.notices)) == (SECOND, 1)
    for one in objects(store):
        if one != place:
            one.unlink()
    place.write_bytes(data)
    await winners.look(kernel, [])
    best = await winners.best(kernel, context, ENERGY)
    assert link.notices == ([] if damage != "newer" else link.notices)
    assert best is not None


@pytest.mark.parametrize(
    "foreign",
    [
        {"digest": "0" * 64},
        {"toolchain": "other"},
        {"device_fingerprint": "other"},
        {"device": "other"},
        {"problem": {"n": 65}},
        {"measuring_version": 0},
        {"objective": "edp", "metrics": {"edp": 1.0, "energy": 0.02}},
        {"names": (LearnedName("absent.h", is_source=True),)},
    ],
)
async def test_another_context_under_this_address_is_no_answer(
    member: Parts, store: Path, foreign: dict[str, Any]
) -> None:
    """An object's place is what its writer says: what it holds is compared with the context, field by field."""
    kernel = await member.inspect(KERNEL)
    publish(store, member, kernel, BEST, 0.02, **foreign)
    assert await member.daemon.team_winners.best(kernel, context_of(member, kernel), ENERGY) is None


async def test_a_store_that_is_not_there_is_a_notice(member: Parts, store: Path) -> None:
    """When it is back, what was decided meanwhile is published, once."""
    store.rmdir()
    kernel = await member.inspect(kernel_text())
    await decided(member, kernel)
    link, exchange = member.daemon.team_link, member.daemon.team_exchange
    assert await member.daemon.team_winners.best(kernel, context_of(member, kernel), ENERGY) is None
    with pytest.raises(TeamDown):
        await exchange.push()
    (notice,) = link.notices
    assert "it does not exist (make it, or mount what belongs there); tuning goes on without it" in notice
    assert exchange.counts() == (0, 1)
    store.mkdir()
    # As after its pause.
    link.follow(TeamSettings(str(store), pull_s=60.0))
    assert await exchange.push() == 1
    assert (exchange.counts(), link.notices, await exchange.push()) == ((1, 0), [], 0)


async def test_a_bridge_that_is_killed_is_a_notice(tmp_path: Path, store: Path) -> None:
    """A later call starts another one, and publishes what the first could not."""
    async with assembled(tmp_path) as parts, parts.daemon.bridge.running():
        link, exchange, bridge = parts.daemon.team_link, parts.daemon.team_exchange, parts.daemon.bridge
        link.follow(TeamSettings(str(store)))
        await decided(parts, await parts.inspect(kernel_text()))
        await bridge.exchange(Hello(), PATIENCE_S)
        bridge.kill("killed by a test")
        with pytest.raises(TeamDown):
            await exchange.push()
        assert "killed by a test" in link.notices[0]
        assert exchange.counts() == (0, 1)
        # As after its pause.
        link.follow(TeamSettings(str(store), pull_s=60.0))
        with anyio.fail_after(PATIENCE_S):
            while bridge.pause_s:  # noqa: ASYNC110 - nothing reports the end of a pause
                await anyio.sleep(bridge.pause_s)
        assert (await exchange.push(), len(objects(store))) == (1, 1)


async def test_what_was_sent_and_not_noted_is_sent_as_it_was(member: Parts, store: Path) -> None:
    """A daemon that dies in between changes nothing: the same bytes, under the same name."""
    kernel = await member.inspect(kernel_text())
    await decided(member, kernel)
    exchange, storage = member.daemon.team_exchange, member.daemon.team_link.settings.identity
    assert await exchange.push() == 1
    before = shared(store)
    (winner,) = member.store.winners(kernel.name)
    for is_lost, sent in ((False, 0), (True, 1)):
        await member.store.published.note(storage, [replace(winner, decided=0.0)], is_there=True, now=0.0)
        assert exchange.counts() == (0, 1)
        if is_lost:
            objects(store)[0].unlink()
        assert await exchange.push() == sent
        assert shared(store) == before


async def test_what_is_not_decided_here_is_not_published(member: Parts, store: Path) -> None:
    """Neither a first measurement, nor a winner of an earlier state; one that holds again is."""
    kernel = await member.inspect(kernel_text())
    await member.measured(kernel, {50.0: 50.0})
    exchange = member.daemon.team_exchange
    assert await exchange.push() == 0
    (winner,) = member.store.winners(kernel.name)
    await member.store.decide_winner(winner.trial)
    await member.inspect(kernel_text(reference="lambda t: t"))
    assert await exchange.push() == 0
    await member.inspect(kernel_text())
    assert await exchange.push() == 1


async def test_read_only_writes_nothing(member: Parts, store: Path) -> None:
    """However long it runs; others' winners are read."""
    kernel = await member.inspect(kernel_text())
    await decided(member, kernel)
    member.daemon.team_link.follow(TeamSettings(str(store), read_only=True))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(member.daemon.team_exchange.run)
        member.daemon.team_link.winner_decided()
        while member.daemon.team_exchange.looked is None:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert objects(store) == []


async def test_retention_and_cap_hold_after_publishing(member: Parts, store: Path) -> None:
    """What is too old goes when something is published, and nothing that ktuned has not named."""
    kernel = await member.inspect(kernel_text())
    old = publish(store, member, kernel, SECOND, 0.03)
    mine = store / "v1" / "notes.txt"
    mine.write_text("mine")
    for path in (old, mine):
        os.utime(path, (0.0, 0.0))
    await decided(member, kernel)
    assert await member.daemon.team_exchange.push() == 1
    assert not old.exists()
    assert mine.exists()
    assert len(objects(store)) == 2


async def test_artifacts_are_exchanged_only_where_they_are_trusted(tmp_path: Path, store: Path) -> None:
    """Without that none is published, and none that is there is taken; with it nothing is compiled twice."""
    text = kernel_text(configs="[dict(us=50.0, joules=0.02)]", objective="'energy'")
    for name, is_trusting, artifacts, ours in (
        ("alone", False, 0, 1), ("giver", True, 1, 1), ("taker", True, 1, 0), ("wary", False, 1, 1),
    ):  # fmt: skip
        directory = tmp_path / name
        directory.mkdir()
        async with (
            assembled(directory, env={"FAKE_LOG": str(directory / "log")}) as parts,
            parts.daemon.bridge.running(),
            parts.working(),
        ):
            parts.daemon.team_link.follow(TeamSettings(str(store), trust_artifacts=is_trusting))
            job = await tuned(parts, await parts.inspect(text))
            await parts.daemon.team_exchange.push()
        log = directory / "log"
        compiled = len(log.read_text().splitlines()) if log.exists() else 0
        assert (job.outcomes, compiled) == ({"measured": 1}, ours), name
        assert len(list((store / "v1").glob("artifacts/*/*"))) == artifacts, name
        if name == "alone":
            (store / "v1").rename(tmp_path / "before")
            (store / "v1").mkdir()


async def test_learned_names_are_compared_by_content(tmp_path: Path, store: Path) -> None:
    """A header that only compiling shows: equal here, it is learned, and the winner holds; else it does not."""
    async with assembled(tmp_path) as first:
        first.write("#define N 1\n", "cfg.h")
        kernel = await first.inspect(KERNEL)
        found = await first.inspector.look(kernel, [Observation("cfg.h", "", is_source=True)])
        below = [replace(one, places=("cfg.h",)) for one in found]
        await first.daemon.traces.learn(kernel, below)
        names = (LearnedName("cfg.h", is_source=True),)
        place = publish(store, first, first.catalog.resolve("it"), BEST, 0.02, names=names)
    for content, is_found in (("#define N 1\n", True), ("#define N 2\n", False)):
        directory = tmp_path / str(is_found)
        directory.mkdir()
        async with assembled(directory) as parts, parts.daemon.bridge.running():
            parts.daemon.team_link.follow(TeamSettings(str(store)))
            parts.write(content, "cfg.h")
            kernel = await parts.inspect(KERNEL)
            assert place.parent.name == address_of(context_of(parts, kernel), (), ENERGY)
            best = await parts.daemon.team_winners.best(kernel, context_of(parts, kernel), ENERGY)
            assert (best is not None) is is_found
            assert ("cfg.h" in parts.catalog.resolve("it").learned) is is_found


async def test_a_store_that_was_emptied_is_filled_again(member: Parts, store: Path) -> None:
    """A cache that restarts, a bucket that is cleared: `push` sends what it lacks, and so does a look around."""
    kernel = await member.inspect(kernel_text())
    await decided(member, kernel)
    exchange = member.daemon.team_exchange
    assert (await exchange.push(), await exchange.push()) == (1, 0)
    before = shared(store)
    shutil.rmtree(store / "v1")
    assert (await exchange.push(), shared(store)) == (1, before)
    shutil.rmtree(store / "v1")
    assert exchange.counts() == (1, 0)
    await exchange.look_around()
    assert exchange.counts() == (0, 1)
    with anyio.fail_after(PATIENCE_S):
        await member.daemon.team_link.await_winner()
    assert (await exchange.publish(0.0), shared(store)) == (1, before)


async def test_what_still_holds_is_sent_again_before_it_expires(member: Parts, store: Path) -> None:
    """Half way to its removal, and not before."""
    kernel = await member.inspect(kernel_text())
    await decided(member, kernel)
    exchange = member.daemon.team_exchange
    assert await exchange.push() == 1
    (place,) = objects(store)
    days = {age: time() - age * 86_400 for age in (89, 91)}
    os.utime(place, (days[89], days[89]))
    assert await exchange.push() == 0
    os.utime(place, (days[91], days[91]))
    assert await exchange.push() == 1
    assert objects(store) == [place]
    assert place.stat().st_mtime > days[89]


async def test_a_store_that_cannot_be_written_is_read_nevertheless(member: Parts, store: Path) -> None:
    """A full bucket, a replica: its notice stands while others' winners are read, and its pauses grow."""
    kernel = await member.inspect(KERNEL)
    publish(store, member, kernel, SECOND, 0.03)
    await member.inspect(kernel_text(name="other"), "tune_other.py")
    other = member.catalog.resolve("other")
    await member.measured(other, {50.0: 50.0})
    (winner,) = member.store.winners(other.name)
    await member.store.decide_winner(winner.trial)
    (store / kernel_prefix(other.name)).write_text("in the way")
    link, exchange = member.daemon.team_link, member.daemon.team_exchange
    with pytest.raises(TeamDown):
        await exchange.push()
    assert link.pause_s(Use.WRITE) > 0
    best = await member.daemon.team_winners.best(kernel, context_of(member, kernel), ENERGY)
    assert (None if best is None else best.config, link.pause_s(Use.READ)) == (SECOND, 0.0)
    (notice,) = link.notices
    assert "Not a directory; tuning goes on without it" in notice


async def test_a_sweep_that_is_refused_loses_nothing(
    member: Parts, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where objects may be written and not removed `push` has published."""

    async def refused() -> None:
        raise TeamDown("access denied")

    await decided(member, await member.inspect(kernel_text()))
    monkeypatch.setattr(member.daemon.team_link, "sweep", refused)
    assert (await member.daemon.team_exchange.push(), len(objects(store))) == (1, 1)


async def test_others_with_other_headers_hide_nothing(member: Parts, store: Path) -> None:
    """However many they are, and however new: the winner of this very digest is found."""
    kernel = await member.inspect(KERNEL)
    place = publish(store, member, kernel, BEST, 0.02)
    os.utime(place, (1.0, 1.0))
    for number in range(6):
        names = (LearnedName(f"absent{number}.h", is_source=True),)
        publish(store, member, kernel, SECOND, 0.01, digest=f"{number}" * 64, names=names)
    best = await member.daemon.team_winners.best(kernel, context_of(member, kernel), ENERGY)
    assert (None if best is None else best.config) == BEST


@pytest.mark.parametrize("config", [{"us": 50.0, "joules": 0.001}, {"us": -1e300, "x": 2**63}])
async def test_a_config_that_this_space_lacks_is_never_tried(
    member: Parts, store: Path, config: dict[str, Any]
) -> None:
    """Under the right context, too: the search goes on as if nothing were shared."""
    kernel = await member.inspect(KERNEL)
    publish(store, member, kernel, config, 0.001)
    async with member.working():
        job = await tuned(member, kernel)
        assert (await member.daemon.team_exchange.look_around()).jobs == ()
    assert job.outcomes == {"measured": 5}
    assert looked_up(member) == (Status.FRESH, BEST)


async def test_absurd_figures_decide_nothing(member: Parts, store: Path) -> None:
    """What is measured here decides, and the wrong clock of a writer neither hides nor keeps anything."""
    kernel = await member.inspect(KERNEL)
    many = {"energy": 0.001, **{str(number): 0.0 for number in range(10_000)}}
    fields: list[dict[str, Any]] = [
        {"decided": 1e300},
        {"decided": -1e300, "spread_us": 1e300, "trials": -(2**62)},
        {"metrics": {"energy": 1.7e308}, "latency_us": 1.7e308},
        {"metrics": {"energy": 1.7e308}},
        {"metrics": {"energy": 5e-324}, "latency_us": 5e-324},
        {"metrics": many},
    ]
    for one in fields:
        publish(store, member, kernel, SECOND, 0.001, **one)
    best = await member.daemon.team_winners.best(kernel, context_of(member, kernel), ENERGY)
    assert (len(objects(store)), None if best is None else best.config) == (6, SECOND)
    async with member.working():
        await tuned(member, kernel)
    assert looked_up(member) == (Status.FRESH, BEST)


async def test_an_artifact_that_was_changed_is_a_notice(tmp_path: Path, store: Path) -> None:
    """Also where artifacts are trusted: it is compiled here."""
    text = kernel_text(configs="[dict(us=50.0, joules=0.02)]", objective="'energy'")
    for name in ("giver", "taker"):
        directory = tmp_path / name
        directory.mkdir()
        async with (
            assembled(directory, env={"FAKE_LOG": str(directory / "log")}) as parts,
            parts.daemon.bridge.running(),
            parts.working(),
        ):
            parts.daemon.team_link.follow(TeamSettings(str(store), trust_artifacts=True))
            job = await tuned(parts, await parts.inspect(text))
            await parts.daemon.team_exchange.push()
            notices = parts.daemon.team_link.notices
        for place in (store / "v1").glob("artifacts/*/*"):
            place.write_bytes(place.read_bytes()[:-1] + b"x")
        assert job.outcomes == {"measured": 1}
        assert len((directory / "log").read_text().splitlines()) == 1
    (notice,) = notices
    assert "does not hold what its name says" in notice
