"""The exchange with a shared store, by real daemons' parts, a real bridge and a directory.

Configs are judged by the energy that the fake device says they take: figures that no load of this machine changes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator, Collection
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any

import anyio
import anyio.lowlevel
import msgpack
import pytest
from msgspec.structs import replace

from ktuned.bridge.messages import Hello
from ktuned.fleet import Bridge
from ktuned.model.job import Job
from ktuned.model.kernel import KernelInfo
from ktuned.model.objective import minimize
from ktuned.model.trace import Observation
from ktuned.model.trial import Context
from ktuned.model.values import Status
from ktuned.scheduling import shared_winners
from ktuned.scheduling.job_requests import TuningRequest
from ktuned.scheduling.shared_winners import StoreUse, find_address
from ktuned.sharing import (
    Found,
    LearnedName,
    SharedStore,
    SharedStoreDown,
    SharedWinner,
    ShareSettings,
    StoredWinner,
    make_address,
)
from ktuned.tuning import PresentKey
from ktuned_team.objects import make_kernel_prefix, read_object, write_object
from ktuned_team.team_store import TeamStore
from tests.assembled import PATIENCE_S, Parts, assembled, kernel_text

BY_ENERGY = minimize("energy")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skip(reason="written for a search by energy; these tests go with the exchange itself"),
]

CONFIGS = "[dict(us=50.0, joules=joule / 100) for joule in range(2, 7)]"
KERNEL = kernel_text(configs=CONFIGS, default="dict(us=50.0, joules=0.06)", objective="'min:energy'")
BEST = {"us": 50.0, "joules": 0.02}
SECOND = {"us": 50.0, "joules": 0.03}


@pytest.fixture
async def member(tmp_path: Path, store: Path) -> AsyncIterator[Parts]:
    """Run a member's parts with a bridge to the shared store."""
    async with assembled(tmp_path) as parts, parts.daemon.bridge.accept_calls():
        parts.daemon.share_exchange.apply_settings(ShareSettings(str(store)))
        # Its tasks are the fixture's.
        await parts.daemon.bridge.call_service(Hello(), PATIENCE_S)
        yield parts


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a directory for the shared store."""
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
    (job,) = await parts.requests.request_jobs(kernel, TuningRequest(**wish))
    await parts.told.ended(ended + 1)
    done = parts.jobs.get_job(job.id)
    assert done is not None
    return done


def looked_up(parts: Parts) -> tuple[Status, dict[str, Any]]:
    """Return a lookup's status and config."""
    answer = parts.lookups.look_up("it", {"n": 64}, None, tune=False).answer
    return answer.status, dict(answer.config or {})


def context_of(parts: Parts, kernel: KernelInfo) -> Context:
    """Return the present context of a kernel's problem."""
    device = parts.machine.find_device(parts.environment, "fake", None)
    return parts.machine.build_context(kernel, parts.environment, {"n": 64}, device)


def key_of(parts: Parts, kernel: KernelInfo) -> PresentKey:
    """Return the present key of a kernel's problem, by energy."""
    return PresentKey(kernel, {"n": 64}, context_of(parts, kernel), BY_ENERGY)


def publish(
    store: Path, parts: Parts, kernel: KernelInfo, config: dict[str, float], joules: float, **fields: Any
) -> Path:
    """Put a winner into the store as another member would that has this very context; return its place."""
    context = context_of(parts, kernel)
    winner = replace(shared_winner(context, config, joules), names=learned_names(kernel))
    name, data = write_object(replace(winner, **fields), make_address(context, kernel.learned.values(), BY_ENERGY))
    (store / name).parent.mkdir(parents=True, exist_ok=True)
    (store / name).write_bytes(data)
    return store / name


def learned_names(kernel: KernelInfo) -> tuple[LearnedName, ...]:
    """Return the names that a kernel's digest covers, as a winner carries them."""
    return tuple(LearnedName(one.name, one.is_source, one.is_data) for one in kernel.learned.values())


