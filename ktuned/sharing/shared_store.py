"""Shared stores, in which several daemons exchange winners. Plugins implement them.

A store keeps winners by address. The daemon makes all decisions: which of its winners are worth publishing, whether
another daemon's winner was measured in this very context, and which winners are tried. A winner from a store is never
served unchecked: its config is first compiled, checked and timed here. So a store has only two tasks, to keep a winner
and to find the winners at some addresses, and nothing that it returns can do harm.

An address is the digest of a context, but without names that were learned later, such as headers that only a compile
reads. So daemons that have learned different names have the same address for the same sources. The daemon then
compares which of the winners found there hold here.

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
    Scalar,
    UsageError,
    canonical,
    convert_to_cost,
    read_objective,
    reduce_digest,
    select_figure,
)
from ktuned.sharing.settings import ShareSettings, hide_secrets

if TYPE_CHECKING:
    # The bridge's process imports this module, too, and has no fleet.
    from ktuned.fleet import Bridge

GROUP: Final = "ktuned.shared_stores"
"""The group of entry points; each is named by the URL scheme that it serves."""

INSTALL: Final = "pip install 'ktuned[team]'"
"""Installs the plugin for directories, object storage and Redis."""


class SharedStoreDown(KtunedError):
    """A shared store cannot be used now: it does not respond, denies access, or is full. The message is one line."""

    code = "shared_store_down"


class LearnedName(msgspec.Struct, frozen=True):
    """A name that was found only by compiling or measuring, and the purposes for which it was read; not its content."""

    name: str
    is_source: bool = False
    is_data: bool = False


class SharedWinner(msgspec.Struct, frozen=True):
    """A winner as daemons share it: its context, its config, its figures, and when it was decided (Unix seconds).

    ``digest`` covers the names that an inspection finds, and the learned ones, which are in ``names``.
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
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    names: tuple[LearnedName, ...] = ()

    @property
    def cost(self) -> float:
        """Its cost by its objective; less is better."""
        objective = Objective(self.objective)
        cost = convert_to_cost(objective, select_figure(objective, self.latency_us, self.metrics))
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
        if convert_to_cost(objective, select_figure(objective, self.latency_us, self.metrics)) is None:
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
    """The winners that a store has at some addresses; ``faults`` has a line for each entry that is not valid."""

    winners: tuple[StoredWinner, ...] = ()
    faults: tuple[str, ...] = ()


class SharedStore(ABC):
    """Keeps winners for several daemons.

    The daemon makes an instance in its own process when the settings name the store, and again when they change. So the
    constructor must neither block nor connect to anything. Code that may block, or imports a large library, belongs
    into the bridge, a process that can be killed at any moment: make it a :class:`~ktuned.bridge.Service` there, and
    call it here by ``bridge.call_service(call, deadline_s)``. Errors other than the documented ones count as a failure
    of the store, too.

    Args:
        settings: the ``[share]`` table. ``retention_s`` and ``cap_bytes`` are for :meth:`tidy`.
        bridge: the daemon's bridge.

    Raises:
        SharedStoreDown: This kind of store does not understand the URL.
    """

    def __init__(self, settings: ShareSettings, bridge: Bridge) -> None:
        self.settings = settings
        self.bridge = bridge

    @abstractmethod
    async def publish(self, address: str, winner: SharedWinner) -> None:
        """Keep a winner, atomically; return when it is stored.

        The same winner may be published again, by this daemon or another one. Then only its time of writing changes.

        Args:
            address: hexadecimal digits, 32 of them.
            winner: about a kilobyte, or up to 250 KB if a kernel reads thousands of headers.

        Raises:
            SharedStoreDown: The winner cannot be stored now; the daemon tries again later.
        """

    @abstractmethod
    async def find(self, kernel: str, addresses: Collection[str]) -> Found:
        """Return the winners of a kernel at some addresses. The newest few dozen of each address are enough.

        This is called with one address when a job begins, and every few minutes with all addresses of a kernel that
        are in use here, at most a thousand. So cache the entries that were read before.

        Raises:
            SharedStoreDown: Nothing can be read now. Invalid entries are no reason: they are left out, and named in
                ``faults``.
        """

    async def tidy(self) -> None:
        """Remove winners past their retention, then the oldest ones beyond the cap.

        This is called after publishing, at most every six hours.

        Raises:
            SharedStoreDown: this is not possible now, or not allowed. It only becomes a notice.
        """
        return


def open_shared_store(settings: ShareSettings, bridge: Bridge) -> SharedStore:
    """Return the store at the URL of the settings.

    Raises:
        SharedStoreDown: no installed plugin serves the URL's scheme, or the plugin refuses the URL.
    """
    # Imported here, so that a daemon without a shared store reads no package metadata.
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


def make_address(context: Context, learned: Iterable[Observation], objective: Objective) -> str:
    """Return the address of a context's winners; it does not depend on the names that a machine has learned.

    ``learned`` has the learned names that the context's digest covers.
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
