"""A team's store: winners that several daemons exchange through a directory or a bucket.

Two daemons with equal sources, toolchains and devices should not both search. So each writes the winners that it has
measured to the store, as documents of ``ktuned export``, and imports those of others by the rules of ``ktuned import``:

==================  ================================================================================================
at the start        write our winners that the store lacks, read others' for all kernels
a job begins        if its kernel was not looked for in its present state, read, and wait for that at most 5 s. A winner
                    of the job's context that was imported then ends the job (:meth:`ktuned.tuning.Pipeline.run`)
a job has ended     write the kernel's winners, and read others' for it
every ``pull_s``    write and read for all kernels
on request          ``ktuned share push`` and ``ktuned share pull``
==================  ================================================================================================

*Names.* An object is ``v1/KERNEL@DEVICE/STATE/DIGEST.json``: one winner, never changed, named by the digest of its
bytes. So two daemons cannot overwrite each other's winners, and what was read is not read again. STATE is a digest of
the kernel's sources, toolchain and driver, but without the names that were learned later, such as headers that only a
compile reads: another daemon may not know them yet. So a daemon lists only what may hold here.

*Nothing is lost.* A winner waits in memory until the store has it. After ``kill -9``, the next daemon begins with all
current winners of its own store, and writes those that the team's store lacks.

*Processes.* The program ``python -m ktuned_team`` reads and writes. It lives for a moment, and is killed at a deadline,
because file systems and networks hang. The daemon itself imports no library for object storage. If the store cannot be
used, ``ktuned status`` says why, tuning continues, and the store is tried again after a pause.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Any, Never

import anyio
import anyio.lowlevel
import msgspec
import structlog

from ktuned.answers import Knowledge
from ktuned.fleet import Health, ProgramFailed, Programs, run_program
from ktuned.model import LATENCY, FrozenStruct, KernelInfo, KtunedError, NotFound, UsageError, canonical, reduce_digest
from ktuned.protocol import SHARE, Event, ExportedWinner, JobDone, ShareAnswer, ShareInfo, ShareParams, WinnersDocument
from ktuned.serve.exchange import MAX_IMPORTED, WinnerExchange
from ktuned.serve.method import Handler, Peer
from ktuned.store import IMPORTED, Context
from ktuned.tuning import PresentKey

_log = structlog.get_logger()

COMMAND = (sys.executable, "-P", "-m", "ktuned_team")

INSTALL = "pip install 'ktuned[team]'"

MIN_PULL_S = 5.0
"""Least ``pull_s``: more frequent looks would cost more than they find."""

RUN_S = 120.0
"""Deadline of one run of the program: thousands of objects over a slow link."""

FIRST_LOOK_S = 5.0
"""A job waits this long for others' winners. A remote store takes about a second, and a search costs more."""

PACE_S = 5.0
"""Least time between two runs because of jobs that have ended: many small jobs end in a second."""

FIRST_PAUSE_S = 5.0
"""Pause after a failure; each further failure doubles it, up to a minute."""

MAX_UNSENT = 10_000
"""Most winners that wait for the store, a kilobyte each. The oldest give way: others find them in our own store."""


class ShareSettings(FrozenStruct, forbid_unknown_fields=True):
    """The ``[share]`` table of ``config.toml``.

    Attributes:
        url: Where the team's store is; empty if there is none.
        read_only: Whether winners are only read from it, and none written.
        pull_s: Interval at which it is read, in seconds.
    """

    url: str = ""
    read_only: bool = False
    pull_s: float = 300.0

    def find_fault(self) -> str:
        """Return the first invalid field and what is wrong with it; empty if all are valid."""
        if self.url and not self.url.startswith(("/", "~")) and "://" not in self.url:
            return f"url is {hide_secrets(self.url)!r}: give a full path, or s3://BUCKET/PREFIX"
        if not MIN_PULL_S <= self.pull_s < inf:
            return f"pull_s is {self.pull_s}: give {MIN_PULL_S:g} s or more"
        return ""


def hide_secrets(url: str) -> str:
    """Return a URL without its password and parameters, for messages and logs."""
    if url.startswith(("/", "~")):
        return url
    scheme, mark, place = url.rpartition("://")
    return f"{scheme}{mark}{place.rpartition('@')[2].partition('?')[0]}"