def shared_winner(context: Context, config: dict[str, float], joules: float) -> SharedWinner:
    """Return a winner that another daemon has found in a context."""
    return SharedWinner(
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
        objective=BY_ENERGY,
        metrics={"energy": joules},
    )


async def decided(parts: Parts, kernel: KernelInfo) -> None:
    """Enter a winner as a final round would have left it."""
    await parts.measured(kernel, {50.0: 50.0})
    (winner,) = parts.store.list_winners(kernel.name)
    await parts.store.decide_winner(winner.trial)


async def test_a_shared_winner_is_verified_and_served_without_a_search(member: Parts, store: Path) -> None:
    """Its config and the default are measured, nothing else; it is no news to the store."""
    kernel = await member.inspect(KERNEL)
    publish(store, member, kernel, BEST, 0.02)
    async with member.working():
        job = await tuned(member, kernel)
        assert (job.outcomes, job.state) == ({"measured": 2}, "done")
        # The counter has steps: on a busy machine a short window's energy is one of few steps.
        words = r"the shared config holds here, 0\.02\d* J, 0\.02 J where it was found; nothing else was searched"
        assert re.fullmatch(words, job.message), job.message
        assert looked_up(member) == (Status.FRESH, BEST)
        assert await member.daemon.share_exchange.publish_all() == 0
        # To tune what has a fresh winner is to look for a better one.
        assert (await tuned(member, kernel)).outcomes == {"measured": 5}
    assert len(objects(store)) == 1


async def test_a_config_that_does_not_hold_begins_the_search(member: Parts, store: Path) -> None:
    """A figure that is not reached here skips nothing: its config was the first candidate of a whole search."""
    kernel = await member.inspect(KERNEL)
    publish(store, member, kernel, SECOND, 0.001)
    async with member.working():
        job = await tuned(member, kernel)
    first = min(member.store.list_trials(kernel=job.kernel), key=lambda trial: trial.id)
    assert (first.config, job.outcomes) == (SECOND, {"measured": 5})
    words = r"the shared config takes 0\.03\d* J here, 0\.001 J where it was found; the search went on"
    assert re.search(words, job.message), job.message
    assert looked_up(member) == (Status.FRESH, BEST)


async def test_without_sharing_nothing_is_used_and_nothing_shared(member: Parts, store: Path) -> None:
    """`--no-share` searches, and its winner stays here; then what is better there competes, once."""
    kernel = await member.inspect(KERNEL)
    place = publish(store, member, kernel, BEST, 0.02)
    exchange = member.daemon.share_exchange
    async with member.working():
        await tuned(member, kernel, no_share=True, configs=(SECOND,))
        assert looked_up(member) == (Status.FRESH, SECOND)
        assert (await exchange.publish_all(), objects(store)) == (0, [place])
        pulled = await exchange.exchange_all_winners()
        await member.told.ended(2)
        assert (len(pulled.jobs), looked_up(member)) == (1, (Status.FRESH, BEST))
        assert (await exchange.exchange_all_winners()).jobs == ()


