"""Shared stores, in which several daemons exchange winners. Plugins implement them.

A store is a bag of winners by address. The daemon makes all judgements: which of its winners are worth publishing,
whether another's winner was measured in this very context, and what is tried. A winner from a store is never served
unseen: its config is compiled, checked and timed here first. So a store has two tasks, to keep a winner and to find
those at some addresses, and whatever it returns does no harm.

An address is the digest of a context as far as an inspection of the sources shows it. Daemons that have learned
different headers so far have the same address for the same sources; the daemon then compares which of the winners there
hold here.

To write one, subclass :class:`SharedStore` and register it in the entry-point group ``ktuned.shared_stores`` under each
URL scheme that it serves (``file`` is also what a plain path means)::

    [project.entry-points."ktuned.shared_stores"]
    corp = "corp_store:CorpStore"

``url = "corp://kernels"`` under ``[share]`` in config.toml then opens it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from ktuned.model import (
    LATENCY,
    Context,
    KtunedError,
    Objective,
    Observation,
    Record,
    Scalar,
    UsageError,
    canonical,
    cost_of,
    figure_of,
    read_objective,
    record,
    reduce_digest,
)
from ktuned.sharing.settings import ShareSettings, hide_secrets

if TYPE_CHECKING:
    # The bridge's process imports this module, too, and has no fleet.
    from ktuned.fleet import Bridge

GROUP: Final = "ktuned.shared_stores"
"""The group of entry points, which are named by URL schemes."""

INSTALL: Final = "pip install 'ktuned[team]'"
"""Installs the plugin for directories, object storage and Redis."""


class SharedStoreDown(KtunedError):
    """A shared store cannot be used now: it does not answer, refuses, or is full. The message says why in one line."""

    code = "shared_store_down"


@record
class LearnedName(Record):
    """A name that only compiling or measuring has shown, and what it was read for, without its content."""

    name: str
    is_source: bool = False
    is_data: bool = False


@record
class SharedWinner(Record):
    """A winner as daemons share it: its context, its config, its figures, and when it was decided (Unix seconds).

    ``names`` are those that ``digest`` covers in addition to what an inspection finds.
    """

    kernel: str
    problem: Mapping[str, Scalar]
    device: str
    digest: str
    toolchain: str
    device_fingerprint: str
    measuring_version: int
    config: Mapping[str, Scalar]
    latency_us: float
    spread_us: float | None
    decided: float
    objective: str = LATENCY
    metrics: Mapping[str, float] = field(default_factory=dict)
    names: tuple[LearnedName, ...] = ()

    @property
    def cost(self) -> float:
        """Its cost by its objective; less is better."""
        cost = cost_of(Objective(self.objective), figure_of(Objective(self.objective), self.latency_us, self.metrics))
        assert cost is not None
        return cost

    def find_fault(self) -> str:
        """Return why the winner cannot be believed, beginning with 'has'; empty if it can be."""
        try:
            objective = read_objective(self.objective)
        except UsageError as error:
            return f"has a strange objective: {error.message}"
        figures = (self.latency_us, self.decided, self.spread_us or 0.0, *self.metrics.values())
        if not all(map(math.isfinite, figures)) or self.latency_us <= 0:
            return "has no finite figures"
        if cost_of(objective, figure_of(objective, self.latency_us, self.metrics)) is None:
            return f"has no figure by {objective}"
        values = (*self.problem.values(), *self.config.values())
        if not all(math.isfinite(value) for value in values if isinstance(value, float)):
            return "has a value that is no number"
        return ""


class StoredWinner(msgspec.Struct, frozen=True):
    """A winner in a store: its address, and when it was last written (Unix seconds, by the store's clock)."""

    address: str
    winner: SharedWinner
    written: float


class Found(msgspec.Struct, frozen=True):
    """What a store has at some addresses; ``faults`` has a line for each entry that cannot be believed."""

    winners: tuple[StoredWinner, ...] = ()
    faults: tuple[str, ...] = ()


class SharedStore(ABC):
    """Keeps winners for several daemons.

    The daemon makes one in its own process when the settings name it, and again when they change. So the constructor
    must neither block nor connect to anything. What may block, or imports a large library, runs in the bridge, a
    process that can be killed at any moment: as a :class:`~ktuned.bridge.Service` there, which is called by
    ``bridge.call_service(call, deadline_s)`` here. Errors other than those named count as a failure of the store, too.

    Args:
        settings: the ``[share]`` table. ``retention_s`` and ``cap_bytes`` are for :meth:`tidy`.
        bridge: the daemon's bridge.

    Raises:
        SharedStoreDown: The URL means nothing to this kind of store.
    """

    def __init__(self, settings: ShareSettings, bridge: Bridge) -> None:
        self.settings = settings
        self.bridge = bridge

    @abstractmethod
    async def publish(self, address: str, winner: SharedWinner) -> None:
        """Keep a winner, whole or not at all, and return when it is there.

        The same winner may be published again, by this daemon or another one: then only its time of writing changes.

        Args:
            address: hexadecimal digits, 32 of them.
            winner: about a kilobyte, or up to 250 KB if a kernel reads thousands of headers.

        Raises:
            SharedStoreDown: It cannot be kept now; the daemon tries again later.
        """

    @abstractmethod
    async def find(self, kernel: str, addresses: Collection[str]) -> Found:
        """Return the winners of a kernel at some addresses. The newest few dozen of each address are enough.

        This is called with one address when a job begins, and every few minutes with all of a kernel's addresses that
        are in use here, at most a thousand. So cache what was read before.

        Raises:
            SharedStoreDown: Nothing can be read now. Entries that cannot be believed are left out and named in
                ``faults`` instead.
        """

    async def tidy(self) -> None:
        """Remove what is past its retention, then the oldest beyond the cap; after publishing, every six hours at most.

        Raises:
            SharedStoreDown: it cannot be done now, or not by us; that is a notice, and harms nothing.
        """
        return


def open_shared_store(settings: ShareSettings, bridge: Bridge) -> SharedStore:
    """Return the store at the URL of the settings.

    Raises:
        SharedStoreDown: no plugin that is installed here serves its scheme, or that one refuses the URL.
    """
    # Not at the top: a daemon without a shared store reads no metadata.
    from importlib.metadata import entry_points

    scheme = urlsplit(settings.url).scheme or "file"
    shown = hide_secrets(settings.url)
    entries = list(entry_points(group=GROUP, name=scheme))
    if not entries:
        raise SharedStoreDown(f"{shown}: no plugin that serves {scheme}:// is installed", hint=INSTALL)
    try:
        opened = entries[0].load()(settings, bridge)
    except ImportError as error:
        raise SharedStoreDown(f"{shown}: the plugin {entries[0].value} cannot be imported: {error}") from error
    assert isinstance(opened, SharedStore)
    return opened


def address_of(context: Context, learned: Iterable[Observation], objective: Objective) -> str:
    """Return where the winners of a context are: equal on machines that have learned different names so far.

    ``learned`` are the names that the context's digest covers.
    """
    parts = {
        "kernel": context.kernel,
        "problem": context.problem,
        "device": context.device,
        "digest": reduce_digest(context.digest, learned),
        "toolchain": context.toolchain,
        "device_fingerprint": context.device_fingerprint,
        "measuring_version": context.measuring_version,
        "objective": objective,
    }
    return sha256(canonical(parts).encode(errors="surrogatepass")).hexdigest()[:32]