class TeamStoreDown(KtunedError):
    """The team's store cannot be used now."""

    code = "team_store_down"


class _Reply(FrozenStruct):
    """The program's reply; :mod:`ktuned_team.__main__` explains the fields."""

    objects: dict[str, str] = {}
    left_out: dict[str, str] = {}
    stored: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    has_more: bool = False


class TeamStore(msgspec.Struct, eq=False):
    """Exchanges winners with the store that the settings name: in the background, and at once on request.

    Args:
        directory: The program's working directory.
        programs: Has the program's environment.
    """

    settings: ShareSettings
    known: Knowledge
    exchange: WinnerExchange
    directory: Path
    programs: Programs
    _lock: anyio.Lock = msgspec.field(default_factory=anyio.Lock)
    _woken: anyio.Event = msgspec.field(default_factory=anyio.Event)
    _health: Health = msgspec.field(default_factory=lambda: Health(first_pause_s=FIRST_PAUSE_S))
    _jobs_begin: set[str] = set()
    _jobs_ended: set[str] = set()
    _looked_at: dict[str, anyio.Event] = {}
    _read: dict[str, tuple[str, set[str]]] = {}
    _left_out: dict[str, str] = {}
    _unsent: dict[str, str] = {}
    _collected: set[tuple[int, float]] = set()
    _next_look: float = 0.0
    _last_run: float = -inf
    _exchanged: float | None = None
    _sent: int = 0
    _taken: int = 0

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(SHARE, self.handle_share)]

    async def handle_share(self, params: ShareParams, peer: Peer) -> ShareAnswer:
        """Write our winners to the store, or read others', and wait until that is done.

        Raises:
            UsageError: There is no store, or it is only read here.
            TeamStoreDown: The store cannot be used now.
        """
        if not self.settings.url:
            raise UsageError("no team's store is configured", hint="set `url` of [share] in config.toml")
        if params.push and self.settings.read_only:
            raise UsageError("this daemon only reads the team's store", hint="leave out `read_only` of [share]")
        before = self._sent, self._taken
        await self.exchange_winners(self.known.catalog.kernels, pulls=not params.push)
        return ShareAnswer(hide_secrets(self.settings.url), self._sent - before[0], self._taken - before[1])

    def describe_exchange(self) -> ShareInfo | None:
        """Return where the store is, and what was exchanged since the start; ``None`` if there is none."""
        settings = self.settings
        if not settings.url:
            return None
        url = hide_secrets(settings.url)
        return ShareInfo(url, settings.read_only, self._exchanged, self._sent, self._taken)

    @property
    def notices(self) -> list[str]:
        """Why winners are not exchanged, and which objects are left out, one line each."""
        place = hide_secrets(self.settings.url)
        lines = []
        if self._health.is_sick:
            lines.append(f"the team's store {place}: {self._health.reason}; tuning continues without it")
        if self._left_out:
            name, reason = min(self._left_out.items())
            count = f"{len(self._left_out)} objects are" if len(self._left_out) > 1 else "an object is"
            lines.append(f"the team's store {place}: {count} left out: {name}: {reason}")
        return lines

    def handle_event(self, event: Event) -> None:
        """Write a kernel's winners soon after one of its jobs has ended."""
        if isinstance(event, JobDone) and self.settings.url:
            self._jobs_ended.add(event.kernel)
            self._woken.set()

    async def await_first_look(self, key: PresentKey) -> bool:
        """Wait until others' winners were looked for in a key's state, at most :data:`FIRST_LOOK_S`.

        Return whether there is a store.
        """
        if not self.settings.url or self._health.pause_s:
            return bool(self.settings.url)
        looked = self._looked_at.setdefault(make_prefix(key.kernel, key.context), anyio.Event())
        if not looked.is_set():
            self._jobs_begin.add(key.kernel.name)
            self._woken.set()
            with anyio.move_on_after(FIRST_LOOK_S):
                await looked.wait()
        return True

    async def run_until_cancelled(self) -> None:
        """Exchange winners in the background until cancelled."""
        while True:
            self._woken = anyio.Event()
            if monotonic() >= self._find_next_time():
                names = {*self._jobs_begin, *self._jobs_ended}
                is_look = monotonic() >= self._next_look
                kernels = [one for one in self.known.catalog.kernels if is_look or one.name in names]
                with suppress(TeamStoreDown):
                    await self.exchange_winners(kernels)
                    self._jobs_begin -= names
                    self._jobs_ended -= names
                    if is_look:
                        self._next_look = monotonic() + self.settings.pull_s
            with anyio.move_on_after(max(0.0, self._find_next_time() - monotonic())):
                await self._woken.wait()

    def _find_next_time(self) -> float:
        """Return when the next exchange is due, on the clock of ``monotonic``."""
        if not self.settings.url:
            return inf
        due = 0.0 if self._jobs_begin else self._last_run + PACE_S if self._jobs_ended else inf
        pause_s = self._health.pause_s
        return monotonic() + pause_s if pause_s else min(due, self._next_look)

    async def exchange_winners(self, kernels: Sequence[KernelInfo], *, pulls: bool = True) -> None:
        """Write the winners of some kernels that the store lacks, and read others' winners of these kernels.

        Raises:
            TeamStoreDown: The store cannot be read or written.
        """
        async with self._lock:
            looked: dict[str, KernelInfo] = {}
            for kernel in kernels:
                await anyio.lowlevel.checkpoint()
                if not self.settings.read_only:
                    self._collect_winners(kernel)
                if pulls:
                    looked |= dict.fromkeys(self._list_prefixes(kernel), kernel)
            # What is left out is read again once in each exchange: it may have been removed or replaced.
            self._left_out = {name: why for name, why in self._left_out.items() if find_prefix(name) not in looked}
            has_more = bool(looked or self._unsent)
            while has_more:
                reply = await self._run_program(looked)
                has_more = reply.has_more
                await self._take_objects(reply.objects, looked)
                for name in reply.stored:
                    self._sent += self._unsent.pop(name, None) is not None
                self._left_out |= reply.left_out
                if reply.faults:
                    self._fail("; ".join(reply.faults))
            self._health.record_success()
            self._exchanged = time()
            for prefix in looked:
                self._looked_at.setdefault(prefix, anyio.Event()).set()

    async def _run_program(self, looked: Mapping[str, KernelInfo]) -> _Reply:
        """Run the program once."""
        if find_spec(COMMAND[-1]) is None:
            self._fail(f"its plugin is not installed ({INSTALL})")
        known = {*self._left_out}.union(*map(self._list_read, looked.values()))
        request = {"url": self.settings.url, "prefixes": [*looked], "known": [*known], "puts": self._unsent}
        self._last_run = monotonic()
        try:
            answered = await run_program(
                COMMAND,
                msgspec.json.encode(request),
                deadline_s=RUN_S,
                directory=self.directory,
                programs=self.programs,
            )
            return msgspec.json.decode(answered, type=_Reply)
        except (ProgramFailed, msgspec.MsgspecError) as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> Never:
        reason = reason.replace(self.settings.url, hide_secrets(self.settings.url)).rstrip(".")
        log = _log.info if self._health.is_sick else _log.warning
        log("team_store_failed", url=hide_secrets(self.settings.url), reason=reason)
        self._health.record_failure(reason)
        raise TeamStoreDown(f"{hide_secrets(self.settings.url)}: {reason}")

    def _collect_winners(self, kernel: KernelInfo) -> None:
        """Have a kernel's winners written that a final round here has decided in the present context."""
        from ktuned_client.winners import render_document

        for winner in () if kernel.unobserved else self.known.store.list_winners(kernel.name):
            mark = (winner.trial, winner.decided)
            if not winner.is_final or mark in self._collected or len(self._unsent) >= MAX_UNSENT:
                continue
            trial, context = self.known.store.get_trial(winner.trial), winner.context
            is_current = self.exchange.build_context_today(kernel, winner.problem, context.device) == context
            if trial is None or trial.detail.failure.phase == IMPORTED or not is_current:
                continue
            document = self.exchange.build_document(kernel.name, context.device, [winner])
            text = render_document(msgspec.to_builtins(document))
            self._unsent[f"{make_prefix(kernel, context)}{sha256(text.encode()).hexdigest()}.json"] = text
            self._collected.add(mark)

    def _list_prefixes(self, kernel: KernelInfo) -> Iterator[str]:
        """Yield the prefixes of the objects that may hold for a kernel here, one for each device model."""
        with suppress(NotFound):
            environment = self.known.catalog.find_kernel_environment(kernel)
            # No problem is needed: it is not a part of a prefix.
            plain = msgspec.structs.replace(kernel, specialize=())
            for device in self.known.machine.list_devices(environment, kernel.backend):
                yield make_prefix(kernel, self.known.machine.build_context(plain, environment, {}, device))

    def _list_read(self, kernel: KernelInfo) -> set[str]:
        """Return the objects of a kernel that were imported in its present state: others are judged again."""
        digest, names = self._read.get(kernel.name, ("", set()))
        return names if digest == kernel.digest else set()

    async def _take_objects(self, objects: Mapping[str, str], looked: Mapping[str, KernelInfo]) -> None:
        """Import the winners of objects; those of one kernel, device and list of names together."""
        groups: dict[str, dict[str, WinnersDocument]] = {}
        for name, content in objects.items():
            try:
                document = read_object(name, content)
            except ValueError as error:
                self._left_out[name] = str(error)
            else:
                alike = canonical({"prefix": find_prefix(name), "names": msgspec.to_builtins(document.names or {})})
                groups.setdefault(alike, {})[name] = document
        for group in groups.values():
            names = [*group]
            for part in (names[start : start + MAX_IMPORTED] for start in range(0, len(names), MAX_IMPORTED)):
                await self._import_documents({name: group[name] for name in part}, looked)

    async def _import_documents(
        self, documents: Mapping[str, WinnersDocument], looked: Mapping[str, KernelInfo]
    ) -> None:
        by_objective: dict[str, list[ExportedWinner]] = {}
        for document in documents.values():
            for objective, winners in document.by_objective.items():
                by_objective.setdefault(objective, []).extend(winners)
        merged = msgspec.structs.replace(document, winners=by_objective.pop(LATENCY), objectives=by_objective)
        try:
            answer = await self.exchange.import_document(merged)
        except KtunedError as error:
            # The kernel may be gone, or our own store may be full. The next look tries again.
            _log.info("import_team_winners_failed", kernel=document.kernel, reason=error.message)
            return
        except Exception as error:
            # Whoever can write to the store must not be able to end the daemon.
            _log.warning("import_team_winners_raised", kernel=document.kernel, exc_info=error)
            self._left_out |= dict.fromkeys(documents, f"its import fails: {type(error).__name__}")
            return
        self._taken += sum(winner.taken for winner in answer.winners)
        for name in documents:
            kernel = looked[find_prefix(name)]
            self._read[kernel.name] = (kernel.digest, {*self._list_read(kernel), name})