async def test_a_look_around_verifies_for_what_is_stale(member: Parts, store: Path) -> None:
    """After an edit that another member has tuned, the winner from there is verified before anyone asks."""
    kernel = await member.inspect(KERNEL)
    await decided(member, await member.inspect(kernel_text(objective="'min:energy'")))
    kernel = await member.inspect(KERNEL)
    publish(store, member, kernel, BEST, 0.02)
    exchange = member.daemon.share_exchange
    async with member.working():
        pulled = await exchange.pull_winners([kernel])
        assert (pulled.found, pulled.fresh, len(pulled.jobs)) == (1, 0, 1)
        # It works on that already.
        assert (await exchange.exchange_all_winners()).jobs == ()
        await member.told.ended()
        job = member.jobs.get_job(pulled.jobs[0].id)
        assert job is not None
        assert (job.reason, job.outcomes) == ("found by others", {"measured": 2})
        assert looked_up(member) == (Status.FRESH, BEST)
        assert (await exchange.pull_winners([kernel])).fresh == 1


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
    winners = member.daemon.shared_winners
    assert await winners.find_best_candidate(key_of(member, kernel)) is None
    (notice,) = winners.notices
    assert "damaged winners, which are left out" in notice
    publish(store, member, kernel, SECOND, 0.03)
    best = await winners.find_best_candidate(key_of(member, kernel))
    assert (None if best is None else best.config, len(winners.notices)) == (SECOND, 1)
    for one in objects(store):
        if one != place:
            one.unlink()
    place.write_bytes(data)
    best = await winners.find_best_candidate(key_of(member, kernel))
    assert winners.notices == ([] if damage != "newer" else winners.notices)
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
    assert await member.daemon.shared_winners.find_best_candidate(key_of(member, kernel)) is None


async def test_a_store_that_is_not_there_is_a_notice(member: Parts, store: Path) -> None:
    """When it is back, what was decided meanwhile is published, once."""
    store.rmdir()
    kernel = await member.inspect(kernel_text())
    await decided(member, kernel)
    winners, exchange = member.daemon.shared_winners, member.daemon.share_exchange
    assert await member.daemon.shared_winners.find_best_candidate(key_of(member, kernel)) is None
    with pytest.raises(SharedStoreDown):
        await exchange.publish_all()
    (notice,) = winners.notices
    assert "it does not exist (make it, or mount what belongs there); tuning continues without it" in notice
    store.mkdir()
    # As after its pause.
    exchange.apply_settings(ShareSettings(str(store), pull_s=60.0))
    assert await exchange.publish_all() == 1
    assert (winners.notices, await exchange.publish_all()) == ([], 0)


async def test_a_bridge_that_is_killed_is_a_notice(tmp_path: Path, store: Path) -> None:
    """A later call starts another one, and publishes what the first could not."""
    async with assembled(tmp_path) as parts, parts.daemon.bridge.accept_calls():
        winners, exchange, bridge = parts.daemon.shared_winners, parts.daemon.share_exchange, parts.daemon.bridge
        exchange.apply_settings(ShareSettings(str(store)))
        await decided(parts, await parts.inspect(kernel_text()))
        await bridge.call_service(Hello(), PATIENCE_S)
        bridge.kill("killed by a test")
        with pytest.raises(SharedStoreDown):
            await exchange.publish_all()
        assert "killed by a test" in winners.notices[0]
        # As after its pause.
        exchange.apply_settings(ShareSettings(str(store), pull_s=60.0))
        with anyio.fail_after(PATIENCE_S):
            while bridge.pause_s:  # noqa: ASYNC110 - nothing reports the end of a pause
                await anyio.sleep(bridge.pause_s)
        assert (await exchange.publish_all(), len(objects(store))) == (1, 1)


async def test_what_is_not_decided_here_is_not_published(member: Parts, store: Path) -> None:
    """Neither a first measurement, nor a winner of an earlier state; one that holds again is."""
    kernel = await member.inspect(kernel_text())
    await member.measured(kernel, {50.0: 50.0})
    exchange = member.daemon.share_exchange
    assert await exchange.publish_all() == 0
    (winner,) = member.store.list_winners(kernel.name)
    await member.store.decide_winner(winner.trial)
    await member.inspect(kernel_text(reference="lambda t: t"))
    assert await exchange.publish_all() == 0
    await member.inspect(kernel_text())
    assert await exchange.publish_all() == 1


async def test_a_daemon_that_starts_again_sends_nothing_twice(tmp_path: Path, store: Path) -> None:
    """It keeps no account of what it published: the store itself says what it has."""
    for sent in (1, 0):
        async with assembled(tmp_path) as parts, parts.daemon.bridge.accept_calls():
            parts.daemon.share_exchange.apply_settings(ShareSettings(str(store)))
            kernel = await parts.inspect(kernel_text())
            if sent:
                await decided(parts, kernel)
            assert await parts.daemon.share_exchange.publish_all() == sent
    assert len(objects(store)) == 1


class MemoryStore(SharedStore):
    """A stranger's store: what the seam asks for, and no more. The first writes may be refused."""

    def __init__(self, settings: ShareSettings, bridge: Bridge) -> None:
        super().__init__(settings, bridge)
        self.winners: list[StoredWinner] = []
        self.refusals = 0
        self.written = anyio.Event()

    async def publish(self, address: str, winner: SharedWinner) -> None:
        """Keep a winner."""
        if self.refusals:
            self.refusals -= 1
            raise SharedStoreDown("it is full")
        self.winners.append(StoredWinner(address, winner, time()))
        self.written.set()

    async def find(self, kernel: str, addresses: Collection[str]) -> Found:
        """Return what is there."""
        return Found(tuple(one for one in self.winners if one.address in addresses))


@pytest.mark.parametrize("refusals", [0, 2])
async def test_a_winner_is_published_when_its_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    """In the background, by a store that only implements the seam; one that refuses is tried again."""
    monkeypatch.setattr(shared_winners, "FIRST_PAUSE_S", 0.01)
    async with assembled(tmp_path) as parts, parts.working(), anyio.create_task_group() as tasks:
        settings = ShareSettings("memory://", pull_s=1e6)
        memory = MemoryStore(settings, parts.daemon.bridge)
        memory.refusals = refusals
        parts.daemon.shared_winners._opened = lambda settings, bridge: memory
        parts.daemon.share_exchange.apply_settings(settings)
        tasks.start_soon(parts.daemon.share_exchange.run_until_cancelled)
        await tuned(parts, await parts.inspect(KERNEL))
        with anyio.fail_after(PATIENCE_S):
            await memory.written.wait()
        (stored,) = memory.winners
        assert (dict(stored.winner.config), memory.refusals) == (BEST, 0)
        # A stranger's winner counts as any other's.
        best = await parts.daemon.shared_winners.find_best_candidate(key_of(parts, parts.catalog.resolve_kernel("it")))
        assert (None if best is None else best.config) == BEST
        tasks.cancel_scope.cancel()


async def test_a_store_that_is_wrong_harms_nothing(member: Parts) -> None:
    """One that raises anything is a notice; so is a winner that has no figure, and another one beside it counts."""
    kernel = await member.inspect(KERNEL)
    key = key_of(member, kernel)
    memory = MemoryStore(ShareSettings("memory://"), member.daemon.bridge)
    winners = member.daemon.shared_winners
    winners._opened = lambda settings, bridge: memory
    member.daemon.share_exchange.apply_settings(memory.settings)
    sound = replace(shared_winner(key.context, BEST, 0.02), names=learned_names(kernel))
    memory.winners = [StoredWinner(find_address(key), one, 1.0) for one in (replace(sound, metrics={}), sound)]
    best = await winners.find_best_candidate(key)
    assert (None if best is None else best.config) == BEST
    (notice,) = winners.notices
    assert notice.endswith(f"a winner at {find_address(key)} has no figure by energy")

    async def broken(kernel: str, addresses: Collection[str]) -> Found:
        raise KeyError("its own mistake")

    memory.find = broken  # type: ignore[method-assign]
    assert await winners.find_best_candidate(key) is None
    assert winners.notices[0] == "the shared store: KeyError: 'its own mistake'; tuning continues without it"


async def test_a_missing_plugin_is_known_before_there_is_anything_to_share(member: Parts) -> None:
    """A look around without kernels says so, too."""
    member.daemon.share_exchange.apply_settings(ShareSettings("corp://kernels"))
    with pytest.raises(SharedStoreDown, match="no plugin that serves corp://"):
        await member.daemon.share_exchange.exchange_all_winners()