def make_prefix(kernel: KernelInfo, context: Context) -> str:
    """Return the prefix of the objects that may hold in a context of a kernel's present state."""
    from ktuned_client.winners import make_file_name

    state = {
        "digest": reduce_digest(kernel.digest, kernel.learned.values()),
        "toolchain": context.toolchain,
        "device_fingerprint": context.device_fingerprint,
        "measuring_version": context.measuring_version,
    }
    place = make_file_name(kernel.name, context.device).removesuffix(".json")
    return f"v1/{place}/{sha256(canonical(state).encode()).hexdigest()[:32]}/"


def find_prefix(name: str) -> str:
    """Return the prefix of an object's name."""
    return f"{name.rpartition('/')[0]}/"


def read_object(name: str, content: str) -> WinnersDocument:
    """Return the document of an object, which holds one winner of the kernel and the device in the object's name.

    Raises:
        ValueError: It is another one, or none.
    """
    from ktuned_client.winners import check_document, make_file_name

    try:
        plain = msgspec.json.decode(content)
        check_document(plain)
        document = WinnersDocument.read(plain)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    except ValueError as error:
        raise ValueError(f"it {error}") from error
    if name.split("/")[1] != make_file_name(document.kernel, document.device).removesuffix(".json"):
        raise ValueError(f"it is of {document.kernel} on {document.device}")
    if document.count_winners() != 1:
        raise ValueError(f"it holds {document.count_winners()} winners")
    return document