async def test_a_url_that_no_plugin_serves_is_a_notice_with_the_remedy(member: Parts) -> None:
    """Tuning goes on; `push` says the same."""
    kernel = await member.inspect(kernel_text())
    await decided(member, kernel)
    exchange = member.daemon.share_exchange
    exchange.apply_settings(ShareSettings("corp://kernels"))
    assert await member.daemon.shared_winners.find_best_candidate(key_of(member, kernel)) is None
    words = "corp://kernels: no plugin that serves corp:// is installed (pip install 'ktuned[team]')"
    assert member.daemon.shared_winners.notices == [f"the shared store: {words}; tuning continues without it"]
    with pytest.raises(SharedStoreDown, match="no plugin that serves corp://"):
        await exchange.publish_all()


async def test_read_only_writes_nothing(member: Parts, store: Path) -> None:
    """However long it runs; others' winners are read."""
    kernel = await member.inspect(kernel_text())
    await decided(member, kernel)
    member.daemon.share_exchange.apply_settings(ShareSettings(str(store), read_only=True))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(member.daemon.share_exchange.run_until_cancelled)
        with anyio.fail_after(PATIENCE_S):
            while member.daemon.share_exchange.last_look is None:
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
    assert await member.daemon.share_exchange.publish_all() == 1
    assert not old.exists()
    assert mine.exists()
    assert len(objects(store)) == 2


async def test_learned_names_are_compared_by_content(tmp_path: Path, store: Path) -> None:
    """A header that only compiling shows: equal here, it is learned, and the winner holds; else it does not."""
    async with assembled(tmp_path) as first:
        first.write("#define N 1\n", "cfg.h")
        kernel = await first.inspect(KERNEL)
        found = await first.inspector.observe_names(kernel, [Observation("cfg.h", "", is_source=True)])
        below = [replace(one, places=("cfg.h",)) for one in found]
        await first.daemon.traces.learn_names(kernel, below)
        place = publish(store, first, first.catalog.resolve_kernel("it"), BEST, 0.02)
    for content, is_found in (("#define N 1\n", True), ("#define N 2\n", False)):
        directory = tmp_path / str(is_found)
        directory.mkdir()
        async with assembled(directory) as parts, parts.daemon.bridge.accept_calls():
            parts.daemon.share_exchange.apply_settings(ShareSettings(str(store)))
            parts.write(content, "cfg.h")
            kernel = await parts.inspect(KERNEL)
            assert place.parent.name == make_address(context_of(parts, kernel), kernel.learned.values(), BY_ENERGY)
            best = await parts.daemon.shared_winners.find_best_candidate(key_of(parts, kernel))
            assert (best is not None) is is_found
            assert ("cfg.h" in parts.catalog.resolve_kernel("it").learned) is is_found


async def test_a_store_that_was_emptied_is_filled_again(member: Parts, store: Path) -> None:
    """A cache that restarts, a bucket that is cleared: the next pass sends what it lacks, whoever asks for it."""
    kernel = await member.inspect(kernel_text())
    await decided(member, kernel)
    exchange = member.daemon.share_exchange
    assert (await exchange.publish_all(), await exchange.publish_all()) == (1, 0)
    before = shared(store)
    shutil.rmtree(store / "v1")
    assert (await exchange.publish_all(), shared(store)) == (1, before)
    shutil.rmtree(store / "v1")
    assert ((await exchange.exchange_all_winners()).sent, shared(store)) == (1, before)


async def test_what_still_holds_is_sent_again_before_it_expires(member: Parts, store: Path) -> None:
    """Half way to its removal, and not before."""
    kernel = await member.inspect(kernel_text())
    await decided(member, kernel)
    exchange = member.daemon.share_exchange
    assert await exchange.publish_all() == 1
    (place,) = objects(store)
    days = {age: time() - age * 86_400 for age in (89, 91)}
    os.utime(place, (days[89], days[89]))
    assert await exchange.publish_all() == 0
    os.utime(place, (days[91], days[91]))
    assert await exchange.publish_all() == 1
    assert objects(store) == [place]
    assert place.stat().st_mtime > days[89]


async def test_a_store_that_cannot_be_written_is_read_nevertheless(member: Parts, store: Path) -> None:
    """A full bucket, a replica: its notice stands while others' winners are read, and its pauses grow."""
    kernel = await member.inspect(KERNEL)
    publish(store, member, kernel, SECOND, 0.03)
    await member.inspect(kernel_text(name="other"), "tune_other.py")
    other = member.catalog.resolve_kernel("other")
    await member.measured(other, {50.0: 50.0})
    (winner,) = member.store.list_winners(other.name)
    await member.store.decide_winner(winner.trial)
    (store / make_kernel_prefix(other.name)).write_text("in the way")
    winners, exchange = member.daemon.shared_winners, member.daemon.share_exchange
    with pytest.raises(SharedStoreDown):
        await exchange.publish_all()
    assert winners.pause_s(StoreUse.WRITE) > 0
    best = await member.daemon.shared_winners.find_best_candidate(key_of(member, kernel))
    assert (None if best is None else best.config, winners.pause_s(StoreUse.READ)) == (SECOND, 0.0)
    (notice,) = winners.notices
    assert "Not a directory; tuning continues without it" in notice


async def test_a_sweep_that_is_refused_loses_nothing(
    member: Parts, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where objects may be written and not removed `push` has published."""

    async def refused(shared: TeamStore) -> None:
        raise SharedStoreDown("access denied")

    await decided(member, await member.inspect(kernel_text()))
    monkeypatch.setattr(TeamStore, "tidy", refused)
    assert (await member.daemon.share_exchange.publish_all(), len(objects(store))) == (1, 1)
    (notice,) = member.daemon.shared_winners.notices
    assert "access denied" in notice


async def test_others_with_other_headers_hide_nothing(member: Parts, store: Path) -> None:
    """However many they are, and however new: the winner of this very digest is found."""
    kernel = await member.inspect(KERNEL)
    place = publish(store, member, kernel, BEST, 0.02)
    os.utime(place, (1.0, 1.0))
    for number in range(6):
        names = (LearnedName(f"absent{number}.h", is_source=True),)
        publish(store, member, kernel, SECOND, 0.01, digest=f"{number}" * 64, names=names)
    best = await member.daemon.shared_winners.find_best_candidate(key_of(member, kernel))
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
        assert (await member.daemon.share_exchange.exchange_all_winners()).jobs == ()
    assert job.outcomes == {"measured": 5}
    assert looked_up(member) == (Status.FRESH, BEST)


async def test_absurd_figures_decide_nothing(member: Parts, store: Path) -> None:
    """What is measured here decides, and the wrong clock of a writer neither hides nor keeps anything."""
    kernel = await member.inspect(KERNEL)
    many = {"energy": 0.001, **{str(number): 0.0 for number in range(10_000)}}
    fields: list[dict[str, Any]] = [
        {"decided": 1e300},
        {"decided": -1e300, "spread_us": 1e300},
        {"metrics": {"energy": 1.7e308}, "latency_us": 1.7e308},
        {"metrics": {"energy": 1.7e308}},
        {"metrics": {"energy": 5e-324}, "latency_us": 5e-324},
        {"metrics": many},
    ]
    for one in fields:
        publish(store, member, kernel, SECOND, 0.001, **one)
    best = await member.daemon.shared_winners.find_best_candidate(key_of(member, kernel))
    assert (len(objects(store)), None if best is None else best.config) == (6, SECOND)
    async with member.working():
        await tuned(member, kernel)
    assert looked_up(member) == (Status.FRESH, BEST)
